"""DLRM on samples in the shape of Criteo's log: 26 tables, 500,000 rows of 32 values in all.

The stream and its labels are :mod:`embedrock.data.criteo_shaped`'s, the model is
:mod:`embedrock.models.dlrm`'s with its layers 512-256-64 and 512-256: most of a step is computing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from embedrock.data import Position
from embedrock.data.criteo_shaped import CriteoShaped
from embedrock.models.dlrm import DLRM, DLRMConfig
from embedrock_lab.bench.training.load import Load, Shape, Tables, drawn

__all__ = ["load"]

ROWS = 500_000
DIM = 32
SAMPLES = 1024


def load(seed: int, steps: int | None, passes: int) -> Load:
    """The stream's batches, and the model."""
    steps = steps or 24
    stream = CriteoShaped(ROWS, seed=seed, samples=steps * passes * SAMPLES, test_samples=0)
    names = [feature.name for feature in stream.features]
    tables = {name: Shape(one.rows, DIM) for name, one in zip(names, stream.fields, strict=True)}
    config = DLRMConfig(stream.num_dense, len(names), DIM)

    def model(place: Tables) -> DLRM:
        return DLRM(config, place.bags(names))

    batches = list(stream.train_batches(SAMPLES, Position()))
    return Load("dlrm", SAMPLES, steps, tables, batches, model, _loss, drawn(tables, seed))


def _loss(model: Any, batch: Any) -> Tensor:
    dense, labels = torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)
    logits = model(dense, torch.from_numpy(batch.keys), torch.from_numpy(batch.offsets))
    return F.binary_cross_entropy_with_logits(logits, labels)
