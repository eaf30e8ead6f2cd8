"""A click model of ``embedrock train`` as a load: its own loss, over a store and in memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from embedrock.models.registry import kind_of
from embedrock.training.models import model_over
from embedrock.training.options import Recipe
from embedrock_lab.bench.training.load import Load, Shape, Tables, drawn
from embedrock_lab.bench.training.loads.samples import Samples, Wanted, samples_of

__all__ = ["Settings", "load", "tensors"]

LR, DENSE_LR = 0.05, 0.01
EPS = 1e-2
"""It damps steps along gradients that are nearly 0, whose sign hangs on last bits: rows over a
store and in memory would part within a few steps."""


@dataclass(frozen=True)
class Settings:
    """One model, for all of its cells. Plain data: it goes to child processes."""

    model: str
    dim: int
    """Values of a vector; a row may have one more."""
    steps: int
    """Batches of a round."""
    rounds: int
    first_steps: int
    checked_steps: int
    """Batches whose losses and rows are compared with those in memory, before all others."""
    threads: int
    data: Wanted

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Settings:
        """From what JSON made of it."""
        return cls(**{**plain, "data": Wanted(**plain["data"])})

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def load(settings: Settings) -> tuple[Load, Samples]:
    """The load of a model, and its data."""
    kind, seed = kind_of(settings.model), settings.data.seed
    data = samples_of(kind, settings.data)
    given = {"model": settings.model, "embedding_dim": settings.dim}
    recipe = Recipe.of_format("sessions" if kind.sequences else "criteo", given)
    width = kind.row_dim(settings.dim)
    tables = {
        feature.table or feature.name: Shape(int(feature.num_embeddings or 0), width)
        for feature in data.features
    }
    names = [feature.name for feature in data.features]

    def model(place: Tables) -> Any:
        rows = place.sequences(data.features) if kind.sequences else place.bags(names)
        return model_over(recipe, data, rows)  # type: ignore[arg-type]

    found = Load(
        settings.model,
        settings.data.batch,
        settings.steps,
        tables,
        list(data.train),
        model,
        _loss,
        drawn(tables, seed),
        lr=LR,
        dense_lr=DENSE_LR,
        eps=EPS,
    )
    return found, data


def tensors(batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of a forward: dense, keys, offsets."""
    dense, keys, offsets = map(torch.from_numpy, (batch.dense, batch.keys, batch.offsets))
    return dense, keys, offsets


def _loss(model: Any, batch: Any) -> Tensor:
    dense, keys, offsets = tensors(batch)
    found: Tensor = model.loss(
        dense, model.embeddings(keys, offsets), torch.from_numpy(batch.labels)
    )
    return found
