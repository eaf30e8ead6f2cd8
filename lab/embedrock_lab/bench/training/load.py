"""The interface of a load of ``loops``: batches, a model as its users write it, and its tables.

A model gets its embeddings from a :class:`Tables`, so that the same lines run over a store and in
memory; its ``keys_of(batch)`` gives the keys that a batch will read. Nothing here depends on
stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from embedrock.data import Feature

__all__ = ["SCALE", "Floats", "Load", "Shape", "Tables", "drawn"]

Floats = npt.NDArray[np.float32]

STATE_FACTOR = 2
"""Adagrad keeps as many numbers of state as a row has values."""
FLOAT_BYTES = 4
SCALE = 0.05
"""Deviation of the values that rows begin with."""


@dataclass(frozen=True)
class Shape:
    """A table: ``rows`` dense ids, ``dim`` float32 each."""

    rows: int
    dim: int


class Tables(Protocol):
    """The place of a model's embeddings."""

    def embedding(self, name: str, padding_idx: int | None = None) -> Any:
        """A module like ``torch.nn.Embedding`` over the table of that name."""

    def bags(self, names: list[str]) -> Any:
        """A module (keys, offsets) -> (B, F, D) that sums the bags of several tables."""

    def sequences(self, features: Sequence[Feature]) -> Any:
        """A module (keys, offsets) -> ``SequenceRows`` for features of which some are histories."""


@dataclass(frozen=True)
class Load:
    """A training that is measured: the same batches for every way of running it."""

    name: str
    samples: int
    """Samples of a batch."""
    steps: int
    """Batches of a pass."""
    tables: Mapping[str, Shape]
    batches: list[Any]
    """Of all passes, in order."""
    model: Callable[[Tables], Any]
    loss: Callable[[Any, Any], Any]
    """From model and batch to the loss of the batch."""
    values: Callable[[str], Floats]
    """The rows that a table begins with."""
    lr: float = 0.05
    trained: bool = True
    """False: rows are read and never changed, from a store that was opened so."""
    dense_lr: float = field(default=1e-3)
    eps: float | None = None
    """Epsilon of both optimizers; None: their own."""

    @property
    def bytes(self) -> int:
        """Of all rows with their optimizer's state: what memory in per cent is of."""
        state = STATE_FACTOR if self.trained else 1
        return sum(FLOAT_BYTES * state * one.rows * one.dim for one in self.tables.values())


def drawn(tables: Mapping[str, Shape], seed: int) -> Callable[[str], Floats]:
    """Normal values for every table; a row 0 of zeros, which may be a padding row."""

    def values(name: str) -> Floats:
        random = np.random.default_rng([seed, *name.encode()])
        shape = tables[name]
        found = random.standard_normal((shape.rows, shape.dim), np.float32) * np.float32(SCALE)
        found[0] = 0
        return found

    return values
