"""Rows of one batch, read before its forward asks for them.

Owns the buffers. Rows that no batch before it will change are read at once, the others as soon as
the updates that change them are applied; what arrives lies in the order of arrival and is brought
into that of the keys when it is complete. It never waits and takes no lock: who calls does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._distinct import distinct
from embedrock.pipeline.feed import Drawn
from embedrock.pipeline.keys import FlatKeys, TableKeys
from embedrock.table import Table

__all__ = ["Ahead", "AheadTable"]

Positions: TypeAlias = npt.NDArray[np.intp]
GetPart: TypeAlias = tuple[Any, FlatKeys, npt.NDArray[np.float32], None]


class AheadTable:
    """Rows of one table."""

    def __init__(self, table: Table, ids: FlatKeys) -> None:
        """Notes what will be asked for; nothing is read."""
        self.table = table
        self.ids = ids.view(np.int64).copy()
        """(N,) ids as they were named, whatever becomes of the batch's memory."""
        keys, self.inverse = distinct(self.ids)
        self.keys: npt.NDArray[np.int64] = keys
        """(U,) distinct ids in order of first occurrence."""
        self.rows: Tensor | None = None
        """(U, D) float32 when all of them are there; None before, and once they were taken."""
        self.outdated: Positions | None = None
        """Rows that changed since they were read, in a way that nobody had announced."""
        self._buffer: Tensor | None = None
        self._arrived: list[Positions] = []
        self._count = 0
        self._sorter: Positions | None = None

    def place(self, buffer: Tensor, first: Positions) -> GetPart:
        """Takes a buffer ``(U, D)``; the part of a get that reads the rows ``first`` into it."""
        self._buffer = buffer
        return self.read(first)

    def read(self, positions: Positions) -> GetPart:
        """The part of a get that reads these rows, which come behind all others so far."""
        assert self._buffer is not None
        begin, self._count = self._count, self._count + len(positions)
        self._arrived.append(positions)
        keys = self.keys if len(positions) == len(self.keys) else self.keys[positions]
        room = self._buffer[begin : self._count].numpy()
        return (self.table._handle, keys.view(np.uint64), room, None)

    def complete(self) -> None:
        """Brings the rows, all of which have arrived, into the order of the keys."""
        assert self._buffer is not None and self._count == len(self.keys)
        self.rows, self._buffer = self._buffer, None
        if len(self._arrived) > 1:
            arrived = np.concatenate(self._arrived)
            order = np.empty_like(arrived)
            order[arrived] = np.arange(len(arrived))
            # Not by torch: OpenMP would give this thread a team of its own, and from there on let
            # the caller's team sleep at each barrier, as there are more threads than cores.
            ordered = torch.empty_like(self.rows)
            np.take(self.rows.numpy(), order, axis=0, out=ordered.numpy(), mode="clip")
            self.rows = ordered
        self._arrived.clear()

    def drop(self) -> None:
        """Forgets the rows: whoever wants them reads them."""
        self.rows = self.outdated = None

    def outdate(self, keys: npt.NDArray[np.int64]) -> None:
        """Notes that the rows of these keys have changed, or are about to."""
        found = np.isin(self.keys, keys)
        if found.any():
            if self.outdated is not None:
                found[self.outdated] = True
            self.outdated = np.flatnonzero(found)

    def find(self, keys: npt.NDArray[np.int64]) -> Positions | None:
        """Places of other distinct keys among these; None when one of them is not there."""
        if len(self.keys) == 0:
            return None if len(keys) else np.empty(0, np.intp)
        if self._sorter is None:
            self._sorter = np.argsort(self.keys)
        nearest = np.searchsorted(self.keys, keys, sorter=self._sorter)
        found = self._sorter[np.minimum(nearest, len(self.keys) - 1)]
        return found if np.array_equal(self.keys[found], keys) else None


class Ahead:
    """A batch between being drawn and its updates being applied."""

    def __init__(self, drawn: Drawn, parts: Sequence[TableKeys]) -> None:
        """Finds the distinct keys; nothing is read."""
        self.drawn = drawn
        self.tables = [AheadTable(part.table, part.keys) for part in parts]
        self.by_name = {one.table.name: one for one in self.tables}
        self.permit: int | None = None
        self.outstanding = 0
        """Rows that have not arrived, and one more while those at once are being read."""
        self._given_up = False
        self.ready = threading.Event()
        """Set when all rows are there, or never will be."""

    def key_parts(self) -> list[tuple[Any, FlatKeys]]:
        """The distinct keys by table, as permits take them."""
        return [(one.table._handle, one.keys.view(np.uint64)) for one in self.tables]

    def place(self, deferred: Sequence[npt.NDArray[np.uint32]]) -> list[GetPart]:
        """Makes the buffers; the parts of a get that reads all rows but the deferred ones."""
        sizes = [len(one.keys) * one.table.embedding_dim for one in self.tables]
        flat = torch.empty(sum(sizes), dtype=torch.float32, device="cpu")
        self.outstanding = 1 + sum(map(len, deferred))
        parts = []
        for one, some, late in zip(self.tables, flat.split(sizes), deferred, strict=True):
            at_once = np.ones(len(one.keys), np.bool_)
            at_once[late] = False
            buffer = some.view(len(one.keys), one.table.embedding_dim)
            parts.append(one.place(buffer, np.flatnonzero(at_once)))
        return parts

    def read(self, part: int, positions: npt.NDArray[np.uint32]) -> GetPart:
        """The part of a get that reads deferred rows of a table."""
        return self.tables[part].read(positions.astype(np.intp))

    def complete(self) -> None:
        """All rows have arrived, or some of them could not be read."""
        if not self._given_up:
            for one in self.tables:
                one.complete()
        self.ready.set()

    def give_up(self) -> None:
        """Leaves the rows to those who want them: reading them has failed."""
        self._given_up = True
