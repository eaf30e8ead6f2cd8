"""``Plan``: rows in the order of their home pages, and replica pages behind them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from embedrock._arguments import Progress, choice, function, instance, named_path, number, whole
from embedrock.errors import MisuseError
from embedrock.placement import files
from embedrock.placement.evaluation import Evaluation, evaluated
from embedrock.placement.groups import PlanGroup, pages_of_share
from embedrock.trace.trace import Trace

__all__ = ["Plan"]


class Plan:
    """A layout of rows of tables for serving: home pages in an order, and replica pages.

    :func:`place` makes one, :meth:`load` reads one. It has the rows that a trace asked for; those
    that it did not ask for come behind them.

    >>> trace = embedrock.trace.Trace({"items": ([1, 9, 2, 8, 9, 1, 9, 2], [0, 2, 4, 6, 8])})
    >>> plan = embedrock.placement.place(trace, rows_per_page=2, replicate=0.5)
    >>> plan
    <embedrock.placement.Plan of 4 rows in 2 pages, 1 replica pages, tables 'items'>
    >>> plan.save("plan.npz")
    >>> again = embedrock.placement.Plan.load("plan.npz")
    >>> again.evaluate(trace).pages, again.with_replicas(0).evaluate(trace).pages
    (1.0, 1.25)
    """

    def __init__(
        self,
        tables: Sequence[str],
        table_groups: Sequence[int],
        groups: Sequence[PlanGroup],
        replicate: float,
    ) -> None:
        """Takes what :func:`place` has made, or what was read and checked."""
        self.tables: tuple[str, ...] = tuple(tables)
        """The names of the tables; ``""`` where the trace did not say it."""
        self.table_groups: tuple[int, ...] = tuple(table_groups)
        """The group of each table: tables of one group share pages."""
        self.groups: tuple[PlanGroup, ...] = tuple(groups)
        """Rows and pages of each group."""
        self.replicate = replicate
        """The share of rows that replica pages were made for."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """The plan of a file. Errors: ``DataError``, a ``ValueError``, that names what is wrong:
        also rows that are there twice or do not exist; ``UnsupportedError`` for a newer version.

        Blocking: reads and checks, which sorts the keys.
        """
        return cls(*files.read(named_path("path", path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan, as ``docs/formats/plan.md`` has it. A file of that name is replaced
        when the new one is whole. Errors: ``IoError``.

        Durability: none; the operating system writes it back when it likes.
        """
        files.write(
            named_path("path", path), self.tables, self.table_groups, self.groups, self.replicate
        )

    def with_replicas(self, share: float) -> Plan:
        """The plan with the first replica pages alone: those of a smaller ``replicate``.

        Errors: ``MisuseError`` for more than the plan was made with.

        >>> trace = embedrock.trace.Trace({"": ([1, 2, 3, 1], [0, 2, 4])})
        >>> plan = embedrock.placement.place(trace, rows_per_page=1, replicate=0.7, method="random",
        ...     replicas="frequency")
        >>> plan.groups[0].num_replica_pages, plan.with_replicas(0.4).groups[0].num_replica_pages
        (2, 1)
        """
        share = number("share", share)
        if not 0 <= share <= self.replicate:
            raise MisuseError(
                f"share is {share:g}, expected 0 to {self.replicate:g}, which the plan was made "
                f"with; place again for more"
            )
        fewer = [
            one.with_replica_pages(
                min(pages_of_share(share, one.num_rows, one.rows_per_page), one.num_replica_pages)
            )
            for one in self.groups
        ]
        return Plan(self.tables, self.table_groups, fewer, share)

    def evaluate(
        self,
        trace: Trace,
        *,
        candidates_max: int = 10,
        selection: Literal["one_pass", "greedy"] = "one_pass",
        progress: Progress | None = None,
    ) -> Evaluation:
        """The pages that each query of a trace reads, beside what it would read otherwise.

        Requested rows that are not in the plan lie after those of the plan, by table and key. The
        baseline, *identity*, has the same rows by table and key. A query goes through its rows by
        rising number of pages, and for each that is still missing takes the page with most missing
        rows, of ``candidates_max`` pages that have it. For comparison, ``selection="greedy"`` takes
        the page with most missing rows of all pages each time. There is no cache.

        Errors: ``MisuseError`` for a table that the plan has not. Ctrl-C ends it.

        Blocking: computes, without the interpreter lock.
        """
        return evaluated(
            self.tables,
            self.table_groups,
            self.groups,
            instance("trace", trace, Trace),
            whole("candidates_max", candidates_max, 1),
            choice("selection", selection, ("one_pass", "greedy")),
            function("progress", progress, "(done, total)"),
        )

    @property
    def num_rows(self) -> int:
        """Number of rows in all groups, without replicas."""
        return sum(one.num_rows for one in self.groups)

    @property
    def num_pages(self) -> int:
        """Number of home pages in all groups."""
        return sum(one.num_pages for one in self.groups)

    @property
    def num_replica_pages(self) -> int:
        """Number of replica pages in all groups."""
        return sum(one.num_replica_pages for one in self.groups)

    def __repr__(self) -> str:
        replicas = self.num_replica_pages
        also = f", {replicas:,} replica pages" if replicas else ""
        names = ", ".join(map(repr, filter(None, self.tables)))
        of = f", tables {names}" if names else ""
        return (
            f"<embedrock.placement.Plan of {self.num_rows:,} rows in {self.num_pages:,} pages"
            f"{also}{of}>"
        )
