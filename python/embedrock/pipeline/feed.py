"""Batches drawn ahead of their use, and their announcements.

Owns the order: batches are drawn, announced, handed out and finished in the order of the loader. It
never computes and has no thread: batches are drawn on the thread that asks for them, so that a
loader which draws random numbers does so in one order. Invariants:

* An error while a batch is drawn ahead (the loader fails or one of its workers dies, keys are
  wrong) is raised when that batch would be handed out, after all batches before it: as without
  look-ahead. Only exceptions that end programs (Ctrl-C) are raised at once.
* A batch for which a window has no room is announced when there is room, or else handed out
  unannounced. No more than one such batch is drawn.
* If announcing does not pay (`announcing.py`), batches are drawn on demand and their keys are not
  looked at. Those of the first batch are: a missing or wrong `keys_of` is an error of the first
  step, not of the one at which announcing is first tried.
* A process that was forked meanwhile (a worker of a loader) leaves the windows alone.
* A store that goes back to a commit forgets what was announced: batches that are drawn are
  announced anew, and the pass goes on.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from embedrock._warnings import warn
from embedrock.ahead import BatchSchedule
from embedrock.errors import ClosedError, EmbedrockError, MisuseError
from embedrock.pipeline import advice
from embedrock.pipeline.announcing import Announcing, Reads
from embedrock.pipeline.grouped_read import GroupedRead, offer, withdraw
from embedrock.pipeline.keys import FlatKeys, KeyFinder, TableKeys
from embedrock.pipeline.scheduled import PassSchedule, of_store
from embedrock.store import Store
from embedrock.table import Table

__all__ = ["Drawn", "Feed", "FeedCounts", "Window", "window_of"]

_FIRST_AHEAD = 64
_AHEAD_GROWTH = 8
"""The first batch waits until 64 are drawn, which is a group that shares pages (docs/lookahead.md);
from there on, 8 are drawn at each step until `depth` is reached, so that a loader with a deep
look-ahead does not keep the first step waiting for hundreds of batches."""


_LOOK_EVERY = 32
"""Announced batches from one look at how many were passed over to the next."""


class Window(Protocol):
    """The engine's look-ahead window, as far as it is used here."""

    def announce(
        self, batch: Mapping[Table | str, FlatKeys], *, schedule: BatchSchedule | None = None
    ) -> int | None:
        """Takes the keys of one coming batch; its number, or None when the window is full."""

    def begin(self, number: int) -> None:
        """Waits until the rows of the batch have been read ahead."""

    def finish(self, number: int) -> None:
        """The batch needs its rows no longer."""

    def clear(self) -> None:
        """Forgets all that is announced."""

    def release(self) -> None:
        """Forgets all that is announced, and gives the window's memory back."""

    def stats(self) -> dict[str, Any]:
        """Counters, of which ``skipped`` are batches that were passed over."""


def window_of(store: Store) -> Window:
    """The look-ahead window of a store."""
    window: Window = store.window
    return window


@dataclass
class FeedCounts:
    """Counters of the batches of a feed."""

    handed_out: int = 0
    announced: int = 0
    """Of those, announced before; counted when they are handed out."""
    refused: int = 0
    """Number of times that a window had no room."""
    skipped: int = 0
    """Batches that windows have passed over, when that was last looked at."""
    resident: int = 0
    """Batches that were not announced, because steps hardly waited for rows."""
    set_aside: int = 0
    """Batches that were not announced, because that was measured to be no faster, or to see."""
    scheduled: int = 0
    """Batches that are those of the schedule; counted when they are handed out."""


@dataclass
class Drawn:
    """One batch between being drawn and being finished."""

    place: int
    """Its place within the pass, from 0."""
    batch: Any = None
    parts: list[TableKeys] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    """Its number in the window of each store, by the store's place among those of the feed."""
    returns: list[int] = field(default_factory=list)
    """Number of times that each store had gone back when it got them."""
    position: Any = None
    """State of the loader after it was drawn, where the loader tells it."""
    let_go: bool = False
    """It was announced, and is not any more."""
    error: BaseException | None = None
    """The error in the place of a batch."""
    looked_at: bool = False
    """Whether its keys were asked for: ``parts`` and ``hashes`` are there."""
    hashes: list[int] = field(default_factory=list)
    """Of each part's keys, as they were then."""
    announcement: list[dict[Table | str, FlatKeys]] = field(default_factory=list)
    """The announcement for the window of each store, until all of them have it."""
    scheduled: BatchSchedule | None = None
    """Entry of the pass's schedule for this batch, until all windows have it."""
    in_schedule: bool = False
    """Whether the schedule has it."""


