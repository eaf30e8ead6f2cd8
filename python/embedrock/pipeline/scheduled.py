"""The batches of a pass, in a schedule.

Owns which batch of a schedule a batch of a pass is. A pass may begin behind the schedule's first
batch, as one does that goes on after a restart: it is found by its keys. A pass whose batches are
others than the schedule's goes on without it, with one warning. Results are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from embedrock._arrays import ArrayLike
from embedrock.ahead import BatchSchedule, Schedule
from embedrock.errors import MisuseError
from embedrock.pipeline.keys import FlatKeys, TableKeys
from embedrock.store import Store
from embedrock.table import Table

__all__ = ["PassSchedule", "Schedules", "SchedulesOf", "keys_by_name", "of_store"]

_SEARCHES = 2
"""A pass looks for its place in a schedule so often: that reads the schedule's file."""
_WRONG = 32
"""After so many batches in a row that are not the schedule's, a pass goes on without it."""


@dataclass
class PassSchedule:
    """The schedule of one pass, and where in it the pass is."""

    schedule: Schedule
    first_stretch: int
    """The number of the schedule's first stretch, in the counting of the window."""
    tell: Callable[[str], None]
    """Is told, once, why the rest of the pass goes on without schedule."""
    ahead: int = 0
    """So many batches of the schedule come before the first of the pass."""
    right: int = 0
    """Batches that were those of the schedule."""
    wrong: int = 0
    """Batches that were not, since the last that was."""
    searches: int = 0
    over: bool = False
    """It is left, for the rest of the pass."""

    def of(self, place: int, parts: Sequence[TableKeys]) -> BatchSchedule | None:
        """The schedule's entry for the batch at this place of the pass; None if it has other keys,
        and after the schedule's end.

        Errors: ``CorruptError`` if the file is damaged, ``IoError``.
        """
        if self.over:
            return None
        keys: dict[Table | str, FlatKeys] = {part.table: part.keys for part in parts}
        if len({part.table.name for part in parts}) < len(parts):
            return None
        found = self._at(place + self.ahead, keys)
        if found is None and self.searches < _SEARCHES:
            self.searches += 1
            start = place + self.ahead if self.right else 0
            number = self.schedule.find(keys, start=start)
            if number is not None:
                self.ahead = number - place
                found = self._at(number, keys)
        if found is not None:
            self.right, self.wrong = self.right + 1, 0
            return found
        self.wrong += 1
        if self.wrong >= _WRONG:
            self.over = True
            self.tell(
                f"the last {self.wrong} batches are not those of {self.schedule!r}: their keys, or "
                f"their order, are others; the pass goes on without it, with the same results; "
                f"make the schedule of this data, in this order"
            )
        return None

    def _at(self, number: int, keys: Mapping[Table | str, FlatKeys]) -> BatchSchedule | None:
        turn = 0
        if self.schedule.repeats:
            turn, number = divmod(number, len(self.schedule))
        if not 0 <= number < len(self.schedule):
            return None
        first = self.first_stretch + turn * self.schedule.stretches
        found = self.schedule.batch(number, keys, first_stretch=first)
        if found is None:
            return None
        uses = dict(found.next_use)
        for table, of_table in keys.items():
            if table not in uses:  # not in the schedule
                uses[table] = np.full(len(of_table), -1, np.int32)
        return replace(found, next_use=uses)


def keys_by_name(parts: Sequence[TableKeys]) -> dict[str, FlatKeys]:
    """Keys by the names of their tables.

    Errors: ``MisuseError`` for two tables of one name, in different stores.
    """
    found = {part.table.name: part.keys for part in parts}
    if len(found) < len(parts):
        names = ", ".join(sorted(repr(part.table.name) for part in parts))
        raise MisuseError(f"tables of different stores have one name ({names}): no schedule")
    return found


def of_store(found: BatchSchedule, store: Store) -> BatchSchedule:
    """The part of a batch's schedule that is of the tables of one store."""
    of_tables = found.next_use.items()
    uses: dict[Table | str, ArrayLike] = {
        table: of_table
        for table, of_table in of_tables
        if isinstance(table, Table) and table.store is store
    }
    return found if len(uses) == len(found.next_use) else replace(found, next_use=uses)


class Schedules(Protocol):
    """Schedules of one pass after another."""

    def next(self, tell: Callable[[str], None]) -> PassSchedule | None:
        """That of the pass that begins; None where there is none."""


class SchedulesOf:
    """One schedule for every pass."""

    def __init__(self, schedule: Schedule) -> None:
        """Begins with stretch 0."""
        self._schedule = schedule
        self._stretch = 0

    def next(self, tell: Callable[[str], None]) -> PassSchedule:
        """The schedule; its stretches come behind those of the pass before."""
        first, self._stretch = self._stretch, self._stretch + self._schedule.stretches
        return PassSchedule(self._schedule, first, tell)
