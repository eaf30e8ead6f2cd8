"""Rows of one batch that its forwards read: the first forward reads them for all.

Owns the rows between that read and the forward that takes them. Without it a model with a module
for each field makes a call of the engine for each, so that the disk sees the reads of one table at
a time. Invariants:

* A forward gets what it would have read itself: rows that change in between are left to it.
* Rows are handed out once. A second forward, or one with ids that were not named, reads for itself.
* An error in reading for other forwards is left to them.

It never imports PyTorch, and has no thread: rows serve the thread that the batch is of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock._distinct import distinct
from embedrock._listeners import Listener, Part
from embedrock._rows import RowStore, RowTable
from embedrock.errors import EmbedrockError
from embedrock.pipeline.keys import TableKeys

__all__ = ["GroupedRead", "offer", "withdraw"]

Ids: TypeAlias = npt.NDArray[np.int64]
Taken: TypeAlias = tuple[Ids, Ids, npt.NDArray[np.float32]]


class _Read(NamedTuple):
    """Rows of one table that wait for their forward."""

    ids: Ids
    """(N,) as they were named, whatever becomes of the batch's memory."""
    keys: Ids
    """(U,) distinct ids in order of first occurrence."""
    inverse: Ids
    """(N,) each id's place among them."""
    rows: npt.NDArray[np.float32]
    """(U, D)."""


class GroupedRead(Listener):
    """The rows of one store that a batch reads."""

    def __init__(self, store: RowStore, parts: Sequence[TableKeys]) -> None:
        """Notes the tables and their ids; nothing is read."""
        self._store = store
        self._named = {part.table.name: part for part in parts}
        """Tables whose rows nobody has read."""
        self._there: dict[str, _Read] = {}
        self._changes = 0
        """Verbs that have changed rows so far, of other threads too."""
        self._thread = threading.get_ident()

    def take(self, asks: Sequence[tuple[RowTable, Ids]]) -> list[Taken | None]:
        """For what a forward asks of each table: distinct ids, each id's place among them and their
        rows ``(U, D)``, which are the caller's from here on; None where it has to read itself.

        Blocking: reads the rows of all forwards to come, where they are more than this one's and
        it asks for what was named.
        """
        if self._thread != threading.get_ident():
            return [None] * len(asks)
        if self._named:
            self._read(asks)
        found: list[Taken | None] = []
        for table, ids in asks:
            read = self._there.pop(table.name, None)
            fits = read is not None and np.array_equal(read.ids, ids)
            found.append(read[1:] if read is not None and fits else None)
        return found

    def changed(self, parts: Sequence[Part]) -> None:
        """Forgets rows of tables that have changed."""
        self._changes += 1
        for name, _ in parts:
            self._there.pop(name, None)

    def refreshing(self) -> None:
        """Rows of the commit that is left are of no use: every forward reads for itself."""
        self.end()

    def returning(self) -> None:
        """As when the store moves on."""
        self.end()

    def end(self) -> None:
        """Offers the rows no more."""
        self._store._listeners.remove(self)

    def _read(self, asks: Sequence[tuple[RowTable, Ids]]) -> None:
        own = [self._named.pop(table.name, None) for table, _ in asks]
        if not self._named:
            return  # nobody comes after it
        mine = [
            part
            for part, (_, ids) in zip(own, asks, strict=True)
            if part is not None and np.array_equal(part.keys.view(np.int64), ids)
        ]
        if not mine:
            return  # not what was named
        parts = [*mine, *self._named.values()]
        self._named.clear()
        ids = [part.keys.view(np.int64).copy() for part in parts]
        found = [distinct(some) for some in ids]
        dims = [part.table.embedding_dim for part in parts]
        ends = [*accumulate(len(keys) * dim for (keys, _), dim in zip(found, dims, strict=True))]
        memory = np.empty(ends[-1], np.float32)
        rows = [
            memory[begin:end].reshape(-1, dim)
            for begin, end, dim in zip([0, *ends], ends, dims, strict=False)
        ]
        wanted = [(part.table, keys) for part, (keys, _) in zip(parts, found, strict=True)]
        before = self._changes
        try:
            self._store.get(wanted, out=rows)
        except EmbedrockError:
            return
        if self._changes != before:
            return
        for part, some, (keys, inverse), own_rows in zip(parts, ids, found, rows, strict=True):
            self._there[part.table.name] = _Read(some, keys, inverse, own_rows)


def offer(store: RowStore, parts: Sequence[TableKeys]) -> GroupedRead:
    """Offers rows of a store to forwards, in place of what was offered before."""
    earlier = store._listeners.find(GroupedRead)
    if earlier is not None:
        earlier.end()
    together = GroupedRead(store, parts)
    store._listeners.add(together)
    return together


def withdraw(offered: Iterable[GroupedRead]) -> None:
    """Ends what was offered to forwards, where nothing else has taken its place."""
    for one in offered:
        one.end()
