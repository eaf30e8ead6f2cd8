"""DeepFM on a click log: six fields in one table, rows of 64 values or of 16.

``deepfm`` has as many ids in each field as the 100,000 clicks of TalkingData's sample (35,433 in
all); ``deepfm_wide`` ten times as many addresses and 400,000 ids in all. Labels come from a hidden
weight of every id.

Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedrock_lab.bench.training.load import Load, Shape, Tables, drawn
from embedrock_lab.bench.zipf import Zipf

__all__ = ["narrow", "wide"]

SMALL = {"ip": 34_857, "app": 161, "device": 100, "os": 130, "channel": 161, "hour": 24}
LARGE = {"ip": 390_000, "app": 768, "device": 4_200, "os": 956, "channel": 4_052, "hour": 24}
EXPONENT = {"ip": 0.7}
"""Of popularity; 1.1 in the other fields, where few values have most of the clicks."""
SAMPLES = 512
TABLE = "clicks"


class DeepFM(nn.Module):  # type: ignore[misc]
    """Factorization machine and perceptron over the same rows.

    The first value of a row is the id's own weight, the others are its factors. Shapes: ids (B, F)
    int64 -> logits (B,).
    """

    def __init__(self, tables: Tables, fields: int, dim: int) -> None:
        """Takes its rows from a table of all fields."""
        super().__init__()
        self.rows = tables.embedding(TABLE)
        layers = [nn.Linear(fields * dim, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(64, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """The logits of a batch."""
        rows = self.rows(ids)
        factors = rows[..., 1:]
        pairs = (factors.sum(1).square() - factors.square().sum(1)).sum(1) / 2
        return rows[..., 0].sum(1) + pairs + self.deep(rows.flatten(1)).squeeze(1)

    def keys_of(self, batch: tuple[Tensor, Tensor]) -> dict[Any, Any]:
        """The keys that a batch reads."""
        return {self.rows: batch[0]}


def narrow(seed: int, steps: int | None, passes: int) -> Load:
    """35,433 rows of 64 values."""
    return _load("deepfm", SMALL, 64, steps or 160, passes, seed)


def wide(seed: int, steps: int | None, passes: int) -> Load:
    """400,000 rows of 16 values."""
    return _load("deepfm_wide", LARGE, 16, steps or 160, passes, seed)


def _load(
    name: str, sizes: Mapping[str, int], dim: int, steps: int, passes: int, seed: int
) -> Load:
    random = np.random.default_rng(seed)
    count = steps * passes
    firsts = np.cumsum([0, *sizes.values()])
    columns = [
        first + Zipf(rows, EXPONENT.get(field, 1.1), random).draw((count, SAMPLES))
        for first, (field, rows) in zip(firsts, sizes.items(), strict=False)
    ]
    ids = np.stack(columns, axis=2)
    odds = random.standard_normal(firsts[-1])[ids].sum(axis=2) / 2 - 1
    labels = (random.random(odds.shape) * (1 + np.exp(-odds)) < 1).astype(np.float32)
    batches = list(zip(torch.from_numpy(ids), torch.from_numpy(labels), strict=True))
    tables = {TABLE: Shape(int(firsts[-1]), dim)}
    return Load(
        name,
        SAMPLES,
        steps,
        tables,
        batches,
        lambda place: DeepFM(place, len(sizes), dim),
        lambda model, batch: F.binary_cross_entropy_with_logits(model(batch[0]), batch[1]),
        drawn(tables, seed),
    )
