"""``pack``: a plan by which the rows of each query lie side by side, as far as queries allow it.

It is for traces of few, long queries that come again as they are. :func:`place` looks for rows that
many queries share, and hardly tells thousands of rows of one query from each other.

Source: DiskGNN (Liu et al., 2024) stores the features that each mini-batch reads in a file of its
own. Here a row has one home, and a share of the rows is stored again.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import between, instance
from embedrock.placement.classes import chosen
from embedrock.placement.groups import PlanGroup, pages_of_share
from embedrock.placement.placing import REPLICATE_MAX
from embedrock.placement.plan import Plan
from embedrock.store.store import Store
from embedrock.trace.trace import Trace

__all__ = ["pack"]

Rows = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

_DEPTH = 8
"""Queries by which rows are put in order: of equal first ones, rows differ little any more."""
_GAIN = 1e-9
"""The least saving of a replica page, in pages: sums of fractions are not exact."""


def pack(
    trace: Trace,
    *,
    store: Store | str | os.PathLike[str] | None = None,
    rows_per_page: int | None = None,
    replicate: float = 0.0,
) -> Plan:
    """A plan for queries that repeat exactly: each finds its rows side by side.

    The mini-batches of a graph that are sampled ahead are such queries: few, with thousands of rows
    each. Rows are at home with the first query that asks for them; there those lie together that
    the same later queries ask for, too. A replica page has rows of one query, those that lie most
    alone at home. Queries that are made by chance again need :func:`place`, if anything.

    Args:
        store: An open store or its path, which knows the bytes of rows and pages.
        rows_per_page: Number of rows in a page, for all tables; if no store is given.
        replicate: Limit on rows that are stored again, as a share, from 0 to 0.8. Pages that save
            nothing are not made.

    Errors: ``MisuseError``; ``KeyRangeError`` for keys that a dense table cannot have; those of
    opening a store.

    Blocking: sorts the keys of the trace, about a second per million, and takes some 80 bytes for
    each. The same trace gives the same plan.

    >>> trace = embedrock.trace.Trace({"nodes": ([5, 1, 9, 4, 2, 9], [0, 3, 6])})
    >>> plan = embedrock.placement.pack(trace, rows_per_page=2)
    >>> plan.groups[0].key.tolist()
    [1, 5, 9, 2, 4]
    >>> plan.evaluate(trace).pages
    2.0
    """
    names = list(instance("trace", trace, Trace).tables)
    share = between("replicate", replicate, 0, REPLICATE_MAX)
    classes = chosen(names, store, rows_per_page)
    numbers = {name: group for group, one in enumerate(classes) for name in one.tables}
    groups = []
    for one in classes:
        queries = [trace.tables[name] for name in one.tables]
        table, key, rows, offsets = _core.number_rows([(q.values, q.offsets) for q in queries])
        one.check(table, key)
        rows, offsets = _distinct(rows, offsets, len(key))
        order = _home(rows, offsets, len(key))
        pages = pages_of_share(share, len(key), one.rows_per_page)
        starts, replicas = _replicas(rows, offsets, order, one.rows_per_page, pages)
        places = np.array([names.index(name) for name in one.tables], np.uint16)
        groups.append(
            PlanGroup(one.rows_per_page, places[table[order]], key[order], starts, replicas)
        )
    return Plan(names, [numbers[name] for name in names], groups, share)


def _distinct(rows: Rows, offsets: Offsets, count: int) -> tuple[Rows, Offsets]:
    """The rows of each query, of ``count``, once each and rising."""
    pairs = np.unique(_queries(offsets) * np.int64(count) + rows)
    begins = np.searchsorted(pairs, np.arange(len(offsets), dtype=np.int64) * count)
    return (pairs % count).astype(np.uint32), begins.astype(np.int64)


def _home(rows: Rows, offsets: Offsets, count: int) -> Rows:
    """The order of ``count`` rows: by the first query of each, then by the second, and so on."""
    by_row = np.argsort(rows, kind="stable")
    query = _queries(offsets)[by_row]
    sorted_rows = rows[by_row]
    turn = np.arange(len(rows)) - np.searchsorted(sorted_rows, np.arange(count))[sorted_rows]
    first = np.full((_DEPTH, count), -1, np.int32)
    early = turn < _DEPTH
    first[turn[early], sorted_rows[early]] = query[early]
    return np.lexsort(first[::-1]).astype(np.uint32)


def _replicas(
    rows: Rows, offsets: Offsets, order: Rows, per_page: int, most: int
) -> tuple[Offsets, Rows]:
    """(starts, rows) of at most so many replica pages, those that save most first.

    Rows of a query that share a home page with few others of it go into its first replica pages. A
    row that is one of ``n`` there stands for ``1 / n`` of the page that need not be read.
    """
    if not most:
        return np.zeros(1, np.int64), np.zeros(0, np.uint32)
    place = np.empty(len(order), np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    query, at = _queries(offsets), place[rows]
    pages = -(-len(order) // per_page)
    home = query * np.int64(pages) + at // np.uint32(per_page)
    _, inverse, counts = np.unique(home, return_inverse=True, return_counts=True)
    alone = counts[inverse.reshape(-1)]
    by_gain = np.lexsort((at, alone, query))
    at, alone = at[by_gain], alone[by_gain]
    # Full pages of each query, one after another: where each begins.
    full = np.diff(offsets) // per_page
    of = np.repeat(np.arange(len(full)), full)
    within = np.arange(len(of)) - np.repeat(np.cumsum(full) - full, full)
    begins = offsets[:-1][of] + within * per_page
    taken = begins[:, None] + np.arange(per_page)
    saved = (1 / alone[taken]).sum(axis=1) - 1
    best = np.lexsort((within, of, -saved))
    best = best[saved[best] > _GAIN][:most]
    starts = np.arange(len(best) + 1, dtype=np.int64) * per_page
    return starts, at[taken[best]].reshape(-1)


def _queries(offsets: Offsets) -> npt.NDArray[np.int64]:
    """The query of each key."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
