"""A model of training on a log: the pages that batches read, by the order in which rows are
written.

Changed rows that leave a cache wait in a buffer, are appended to a log together, and are moved by
cleaning. The cache is set-partitioned, each set evicts its least recently used row; a commit writes
all changed rows. The model leaves out some features of the engine: reads of rows that wait to be
written, copies that older commits hold, several open segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Counts", "Load", "Plan", "Rows", "Settings", "pages_of_training", "pages_when_kept"]

Rows = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

_WAYS = 32
"""Rows of a set, as the engine's."""
_SEGMENTS = 64
"""Segments of a log that has all rows once, as the engine chooses them."""
_LIVE_SHARE = 0.6
_SLACK_SEGMENTS = 4
"""As the engine's cleaner has them: how many outdated copies a log may have."""
_FREE, _OPEN, _SEALED = range(3)
_FLUSHED, _MOVED = range(2)


@dataclass(frozen=True)
class Load:
    """Queries of numbered rows; those of a batch are trained together."""

    rows: Rows
    """Of one query after another: (keys,)."""
    offsets: Rows
    """Offsets of queries, with the end: (queries + 1,)."""
    num_rows: int
    batch: int
    """Queries of a batch."""

    @property
    def queries(self) -> int:
        """Number of queries."""
        return len(self.offsets) - 1

    def batches(self) -> list[Rows]:
        """The distinct rows of each batch, in the order of their first occurrence."""
        found = []
        for begin in range(0, self.queries, self.batch):
            end = min(begin + self.batch, self.queries)
            asked = self.rows[self.offsets[begin] : self.offsets[end]]
            first = np.unique(asked, return_index=True)[1]
            found.append(asked[np.sort(first)])
        return found


@dataclass(frozen=True)
class Settings:
    """Memory, and the way in which rows are written."""

    rows_per_page: int
    cache: float
    """Rows in memory, as a share of all."""
    commits: int
    buffer: float = 1 / 64
    """Rows that wait to be written, as a share of those in memory."""
    gathered: int = 1
    """Segments that are cleaned together."""
    flushes: str = "arrival"
    """Order of flushed rows: ``arrival``, ``rank`` or ``identity``."""
    cleans: str = "arrival"
    """The same of rows that are moved; in order of arrival they stay as they are."""
    measured: float = 0.5
    """The share of the batches before the first one that counts."""


@dataclass(frozen=True)
class Plan:
    """A rank for each row, from a batch on; rows that are not known are behind, with one rank."""

    begins: int
    rank: Rows


@dataclass(frozen=True)
class Counts:
    """Reads of the batches that count, per batch."""

    pages: float
    rows: float
    """Rows that were not in memory and had a stored copy."""
    moved: float
    """Rows that cleaning moved, for each row that was flushed, in all batches."""


