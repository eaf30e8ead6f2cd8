"""Look-ahead of ranks: ids of batches to come are exchanged when they are announced.

Owns a thread and a group of its own, so that exchanges of ids go on beside those of the loop. The
ids that all ranks request from a rank are announced to the window of its own store and kept, so
the batch's forward sends no ids. Invariants: jobs are done in the order of their announcement,
which is the same on all ranks; the end of one rank's loop is found at the same job on all ranks,
and later jobs of the pass are skipped.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from embedrock._arguments import shown
from embedrock._arrays import ArrayLike, Keys, as_keys
from embedrock._distinct import distinct
from embedrock._names import beside
from embedrock.ahead import BatchSchedule
from embedrock.distributed.exchange import Exchange, Verb
from embedrock.distributed.making import digest_of
from embedrock.distributed.payload import Payload, by_table, pieces_of
from embedrock.distributed.routing import Route
from embedrock.distributed.table import ShardTable
from embedrock.errors import ClosedError, EmbedrockError, MisuseError, NotFoundError
from embedrock.pipeline.keys import TableKeys
from embedrock.pipeline.scheduled import PassSchedule

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard
    from embedrock.table import Table

__all__ = ["Asked", "Kept", "Pass", "ShardWindow"]

ANNOUNCED_MAX = 512
"""Batches that are announced and not finished; their ids are kept beside the budget."""


@dataclass
class Kept:
    """Exchanged data of an announced batch."""

    number: int
    """Number of exchanged batches, this one included; the same on all ranks."""
    places: dict[str, int]
    """By table."""
    keys: list[npt.NDArray[np.uint64]]
    """Distinct keys of each table, as the batch reads them."""
    pieces: list[list[npt.NDArray[np.uint64]]]
    """The keys that each rank requests from this one, by rank and table."""
    local: int | None
    """Its number in the window of this rank's store, if the window had room."""

    def asked_of(self, names: Sequence[str]) -> list[list[npt.NDArray[np.uint64]]]:
        """The keys that ranks request from these tables."""
        places = [self.places[name] for name in names]
        return [[own[place] for place in places] for own in self.pieces]


class Pass:
    """One pass over batches of all ranks."""

    def __init__(self, schedule: PassSchedule | None = None) -> None:
        """Begins."""
        self.schedule = schedule
        """Of what all ranks request from this one."""
        self.batches = 0
        """Batches that were exchanged so far."""
        self.ended = False
        """Some rank has no more, or has failed; written by the thread alone."""
        self.failed = False
        """An error of the pass has reached all ranks."""
        self.told: list[str] = []
        """What is to be said of the schedule, by the thread of the loop."""
        if schedule is not None:
            schedule.tell = self.told.append

    def scheduled(
        self, place: int, keys: Mapping[Table, npt.NDArray[np.uint64]]
    ) -> BatchSchedule | None:
        """The schedule's entry for a batch. An error of this rank's file costs the schedule alone:
        other ranks wait for the batch."""
        if self.schedule is None:
            return None
        try:
            return self.schedule.of(place, [TableKeys(table, keys[table]) for table in keys])
        except Exception as error:
            self.schedule.over = True
            self.told.append(
                f"the schedule of this pass cannot be read: {type(error).__name__}: {error}; the "
                f"pass goes on without, with the same results"
            )
            return None


@dataclass
class Asked:
    """The ids of one step, exchanged."""

    keys: list[npt.NDArray[np.uint64]]
    """Distinct keys of each table that this rank requests."""
    pieces: list[list[npt.NDArray[np.uint64]]]
    """The keys that each rank requests from this one, by rank and table."""
    tables: list[Table]
    """The tables of this rank's store."""

    def of_all(self) -> dict[Table, npt.NDArray[np.uint64]]:
        """The keys that all ranks request from this one, by its own tables."""
        return {table: by_table(self.pieces, i) for i, table in enumerate(self.tables)}


