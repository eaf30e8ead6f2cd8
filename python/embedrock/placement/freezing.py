"""Freezing: a commit of a store as pages in the order of a plan, for serving."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from embedrock import _core
from embedrock._arguments import (
    Progress,
    choice,
    function,
    named_path,
    named_path_or_none,
    whole,
    whole_or_none,
)
from embedrock._arrays import STORED_DTYPES
from embedrock._memory import memory_text, size_of, size_or_none
from embedrock.placement.plan import Plan

__all__ = ["freeze"]


def freeze(
    path: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None = None,
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    step: int | None = None,
    memory: int | str = "256MiB",
    sort_bytes: int | str = "256MiB",
    dtype: Literal["float32", "float16", "bfloat16", "int8", "int4"] | None = None,
    unknown: Literal["initial", "zeros"] = "initial",
    candidates: int = 10,
    page_bytes: int | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes one commit of a store as frozen pages, in which a plan arranges the rows.

    With a ``destination`` this is a new store for serving: values without the state of optimizers,
    each row in the page that the plan has for it, and in the pages of replicas. The source may be
    open and written to meanwhile. Without one it is a store of frozen pages itself, which nobody
    else writes to: what has changed on top of its pages goes into new ones, readers go on with the
    old ones until they ``refresh``, and the commit before stays to go back to.

    Args:
        path: The store.
        destination: Folder of the new store; None freezes the store anew in its place.
        plan: A :class:`Plan`, or its file. Rows that are not in it come after those that are, in
            the order of the source; without a plan that is all of them.
        step: The commit of this step; the last one by default. Not without a ``destination``.
        memory: The budget of each of the two stores, as :func:`embedrock.open` takes it.
        sort_bytes: Bytes of memory beside these for rows that are being put in order. If the rows
            take more, they pass through a file in the new store once.
        dtype: The type of the frozen values; None keeps each table's own. ``"int8"`` and ``"int4"``
            have a scale and a zero point for each row. The rounding errors are in ``errors`` of the
            result.
        unknown: The result of keys without a row: ``"initial"``, the row that training would begin
            with, or ``"zeros"``. Not without a ``destination``.
        candidates: Largest number of pages to choose from for reading a row, 1 to 16. More pages
            cost 4 bytes of memory for each replica.
        page_bytes: Bytes of a page; None takes the smallest that holds the plan's number of rows,
            and without a plan measures the device.
        progress: Called now and then with rows done and in all; an exception from it ends the
            freeze.

    Returns the commit, ``rows``, how many of them the plan has (``placed``), how many the plan has
    and the store has not (``missing``), ``pages``, ``error_max``, and the bytes of the store on
    disk. ``errors`` has an entry for each table whose type of values changed: ``table``, ``dtype``,
    ``rows``, ``error_max``, and the differences as shares of the largest value of their row,
    ``relative_error_max`` and ``relative_error_mean``.

    Errors: ``NotFoundError``, ``MisuseError`` for a plan of other tables or pages, for a value that
    the dtype has not (NaN, infinite, too large) and where the destination holds a store,
    ``CorruptError``, ``FullError`` before anything is written.

    Durability: the new store, or the new commit, is durable when this returns. The remains of a
    failed or interrupted freeze are no store, and the next one replaces them; the source is
    unchanged.

    Blocking: reads every row of the commit once and writes it once or twice.

    >>> with embedrock.open("trained", memory="16MiB") as store:
    ...     items = store.table("items", 4, num_embeddings=8)
    ...     items.put(np.arange(8), np.ones((8, 4), np.float32))
    ...     commit = store.commit(step=1)
    >>> trace = embedrock.trace.Trace({"items": ([1, 6, 2, 5, 1, 6], [0, 2, 4, 6])})
    >>> plan = embedrock.placement.place(trace, store="trained")
    >>> done = embedrock.freeze("trained", "served", plan=plan)
    >>> done["rows"], done["placed"]
    (8, 4)
    >>> with embedrock.open("served", memory="16MiB", read_only=True) as served:
    ...     served.table("items").get([6])
    array([[1., 1., 1., 1.]], dtype=float32)
    """
    if plan is not None and not isinstance(plan, Plan):
        plan = Plan.load(named_path("plan", plan))
    if dtype is not None:
        choice("dtype", dtype, STORED_DTYPES)
    choice("unknown", unknown, ("initial", "zeros"))
    function("progress", progress, "rows done and in all")
    report: dict[str, Any] = _core.freeze(
        named_path("path", path),
        named_path_or_none("destination", destination),
        [] if plan is None else _arrays(plan),
        memory_text(memory),
        whole_or_none("step", step, 0),
        size_of("sort_bytes", sort_bytes, 1 << 16),
        dtype,
        unknown == "zeros",
        whole("candidates", candidates, 1),
        size_or_none("page_bytes", page_bytes, 512),
        progress,
    )
    return report


def _arrays(plan: Plan) -> list[Any]:
    """Each group as the engine takes it: its tables are numbered from 0 on."""
    planned = []
    for number, group in enumerate(plan.groups):
        of_group = [at for at, its in enumerate(plan.table_groups) if its == number]
        place = np.zeros(len(plan.tables), np.uint16)
        place[of_group] = np.arange(len(of_group))
        planned.append(
            (
                [plan.tables[at] for at in of_group],
                group.rows_per_page,
                place[group.table],
                np.ascontiguousarray(group.key),
                group.replica_starts.astype(np.uint32),
                np.ascontiguousarray(group.replica_rows),
            )
        )
    return planned
