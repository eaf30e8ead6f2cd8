"""Pages by count: what orders and placements of rows would read, from the trace alone.

The bottom of an lsm lies by key, so a row's page is its number divided by the rows of a page. Three
ways to read the rows of a window are counted: batch by batch, as they are asked for; each page
once, sorted; and sorted with the hot rows apart in front, as RecDB's key allocator lays them. Hot
are the rows that were asked for most in the window before.

Two sets of rows are read: those that a cache of so many rows *missed*, and *every* row of the
window, as if no row stayed in memory. The cache keeps what the next window uses, then what was
used most (counts are halved after each window).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from embedrock_lab.bench.replay.recdb.load import Load

__all__ = ["ROWS_READ", "pages_by_count"]

Numbers = npt.NDArray[np.int64]
MISSED, EVERY = "missed", "every"
ROWS_READ = (MISSED, EVERY)


def pages_by_count(
    load: Load, window: int, warm: int, cache_rows: int, rows_per_page: int, hot_share: float
) -> dict[str, dict[str, float]]:
    """Means over the windows after the first ``warm``, by which rows are read.

    ``hot_share`` times the look-ups of a window are as many rows as are hot.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS_READ}
    hot = np.empty(0, np.int64)
    counts = np.zeros(load.rows, np.float64)
    windows = _windows(load, window)
    for number, (missed, used) in enumerate(_misses(windows, counts, cache_rows)):
        if number >= warm:
            for name, rows in ((MISSED, missed), (EVERY, used.distinct)):
                found[name].append(_pages(rows, used, hot, rows_per_page))
        hot = used.hottest(round(hot_share * used.lookups))
    return {
        name: {key: float(np.mean([one[key] for one in each])) for key in each[0]}
        for name, each in found.items()
        if each
    }


class _Window:
    """The rows of a window."""

    def __init__(self, load: Load, begin: int, end: int) -> None:
        lookups, trace = load.lookups, load.trace
        asked = lookups.values[lookups.offsets[begin] : lookups.offsets[end]].view(np.int64)
        self.lookups = len(asked)
        self.distinct, self.counts = np.unique(asked, return_counts=True)
        self.batches = [
            trace.values[trace.offsets[i] : trace.offsets[i + 1]].view(np.int64)
            for i in range(begin, end)
        ]

    def hottest(self, most: int) -> Numbers:
        """The rows asked for most often, in order."""
        if most == 0:
            return self.distinct[:0]
        first = np.argsort(-self.counts, kind="stable")[:most]
        return np.sort(self.distinct[first])


def _windows(load: Load, window: int) -> list[_Window]:
    ends = range(window, load.trace.batches + 1, window)
    return [_Window(load, end - window, end) for end in ends]


def _misses(
    windows: list[_Window], counts: npt.NDArray[np.float64], cache_rows: int
) -> Iterator[tuple[Numbers, _Window]]:
    """The rows of each window that a cache of so many rows had not when it began."""
    is_resident = np.zeros(len(counts), bool)
    for number, used in enumerate(windows):
        yield used.distinct[~is_resident[used.distinct]], used
        counts *= 0.5
        counts[used.distinct] += used.counts
        is_resident[used.distinct] = True
        kept = np.flatnonzero(is_resident)
        if len(kept) > cache_rows:
            worth = counts[kept]
            if number + 1 < len(windows):
                coming = windows[number + 1].distinct
                is_next = np.isin(kept, coming, assume_unique=True)
                worth = worth + is_next * (1.0 + worth.max())
            gone = kept[np.argsort(worth, kind="stable")[: len(kept) - cache_rows]]
            is_resident[gone] = False


def _pages(rows: Numbers, used: _Window, hot: Numbers, rows_per_page: int) -> dict[str, float]:
    """Pages of these rows of a window, each of which is read with the first batch that uses it."""
    loads = _loads_by_batch(rows, used.batches, rows_per_page)
    _, times = np.unique(loads, return_counts=True)
    by_key = len(np.unique(rows // rows_per_page))
    before = np.searchsorted(hot, rows)
    is_hot = np.zeros(len(rows), bool)
    within = before < len(hot)
    is_hot[within] = hot[before[within]] == rows[within]
    in_front = len(np.unique(before[is_hot] // rows_per_page))
    behind = len(np.unique((rows - before)[~is_hot] // rows_per_page))
    return {
        "rows": len(rows),
        "hot_rows": int(is_hot.sum()),
        "pages_in_request_order": len(loads),
        "loaded_once_in_request_order": float((times == 1).mean()) if len(times) else 1.0,
        "loads_max_in_request_order": int(times.max(initial=0)),
        "pages_sorted": by_key,
        "pages_hot_apart": in_front + behind,
    }


def _loads_by_batch(rows: Numbers, batches: list[Numbers], rows_per_page: int) -> Numbers:
    """The page of every read, where each batch reads its own pages once."""
    everything = np.concatenate(batches)
    of_batch = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    _, first = np.unique(everything, return_index=True)
    firsts = np.sort(first)
    is_read = np.isin(everything[firsts], rows)
    firsts = firsts[is_read]
    pages = everything[firsts] // rows_per_page
    reads = np.unique(np.stack([of_batch[firsts], pages], axis=1), axis=0)
    loads: Numbers = reads[:, 1]
    return loads