@dataclass
class _Job:
    parts: list[tuple[ShardTable, Keys]] | None
    """None: this rank has no more batches."""
    of: Pass
    failed: BaseException | None
    result: Future[Kept | None]


class ShardWindow:
    """Batches to come, of all ranks; :attr:`Shard.window` gives it.

    Every method is called on all ranks in one order, for the batches of one step each. Errors of
    an announcement (``RankError``) are raised where its batch begins.

    >>> number = shard.window.announce({table: [1, 2, 3]})  # doctest: +SKIP
    >>> shard.window.begin(number)  # doctest: +SKIP
    >>> rows = table.get([1, 2, 3])  # doctest: +SKIP
    >>> shard.window.finish(number)  # doctest: +SKIP
    """

    def __init__(self, shard: Shard, group: dist.ProcessGroup) -> None:
        """Not for callers."""
        self._shard = shard
        self._exchange = Exchange(group)
        self._payload = Payload(self._exchange, torch.float32)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: dict[int, Future[Kept | None]] = {}
        """Batches that are announced and not finished."""
        self._number = self._exchanged = 0
        self._current: Kept | None = None
        self._closed = False
        self._usual = Pass()

    def announce(self, batch: Mapping[ShardTable | str, ArrayLike]) -> int | None:
        """Announces the keys of this rank's part of a coming batch: ``{table or name: keys (*,)}``.

        All ranks name the same tables, one without ids with empty keys. Returns the batch's number
        on this rank; None where 512 batches are announced and not finished.

        Blocking: never; the ids are exchanged on a thread.
        """
        if len(self._open) >= ANNOUNCED_MAX:
            return None
        return self._announce(batch, self._usual)

    def begin(self, number: int) -> None:
        """The batch is about to be read: waits until its ids are known and its rows read ahead.

        Errors: what announcing it has raised; ``MisuseError`` for a number that ``announce`` did
        not return.
        """
        kept = self._result(number)
        self._current = kept
        if kept is not None and kept.local is not None:
            self._shard.store.window.begin(kept.local)

    def finish(self, number: int) -> None:
        """The batch, and all before it, is done with: call it when its updates are applied."""
        self._check(number)
        self._current = None
        last: int | None = None
        for other in [one for one in self._open if one <= number]:
            kept = self._open.pop(other).result()
            last = last if kept is None or kept.local is None else kept.local
        if last is not None:
            self._shard.store.window.finish(last)

    def clear(self) -> None:
        """Forgets everything that is announced, on all ranks."""
        self._current = None
        for number in list(self._open):
            self._open.pop(number).exception()  # all ranks have announced it: they come, too
        if not self._shard.store.closed:
            self._shard.store.window.clear()

    def stats(self) -> dict[str, Any]:
        """Counters of the window of this rank's store (:meth:`embedrock.Store.window`), over the
        requests of all ranks."""
        return self._shard.store.window.stats()

    def _announce(self, batch: Any, of: Pass, failed: BaseException | None = None) -> int:
        """Announces a batch of a pass; None says that this rank has no more, or that drawing it
        has ``failed``."""
        if self._closed:
            raise ClosedError("the shard is closed")
        self._number += 1
        parts = None
        try:
            parts = None if batch is None else self._parts(batch)
        except Exception as error:
            failed = failed or error
        job = _Job(parts, of, failed, Future())
        self._open[self._number] = job.result
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="embedrock ids ahead", daemon=True
            )
            self._thread.start()
        self._jobs.put(job)
        return self._number

    def _result(self, number: int) -> Kept | None:
        """The data of a batch; None if some rank has no more.

        Blocking: until all ranks have announced it.
        """
        self._check(number)
        return self._open[number].result()

    def _check(self, number: int) -> None:
        if number not in self._open:
            raise MisuseError(
                f"number is {shown(number)}, expected one that announce() has returned and that is "
                f"not finished"
            )

    def _kept_for(self, tables: Sequence[ShardTable], route: Route) -> Kept | None:
        """The batch at hand, where it was announced with just these keys of the tables."""
        kept, begin = self._current, 0
        if kept is None:
            return None
        for table, length in zip(tables, route.lengths.tolist(), strict=True):
            place = kept.places.get(table.name)
            keys = route.keys[begin : begin + length]
            if place is None or not np.array_equal(keys, kept.keys[place]):
                return None
            begin += length
        return kept

    def _settle(self) -> None:
        """Waits until the ids of all that is announced are exchanged, or have failed."""
        for result in self._open.values():
            result.exception()

    def _forget_rows(self) -> None:
        """The store of this rank has gone back, and its window forgot everything: ids that are
        known stay so, and their rows are read when they are needed.

        Blocking: until all ranks have announced what this one has.
        """
        for result in self._open.values():
            if result.exception() is None and (kept := result.result()) is not None:
                kept.local = None
        self._shard.store.window.clear()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)

    def _parts(self, batch: Any) -> list[tuple[ShardTable, Keys]]:
        if not isinstance(batch, Mapping):
            raise MisuseError(f"batch is {shown(batch)}, expected {{table: keys}}")
        found = []
        for table, keys in batch.items():
            if isinstance(table, str):
                known = self._shard.tables
                if table not in known:
                    there = beside(table, known)
                    raise NotFoundError(f"{self._shard!r} has no table {table!r} ({there})")
                table = known[table]
            if not isinstance(table, ShardTable):
                raise MisuseError(f"batch has keys of {shown(table)}, expected a table or a name")
            found.append((table, as_keys(keys)))
        return sorted(found, key=lambda part: -part[0].embedding_dim)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.result.set_result(None if job.of.ended else self._work(job))
            except BaseException as error:
                job.result.set_exception(error)
            del job

    def _work(self, job: _Job) -> Kept | None:
        """Exchanges the ids of one batch; None where some rank has no more."""
        asked = self._asked("announce", job.parts, job.failed, job.of)
        if asked is None:
            return None
        of_all = asked.of_all()
        announced: dict[Table | str, ArrayLike] = {table: keys for table, keys in of_all.items()}
        place, job.of.batches = job.of.batches, job.of.batches + 1
        local = None
        scheduled = job.of.scheduled(place, of_all)
        with contextlib.suppress(EmbedrockError):  # reading the rows raises it again
            local = self._shard.store.window.announce(announced, schedule=scheduled)
        places = {table.name: place for place, table in enumerate(asked.tables)}
        self._exchanged += 1
        return Kept(self._exchanged, places, asked.keys, asked.pieces, local)

    def _asked(
        self,
        name: str,
        own: list[tuple[ShardTable, Keys]] | None,
        failed: BaseException | None,
        of: Pass,
    ) -> Asked | None:
        """Exchanges the ids of a step of all ranks; None where some rank has no more."""
        shard, parts, route = self._shard, own or [], None
        try:
            once = [(table, self._once(keys)) for table, keys in parts]
            found = shard._keys_of(once)
            route = shard._route(found)
        except Exception as error:
            failed = failed or error
        names = tuple(table.name for table, _ in parts)
        verb = Verb(name, names)
        note = 0 if own is None else digest_of(repr(names))
        with self._exchange as exchange:
            # A rank that has no more names no tables.
            try:
                met = exchange.meet(Verb(name), failed=failed, note=note)
            except Exception:  # of whatever kind: the pass ends for all, or for nobody
                of.ended = of is not self._usual
                raise
            if not met.notes.all():
                of.ended = True
                return None
            if (met.notes != note).any():
                exchange.raise_difference(verb)
            assert route is not None
            theirs = exchange.counts(verb, route.counts)
            asked = self._payload.ids(verb, route, theirs).copy()
        pieces = pieces_of(asked, theirs)
        return Asked([keys for _, keys in once], pieces, [table.local for table, _ in parts])

    def _once(self, keys: Keys) -> npt.NDArray[np.uint64]:
        return keys.flat.copy() if self._shard._each_occurrence else distinct(keys.flat)[0]