class _Log:
    """Segments of slots, and where each row is."""

    def __init__(self, num_rows: int, rows_per_page: int) -> None:
        pages = max(num_rows // _SEGMENTS // rows_per_page, 1)
        self.rows_per_page = rows_per_page
        self._slots = pages * rows_per_page
        self.slot = np.full(num_rows, -1, np.int64)
        self._owner = np.full((_SEGMENTS, self._slots), -1, np.int64)
        self._live = np.zeros(_SEGMENTS, np.int64)
        self._state = np.full(_SEGMENTS, _FREE, np.int8)
        self._ends: list[tuple[int, int] | None] = [None, None]

    def append(self, rows: Rows, end: int) -> None:
        """Writes rows in their order; the copies before are outdated."""
        at = 0
        while at < len(rows):
            segment, used = self._ends[end] or (self._free_segment(), 0)
            part = rows[at : at + self._slots - used]
            old = self.slot[part]
            np.subtract.at(self._live, old[old >= 0] // self._slots, 1)
            self.slot[part] = segment * self._slots + used + np.arange(len(part))
            self._owner[segment, used : used + len(part)] = part
            self._live[segment] += len(part)
            at += len(part)
            used += len(part)
            full = used == self._slots
            self._state[segment] = _SEALED if full else _OPEN
            self._ends[end] = None if full else (segment, used)

    def _free_segment(self) -> int:
        free = np.flatnonzero(self._state == _FREE)
        if len(free) == 0:
            free = np.array([len(self._state)])
            self._owner = np.concatenate([self._owner, np.full_like(self._owner, -1)])
            self._live = np.concatenate([self._live, np.zeros_like(self._live)])
            self._state = np.concatenate([self._state, np.full_like(self._state, _FREE)])
        self._owner[free[0]] = -1
        return int(free[0])

    def victims(self, gathered: int) -> Rows | None:
        """Segments with most outdated copies, freed, as the newest rows that they had, by place.

        None while the log is not larger than it should be.
        """
        sealed = np.flatnonzero(self._state == _SEALED)
        dead = len(sealed) * self._slots - int(self._live[sealed].sum())
        allowed = self._live.sum() * (1 / _LIVE_SHARE - 1) + _SLACK_SEGMENTS * self._slots
        if dead <= allowed:
            return None
        chosen = np.sort(sealed[np.argsort(self._live[sealed], kind="stable")[:gathered]])
        rows: Rows = self._owner[chosen].reshape(-1)
        slots = (chosen[:, None] * self._slots + np.arange(self._slots)).reshape(-1)
        slots, rows = slots[rows >= 0], rows[rows >= 0]
        rows = rows[self.slot[rows] == slots]
        self.slot[rows] = -1
        self._live[chosen] = 0
        self._state[chosen] = _FREE
        return rows


class _Training:
    """Memory and log while batches go by."""

    def __init__(self, load: Load, settings: Settings) -> None:
        rows, self._settings = load.num_rows, settings
        most = max(int(settings.cache * rows), 2 * _WAYS)
        self._waiting_max = max(int(settings.buffer * most), 8)
        self._sets = max((most - self._waiting_max) // _WAYS, 1)
        self._set_of = np.random.default_rng(1).permutation(rows) % self._sets
        self.log = _Log(rows, settings.rows_per_page)
        self._used = np.zeros(rows, np.int64)
        self._since = np.zeros(rows, np.int64)
        self._resident, self._waiting, self._dirty = (np.zeros(rows, np.bool_) for _ in range(3))
        self._clock = 0
        self.rank: Rows | None = None
        self.flushed = self.moved = 0

    def missing(self, batch: Rows) -> Rows:
        """The slots of stored rows that are not in memory."""
        away = batch[~(self._resident[batch] | self._waiting[batch])]
        slots = self.log.slot[away]
        return slots[slots >= 0]

    def train(self, batch: Rows) -> None:
        """Changes the rows of a batch, and writes what leaves memory."""
        now = self._clock + np.arange(len(batch))
        self._clock += len(batch)
        self._used[batch] = now
        clean = ~self._dirty[batch]
        self._since[batch[clean]] = now[clean]
        came = batch[~self._resident[batch]]
        self._dirty[batch] = self._resident[batch] = True
        self._waiting[batch] = False
        victims = self._victims(came)
        self._resident[victims] = False
        self._waiting[victims[self._dirty[victims]]] = True
        waiting = np.flatnonzero(self._waiting)
        if len(waiting) >= self._waiting_max:
            waiting = waiting[np.argsort(self._used[waiting], kind="stable")]
            full = len(waiting) // self._waiting_max * self._waiting_max
            for begin in range(0, full, self._waiting_max):
                self._write(waiting[begin : begin + self._waiting_max])

    def _victims(self, came: Rows) -> Rows:
        """Rows to evict from sets that are too full after new rows came."""
        grown = np.zeros(self._sets, np.bool_)
        grown[self._set_of[came]] = True
        resident = np.flatnonzero(self._resident)
        resident = resident[grown[self._set_of[resident]]]
        resident = resident[np.lexsort((-self._used[resident], self._set_of[resident]))]
        of_set = self._set_of[resident]
        return resident[np.arange(len(of_set)) - np.searchsorted(of_set, of_set) >= _WAYS]

    def commit(self) -> None:
        """Writes every changed row. Those in memory stay there."""
        self._write(np.flatnonzero(self._dirty))

    def _write(self, rows: Rows) -> None:
        rows = rows[np.argsort(self._since[rows], kind="stable")]
        self.log.append(self._in_order(rows, self._settings.flushes), _FLUSHED)
        self._dirty[rows] = self._waiting[rows] = False
        self.flushed += len(rows)
        while (moved := self.log.victims(self._settings.gathered)) is not None:
            # Rows that are changed will be written anyway.
            moved = self._in_order(moved[~self._dirty[moved]], self._settings.cleans)
            self.log.append(moved, _MOVED)
            self.moved += len(moved)

    def _in_order(self, rows: Rows, order: str) -> Rows:
        if order == "identity":
            return np.sort(rows)
        if order == "rank" and self.rank is not None:
            return rows[np.argsort(self.rank[rows], kind="stable")]
        return rows


def pages_of_training(load: Load, settings: Settings, plans: Sequence[Plan] = ()) -> Counts:
    """Reads of batches that are trained on a log which was empty before.

    Each plan is used from the batch at which it begins until the next plan.
    """
    return _counted(load, settings, plans, None)


def pages_when_kept(load: Load, settings: Settings, plans: Sequence[Plan]) -> Counts:
    """The same if every row always lay in the order of the plan: more than any writing reaches.

    Rows that a plan does not know lie behind, in the order in which they are asked for first.
    """
    return _counted(load, settings, (), plans)


def _counted(
    load: Load, settings: Settings, plans: Sequence[Plan], kept: Sequence[Plan] | None
) -> Counts:
    batches = load.batches()
    first = int(settings.measured * len(batches))
    every = max(len(batches) // max(settings.commits, 1), 1)
    # A row has a place before it has a slot, so that both ways count the same rows.
    training, at = _Training(load, settings), np.zeros(0, np.int64)
    begins = {plan.begins: plan for plan in plans}
    places = {plan.begins: _places(load, plan) for plan in kept or ()}
    pages = rows = 0
    for number, batch in enumerate(batches):
        at = places.get(number, at)
        if number in begins:
            training.rank = begins[number].rank
        if number >= first:
            slots = training.missing(batch)
            rows += len(slots)
            if kept is not None:
                stored = batch[np.isin(training.log.slot[batch], slots)]
                slots = at[stored]
            pages += len(np.unique(slots // settings.rows_per_page))
        training.train(batch)
        if (number + 1) % every == 0:
            training.commit()
    count = len(batches) - first
    return Counts(pages / count, rows / count, training.moved / max(training.flushed, 1))


def _places(load: Load, plan: Plan) -> Rows:
    """The place of each row in the order of a plan."""
    first = np.full(load.num_rows, len(load.rows), np.int64)
    rows, seen = np.unique(load.rows, return_index=True)
    first[rows] = seen
    places = np.empty(load.num_rows, np.int64)
    places[np.lexsort((first, plan.rank))] = np.arange(load.num_rows)
    return places
