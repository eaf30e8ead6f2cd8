"""Traces to place by, and a count of pages that knows nothing of the package's own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from embedrock.placement import Plan
from embedrock.trace import Trace

Row = tuple[int, int]


def communities(queries: int, seed: int, tables: tuple[str, ...] = ("items",)) -> Trace:
    """Queries of up to eight keys of one of 40 communities, in each table; few of any key."""
    random = np.random.default_rng(seed)
    scattered = np.random.default_rng(7).permutation(480).astype(np.uint64) * np.uint64(2**54 + 9)
    parts = {}
    for name in tables:
        lengths = random.integers(0, 9, queries)
        first = np.repeat(random.integers(0, 40, queries) ** 2 // 40 * 12, lengths)
        chosen = first + random.integers(0, 12, len(first))
        anywhere = random.random(len(first)) < 0.1
        chosen[anywhere] = random.integers(0, 480, int(anywhere.sum()))
        parts[name] = (scattered[chosen], np.concatenate([[0], np.cumsum(lengths)]))
    return Trace(parts)


def rows_of(plan: Plan, group: int) -> list[Row]:
    """(table, key) of the rows of a group, in their order."""
    one = plan.groups[group]
    return list(zip(one.table.tolist(), one.key.tolist(), strict=True))


def queries_of(plan: Plan, group: int, trace: Trace) -> list[set[Row]]:
    """Rows that each query of a trace requests from the tables of a group."""
    asked: list[set[Row]] = [set() for _ in range(trace.queries)]
    for name, one in trace.tables.items():
        table = plan.tables.index(name)
        if plan.table_groups[table] == group:
            for i, query in enumerate(asked):
                keys = one.values[one.offsets[i] : one.offsets[i + 1]]
                query.update((table, key) for key in keys.tolist())
    return asked


def pages_read(order: list[Row], per_page: int, replicas: list[list[Row]], asked: list) -> int:
    """The pages that all queries read, selected in one pass."""
    pages = [order[i : i + per_page] for i in range(0, len(order), per_page)] + replicas
    having: dict[Row, list[int]] = {}
    for page, rows in enumerate(pages):
        for row in rows:
            having.setdefault(row, []).append(page)
    read = 0
    for query in asked:
        missing = set(query)
        for row in sorted(query, key=lambda row: (len(having[row]), row)):
            if row in missing:
                candidates = having[row][:10]
                best = max(candidates, key=lambda page: len(missing.intersection(pages[page])))
                missing.difference_update(pages[best])
                read += 1
    return read


def counted(plan: Plan, trace: Trace) -> tuple[float, float, float]:
    """Pages per query: by table and key, by home pages, with replicas."""
    sums = np.zeros(3)
    for number, group in enumerate(plan.groups):
        asked = queries_of(plan, number, trace)
        order = rows_of(plan, number)
        everything = sorted(set(order).union(*asked))
        known = set(order)
        order = order + [row for row in everything if row not in known]
        starts, rows = group.replica_starts.tolist(), group.replica_rows.tolist()
        replicas = [[order[place] for place in rows[begin:end]] for begin, end in pairwise(starts)]
        of = [(everything, []), (order, []), (order, replicas)]
        sums += [pages_read(rows, group.rows_per_page, more, asked) for rows, more in of]
    identity, home, replicated = (sums / trace.queries).tolist()
    return identity, home, replicated
