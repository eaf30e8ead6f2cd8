"""One pass of a pipeline: the batches in flight, and the stages that read and update.

Owns the threads and their shared state. The caller's thread draws batches, computes and makes
steps; the reading stage reads rows of batches to come; the updating stage applies steps in their
order. Invariants:

* A row is read ahead when at most ``staleness_bound`` earlier batches that touch it have not been
  applied, by permits (``embedrock.ahead``). At bound 0 every forward sees the same rows as without
  a pipeline.
* Changes unknown to the permits (a step that changes rows which its batch had not announced, verbs
  of the caller that change rows) are noted in every batch that has read such a row; its forward
  reads the row again.
* Steps are applied one after the other in the order in which they were made. ``settle`` waits for
  all of them: every verb of the store does so first, a commit included.
* A batch is overlapped, or the caller's thread does all of it when no overlapped one is in flight
  any more: as if there were no pipeline.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock import _core
from embedrock._arrays import as_keys
from embedrock._distinct import distinct
from embedrock._listeners import Listener, Part, Waits
from embedrock._rows import RowTable
from embedrock.errors import EmbedrockError, MisuseError
from embedrock.pipeline.ahead import Ahead, GetPart
from embedrock.pipeline.feed import Drawn, Feed
from embedrock.pipeline.pace import Pace
from embedrock.pipeline.stage import Stage
from embedrock.store import Store

__all__ = ["Run", "RunCounts", "Step"]

Ids: TypeAlias = npt.NDArray[np.int64]
_Bounds: TypeAlias = tuple[float | None, float | None, float | None, float]
_STEPS_MAX = 8
"""Steps and ends of batches that wait to be applied: more would only be further behind."""
_UNDER_WAY = 3
"""Overlapped batches whose rows are in use at once: read, computed with, updated."""
_LOOK_EVERY = 4
"""Overlapped batches from one look at the cache to the next."""


@dataclass
class RunCounts:
    """Counters of a pass."""

    batches: int = 0
    overlapped: int = 0
    """Those of them that were read and updated beside the loop."""
    rows_ahead: int = 0
    """Rows that were read before their forward."""
    rows_late: int = 0
    """Those of them that had to wait for updates."""
    rows_again: int = 0
    """Those of them that were read again, because they changed unannounced."""
    forwards_ahead: int = 0
    """Look-ups of a table that took rows read ahead."""
    forwards_direct: int = 0
    """Look-ups under gradients that read for themselves."""
    waited_for_rows_s: float = 0.0
    """Seconds in which forwards waited for rows."""


@dataclass
class Step:
    """An optimizer step on tables."""

    parts: list[Any]
    non_finite: str
    within: _Bounds | None
    number: int
    norm: float | None = None
    """The norm that it scaled, once it is applied and where it has such a bound."""


class Run(Listener):
    """A pass that is under way. All of its methods are called on the caller's thread."""

    def __init__(
        self, store: Store, feed: Feed, bound: int | None, read_ahead: int, pace: Pace
    ) -> None:
        """Draws the first batches, then starts the stages."""
        self.counts = RunCounts()
        self.current: Ahead | None = None
        """The batch that was handed out last, where it is overlapped."""
        self._alone: Drawn | None = None
        """The batch that was handed out last, where it is not."""
        self._pace = pace
        self._begun: float | None = None
        """When the batch at hand was asked for."""
        self._store = store
        self.feed = feed
        """The pass over the loader."""
        self._read_ahead = read_ahead
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        """The one that computes: it has asked for the batch at hand."""
        self._permits = _core.Permits(bound)
        self._lock = threading.Lock()
        """Guards batches and what they note of rows; never held while reading or waiting."""
        self._in_flight: dict[int, Ahead] = {}
        self._unapplied: dict[int, list[tuple[str, Ids]]] = {}
        """Rows that steps which are not applied yet change without their batch having said so."""
        self._steps = 0
        self._rows_most = 0
        """Distinct rows of the largest batch that was read ahead."""
        self._waiting: deque[Ahead | Drawn] = deque()
        self._ended: BaseException | None = None
        self._stopped = False
        self._fill()  # a loader forks its workers while there are no threads
        self._reading = Stage("reading", self._read, read_ahead + 2, self._failed)
        self._updating = Stage("updating", self._update, _STEPS_MAX, self._failed)
        for ahead in self._waiting:
            if isinstance(ahead, Ahead):
                self._reading.put(ahead)

    def advance(self) -> Any:
        """Ends the batch at hand and gives the next one.

        Errors: ``StopIteration`` behind the last one, when all updates are applied; what drawing
        this batch, or a stage, has raised.
        """
        self._thread = threading.get_ident()
        self._end_batch()
        for ahead in self._fill():
            self._reading.put(ahead)
        if not self._waiting:
            self.settle()
            assert self._ended is not None
            raise self._ended
        batch = self._waiting.popleft()
        self.counts.batches += 1
        if isinstance(batch, Ahead):
            self.counts.overlapped += 1
            self.current = batch
            return self.feed.hand_out(batch.drawn)
        self.settle()
        self._alone = batch
        self.feed.begin(batch)
        handed_out = self.feed.hand_out(batch)
        self.feed.offer(batch)
        return handed_out

    def before(self) -> None:
        """A verb sees every step so far. Errors: what one of them has raised."""
        self._store._core.check_call()  # inside modify these would wait for it
        self.settle()

    def settle(self) -> None:
        """Waits until all steps so far are applied. Errors: what one of them has raised."""
        if self._pid == os.getpid():
            self._updating.drain()

    def step(
        self,
        parts: list[Any],
        non_finite: str,
        within: _Bounds | None,
        changed: Sequence[tuple[RowTable, Ids]],
    ) -> Step:
        """Applies an optimizer step on these rows: later, or at once for a batch that is not
        overlapped. Errors: what an earlier one raised; what this one raises when it is at once."""
        if self._alone is not None:
            self._updating.check()
            try:
                return self._apply(Step(parts, non_finite, within, 0))
            except BaseException as error:
                self._updating.fail(error)
                raise
        unknown = self._unknown(changed)
        with self._lock:
            self._steps += 1
            number = self._steps
            if unknown:
                self._unapplied[number] = unknown
                self._outdate(unknown)
            for table, _ in changed:
                if self.current is not None and table.name in self.current.by_name:
                    self.current.by_name[table.name].drop()  # a further forward reads them anew
        step = Step(parts, non_finite, within, number)
        self._updating.put(step)
        return step

    def changed(self, parts: Sequence[Part]) -> None:
        """Notes rows that the caller has changed."""
        with self._lock:
            self._outdate([(name, keys.view(np.int64)) for name, keys in parts])

    def take(self, table: RowTable, ids: Ids) -> tuple[Ids, Ids, Tensor] | None:
        """Distinct ids, each id's place among them, and their rows ``(U, D)``, where they were read
        ahead for the batch at hand; None where not, and on another thread than the loop's.

        Blocking: waits until the rows are there.
        """
        if self._thread != threading.get_ident():
            return None  # a model that is served beside the loop, say
        found = None if self.current is None else self.current.by_name.get(table.name)
        if self.current is None or found is None:
            self.counts.forwards_direct += 1
            return None
        begin = perf_counter()
        self.current.ready.wait()
        self.counts.waited_for_rows_s += perf_counter() - begin
        self._updating.check()
        if found.outdated is not None:
            self._read_again(self.current)
        if found.rows is None:
            self.counts.forwards_direct += 1
            return None
        whole = np.array_equal(ids, found.ids)
        keys, inverse = (found.keys, found.inverse) if whole else distinct(ids)
        places = None if whole else found.find(keys)
        if not whole and places is None:
            self.counts.forwards_direct += 1
            return None
        self.counts.forwards_ahead += 1
        rows = found.rows
        if whole:
            found.rows = None  # it is the forward's own now
        else:
            rows = rows.index_select(0, torch.from_numpy(places))
        return keys, inverse, rows

    def stop(self) -> None:
        """Applies the steps that were made, and ends the pass. A second call does nothing.

        Errors: what a step has raised, if that was not told before.
        """
        if self._stopped or self._pid != os.getpid():
            return
        self._stopped = True
        # Closing the window wakes a thread that waits for it.
        self.feed.close()
        self._reading.stop(discard=True)
        self._failed()
        self._updating.stop(discard=False)
        if not self._updating.told:
            self._updating.check()

    def returning(self) -> None:
        """Refused: batches that were read ahead would be of rows that are gone.

        Errors: ``MisuseError``.
        """
        raise MisuseError(
            "a pass of a pipeline is under way; end its loop, or close it, before the store goes "
            "back to an earlier commit"
        )

    def closing(self) -> None:
        """Applies the steps that were made, and ends the pass."""
        self.stop()

    def waits(self) -> Waits:
        """The waits of the loop."""
        counts = self.counts
        return Waits(counts.overlapped, counts.waited_for_rows_s, self._updating.blocked_s)

    def stats(self) -> dict[str, Any]:
        """Counters of the pass."""
        return {
            **vars(self.counts),
            "reading_s": self._reading.busy_s,
            "updating_s": self._updating.busy_s,
            "waited_for_updates_s": self._updating.blocked_s,
            "permits": self._permits.stats(),
        }

    def _end_batch(self) -> None:
        """Ends the batch at hand, if there is one."""
        now, overlapped = perf_counter(), self.current is not None
        if self.current is not None:
            if not self._stopped:
                self._updating.put(self.current)
            self.current = None
        if self._alone is not None:
            self.feed.finish(self._alone)
            self._alone = None
        if self._begun is not None:
            self._pace.step(now - self._begun, overlapped)
        self._begun = now

    def _fill(self) -> list[Ahead]:
        """Draws what is missing to the batches that are read ahead, or the next one alone; returns
        those that have to be read."""
        fresh: list[Ahead] = []
        if self._crowded():
            self._pace.stand_aside()
        most = self._read_ahead if self._pace.overlap else 0
        while self._ended is None and len(self._waiting) <= most:
            try:
                drawn = self.feed.take()
                batch = Ahead(drawn, self.feed.keys_of(drawn)) if self._pace.overlap else drawn
            except (StopIteration, Exception) as error:
                self._ended = error
                break
            self._waiting.append(batch)
            if isinstance(batch, Ahead):
                fresh.append(batch)
        return fresh

    def _crowded(self) -> bool:
        """Whether rows leave caches that are too small for the batches under way: updates would
        read them a second time. Looks now and then, before the pace has measured anything."""
        known = self._pace.measured or not self._pace.measures
        if known or not self._rows_most or self.counts.batches % _LOOK_EVERY:
            return False
        try:
            facts = self._store.stats()
        except EmbedrockError:
            return False  # the next call of the store raises it again
        capacity = sum(one["cache_capacity"] for one in facts["classes"])
        return bool(facts["evicted"] > 0 and _UNDER_WAY * self._rows_most > capacity)

    def _failed(self) -> None:
        """Wakes whoever waits for rows that will not come."""
        with self._lock:
            waiting = [*self._waiting]  # at once: the caller's thread may draw meanwhile
            drawn = [ahead for ahead in waiting if isinstance(ahead, Ahead)]
            batches = [*self._in_flight.values(), *drawn]
        if self.current is not None:
            batches.append(self.current)
        for ahead in batches:
            ahead.ready.set()

    def _unknown(self, changed: Sequence[tuple[RowTable, Ids]]) -> list[tuple[str, Ids]]:
        """Of the rows that a step changes, those that the batch at hand has not announced."""
        known = {} if self.current is None else self.current.by_name
        unknown = []
        for table, keys in changed:
            own = known.get(table.name)
            if own is not None and (keys is own.keys or np.array_equal(keys, own.keys)):
                continue
            left = keys if own is None else keys[~np.isin(keys, own.keys)]
            if len(left):
                unknown.append((table.name, left))
        return unknown

    def _outdate(
        self, named: Sequence[tuple[str, Ids]], batches: Iterable[Ahead] | None = None
    ) -> None:
        """Notes rows that have changed, or will, in batches that have read them; all by default.
        Needs the lock."""
        for ahead in self._in_flight.values() if batches is None else batches:
            for name, keys in named:
                if name in ahead.by_name:
                    ahead.by_name[name].outdate(keys)

    def _read(self, ahead: Ahead) -> None:
        """The reading stage's work. An error is left to the forward, which fails in its turn."""
        try:
            self.feed.begin(ahead.drawn)
        except EmbedrockError:
            ahead.give_up()
        with self._lock:
            # One lock for both, so that no release comes in between.
            permit, deferred = self._permits.enter(ahead.key_parts())
            ahead.permit = permit
            self._in_flight[permit] = ahead
            parts = ahead.place(deferred)
            for unknown in self._unapplied.values():
                self._outdate(unknown, [ahead])
            rows = sum(len(one.keys) for one in ahead.tables)
            self._rows_most = max(self._rows_most, rows)
            self.counts.rows_ahead += rows
            self.counts.rows_late += sum(map(len, deferred))
        self._get(ahead, parts)
        # Its late rows, too: they are of the same query.
        asked = [(one.table.name, one.keys.view(np.uint64)) for one in ahead.tables]
        self._store._listeners.asked(asked, False)
        self._arrived(ahead, 1)

    def _update(self, item: Step | Ahead) -> None:
        """The updating stage's work: a step, or the end of a batch."""
        if isinstance(item, Step):
            self._apply(item)
            with self._lock:
                self._unapplied.pop(item.number, None)
            return
        item.ready.wait()  # nobody has asked for its rows, perhaps
        if item.permit is None:
            return
        late: dict[int, tuple[Ahead, list[GetPart]]] = {}
        with self._lock:
            del self._in_flight[item.permit]
            for permit, part, positions in self._permits.release(item.permit):
                ahead = self._in_flight[permit]
                _, parts = late.setdefault(permit, (ahead, []))
                parts.append(ahead.read(part, positions))
        self.feed.finish(item.drawn)
        for _, (ahead, parts) in sorted(late.items()):
            self._get(ahead, parts)
            self._arrived(ahead, sum(len(keys) for _, keys, _, _ in parts))

    def _apply(self, step: Step) -> Step:
        report = self._store._core.update(step.parts, step.non_finite, None, step.within)
        step.norm = report[3]
        return step

    def _get(self, ahead: Ahead, parts: Sequence[GetPart]) -> None:
        try:
            self._store._core.get([part for part in parts if len(part[1])])
        except EmbedrockError:
            ahead.give_up()
            return
        names = {one.table._handle: one.table.name for one in ahead.tables}
        self._store._listeners.visited([(names[handle], keys) for handle, keys, _, _ in parts])

    def _arrived(self, ahead: Ahead, count: int) -> None:
        with self._lock:
            ahead.outstanding -= count
            complete = ahead.outstanding == 0
        if complete:
            ahead.complete()

    def _read_again(self, ahead: Ahead) -> None:
        """Reads rows anew that have changed unannounced, once that is applied."""
        self.settle()
        parts, targets = [], []
        with self._lock:
            for table in ahead.tables:
                if table.outdated is not None and table.rows is not None:
                    shape = (len(table.outdated), table.table.embedding_dim)
                    room = torch.empty(shape, dtype=torch.float32, device="cpu")
                    keys = as_keys(table.keys[table.outdated]).flat
                    parts.append((table.table._handle, keys, room.numpy(), None))
                    targets.append((table, table.outdated, room))
                table.outdated = None
        self._store._core.get(parts)
        for table, places, room in targets:
            assert table.rows is not None
            table.rows.index_copy_(0, torch.from_numpy(places), room)
            self.counts.rows_again += len(places)
