"""A bounded sample of the keys that verbs visit, step by step, and the loads of the best cache.

A key is in the sample when its hash is below a threshold, so all of its uses are or none of them: a
cache that is smaller in proportion misses sampled keys as often as the whole one misses all keys.
When the sample is full the threshold is halved, and a step keeps each key once. Its size alone says
where a step ends, so that a long run leaves the memory to keys.

*Source*: SHARDS (Waldspurger et al., FAST 2015); that scaled-down caches predict any policy, the
best one too, is their "Cache Modeling and Optimization using Miniature Simulations" (USENIX ATC
2017).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from embedrock._core import distinct
from embedrock._listeners import Listener, Part
from embedrock.observe.optimum import horizon_hits
from embedrock.observe.trace import Trace

__all__ = ["KeySample", "Optimum"]

Hashes = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.uint32]
Series = npt.NDArray[np.float64]

_CLASS = 0xFF
"""The last bits of a hash say which row class its key belongs to."""
_STEP_BYTES = 200
"""Memory for noting a step, apart from its keys, until it is packed with others."""
_PACKED = 256
"""Steps that are packed together."""
_THRESHOLD_MIN = 1 << 48
"""Below a sample of one in 65,000 a result would be chance."""
_BATCHES_MAX = 2000
"""Steps are joined to so many batches for the best cache, as far as that does not change much:"""
_PART_OF_CACHE = 8
"""joined ones use an eighth of the cache at most, and know ahead eight times as many."""


class Optimum:
    """The rows that the steps of a sample used, and the loads of the best cache for them."""

    def __init__(self, distinct: Series, first: Series, loads: Series) -> None:
        """Takes sums up to the end of each step: ``(steps + 1,)``, 0 first."""
        self.distinct = distinct
        """Distinct rows of each step."""
        self.first = first
        """Those of them that no step before has used."""
        self.loads = loads
        """Those of them that it would not have had, all that were used for the first time included:
        it begins empty."""


class KeySample(Listener):
    """Keys of a store's verbs by step.

    Verbs of several threads may come at once. It notes nothing before ``running`` is set.
    """

    def __init__(self, max_bytes: int) -> None:
        """A sample that takes so much memory at most."""
        self.running = False
        self.class_of: Mapping[str, int] = {}
        """Number of the row class of each table, by name."""
        self._max = max_bytes
        self._lock = threading.Lock()
        self._threshold = 1 << 64
        self._salts: dict[str, int] = {}
        self._open: list[Hashes] = []
        self._steps: list[Hashes] = []
        self._packed: list[tuple[Hashes, Sizes]] = []
        """Distinct keys of many steps, and how many each has."""
        self._bytes = 0
        """Of keys, and of what steps take until they are packed."""
        self._size_bytes = 0
        self._last: tuple[list[tuple[str, int]], Hashes] | None = None

    @property
    def rate(self) -> float:
        """The share of all keys that is in the sample."""
        return self._threshold / (1 << 64)

    def end_step(self) -> None:
        """Ends a step: later keys belong to the next one."""
        with self._lock:
            parts, self._open, self._last = self._open, [], None
            step = parts[0] if len(parts) == 1 else _joined(parts)
            if self._threshold < 1 << 64:
                self._bytes -= step.nbytes
                step = distinct(step)[0]
                self._bytes += step.nbytes
            self._steps.append(step)
            self._bytes += _STEP_BYTES
            if len(self._steps) == _PACKED:
                self._pack()
            # However many steps there are, keys have a half: fewer would say nothing.
            most = max(self._max - self._size_bytes, self._max // 2)
            while self._bytes > most and self._threshold > _THRESHOLD_MIN:
                self._thin_out()

    def ended(self) -> None:
        """Notes nothing from here on."""
        self.running = False

    def optimum(self, capacities: Sequence[int], horizon: int | None) -> Optimum:
        """The needs of the steps, with caches of so many rows for each row class.

        The best cache begins empty and knows the next ``horizon`` steps, with None all of them.
        Blocking: computes, a second per million keys in the sample.
        """
        with self._lock:
            packed, scale = [*self._packed, _sized(self._steps)], 1 / self.rate
        steps = np.concatenate([sizes for _, sizes in packed])
        trace = Trace(_joined([keys for keys, _ in packed]), _offsets(steps)).distinct()
        used = scale * trace.offsets.astype(np.float64)
        _, places = np.unique(trace.values, return_index=True)
        first = scale * np.searchsorted(np.sort(places), trace.offsets).astype(np.float64)
        loads = np.zeros(len(steps) + 1)
        for number, capacity in enumerate(capacities):
            some = trace if len(capacities) == 1 else _of_class(trace, number)
            loads += scale * _loads(some, max(1, round(capacity / scale)), horizon)
        return Optimum(used, first, loads)

    def visited(self, parts: Sequence[Part]) -> None:
        """Notes the keys of a verb; once where the verb before had the same, as get and update."""
        if not self.running or not parts:
            return
        with self._lock:
            shape = [(name, len(keys)) for name, keys in parts]
            keys = np.concatenate([keys for _, keys in parts])
            last, self._last = self._last, (shape, keys)
            if last is not None and last[0] == shape and np.array_equal(last[1], keys):
                return
            sizes = [size for _, size in shape]
            salts = [self._salts.setdefault(name, len(self._salts) << 40) for name, _ in shape]
            hashes = _mixed(np.bitwise_xor(keys, np.repeat(np.array(salts, np.uint64), sizes)))
            classes = [self.class_of.get(name, 0) & _CLASS for name, _ in shape]
            if any(self.class_of.values()):  # a key has one hash, whatever is visited beside it
                hashes &= np.uint64(~_CLASS & (1 << 64) - 1)
                hashes |= np.repeat(np.array(classes, np.uint64), sizes)
            if self._threshold < 1 << 64:
                hashes = hashes[hashes < np.uint64(self._threshold)]
            self._open.append(hashes)
            self._bytes += hashes.nbytes

    def _pack(self) -> None:
        self._packed.append(_sized([distinct(hashes)[0] for hashes in self._steps]))
        self._steps = []
        self._count()

    def _thin_out(self) -> None:
        self._threshold //= 2
        limit = np.uint64(self._threshold)
        self._steps = [distinct(hashes[hashes < limit])[0] for hashes in self._steps]
        for place, (keys, sizes) in enumerate(self._packed):
            kept = keys < limit
            ends = np.concatenate([[0], np.cumsum(kept)])[_offsets(sizes)]
            self._packed[place] = keys[kept], np.diff(ends).astype(np.uint32)
        self._count()

    def _count(self) -> None:
        self._bytes = sum(keys.nbytes + _STEP_BYTES for keys in self._steps)
        self._bytes += sum(keys.nbytes for keys, _ in self._packed)
        self._size_bytes = sum(sizes.nbytes for _, sizes in self._packed)


def _mixed(keys: Hashes) -> Hashes:
    """Hashes of 64 bits, one to one."""
    mixed = keys * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _joined(parts: Sequence[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _sized(steps: Sequence[Hashes]) -> tuple[Hashes, Sizes]:
    """Keys of steps, and how many each has."""
    return _joined(steps), np.array([len(step) for step in steps], np.uint32)


def _offsets(sizes: Sizes) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _of_class(trace: Trace, number: int) -> Trace:
    taken = trace.values & np.uint64(_CLASS) == np.uint64(number & _CLASS)
    before = np.concatenate([[0], np.cumsum(taken)])
    return Trace(trace.values[taken], before[trace.offsets])


def _loads(whole: Trace, capacity: int, horizon: int | None) -> Series:
    """Of distinct keys, loads of the best cache up to the end of each batch: ``(batches + 1,)``."""
    batches, rows = whole.batches, len(whole.values)
    if rows == 0:
        return np.zeros(batches + 1)
    known = batches if horizon is None else max(1, horizon)
    most = capacity * batches // (_PART_OF_CACHE * rows)
    joined = max(1, min(-(-batches // _BATCHES_MAX), most, known // _PART_OF_CACHE))
    ends = np.append(np.arange(0, batches, joined), batches)
    trace = Trace(whole.values, whole.offsets[ends])
    if joined > 1:
        trace = trace.distinct()
    hits = horizon_hits(trace, capacity, max(1, known // joined))
    loads = np.concatenate([[0], np.cumsum(np.diff(trace.offsets) - hits)])
    summed: Series = np.interp(np.arange(batches + 1), ends, loads)
    return summed
