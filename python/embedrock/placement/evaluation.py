"""The pages that queries read with a plan, compared with pages in key order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import Progress
from embedrock.errors import MisuseError
from embedrock.placement.groups import PlanGroup
from embedrock.trace.trace import Trace

__all__ = ["Evaluation", "evaluated"]

Places = npt.NDArray[np.uint32]

_PASSES = 3
"""Over the queries of a group: by keys, by home pages, with replicas."""


@dataclass(frozen=True)
class Evaluation:
    """Reads of a trace's queries, per query, over all tables."""

    queries: int
    """Number of queries."""
    rows: float
    """Rows that a query asks for, equal ones once: so many pages it reads at most."""
    unplaced: float
    """The share of them that the plan has not."""
    pages_identity: float
    """Pages, if rows were in the order of tables and keys."""
    pages_home: float
    """Pages, without replicas."""
    pages: float
    """Pages."""


def evaluated(
    tables: Sequence[str],
    table_groups: Sequence[int],
    groups: Sequence[PlanGroup],
    trace: Trace,
    candidates_max: int,
    selection: str,
    progress: Progress | None,
) -> Evaluation:
    """See ``Plan.evaluate``. Errors: ``MisuseError`` for a table that the plan has not."""
    for name in trace.tables:
        if name not in tables:
            known = ", ".join(map(repr, tables))
            wrong = f"has table {name!r}" if name else "does not name its table"
            raise MisuseError(f"the trace {wrong}, and the tables of the plan are {known}")
    members = [[i for i, its in enumerate(table_groups) if its == g] for g in range(len(groups))]
    asked = {i for i, name in enumerate(tables) if name in trace.tables}
    groups_asked = sum(not asked.isdisjoint(m) for m in members)
    counts = _Counts(trace, candidates_max, selection == "greedy", progress, groups_asked)
    for group, of_group in zip(groups, members, strict=True):
        present = [i for i in of_group if i in asked]
        if present:
            counts.add(group, of_group, present, [tables[i] for i in present])
    return counts.evaluation()


class _Counts:
    """Rows and pages of all groups, added up."""

    def __init__(
        self,
        trace: Trace,
        candidates_max: int,
        is_greedy: bool,
        progress: Progress | None,
        groups: int,
    ) -> None:
        self._trace, self._candidates_max, self._progress = trace, candidates_max, progress
        self._is_greedy = is_greedy
        self._rows = self._asked = self._unplaced = 0
        self._identity = self._home = self._pages = 0
        self._passes, self._passes_all = 0, _PASSES * groups

    def add(
        self, group: PlanGroup, of_group: list[int], present: list[int], names: list[str]
    ) -> None:
        """Counts what queries read of a group, by three layouts of the same rows."""
        queries = [self._trace.tables[name] for name in names]
        table, key, rows, offsets = _core.number_rows([(q.values, q.offsets) for q in queries])
        order, numbers = _joined(group, of_group, np.array(present, np.uint16)[table], key)
        rows = numbers[rows]
        known = np.zeros(len(order), np.bool_)
        known[order[: group.num_rows]] = True
        self._asked += len(rows)
        self._unplaced += len(rows) - int(np.count_nonzero(known[rows]))
        identity = np.arange(len(order), dtype=np.uint32)
        starts, replicas = np.zeros(1, np.int64), np.zeros(0, np.uint32)
        per_page = group.rows_per_page
        asked, pages = self._count(rows, offsets, identity, per_page, starts, replicas)
        self._rows += asked
        self._identity += pages
        _, pages = self._count(rows, offsets, order, per_page, starts, replicas)
        self._home += pages
        starts, replicas = group.replica_starts, group.replica_rows
        _, pages = self._count(rows, offsets, order, per_page, starts, replicas)
        self._pages += pages

    def _count(
        self,
        rows: Places,
        offsets: npt.NDArray[np.int64],
        order: Places,
        per_page: int,
        starts: npt.NDArray[np.int64],
        replicas: Places,
    ) -> tuple[int, int]:
        counted = _core.count_pages(
            rows,
            offsets,
            order,
            per_page,
            starts,
            replicas,
            self._candidates_max,
            self._told,
            self._is_greedy,
        )
        self._passes += 1
        return counted

    def _told(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(self._passes * total + done, self._passes_all * total)

    def evaluation(self) -> Evaluation:
        """The counts per query."""
        queries = self._trace.queries
        return Evaluation(
            queries,
            self._rows / queries,
            self._unplaced / max(self._asked, 1),
            self._identity / queries,
            self._home / queries,
            self._pages / queries,
        )


def _joined(
    group: PlanGroup,
    tables: Sequence[int],
    table: npt.NDArray[np.uint16],
    key: npt.NDArray[np.uint64],
) -> tuple[Places, Places]:
    """One numbering, by table and key, of the rows of a group and of those of a trace.

    ``table`` and ``key`` are of the trace's rows, rising. Returns (order of all rows, those of the
    group first; number of each row of the trace).
    """
    by_key = np.lexsort((group.key, group.table))
    own_table, own_key = group.table[by_key], group.key[by_key]
    own, others = np.empty(len(by_key), np.uint32), np.empty(len(key), np.uint32)
    before = 0
    for number in tables:
        mine, theirs = _stretch(own_table, number), _stretch(table, number)
        every = np.union1d(own_key[mine], key[theirs])
        own[mine] = np.searchsorted(every, own_key[mine]) + before
        others[theirs] = np.searchsorted(every, key[theirs]) + before
        before += len(every)
    order = np.empty(len(by_key), np.uint32)
    order[by_key] = own
    unknown = np.ones(before, np.bool_)
    unknown[order] = False
    return np.concatenate([order, np.flatnonzero(unknown).astype(np.uint32)]), others


def _stretch(rising: npt.NDArray[np.uint16], value: int) -> slice:
    first, last = np.searchsorted(rising, [value, value + 1])
    return slice(int(first), int(last))