class Feed:
    """One pass over a loader."""

    def __init__(
        self,
        loader: Iterable[Any],
        finder: KeyFinder,
        stores: Sequence[Store],
        depth: int,
        announcing: Announcing,
        tell: Callable[[str], None],
        schedule: PassSchedule | None = None,
    ) -> None:
        """Draws nothing yet. Says through ``tell`` what keeps look-ahead from working."""
        self.counts = FeedCounts()
        self._schedule = schedule
        self._stateful = loader if hasattr(loader, "state_dict") else None
        self.position = self._position()
        """State of the loader before the first batch, then after the one handed out last."""
        self._loader = loader
        self._finder = finder
        self._depth = depth
        self._announcing = announcing
        self._tell = tell
        self._announces = announcing.announce
        """Whether batches are announced at present."""
        self._has_window = self._announces
        """Whether windows may have memory."""
        self._announces_from = 0
        """Batches that were taken before that began."""
        self._taken_announced = 0
        self._told_passed_over = False
        self._last: Drawn | None = None
        """The batch that was taken last, where it was announced."""
        self._asked_at: float | None = None
        """When the last batch was asked for."""
        self._drawing_s = 0.0
        """Seconds that drawing took since."""
        self._stores = list(stores)
        self._reads = _reads_of(self._stores)
        self._offered: list[GroupedRead] = []
        """Rows of the batch at hand that its forwards may read together."""
        self._offered_place = -1
        self._windows = [window_of(store) for store in stores]
        self._skipped_before = self._skipped()
        self._returns = self._returned()
        """Number of times that each store had gone back at the last check."""
        self._store_places = {id(store): place for place, store in enumerate(stores)}
        self._iterator: Iterator[Any] | None = None
        self._held: deque[Drawn] = deque()
        self._unannounced: deque[Drawn] = deque()
        """Of these, the last ones, which are to be announced once windows have room: one, unless
        they were announced before and let go."""
        self._drawn = 0
        self._taken = 0
        self._exhausted = False
        self._ended = False
        self._closed = False
        self._pid = os.getpid()

    def take(self) -> Drawn:
        """The next batch, with as many drawn behind it as there is room for.

        Errors: ``StopIteration`` behind the last one; what drawing this batch raised.
        """
        if self._returned() != self._returns:
            self._begin_anew()
        self._measure()
        if self._announcing.announce != self._announces:
            self._turn()
        if self._has_window and not self._announcing.needs_window:
            self._has_window = False
            for window in self._windows:
                with contextlib.suppress(EmbedrockError):  # a closed store has
                    window.release()
        self._draw_ahead()
        if not self._held:
            self._exhausted = True
            raise StopIteration
        if self._taken == 0 and isinstance(self._held[0].error, StopIteration):
            self._tell_of_none()
        drawn = self._held.popleft()
        if self._unannounced and drawn is self._unannounced[0]:
            self._unannounced.popleft()
        if drawn.error is not None:
            self._exhausted = isinstance(drawn.error, StopIteration)
            raise drawn.error
        self._taken += 1
        if self._announces and not drawn.let_go:
            self._taken_announced += 1
            self._last = drawn
            if self._taken_announced % _LOOK_EVERY == 0:
                self._look_for_passed_over()
        elif self._announcing.resident:
            self.counts.resident += 1
        else:
            self.counts.set_aside += 1
        return drawn

    def keys_of(self, drawn: Drawn) -> list[TableKeys]:
        """The keys of a batch, found now where it was not announced.

        Errors: those of ``keys_of``.
        """
        if not drawn.looked_at:
            self._look_at(drawn)
        return drawn.parts

    def hand_out(self, drawn: Drawn) -> Any:
        """The batch itself, on its way to the caller.

        Errors: ``MisuseError`` when its keys are not those that were announced.
        """
        _check_unchanged(drawn)
        self.counts.handed_out += 1
        self.counts.announced += bool(drawn.numbers)
        self.counts.scheduled += drawn.in_schedule
        self.position = drawn.position
        return drawn.batch

    @property
    def whole(self) -> bool:
        """True once every batch of the loader was handed out."""
        return self._exhausted and self.counts.handed_out == self._taken

    def begin(self, drawn: Drawn) -> None:
        """Waits until what was announced of a batch has been read ahead."""
        for place, number in drawn.numbers.items():
            if not self._closed and drawn.returns == self._returned():
                self._windows[place].begin(number)

    def offer(self, drawn: Drawn) -> None:
        """Lets the forwards of a batch, which is at hand now, read its rows together, unless they
        hardly read any.

        Errors: those of ``keys_of``.
        """
        if self._announcing.resident:
            return
        keys = self.keys_of(drawn)
        for store in self._stores:
            parts = [part for part in keys if part.table.store is store]
            if len(parts) > 1:
                self._offered.append(offer(store, parts))
        self._offered_place = drawn.place

    def finish(self, drawn: Drawn) -> None:
        """Lets go of the rows of a batch, whose updates are applied."""
        if drawn.place == self._offered_place:
            self._withdraw()
        numbers, drawn.numbers = drawn.numbers, {}
        for place, number in numbers.items():
            if not self._closed and drawn.returns == self._returned():
                with contextlib.suppress(ClosedError):  # a closed store keeps no rows
                    self._windows[place].finish(number)

    def close(self) -> None:
        """Ends the pass: forgets what is drawn and announced. A second call does nothing."""
        if self._closed or self._pid != os.getpid():
            return
        self.count_skipped()
        self._withdraw()
        try:
            self._look_for_passed_over()
        finally:  # warnings may be errors
            self._end()

    def _end(self) -> None:
        self._ended = self._closed = True
        self._held.clear()
        self._unannounced.clear()
        self._iterator = None
        for window in self._windows:
            with contextlib.suppress(EmbedrockError):  # a closed store has forgotten already
                window.clear()

    def _withdraw(self) -> None:
        withdraw(self._offered)
        self._offered.clear()

    def count_skipped(self) -> None:
        """Brings ``counts.skipped`` up to date, for what windows have come to so far."""
        if not self._closed:
            with contextlib.suppress(EmbedrockError):  # a closed store does not say
                self.counts.skipped = self._skipped() - self._skipped_before

    def _skipped(self) -> int:
        return sum(window.stats()["skipped"] for window in self._windows)

    def _tell_of_none(self) -> None:
        """Says what a pass without a batch is, of a loader that a position may have been given."""
        if self._stateful is not None:
            warn(
                f"this pass over {type(self._loader).__name__} has no batch: a position behind the "
                f"last batch of an epoch, which a commit may have, is that of its end, and the "
                f"next pass is the next epoch; continue with that one"
            )

    def _measure(self) -> None:
        """Tells how long the last step took, and does as that decides."""
        if not self._announcing.decides or self._closed:
            return
        asked_at, self._asked_at = self._asked_at, perf_counter()
        drawing_s, self._drawing_s = self._drawing_s, 0.0
        before, self._reads = self._reads, _reads_of(self._stores)
        if asked_at is None:
            return
        filled = self._ended or bool(self._unannounced) or len(self._held) >= self._depth
        seconds = self._asked_at - asked_at - drawing_s
        verdict = self._announcing.step(seconds, self._reads - before, filled)
        if verdict is not None:
            self._tell(advice.set_aside(verdict))

    def _look_for_passed_over(self) -> None:
        """Says so where most batches were passed over, and announces none for a while."""
        if self._last is None or self._told_passed_over:
            return
        try:
            self.count_skipped()
            # Windows pass over batches that wait, too.
            batches = self._taken_announced + len(self._held)
            most = 2 * self.counts.skipped > batches
            if not most or not any(store.stats()["evicted"] for store in self._stores):
                return
            said = advice.passed_over(self.counts.skipped, batches, self._stores, self._last.parts)
        except EmbedrockError:
            return  # the next call of the store raises it again
        self._told_passed_over = True
        self._announcing.pass_over()
        self._tell(said)

    def _turn(self) -> None:
        """Begins to announce batches, or lets go of those that are announced."""
        self._announces = self._announcing.announce
        self._announces_from = self._taken
        if self._announces:
            self._has_window = True
            for drawn in self._held:
                if drawn.error is None:
                    self._prepare(drawn)
                    self._unannounced.append(drawn)
            return
        read = 0
        for place, window in enumerate(self._windows):
            numbers = [drawn.numbers[place] for drawn in self._held if place in drawn.numbers]
            with contextlib.suppress(EmbedrockError):  # a closed store has forgotten already
                filled = window.stats()["filled"]
                read = max(read, sum(number <= filled for number in numbers))
                window.clear()
        for drawn in self._held:
            drawn.numbers, drawn.announcement, drawn.let_go = {}, [], True
        self._unannounced.clear()
        self._announcing.settle(read)

    def _returned(self) -> list[int]:
        """Number of times that each store has gone back to a commit, which empties its window."""
        return [store._returns for store in self._stores]

    def _begin_anew(self) -> None:
        """Takes note that a store has gone back: what is drawn is announced anew, and its counters
        began again."""
        self._returns = self._returned()
        self._skipped_before = self._skipped() - self.counts.skipped
        self._reads = _reads_of(self._stores)
        self._asked_at = None  # that step has a way back in it
        self._last = None
        self._unannounced.clear()
        for drawn in self._held:
            drawn.numbers, drawn.announcement = {}, []
            if self._announces and drawn.error is None:
                self._prepare(drawn)
                self._unannounced.append(drawn)
        if self._announces:
            for window in self._windows:  # of another store of the model, which stayed
                window.clear()

    def _draw_ahead(self) -> None:
        if not self._announces:
            if not self._held and not self._ended:
                drawn = self._draw()
                if drawn.place == 0 and drawn.error is None:
                    self._look_at_first(drawn)
                self._held.append(drawn)
            return
        ahead = _FIRST_AHEAD + _AHEAD_GROWTH * (self._taken - self._announces_from)
        while self._unannounced and self._announce(self._unannounced[0]):
            self._unannounced.popleft()
        while not self._ended and len(self._held) <= min(self._depth, ahead):
            if self._unannounced:
                return
            drawn = self._draw()
            if drawn.error is None:
                self._prepare(drawn)
            self._held.append(drawn)
            if not self._announce(drawn):
                self._unannounced.append(drawn)

    def _draw(self) -> Drawn:
        drawn = Drawn(self._drawn)
        self._drawn += 1
        begin = perf_counter()
        try:
            if self._iterator is None:
                self._iterator = iter(self._loader)
            drawn.batch = next(self._iterator)
            drawn.position = self._position()
        except StopIteration as end:
            drawn.error = end
            self._ended = True
        except Exception as error:
            drawn.error = error
            self._ended = True
        self._drawing_s += perf_counter() - begin
        return drawn

    def _prepare(self, drawn: Drawn) -> None:
        """Prepares the announcement of a batch. An error in its keys becomes the batch's error."""
        drawn.let_go = False
        try:
            drawn.announcement = self._announcement(self.keys_of(drawn))
            if self._schedule is not None:
                drawn.scheduled = self._schedule.of(drawn.place, drawn.parts)
                drawn.in_schedule = drawn.scheduled is not None
        except Exception as error:
            drawn.error = error
            self._ended = True

    def _look_at_first(self, drawn: Drawn) -> None:
        """Finds the keys of a batch that is not announced. An error in them becomes the batch's
        error."""
        try:
            self._look_at(drawn)
        except Exception as error:
            drawn.error = error
            self._ended = True

    def _look_at(self, drawn: Drawn) -> None:
        drawn.parts = self._finder(drawn.batch)
        drawn.hashes = [_hash(part.keys) for part in drawn.parts]
        drawn.looked_at = True

    def _announcement(self, parts: Sequence[TableKeys]) -> list[dict[Table | str, FlatKeys]]:
        by_store: list[dict[Table | str, FlatKeys]] = [{} for _ in self._windows]
        for part in parts:
            by_store[self._store_places[id(part.table.store)]][part.table] = part.keys
        return by_store

    def _announce(self, drawn: Drawn) -> bool:
        """Announces a batch, the last one that was drawn; False when a window had no room for it.
        An error in its keys becomes the batch's error, and makes it the last one."""
        if drawn.error is not None:
            return True
        for place, (window, keys) in enumerate(zip(self._windows, drawn.announcement, strict=True)):
            if place not in drawn.numbers:
                try:
                    of_batch = drawn.scheduled and of_store(drawn.scheduled, self._stores[place])
                    number = window.announce(keys, schedule=of_batch)
                except EmbedrockError as error:
                    drawn.error = error
                    self._ended = True
                    return True
                if number is None:
                    self.counts.refused += 1
                    return False
                drawn.numbers[place] = number
                drawn.returns = self._returns
        drawn.announcement, drawn.scheduled = [], None
        return True

    def _position(self) -> Any:
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())


