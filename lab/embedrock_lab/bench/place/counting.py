"""Reads of held-out queries from a layout, counted by the engine and checked by plain Python."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embedrock import _core
from embedrock_lab.bench.place.layouts import Layout
from embedrock_lab.bench.place.logs import Hyperedges

__all__ = ["Counted", "Counter", "recounted"]

Listed = Callable[[int], list[int]]

CHECKED = 100
"""Held-out queries that plain Python reads as well, from an empty cache."""


@dataclass(frozen=True)
class Counted:
    """Reads of requests: all of them counted, nothing estimated."""

    requests: int
    rows: int
    """Rows that requests asked for, each once per request."""
    hits: int
    """Of them, in the cache."""
    pages: int
    served: tuple[int, ...]
    """Number of pages by the number of rows that they served."""

    @property
    def pages_per_request(self) -> float:
        """Pages read per request."""
        return self.pages / self.requests

    @property
    def rows_per_page(self) -> float:
        """Rows used of a page that is read."""
        return (self.rows - self.hits) / max(self.pages, 1)

    @property
    def is_whole(self) -> bool:
        """Whether each row that the cache has not was served by one of the pages."""
        by_pages = sum(rows * pages for rows, pages in enumerate(self.served))
        return by_pages == self.rows - self.hits and sum(self.served) == self.pages


class Counter:
    """Serves the queries behind the first ones, which fill the cache."""

    def __init__(self, every: Hyperedges, first: int, rows_per_page: int) -> None:
        """``first`` queries of all are the learned ones."""
        self._every, self._first, self._rows_per_page = every, first, rows_per_page
        begin = every.offsets[first]
        end = every.offsets[min(first + CHECKED, every.queries)]
        offsets = every.offsets[first : first + CHECKED + 1] - begin
        self._sample = Hyperedges(every.rows[begin:end], offsets, every.num_rows)
        self.mismatches = 0
        self._lock = threading.Lock()

    def count(
        self, layout: Layout, cache: float = 0.0, union: int = 1, candidates: int = 10
    ) -> Counted:
        """Reads of requests of ``union`` queries with a cache for that share of the rows.

        ``candidates`` pages of a row are considered; 0 takes the greedy cover over all. Incomplete
        results, and a sample with another result in plain Python, are mismatches.
        """
        found = self._count(self._every, self._first, layout, cache, union, candidates)
        self._note(not found.is_whole)
        return found

    def check(self, layout: Layout, cache: float, union: int, candidates: int = 10) -> None:
        """Compares the first held-out queries, from an empty cache, with plain Python."""
        found = self._count(self._sample, 0, layout, cache, union, candidates)
        cache_rows = int(cache * self._every.num_rows)
        pages, hits = recounted(self._sample, layout, cache_rows, union, candidates)
        self._note((found.pages, found.hits) != (pages, hits))

    def _note(self, is_wrong: bool) -> None:
        """Counts a mismatch. Threads count side by side."""
        with self._lock:
            self.mismatches += is_wrong

    def _count(
        self,
        queries: Hyperedges,
        first: int,
        layout: Layout,
        cache: float,
        union: int,
        candidates: int,
    ) -> Counted:
        requests, rows, hits, pages, served = _core.serve_pages(
            queries.rows,
            queries.offsets,
            queries.num_rows,
            self._rows_per_page,
            layout.starts,
            layout.rows,
            first=first,
            cache_rows=int(cache * queries.num_rows),
            queries_per_batch=union,
            candidates_max=candidates,
        )
        return Counted(requests, rows, hits, pages, tuple(served.tolist()))


def recounted(
    queries: Hyperedges, layout: Layout, cache_rows: int, union: int, candidates: int
) -> tuple[int, int]:
    """(pages, hits) by plain Python: an LRU list of rows, then one pass over those it has not."""
    page_of_place = np.repeat(np.arange(layout.pages), np.diff(layout.starts))
    by_row = np.argsort(layout.rows, kind="stable")
    begins = np.searchsorted(layout.rows[by_row], np.arange(queries.num_rows + 1))

    def pages_of(row: int) -> list[int]:
        return list(page_of_place[by_row[begins[row] : begins[row + 1]]].tolist())

    def rows_of(page: int) -> list[int]:
        return list(layout.rows[layout.starts[page] : layout.starts[page + 1]].tolist())

    cache: OrderedDict[int, None] = OrderedDict()
    pages = hits = 0
    for at in range(0, queries.queries, union):
        end = min(at + union, queries.queries)
        wanted = queries.rows[queries.offsets[at] : queries.offsets[end]].tolist()
        asked = list(dict.fromkeys(wanted))
        missed = []
        for row in asked:
            if row in cache:
                cache.move_to_end(row)
                hits += 1
            else:
                missed.append(row)
        pages += _one_pass(missed, pages_of, rows_of, candidates)
        for row in missed:
            cache[row] = None
        while len(cache) > cache_rows:
            cache.popitem(last=False)
    return pages, hits


def _one_pass(missed: Sequence[int], pages_of: Listed, rows_of: Listed, candidates: int) -> int:
    """Rows in the fewest pages first; each takes the page that has most of what is missing."""
    missing, read = set(missed), 0
    for row in sorted(missed, key=lambda one: (len(pages_of(one)), one)):
        if row in missing:
            known = pages_of(row)[:candidates]
            best = max(known, key=lambda page: len(missing.intersection(rows_of(page))))
            missing -= set(rows_of(best))
            read += 1
    return read
