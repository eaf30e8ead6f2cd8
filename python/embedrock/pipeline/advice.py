"""Advice for users whose look-ahead does nothing: the words, with their figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from embedrock.pipeline.announcing import Verdict
from embedrock.pipeline.keys import TableKeys
from embedrock.store import Store

__all__ = ["passed_over", "set_aside"]

_ROWS_MIN = 1.1
"""The store reads batches ahead where its cache holds so many rows for each row of a batch
(crates/core/src/store/window/slices.rs)."""
_MARGIN = 1.6
"""A window takes up to an eighth of such a memory, with the keys of one batch at least."""


def set_aside(verdict: Verdict) -> str:
    """That look-ahead is no faster."""
    return (
        f"look-ahead is set aside: steps took {1e3 * verdict.announced_s:.3g} ms with it (mean of "
        f"{verdict.steps}) and {1e3 * verdict.plain_s:.3g} ms without, loading apart; it is tried "
        f"again after {verdict.hold:,} steps; a free core or larger batches would help it"
    )


def passed_over(
    skipped: int, batches: int, stores: Iterable[Store], last: Sequence[TableKeys]
) -> str:
    """That windows have passed over ``skipped`` of ``batches``, of which ``last`` was one."""
    said = f"look-ahead has passed over {skipped:,} of {batches:,} batches"
    needs = [(*_need(store, last), store) for store in stores]
    share, rows, capacity, store = max(needs, key=lambda need: need[0])
    if share <= 1:
        return (
            f"{said}: they were used before they could be read ahead, or the window had no room "
            f"for their keys; more memory, smaller batches, or more work in a step would do"
        )
    memory = store.stats()["budget_bytes"]
    return (
        f"{said}: one has about {rows:,} distinct rows, and memory of {_size(memory)} holds "
        f"{capacity:,}, expected {math.ceil(_MARGIN * _ROWS_MIN * rows):,}, which leaves a window "
        f"its share; {_size(memory * share, more_than=memory)}, or batches of "
        f"{min(max(math.floor(100 / share), 1), 99)} % of the size, would do"
    )


def _need(store: Store, batch: Iterable[TableKeys]) -> tuple[float, int, int]:
    """Needed share of the present cache for such batches, their distinct rows, and the capacity of
    the cache in rows, for the row size with the greatest shortage."""
    facts = store.stats()
    capacity: dict[int, int] = {}
    for one in facts["classes"]:
        capacity[one["row_bytes"]] = capacity.get(one["row_bytes"], 0) + one["cache_capacity"]
    sizes = {one["spec"]["name"]: one["row_bytes"] for one in facts["tables"]}
    rows = dict.fromkeys(capacity, 0)
    for part in batch:
        if part.table.store is store:
            rows[sizes[part.table.name]] += len(np.unique(part.keys))
    needs = [
        (_MARGIN * _ROWS_MIN * rows[size] / max(held, 1), rows[size], held)
        for size, held in capacity.items()
    ]
    return max(needs, default=(0.0, 0, 0))


def _size(count: float, more_than: float = 0) -> str:
    """Bytes as a budget is written, rounded up, and so that more is seen to be more."""
    large = count >= 16 << 20 or count % (1 << 20) == 0
    unit, name = (1 << 20, "MiB") if large else (1 << 10, "KiB")
    units = math.ceil(count / unit)
    if units * unit <= more_than:
        units += 1
    return f"{units:,} {name}"
