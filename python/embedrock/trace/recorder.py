"""Records what verbs ask a store for as a trace, in bounded memory."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from embedrock._arguments import shown, whole
from embedrock._core import distinct
from embedrock._listeners import Listener, Listeners, Part
from embedrock._memory import size_of
from embedrock._warnings import warn
from embedrock.errors import BudgetWarning, ForkedError, MisuseError
from embedrock.trace.arena import Arena
from embedrock.trace.queries import Queries, offsets_of
from embedrock.trace.sampling import WHOLE, hashes, limit, marked, share_of
from embedrock.trace.trace import Trace

if TYPE_CHECKING:
    from embedrock.store import Store

__all__ = ["Recorded", "Recorder", "record"]

_LEAST_BYTES = 64 << 10
_READS = 256
"""Reads whose update may still come: more batches than pipelines have under way."""
_HASHED = 1024
"""Numbers of batches that are hashed together."""


class Recorded(TypedDict):
    """The queries that a recorder has seen and kept."""

    batches: int
    """Batches that were read or updated while it ran; an update of what was read is none."""
    queries: int
    """Those of them that it holds."""
    keys: int
    """Distinct keys of these, each counted once per query and table."""
    rate: float
    """The share of the batches that is in the sample, at the end."""
    thinned: int
    """Batches that were in the sample at the rate asked for, and had to give way: no room."""
    too_large: int
    """Those of them that would not fit alone."""
    bytes: int
    """The bytes of the queries."""


class Recorder:
    """Takes a sample of what a store is asked for. :func:`record` begins one.

    It ends with its ``with`` block, with :meth:`stop`, or when the store is closed. It belongs to
    the process that began it: in a forked child it does nothing.
    """

    def __init__(self, store: Store, share: float, max_bytes: int, seed: int) -> None:
        """Not for callers: recorders come from :func:`record`."""
        self._process, self._asked = os.getpid(), share
        self._store = weakref.ref(store)  # a recorder must not keep the store open
        self._sampler = _Sampler(limit(share), max_bytes, seed)
        self._told = False
        store._listeners.add(self._sampler)

    @property
    def running(self) -> bool:
        """Whether it still records."""
        return self._sampler.running and os.getpid() == self._process

    def stop(self) -> None:
        """Ends it; a second call does nothing.

        Warns with ``BudgetWarning`` where there was no room for all that was to be sampled.
        """
        if os.getpid() != self._process:
            return
        self._sampler.running = False
        store = self._store()
        if store is not None:
            store._listeners.remove(self._sampler)
        stats = self.stats()
        if stats["thinned"] and not self._told:
            self._told = True
            warn(
                f"the recorder had no room for {stats['thinned']:,} of the batches in its sample "
                f"of {self._asked:g}: it is one of {stats['rate']:g}, {stats['queries']:,} of "
                f"{stats['batches']:,} batches; give more max_bytes, or ask for less",
                BudgetWarning,
            )

    def stats(self) -> Recorded:
        """Counts of queries seen, kept and dropped so far. Errors: ``ForkedError``."""
        self._refuse_child()
        return self._sampler.stats()

    def trace(self) -> Trace:
        """The queries so far, in order; each has its distinct keys in order of first occurrence.

        Errors: ``MisuseError`` where there is no query yet; ``ForkedError``.

        Blocking: verbs that are sampled wait while the queries are copied; the copy takes as much
        memory again, and while it is divided among tables twice that.
        """
        self._refuse_child()
        return self._sampler.trace()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace: ``trace().save(path)``."""
        self.trace().save(path)

    def __enter__(self) -> Recorder:
        """The recorder itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.stop()

    def __repr__(self) -> str:
        if os.getpid() != self._process:
            return "<embedrock.trace.Recorder of another process>"
        stats = self._sampler.stats()
        state = "running" if self.running else "ended"
        return (
            f"<embedrock.trace.Recorder {stats['queries']:,} of {stats['batches']:,} batches, "
            f"{state}>"
        )

    def _refuse_child(self) -> None:
        # It may have inherited a lock that a thread of its parent holds.
        if os.getpid() != self._process:
            raise ForkedError(
                f"the recorder runs in process {self._process}, this is its forked child "
                f"{os.getpid()}: save it there and load the trace here"
            )


def record(
    store: Store, sample: float = 1.0, *, max_bytes: int | str = "256MB", seed: int = 0
) -> Recorder:
    """Begins to record the requests to ``store``, as a trace by which its rows can be placed.

    A batch that is read, or updated without having been read, is a query: the distinct keys of all
    its tables in order of first occurrence. ``sample`` is the share of the batches that is kept,
    whole, chosen by a hash of their number and ``seed``: the same calls give the same trace. Rows
    written by ``put`` or deleted by ``delete`` are no query.

    The queries take ``max_bytes`` at most, which the memory budget of the store does not cover;
    20 keys of one table take 176. When they are full the rate is halved, and what is there is
    thinned out to it, so that it stays a uniform sample of all that was asked: ``stats()`` counts
    what had to give way, and a ``BudgetWarning`` at the end says so.

    Errors: ``MisuseError``; ``ClosedError`` and ``ForkedError`` of the store.

    >>> with embedrock.trace.record(store) as recorder:
    ...     rows = table.get([7, 8, 7])
    ...     report = table.update([7, 8, 7], np.ones((3, 4), np.float32), lr=0.1)
    ...     rows = table.get([9])
    >>> recorder.trace().tables["ads"].values.tolist(), recorder.stats()["batches"]
    ([7, 8, 9], 2)
    """
    if not isinstance(getattr(store, "_listeners", None), Listeners):
        raise MisuseError(f"store is {shown(store)}, expected an embedrock.Store")
    share = share_of("sample", sample, whole=True)
    size = size_of("max_bytes", max_bytes, _LEAST_BYTES)
    store.stats()  # as any verb: refuses what is closed, and a forked child
    return Recorder(store, share, size, whole("seed", seed, 0))


class _Sampler(Listener):
    """Hears of queries, and keeps a sample of them."""

    def __init__(self, below: int, max_bytes: int, seed: int) -> None:
        self.running = True
        self._below, self._below_asked, self._seed = below, below, seed
        self._lock = threading.Lock()
        """Guards what follows; held while a query is copied, and while all are thinned out."""
        try:
            self._arena = Arena(max_bytes)
        except (MemoryError, ValueError) as error:  # the latter of what no array can have
            raise MisuseError(
                f"max_bytes is {max_bytes:,}, which this machine cannot give: {error}"
            ) from error
        self._tables: dict[str, int] = {}
        self._reads: OrderedDict[int, int] = OrderedDict()
        self._hashes = np.empty(0, np.uint64)
        self._batches = self._thinned = self._too_large = 0

    def asked(self, parts: Sequence[Part], changed: bool) -> None:
        if not self.running or not any(len(keys) for _, keys in parts):
            return
        told_apart = hash(tuple((name, keys.tobytes()) for name, keys in parts))
        with self._lock:
            if changed and self._was_read(told_apart):
                return
            if not changed:
                self._reads[told_apart] = self._reads.pop(told_apart, 0) + 1
                if len(self._reads) > _READS:
                    self._reads.popitem(last=False)
            query = self._batches
            self._batches += 1
            place = query % _HASHED
            if place == 0:
                numbers = np.arange(query, query + _HASHED, dtype=np.uint64)
                self._hashes = hashes(numbers, self._seed)
            hashed = int(self._hashes[place])
            if hashed >= self._below:
                self._thinned += hashed < self._below_asked
                return
        found = [(name, distinct(keys)[0]) for name, keys in parts if len(keys)]
        with self._lock:
            self._keep(query, hashed, found)

    def ended(self) -> None:
        self.running = False

    def stats(self) -> Recorded:
        with self._lock:
            return Recorded(
                batches=self._batches,
                queries=self._arena.queries,
                keys=self._arena.keys,
                rate=self._below / WHOLE,
                thinned=self._thinned,
                too_large=self._too_large,
                bytes=self._arena.nbytes,
            )

    def trace(self) -> Trace:
        with self._lock:
            if self._arena.queries == 0:
                raise MisuseError(
                    f"the recorder has no query yet, of {self._batches:,} batches; go on, or ask "
                    f"for a larger sample"
                )
            names = dict(self._tables)
            queries, tables, lengths, keys = self._arena.contents()
        places = np.cumsum(np.diff(queries, prepend=queries[:1]) != 0)
        count = int(places[-1]) + 1
        of_table = np.repeat(tables, lengths)
        found = {}
        for name, number in names.items():
            its = tables == number
            counts = np.bincount(places[its], lengths[its], count).astype(np.int64)
            found[name] = Queries(keys[of_table == number], offsets_of(counts))
        return Trace({name: one for name, one in found.items() if len(one.values)})

    def _was_read(self, told_apart: int) -> bool:
        """Whether an update is of a batch that was read and not updated since."""
        reads = self._reads.pop(told_apart, 0)
        if reads > 1:
            self._reads[told_apart] = reads - 1
        return reads > 0

    def _keep(self, query: int, hashed: int, found: Sequence[Part]) -> None:
        parts = [(self._tables.setdefault(name, len(self._tables)), keys) for name, keys in found]
        if not self._arena.holds(parts, empty=True):
            self._too_large += 1
            self._thinned += 1
            return
        while hashed < self._below and not self._arena.holds(parts):
            self._below = max(self._below // 2, 1)
            before = self._arena.queries
            self._arena.thin(lambda numbers: marked(numbers, self._seed, self._below))
            self._thinned += before - self._arena.queries
        if hashed < self._below:
            self._arena.add(query, parts)
        else:
            self._thinned += 1