def _reads_of(stores: Iterable[Store]) -> Reads:
    return sum((reads_of(store) for store in stores), Reads())


def reads_of(store: Store) -> Reads:
    """The uses and reads of a store since it was opened."""
    used, missed, ahead, wait_s = store._core.row_reads()
    return Reads(used, missed + ahead, wait_s)


def _hash(keys: FlatKeys) -> int:
    """A number that other keys, or these in another order, do not have but by rare chance."""
    global _weights
    weights = _weights
    if len(weights) < len(keys):
        _weights = weights = _weights_of(1 << len(keys).bit_length())
    return int(np.dot(keys, weights[: len(keys)]))


def _weights_of(count: int) -> FlatKeys:
    weights: FlatKeys = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (weights ^ (weights >> np.uint64(29))) | np.uint64(1)


_weights = _weights_of(1 << 12)
"""An odd factor for each place."""


def _check_unchanged(drawn: Drawn) -> None:
    for part, before in zip(drawn.parts, drawn.hashes, strict=True):
        if _hash(part.keys) != before:
            raise MisuseError(
                f"keys of table {part.table.name!r} in batch {drawn.place} of the pass are others "
                f"than when it was drawn; batches are drawn ahead: let the loader give each one "
                f"memory of its own, and change none that it has given"
            )
