"""Recordings: the keys of a stretch of work, what it cost, and what it could have cost at least.

``Store.record`` begins one. A roofline in numbers: time by cause beside the least time that the
device and the memory would need for the same keys, and the rows that were loaded beside those that
the best possible cache of the same size would have loaded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from embedrock._arguments import file_errors, named_path
from embedrock._listeners import Listener, Part
from embedrock.errors import EmbedrockError, ForkedError, MisuseError
from embedrock.observe.optimum import optimal_hits
from embedrock.observe.trace import Trace

if TYPE_CHECKING:
    from embedrock.store import Store

__all__ = ["Recording"]

Keys = npt.NDArray[np.uint64]

_COUNTERS = ["hits", "rescued", "misses", "first_touches", "rows_loaded", "rows_initial"]
_COUNTERS += ["read_requests", "pages_read", "bytes_read", "bytes_written", "evicted"]
_CAUSES = ["merging", "resident", "missing", "reading", "writing", "locks"]
_TABLE_SHIFT = np.uint64(48)
_COPIED_BYTES = 32 << 20
_PART_BYTES = 400
"""Memory for noting a table in a batch, apart from its keys."""


class Recording:
    """Keys of the verbs of a store, in order, and the store's counters before and after.

    ``Store.record`` makes it; it ends with its ``with`` block, with ``stop()``, or by itself when
    the keys take the bytes that were allowed. Closing the store ends it, too.

    It belongs to the process that began it: in a forked child it does not run, ``stop()`` does
    nothing, and only one that had ended before the fork can be reported.
    """

    def __init__(self, store: Store, max_bytes: int) -> None:
        """Not for callers: recordings come from ``Store.record``."""
        # A recording must not keep the store open.
        self._store, self._left = weakref.ref(store), max_bytes
        # A forked child may inherit the lock taken, by a thread that it does not have.
        self._lock, self._process = threading.RLock(), os.getpid()
        self._batches: list[list[Part]] = []
        self._marks = [(0, store.stats(), time.perf_counter())]
        self._full = False
        self._hears = _Hears(self)
        store._listeners.add(self._hears)

    @property
    def batches(self) -> int:
        """Calls of verbs that were recorded."""
        return len(self._batches)

    @property
    def running(self) -> bool:
        """Whether it still records."""
        return os.getpid() == self._process and self._listed()

    def stop(self) -> None:
        """Ends the recording; a second call does nothing."""
        if os.getpid() == self._process:
            with self._lock:
                self._stop()

    def __enter__(self) -> Recording:
        """The recording itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the recording."""
        self.stop()

    def __repr__(self) -> str:
        """The text that ``print`` shows."""
        state = "running" if self.running else "ended"
        return f"<embedrock.Recording {self.batches} batches, {state}>"

    def trace(self) -> Trace:
        """The keys as a trace: of tables but the first, with the table's number in the upper bits.

        A key of 2^48 or more is folded into 48 bits, where two of them may meet.
        """
        numbers: dict[str, int] = {}
        parts: list[Keys] = []
        offsets = np.zeros(len(self._batches) + 1, np.int64)
        for batch, tables in enumerate(self._batches):
            for name, keys in tables:
                parts.append(_with_table(keys, numbers.setdefault(name, len(numbers))))
            offsets[batch + 1] = offsets[batch] + sum(len(keys) for _, keys in tables)
        values = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        return Trace(values, offsets)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the trace as an ``.npz`` that ``embedrock bench race --trace`` replays.

        Errors: ``IoError``.
        """
        trace, path = self.trace(), named_path("file", file)
        with file_errors(f"writing {path}"):
            np.savez(path, values=trace.values, offsets=trace.offsets)

    def report(self) -> dict[str, Any]:
        """The cost of the recorded batches, and the least that they could have cost.

        The first third of the batches shows the best possible cache what is popular; the rest
        counts. Seconds are sums over the callers' threads:

        * ``time``: in verbs (``verbs``), and of these ``merging`` equal keys, on ``resident`` rows
          (copying, changing), finding and admitting ``missing`` ones, ``reading`` (blocked in page
          reads), ``writing`` rows that left memory, waiting for ``locks``.
        * ``least``: ``reading``, the device's time for the loads of the best cache at its measured
          rate (None if it was not measured), and ``copying``, every row once at the bandwidth of
          this machine's memory, measured now.
        * ``rows_loaded`` and ``optimal_rows_loaded``; ``hit_rate`` and ``optimal_hit_rate``, of the
          distinct rows of each batch. A cache that is full of rows from before the recording may
          beat the optimum, which begins empty. If the recording is too short for an optimum, a note
          says so, and ``optimal_hit_rate`` is None.

        Errors: ``MisuseError`` while it runs, or with fewer than three batches; ``ForkedError`` in
        a child that was forked while it ran. Blocking: computes for some seconds per ten million
        keys.

        Source: Belady (1966) for the best cache.
        """
        if self.running:
            raise MisuseError("the recording still runs; stop() it, or leave its with block")
        if self._listed():
            raise ForkedError(
                f"the recording runs in process {self._process}, this is its forked child "
                f"{os.getpid()}: report it there, or save() it and read the trace here"
            )
        if self.batches < 3:
            raise MisuseError(f"{self.batches} batches were recorded, expected at least 3")
        first, before, began = min(self._marks, key=lambda m: abs(m[0] - self.batches // 3))
        _, after, ended = self._marks[-1]
        counted = {name: after[name] - before[name] for name in _COUNTERS}
        spent = {name: after["time"][name] - before["time"][name] for name in ["verbs", *_CAUSES]}
        batches = self._batches[first:]
        notes: list[str] = []
        if self._marks[-1][0] < self.batches:
            notes.append("the store was closed before the last batches were counted")
        if self._full:
            notes.append("the recording ended when its keys took max_bytes")
        said = len(notes)
        classes = self._by_class(first, after, notes)
        too_short = len(notes) > said
        distinct = sum(one["distinct_rows"] for one in classes)
        optimal = max(sum(one["optimal_loads"] for one in classes) - counted["rows_initial"], 0)
        row_bytes = {one["spec"]["name"]: one["row_bytes"] for one in after["tables"]}
        copied = sum(len(keys) * row_bytes[name] for batch in batches for name, keys in batch)
        curve = after["device"]["curve"]
        page = max(after["classes"], key=lambda one: one["disk_bytes"])["page_bytes"]
        reading = None if curve is None else optimal / _rate(curve["points"], page)
        return {
            "batches": len(batches),
            "rows": sum(len(keys) for batch in batches for _, keys in batch),
            "distinct_rows": distinct,
            "seconds": ended - began,
            "time": spent,
            "least": {"reading": reading, "copying": copied / _bandwidth()},
            "rows_loaded": counted["rows_loaded"],
            "optimal_rows_loaded": optimal,
            "hit_rate": 1 - counted["rows_loaded"] / max(distinct, 1),
            "optimal_hit_rate": None if too_short else 1 - optimal / max(distinct, 1),
            "counted": counted,
            "classes": classes,
            "notes": notes,
        }

    def _listed(self) -> bool:
        """Whether the store tells it of verbs, here or in the process that this was forked from."""
        store = self._store()
        return store is not None and self._hears in store._listeners

    def _add(self, parts: Sequence[Part]) -> None:
        with self._lock:
            if not self.running:
                return
            # The caller may fill the same array with other keys.
            self._batches.append([(name, keys.copy()) for name, keys in parts])
            self._left -= sum(keys.nbytes + _PART_BYTES for _, keys in parts)
            # The ends of the thirds are known only afterwards.
            if self.batches == 1 or self.batches >= 1.1 * self._marks[-1][0]:
                self._mark()
            if self._left <= 0:
                self._full = True
                self._stop()

    def _stop(self) -> None:
        store = self._store()
        if store is not None and store._listeners.remove(self._hears):
            self._hears.recording = None  # no circle that keeps its keys until a collection
            self._mark()

    def _mark(self) -> None:
        """Notes the counters after the batches so far. A verb that was made must not fail here."""
        store = self._store()
        if store is not None:
            with contextlib.suppress(EmbedrockError):
                self._marks.append((self.batches, store.stats(), time.perf_counter()))

    def _by_class(
        self, first: int, stats: dict[str, Any], notes: list[str]
    ) -> list[dict[str, Any]]:
        """Of each row class the loads of the best cache, counted from batch ``first``."""
        width = {one["spec"]["name"]: one["row_bytes"] for one in stats["tables"]}
        found = []
        for one in stats["classes"]:
            names = [name for name, row_bytes in width.items() if row_bytes == one["row_bytes"]]
            parts: list[Keys] = []
            offsets = np.zeros(self.batches + 1, np.int64)
            for batch, tables in enumerate(self._batches):
                keys = [_with_table(k, names.index(name)) for name, k in tables if name in names]
                parts += keys
                offsets[batch + 1] = offsets[batch] + sum(map(len, keys))
            if offsets[-1] == 0:
                continue
            distinct = Trace(np.concatenate(parts), offsets).distinct()
            capacity = int(one["cache_capacity"])
            seen = len(np.unique(distinct.values[: distinct.offsets[first]]))
            if seen < min(capacity, one["newest_copies"]):
                notes.append(
                    f"the first third has {seen} different rows of {one['row_bytes']} bytes, the "
                    f"cache holds {capacity}: record longer for an optimum that means something"
                )
            count = int(distinct.offsets[-1] - distinct.offsets[first])
            hits = int(optimal_hits(distinct, capacity)[first:].sum())
            found.append(
                {
                    "row_bytes": one["row_bytes"],
                    "capacity_rows": capacity,
                    "distinct_rows": count,
                    "optimal_loads": count - hits,
                }
            )
        return found


class _Hears(Listener):
    """Notes the verbs of a store in a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording: Recording | None = recording

    def visited(self, parts: Sequence[Part]) -> None:
        if (recording := self.recording) is not None:
            recording._add(parts)

    def returning(self) -> None:
        if self.recording is not None:
            raise MisuseError(
                "a recording is under way, whose counters would begin anew; stop() it before the "
                "store goes back to an earlier commit"
            )

    def ended(self) -> None:
        if (recording := self.recording) is not None:
            recording.stop()


def _with_table(keys: Keys, number: int) -> Keys:
    large = keys >> _TABLE_SHIFT
    if large.any():
        keys = (keys ^ (large * np.uint64(0x9E3779B97F4A7C15))) & np.uint64((1 << 48) - 1)
    return keys | (np.uint64(number) << _TABLE_SHIFT) if number else keys


def _rate(points: Sequence[dict[str, float]], size: int) -> float:
    """Requests per second of the device at a request size, between the measured ones."""
    seconds = [1 / point["requests_per_s"] for point in points]
    return float(1 / np.interp(size, [point["bytes"] for point in points], seconds))


def _bandwidth() -> float:
    """Bytes per second that copying in memory gives: the best of three copies."""
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return _COPIED_BYTES / best
