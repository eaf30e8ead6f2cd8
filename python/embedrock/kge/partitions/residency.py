"""The partitions that are in memory, as the store is told of them, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embedrock.errors import ClosedError, UnsupportedError
from embedrock.kge.partitions.cut import Cut
from embedrock.kge.partitions.order import Plan
from embedrock.table import Table

__all__ = ["Residency"]

_HUBS = (-1, -2)
"""In the place of a partition: the rows that stay, of each table."""


class Residency:
    """Partitions in the buffer. Used only by the process that has the store open.

    Partitions of a state are announced when it begins, those of the next one as soon as there is
    room, so that they are read while the state is trained. Rows of partitions that find no room are
    read one by one.
    """

    def __init__(self, tables: Sequence[Table], cut: Cut) -> None:
        """Nothing is in memory yet."""
        self._tables, self._cut = tables, cut
        self._store = tables[0].store
        self._announces = True
        self._held: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._counts = {"entered": 0, "swaps": 0, "announced": 0, "refused": 0}
        self._before: tuple[int, int] | None = None
        self._moved = (0, 0)

    @staticmethod
    def nothing() -> dict[str, int]:
        """The counters if it is not used."""
        names = ("entered", "swaps", "announced", "refused", "bytes_read", "bytes_written")
        return dict.fromkeys(names, 0)

    def enter(self, plan: Plan, state: int, *, announce: bool) -> None:
        """A state begins. Blocking: until its partitions are in memory."""
        now = set(plan.states[state])
        if self._before is None:
            self._before = self._bytes()
        coming = now - self._held
        self._counts["entered"] += len(coming)
        if self._held:
            self._counts["swaps"] += len(coming)
        self._held = now
        if not (announce and self._announces):
            return
        behind = plan.states[state + 1] if state + 1 < len(plan.states) else ()
        for partition in [*self._numbers]:
            if partition not in _HUBS and partition not in now:
                self._finish(partition, evict=True)
        for hubs in _HUBS:
            self._announce(hubs)
        for partition in sorted(now):
            if not self._announce(partition):
                self._counts["refused"] += 1
        for number in [*self._numbers.values()]:
            self._store.window.begin(number)
        for partition in behind:
            # If there is no room for it, it is announced when its state begins.
            self._announce(partition)

    def leave(self) -> None:
        """Lets go of all that is held."""
        self._held = set()
        for partition in [*self._numbers]:
            self._finish(partition)

    def stats(self) -> dict[str, int]:
        """Counts, as ``PartitionedEdges.stats`` has them."""
        if self._before is not None and not self._store.closed:
            read, written = self._bytes()
            self._moved = (read - self._before[0], written - self._before[1])
        return {**self._counts, "bytes_read": self._moved[0], "bytes_written": self._moved[1]}

    def _announce(self, partition: int) -> bool:
        """Announces a partition that is not yet; False when there is no room for it."""
        if partition in self._numbers:
            return True
        table, first, last = self._runs(partition)
        if not len(first):
            return True
        try:
            number = self._store.window.announce_range(table, first, last)
        except UnsupportedError:  # rows that are in no cache
            self._announces = False
            return False
        if number is None:
            return False
        self._numbers[partition] = number
        self._counts["announced"] += 1
        return True

    def _finish(self, partition: int, *, evict: bool = False) -> None:
        number = self._numbers.pop(partition)
        try:
            self._store.window.finish(number, evict=evict)
        except ClosedError:
            self._numbers.clear()

    def _runs(self, partition: int) -> tuple[Table, Any, Any]:
        cut = self._cut
        if partition not in _HUBS:
            first, last = cut.range_of(partition)
            if cut.joint or first < cut.heads:
                return self._tables[0], np.array([first]), np.array([last])
            return self._tables[1], np.array([first - cut.heads]), np.array([last - cut.heads])
        if partition == _HUBS[0]:
            table, hubs = self._tables[0], cut.hubs[cut.hubs < cut.heads]
        else:
            table, hubs = self._tables[-1], cut.hubs[cut.hubs >= cut.heads] - cut.heads
        begins = np.flatnonzero(np.diff(hubs, prepend=-2) > 1)
        ends = np.flatnonzero(np.diff(hubs, append=-2) != 1)
        return table, hubs[begins], hubs[ends] + 1

    def _bytes(self) -> tuple[int, int]:
        """Read and written by the store so far."""
        try:
            stats = self._store.stats()
        except ClosedError:
            return self._before or (0, 0)
        return int(stats["bytes_read"]), int(stats["bytes_written"])
