"""The place of a load's rows: in a store, or in memory as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import embedrock
from embedrock.data import Feature
from embedrock.training.embeddings import (
    MemoryEmbeddings,
    MemorySequences,
    SequenceEmbeddings,
    StoreEmbeddings,
)
from embedrock_lab.bench.training.load import Floats, Load, Shape
from embedrock_lab.measure.rows import least_budget

__all__ = ["InMemory", "InStore", "fill", "open_least"]

FILL_BYTES = 128 << 20
FILL_ROWS = 1 << 15
TRIES = 8


class InMemory:
    """Dense tensors, with sparse gradients where they are trained."""

    def __init__(self, tables: Mapping[str, Shape], values: Callable[[str], Floats]) -> None:
        """Takes tables, and the rows with which each begins."""
        self._tables, self._rows_of = tables, values
        self.rows: list[nn.Parameter] = []
        """The tables, which need an optimizer for sparse gradients."""

    def embedding(self, name: str, padding_idx: int | None = None) -> nn.Embedding:
        """``torch.nn.Embedding`` with ``sparse=True``."""
        module = nn.Embedding.from_pretrained(
            self._values(name), freeze=False, padding_idx=padding_idx, sparse=True
        )
        self.rows.append(module.weight)
        return module

    def bags(self, names: list[str]) -> MemoryEmbeddings:
        """A ``torch.nn.EmbeddingBag`` for each table."""
        module = MemoryEmbeddings([self._values(name) for name in names])
        self.rows.extend(module.parameters())
        return module

    def sequences(self, features: Sequence[Feature]) -> MemorySequences:
        """A ``torch.nn.Embedding`` for each table, histories in their order."""
        module = MemorySequences(features, {name: self._values(name) for name in self._tables})
        self.rows.extend(module.parameters())
        return module

    def _values(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._rows_of(name))


class InStore:
    """Tables of an open store, which has them already."""

    def __init__(self, tables: Mapping[str, Shape], store: embedrock.Store) -> None:
        """Takes tables, all of one optimizer, and their store."""
        self._tables, self._store = tables, store

    def embedding(self, name: str, padding_idx: int | None = None) -> embedrock.nn.Embedding:
        """``embedrock.nn.Embedding``."""
        shape = self._tables[name]
        return embedrock.nn.Embedding(
            shape.rows, shape.dim, padding_idx, store=self._store, name=name
        )

    def bags(self, names: list[str]) -> StoreEmbeddings:
        """Bags of several tables, read in one call."""
        features = [Feature(name, num_embeddings=self._tables[name].rows) for name in names]
        dim = self._tables[names[0]].dim
        return StoreEmbeddings(self._store, features, dim, optimizer=self._optimizer(names[0]))

    def sequences(self, features: Sequence[Feature]) -> SequenceEmbeddings:
        """Tables that features share, read in one call."""
        (dim,) = {shape.dim for shape in self._tables.values()}
        optimizer = self._optimizer(next(iter(self._tables)))
        return SequenceEmbeddings(self._store, features, dim, optimizer=optimizer)

    def _optimizer(self, name: str) -> Any:
        return self._store.table(name).optimizer


def fill(load: Load, path: Path) -> None:
    """Writes every row of a load, with state, and commits."""
    with embedrock.open(path, FILL_BYTES) as store:
        for name, shape in load.tables.items():
            table = store.table(name, shape.dim, shape.rows, optimizer=_optimizer(load))
            values = load.values(name)
            for begin in range(0, shape.rows, FILL_ROWS):
                part = values[begin : begin + FILL_ROWS]
                table.put(np.arange(begin, begin + len(part)), part, reset_state=load.trained)
        store.commit(step=0)


def open_least(load: Load, path: Path, memory_bytes: int) -> tuple[embedrock.Store, int]:
    """The store with that budget, or with the smallest that works; and which it was."""
    for _ in range(TRIES):
        try:
            store = embedrock.open(path, memory_bytes, create=False, read_only=not load.trained)
            for name in load.tables:
                store.table(name).get([0])
        except embedrock.errors.BudgetError as error:
            memory_bytes = least_budget(error)
            continue
        return store, memory_bytes
    raise RuntimeError(f"{path}: memory={memory_bytes} is refused like all smaller ones")


def _optimizer(load: Load) -> str:
    return "adagrad" if load.trained else "none"


def total(counters: Any) -> dict[str, Any]:
    """The numbers of a dict, without what is nested or no count."""
    return {
        name: value
        for name, value in counters.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
