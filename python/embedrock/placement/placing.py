"""``place``: from a trace to a plan, one row class after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from embedrock import _core
from embedrock._arguments import Progress, between, choice, function, instance, whole
from embedrock._memory import machine_bytes, size_of
from embedrock._warnings import warn
from embedrock.errors import BudgetError, BudgetWarning, MisuseError
from embedrock.placement.classes import RowClass, chosen, warn_absent
from embedrock.placement.groups import PlanGroup
from embedrock.placement.plan import Plan
from embedrock.store.store import Store
from embedrock.trace.trace import Trace

__all__ = ["METHODS", "REPLICAS", "REPLICATE_MAX", "Options", "Stage", "place", "placed"]

METHODS = ("partition", "shp", "identity", "random", "frequency")
REPLICAS = ("residual", "partitions", "connectivity", "random", "frequency")
REPLICATE_MAX = 0.8
"""The largest share of rows that the MaxEmbed paper stores again."""
_LEAST_BYTES = 4096
_THREADS_MAX = 1024
_STEPS = {"numbering": 1, "placing": 10, "replicas": 25}
"""Parts of the work of a class, by the time they took for 300,000 queries of 20 rows."""
_FINE = 1000


@dataclass(frozen=True)
class Options:
    """Options of a placement. Errors: ``MisuseError`` for values that cannot be."""

    replicate: float = 0.0
    replicas: str = "residual"
    method: str = "partition"
    seed: int = 0
    threads: int | None = None
    memory: int | str | None = None

    def checked(self) -> Options:
        """The same, as the rest of the package uses them."""
        threads, memory = self.threads, self.memory
        if threads is None:
            threads = len(os.sched_getaffinity(0))
        return Options(
            replicate=between("replicate", self.replicate, 0, REPLICATE_MAX),
            replicas=choice("replicas", self.replicas, REPLICAS),
            method=choice("method", self.method, METHODS),
            seed=whole("seed", self.seed, 0),
            threads=min(whole("threads", threads, 1), _THREADS_MAX),
            memory=None if memory is None else size_of("memory", memory, _LEAST_BYTES),
        )


@dataclass(frozen=True)
class Stage:
    """The progress of the work, its total, and its peak memory in bytes."""

    done: int
    total: int
    needed_bytes: int


def place(
    trace: Trace,
    *,
    store: Store | str | os.PathLike[str] | None = None,
    rows_per_page: int | None = None,
    replicate: float = 0.0,
    replicas: Literal["residual", "partitions", "connectivity", "random", "frequency"] = "residual",
    method: Literal["partition", "shp", "identity", "random", "frequency"] = "partition",
    home: Plan | None = None,
    seed: int = 0,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Plan:
    """A plan by which the queries of a trace read few pages.

    The requested keys of all tables of the trace are placed. Tables with equal row sizes share
    pages. ``store``, an open store or its path, gives these sizes and the rows in a page; without
    it all tables share pages of ``rows_per_page`` rows. With a plan as ``home``, its home pages are
    taken, and replica pages chosen anew.

    Args:
        replicate: The share of rows that is stored again beside others, from 0 to 0.8.
        replicas: Choice of replica pages: ``"residual"``, each the page that saves most after those
            before it; ``"partitions"``, the same of pages of eight other partitions, which saves
            more behind a cache of rows; ``"connectivity"``, rows whose queries read most pages, as
            the MaxEmbed paper has it; to compare with, ``"frequency"`` and ``"random"``. Pages of a
            smaller share are the first ones of a larger share (:meth:`Plan.with_replicas`).
        method: Choice of home pages: ``"partition"``, by which rows are asked for together; to
            compare with, ``"shp"`` (so, with the passes of the MaxEmbed paper), ``"identity"`` (by
            table and key), ``"frequency"`` and ``"random"``.
        home: A plan for the keys of this trace, such as one with other replicas. It stands for
            ``store``, ``rows_per_page`` and ``method``.
        seed: Decides what is drawn. The same seed gives the same plan, whatever the threads.
        threads: Threads that work; None: one for each core that this process may use.
        memory: The most bytes to take beside the trace: a number, ``"2GiB"``. None: no bound.
        progress: Called with (done, total) at most ten times a second.

    Errors: ``MisuseError``; ``KeyRangeError`` for keys that a dense table cannot have;
    ``BudgetError`` where ``memory`` may not be enough, before the work begins; those of opening a
    store. Ctrl-C ends it.

    Blocking: computes, without the interpreter lock.

    >>> trace = embedrock.trace.Trace({"items": ([1, 9, 2, 8, 9, 1], [0, 2, 4, 6])})
    >>> plan = embedrock.placement.place(trace, rows_per_page=2)
    >>> plan
    <embedrock.placement.Plan of 4 rows in 2 pages, tables 'items'>
    >>> plan.evaluate(trace).pages
    1.0
    """
    options = Options(replicate, replicas, method, seed, threads, memory).checked()
    progress = function("progress", progress, "(done, total)")

    def tell(stage: Stage) -> None:
        if progress is not None:
            progress(stage.done, stage.total)

    return placed(trace, options, store=store, rows_per_page=rows_per_page, home=home, tell=tell)


def placed(
    trace: Trace,
    options: Options,
    *,
    store: Store | str | os.PathLike[str] | None,
    rows_per_page: int | None,
    tell: Callable[[Stage], object],
    home: Plan | None = None,
) -> Plan:
    """As :func:`place`, with options that are checked."""
    names = list(instance("trace", trace, Trace).tables)
    given = {"store": store, "rows_per_page": rows_per_page, "home": home}
    there = [name for name, value in given.items() if value is not None]
    if len(there) != 1:
        which = " and ".join(there) or "none"
        raise MisuseError(f"{which} of {', '.join(given)} is given, expected one of them")
    assert options.memory is None or isinstance(options.memory, int)
    homes: Sequence[PlanGroup | None] = ()
    if store is not None:
        warn_absent(trace, store, options.memory)
    if home is None:
        classes = chosen(names, store, rows_per_page, options.memory)
    else:
        classes, homes = _classes_of(names, instance("home", home, Plan))
    work = _Work(trace, options, classes, tell, with_home=bool(homes))
    groups = {name: g for g, one in enumerate(classes) for name in one.tables}
    homes = homes or [None] * len(classes)
    placed = [work.group(names, *one) for one in zip(classes, homes, strict=True)]
    return Plan(names, [groups[name] for name in names], placed, options.replicate)


def _classes_of(names: Sequence[str], plan: Plan) -> tuple[list[RowClass], tuple[PlanGroup, ...]]:
    """The classes of a plan, in the order of its groups. Errors: ``MisuseError``."""
    if tuple(names) != plan.tables:
        said = [", ".join(map(repr, of)) for of in (names, plan.tables)]
        raise MisuseError(f"the trace has the tables {said[0]}, and the plan in home has {said[1]}")
    classes = []
    for number, group in enumerate(plan.groups):
        members = (name for name, g in zip(names, plan.table_groups, strict=True) if g == number)
        classes.append(RowClass(tuple(members), group.rows_per_page, {}))
    return classes, plan.groups


def _order_of(home: PlanGroup, table: Any, key: Any) -> Any:
    """The rows of a trace in the order of a plan; ``table`` counts as the plan does.

    Errors: ``MisuseError`` where the plan has other rows.
    """
    by_key = np.lexsort((home.key, home.table))
    if not (np.array_equal(home.table[by_key], table) and np.array_equal(home.key[by_key], key)):
        raise MisuseError(
            f"the plan in home has {home.num_rows:,} rows, and not those {len(key):,} that the "
            f"trace asks for; place by this trace without home"
        )
    order = np.empty(len(key), np.uint32)
    order[by_key] = np.arange(len(key), dtype=np.uint32)
    return order


class _Work:
    """The work of all classes, and how far it is."""

    def __init__(
        self,
        trace: Trace,
        options: Options,
        classes: Sequence[RowClass],
        tell: Callable[[Stage], object],
        with_home: bool,
    ) -> None:
        self._queries, self._options, self._tell = trace.tables, options, tell
        self._steps = dict(_STEPS)
        if not options.replicate:
            del self._steps["replicas"]
        if with_home:
            del self._steps["placing"]
        every = [self._pins(one) for one in classes]
        self._total = sum(every) * sum(self._steps.values()) * _FINE
        self._before = 0
        self._needed = 0

    def group(self, names: Sequence[str], row_class: RowClass, home: PlanGroup | None) -> PlanGroup:
        """Places the rows of one class, in the order of ``home`` if there is one.

        Errors: see :func:`place`.
        """
        options, pins = self._options, self._pins(row_class)
        queries = [self._queries[name] for name in row_class.tables]
        longest_table = max(len(one.values) for one in queries)
        self._need(8 * longest_table + 4 * pins + 16 * len(queries[0].offsets), pins)
        table, key, rows, offsets = _core.number_rows([(q.values, q.offsets) for q in queries])
        row_class.check(table, key)
        self._step("numbering", pins)
        counts = len(key), len(offsets) - 1, len(rows)
        longest = int(np.diff(offsets).max(initial=0))
        per_page, threads = row_class.rows_per_page, options.threads or 1
        method = options.method if home is None else "identity"
        needed = _core.placement_memory(
            *counts, longest, per_page, method, options.replicas, options.replicate, threads
        )
        held = table.nbytes + key.nbytes + rows.nbytes + offsets.nbytes + 4 * len(key)
        self._need(held + needed, pins, len(key))
        more = {"seed": options.seed, "threads": threads}
        numbers = np.array([names.index(name) for name in row_class.tables], np.uint16)
        if home is None:
            order = _core.place_rows(
                rows,
                offsets,
                len(key),
                per_page,
                options.method,
                progress=self._progress("placing", pins),
                **more,
            )
            self._step("placing", pins)
        else:
            order = _order_of(home, numbers[table], key)
        starts, replicas = np.zeros(1, np.int64), np.zeros(0, np.uint32)
        if options.replicate:
            starts, replicas = _core.place_replicas(
                rows,
                offsets,
                order,
                per_page,
                options.replicas,
                options.replicate,
                progress=self._progress("replicas", pins),
                **more,
            )
            self._step("replicas", pins)
        return PlanGroup(per_page, numbers[table[order]], key[order], starts, replicas)

    def _pins(self, row_class: RowClass) -> int:
        return sum(len(self._queries[name].values) for name in row_class.tables)

    def _progress(self, step: str, pins: int) -> Progress:
        whole = pins * self._steps[step] * _FINE

        def told(done: int, total: int) -> None:
            self._told(self._before + whole * min(done, total) // max(total, 1))

        return told

    def _step(self, step: str, pins: int) -> None:
        self._before += pins * self._steps[step] * _FINE
        self._told(self._before)

    def _told(self, done: int) -> None:
        self._tell(Stage(done // _FINE, self._total // _FINE, self._needed))

    def _need(self, needed: int, pins: int, rows: int | None = None) -> None:
        """Notes bytes that are taken at a time. Errors: ``BudgetError`` where they may not be."""
        self._needed = max(self._needed, needed)
        of = f"{pins:,} keys of queries" if rows is None else f"{rows:,} rows by {pins:,} keys"
        limit = self._options.memory
        if isinstance(limit, int) and needed > limit:
            raise BudgetError(
                f"placing {of} takes up to {needed} bytes, and memory={limit} is given; ask for at "
                f"least memory={needed}, or place by a sample of the queries, or on fewer threads"
            )
        there = machine_bytes()
        if limit is None and there is not None and needed > there:
            warn(
                f"placing {of} takes up to {needed} bytes, more than the {there} of this machine; "
                f"place by a sample of the queries, or on fewer threads",
                BudgetWarning,
            )
