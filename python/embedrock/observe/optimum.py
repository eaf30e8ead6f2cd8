"""The fewest misses that any cache could have on a trace.

A cache holds ``capacity`` rows between batches and begins empty. With knowledge of the future it
keeps those whose next use is nearest (Belady); without, at best the most frequent.

>>> trace = Trace(np.array([1, 2, 1, 3, 1, 2], np.uint64), np.arange(0, 8, 2)[:4])
>>> optimal_hits(trace, 2).tolist(), optimal_hits(trace, 1).tolist()
([0, 1, 2], [0, 1, 1])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedrock.observe.trace import Trace

__all__ = ["frequent_hits", "horizon_hits", "optimal_hits"]

Counts = npt.NDArray[np.int64]


def optimal_hits(distinct: Trace, capacity: int) -> Counts:
    """Hits of each batch with the best choice of rows; keys of a batch must be distinct.

    *Source*: Belady, "A study of replacement algorithms for a virtual-storage computer" (1966).
    Rows with the same next use are worth the same, so counting them is enough: how many of the rows
    kept are used next in each batch. When there are too many, those used last leave.
    """
    next_use = _next_uses(distinct)
    batches = distinct.batches
    kept = np.zeros(batches + 1, np.int64)
    hits = np.zeros(batches, np.int64)
    total = 0
    for batch in range(batches):
        hits[batch] = kept[batch]
        total -= int(kept[batch])
        kept[batch] = 0
        begin, end = distinct.offsets[batch], distinct.offsets[batch + 1]
        uses, counts = np.unique(next_use[begin:end], return_counts=True)
        again = uses < batches
        kept[uses[again]] += counts[again]
        total += int(counts[again].sum())
        last = batches - 1
        while total > capacity:
            while kept[last] == 0:
                last -= 1
            gone = min(int(kept[last]), total - capacity)
            kept[last] -= gone
            total -= gone
    return hits


def frequent_hits(distinct: Trace, capacity: int) -> Counts:
    """Hits of each batch when the rows used in most batches so far are kept, of equals the latest.

    For independent draws nobody who does not know the future does better. Rows leave a hundredth of
    the capacity at a time, which is cheaper than one by one and costs little.
    """
    keys, places = np.unique(distinct.values, return_inverse=True)
    places = places.reshape(-1)
    used = np.zeros(len(keys), np.int64)
    last = np.zeros(len(keys), np.int64)
    kept = np.zeros(len(keys), bool)
    hits = np.zeros(distinct.batches, np.int64)
    size, spare = 0, max(1, capacity // 100)
    for batch in range(distinct.batches):
        these = places[distinct.offsets[batch] : distinct.offsets[batch + 1]]
        hits[batch] = np.count_nonzero(kept[these])
        size += len(these) - int(hits[batch])
        used[these] += 1
        last[these] = batch
        kept[these] = True
        if size > capacity:
            rows = np.flatnonzero(kept)
            gone = min(size, size - capacity + spare)
            worth = used[rows] * distinct.batches + last[rows]
            kept[rows[np.argpartition(worth, gone - 1)[:gone]]] = False
            size -= gone
    return hits


def horizon_hits(distinct: Trace, capacity: int, horizon: int) -> Counts:
    """Hits of each batch for one who knows the next ``horizon`` batches.

    Rows without a use in them leave first, the least frequently used so far before others, of equal
    ones that used longest ago; then those whose next use is last. With a horizon as long as the
    trace it is :func:`optimal_hits`. Rows leave a two-hundredth of the capacity at a time.
    """
    keys, places = np.unique(distinct.values, return_inverse=True)
    places, offsets = places.reshape(-1), distinct.offsets
    next_use = _next_uses(distinct)
    batches, spare = distinct.batches, capacity // 200
    kept, known = np.zeros(len(keys), bool), np.zeros(len(keys), bool)
    coming = np.zeros(len(keys), np.int64)
    worth = np.zeros(len(keys), np.int64)
    hits = np.zeros(batches, np.int64)
    size = 0
    for batch in range(batches):
        last = batch + horizon
        if batch > 0 and last < batches:
            seen = places[offsets[last] : offsets[last + 1]]
            seen = seen[kept[seen] & ~known[seen]]
            known[seen], coming[seen] = True, last
        part = slice(offsets[batch], offsets[batch + 1])
        these = places[part]
        hits[batch] = np.count_nonzero(kept[these])
        size += len(these) - int(hits[batch])
        kept[these] = True
        known[these] = next_use[part] <= min(last, batches - 1)
        coming[these] = next_use[part]
        worth[these] += batches - worth[these] % batches + batch
        for ahead in (False, True):
            if size <= capacity:
                break
            rows = np.flatnonzero(kept & (known == ahead))
            gone = min(len(rows), size - capacity + spare)
            if gone == 0:
                continue
            order = -coming[rows] if ahead else worth[rows]
            left = rows[np.argpartition(order, gone - 1)[:gone]]
            kept[left] = known[left] = False
            size -= gone
    return hits


def _next_uses(distinct: Trace) -> Counts:
    """For each key of each batch the number of the batch that uses it next; batches if none."""
    sizes = np.diff(distinct.offsets)
    batch = np.repeat(np.arange(distinct.batches), sizes)
    order = np.argsort(distinct.values, kind="stable")
    keys, batch_in_order = distinct.values[order], batch[order]
    following = np.full(len(keys), distinct.batches, np.int64)
    same = keys[1:] == keys[:-1]
    following[:-1][same] = batch_in_order[1:][same]
    next_use = np.empty_like(following)
    next_use[order] = following
    return next_use
