"""Owners of keys: arranging the keys of a call for sending, and restoring their order.

Does arithmetic only, and no communication. A call's keys are one array, table after table, those of
equal ``embedding_dim`` together. For sending they are ordered by rank, within a rank by table,
within a table in the order of the call; rows and gradients go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._ranks import BUCKETS

__all__ = ["Route", "destinations", "ids_of", "widths_of"]

T = TypeVar("T", bound=np.generic)
Keys = npt.NDArray[np.uint64]
Ranks = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.int64]


def destinations(keys: Keys, owners: Ranks, *, dense: bool) -> Ranks:
    """The rank of each key."""
    return owners[_core.buckets_of(keys, dense)]


def ids_of(buckets: Counts, size: int) -> int:
    """Number of ids among ``0..size`` of a dense table that lie in these buckets."""
    return int(((size - buckets + BUCKETS - 1) // BUCKETS).clip(0).sum())


def widths_of(dims: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of tables of one ``embedding_dim``: it, the first table, and the one behind the last."""
    starts = [i for i, dim in enumerate(dims) if i == 0 or dim != dims[i - 1]]
    return [
        (dims[first], first, last)
        for first, last in zip(starts, [*starts[1:], len(dims)], strict=True)
    ]


class Route:
    """The way of the keys of one call."""

    def __init__(self, keys: Sequence[Keys], ranks: Sequence[Ranks], world: int) -> None:
        """Takes keys and their ranks by table."""
        self.world = world
        self.lengths = np.array([len(some) for some in keys], np.int64)
        self.keys = _joined(keys, np.empty(0, np.uint64))
        """(N,) all keys."""
        self.ranks = _joined(ranks, np.empty(0, np.uint16))
        """(N,) where they go."""
        self.tables = len(keys)

    @cached_property
    def counts(self) -> Counts:
        """(W, T): how many keys of each table go to each rank."""
        table = np.repeat(np.arange(self.tables, dtype=np.int64), self.lengths)
        flat = np.bincount(
            self.ranks.astype(np.int64) * self.tables + table, minlength=self.world * self.tables
        )
        return flat.reshape(self.world, self.tables)

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """(N,) the places of the keys among those of the call, as they lie on the way."""
        # Of so few values NumPy sorts by digits, which keeps the order of equal ones.
        few = self.ranks.astype(np.uint8) if self.world <= 256 else self.ranks
        return np.argsort(few, kind="stable")

    def places(self, gap: int = 0) -> npt.NDArray[np.int64]:
        """(N,) where each key of the call lies on the way, with ``gap`` more behind each rank."""
        found = np.empty(len(self.keys), np.int64)
        there = np.arange(len(self.keys), dtype=np.int64)
        if gap:
            ranks = np.arange(self.world, dtype=np.int64)
            there += np.repeat(ranks * gap, self.counts.sum(axis=1))
        found[self.order] = there
        return found


def _joined(parts: Sequence[npt.NDArray[T]], empty: npt.NDArray[T]) -> npt.NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate([empty, *parts])
