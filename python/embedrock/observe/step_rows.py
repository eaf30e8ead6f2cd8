"""Rows of a step report: what is noted of some steps, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from embedrock.observe.key_sample import KeySample

__all__ = ["CAUSES", "Counters", "Row", "add_rates", "derived", "halved", "plain", "totals"]

CAUSES = ("blocked_by_read_s", "computing_s", "updating_s", "drawing_s", "committing_s")
"""The causes among which the seconds of a step are divided; they sum up to ``seconds``."""
_MOST = 0.9
"""When so many of the rows that were used for the first time were made, not read, all were: the
rest is what a sample is off by."""


@dataclass
class Counters:
    """Counters of a store and its window at one moment, and their differences."""

    read_wait_s: float = 0.0
    window_wait_s: float = 0.0
    pages: int = 0
    pages_ahead: int = 0
    pages_again: int = 0
    requests: int = 0
    rows_loaded: int = 0
    rows_initial: int = 0

    def __sub__(self, earlier: Counters) -> Counters:
        now, then = vars(self), vars(earlier)
        return Counters(**{name: now[name] - then[name] for name in now})


@dataclass
class Row:
    """The measurements of some successive steps."""

    steps: int
    seconds: float
    blocked_by_read_s: float
    computing_s: float
    updating_s: float
    drawing_s: float
    committing_s: float
    requests: int
    pages: int
    pages_ahead: int
    pages_again: int
    rows_loaded: int
    rows_initial: int
    window_batches: float
    """Mean over the steps."""
    filled: int
    """Batches behind the last step whose rows were there."""

    def merged(self, later: Row) -> Row:
        """The row of both, which follow each other."""
        both = {f.name: getattr(self, f.name) + getattr(later, f.name) for f in fields(Row)}
        weighted = self.window_batches * self.steps + later.window_batches * later.steps
        both["window_batches"] = weighted / both["steps"]
        both["filled"] = later.filled
        return Row(**both)


def halved(rows: Sequence[Row]) -> list[Row]:
    """Neighbours as one, from the first pair on."""
    pairs = zip(rows[::2], rows[1::2], strict=False)
    last = rows[-1:] if len(rows) % 2 else []
    return [*(one.merged(two) for one, two in pairs), *last]


def plain(row: Row, step: int) -> dict[str, Any]:
    """A row as it is shown, without what takes computing."""
    once = 1 - row.pages_again / row.pages_ahead if row.pages_ahead else None
    names = ("steps", "seconds", *CAUSES, "window_batches", "requests", "pages", "pages_ahead")
    shown = {"step": step, **{name: getattr(row, name) for name in names}}
    return {**shown, "pages_once_share": once, "rows_loaded": row.rows_loaded}


def derived(
    rows: Sequence[Row], first_step: int, sample: KeySample | None, capacities: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows as they are shown, with what a sample of the keys says of them.

    ``first_step`` steps were made before; ``capacities`` are rows of the cache of each row class.
    Blocking: finds the optimum of the sample.
    """
    ends = np.cumsum([0, *(row.steps for row in rows)])
    shown = [plain(row, first_step + int(end)) for row, end in zip(rows, ends[1:], strict=True)]
    names = ("distinct_rows", "rows_loaded_for", "optimal_rows_loaded")
    columns: list[Any] = [[None] * len(shown)] * len(names)
    if sample is not None and shown:
        held = sum(row.window_batches * row.steps for row in rows) / ends[-1]
        best = sample.optimum(capacities, round(held) or None)
        first = np.diff(best.first[ends])
        made = np.minimum([row.rows_initial for row in rows], first)
        made = np.where(made >= _MOST * first, first, made)
        optimal = np.maximum(np.diff(best.loads[ends]) - made, 0)
        columns = [np.diff(best.distinct[ends]), np.diff(_loaded(rows, ends)), optimal]
    for row, *values in zip(shown, *columns, strict=True):
        row.update(
            {
                name: None if value is None else round(float(value))
                for name, value in zip(names, values, strict=True)
            }
        )
        add_rates(row)
    return shown


def totals(rows: Sequence[Row], shown: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
    """One row for all, of which there is one at least, and ``hit_vs_optimum``."""
    joined = rows[0]
    for row in rows[1:]:
        joined = joined.merged(row)
    total = plain(joined, step)
    for name in ("distinct_rows", "rows_loaded_for", "optimal_rows_loaded"):
        known = [row[name] for row in shown if row[name] is not None]
        total[name] = sum(known) if known else None
    add_rates(total)
    loaded, optimal = total["rows_loaded_for"], total["optimal_rows_loaded"]
    total["hit_vs_optimum"] = 1 - (loaded - optimal) / optimal if optimal else None
    return total


def add_rates(row: dict[str, Any]) -> None:
    """Adds hit rates to a row: 0 where rows were loaded more often than steps used them, as where
    the memory does not hold those of a step until they are updated."""
    distinct = row["distinct_rows"]
    for name, loads in (
        ("hit_rate", "rows_loaded_for"),
        ("optimal_hit_rate", "optimal_rows_loaded"),
    ):
        row[name] = max(1 - row[loads] / distinct, 0.0) if distinct else None


def _loaded(rows: Sequence[Row], ends: Any) -> Any:
    """Rows loaded for the steps up to each end. Reads of the window also serve the batches that it
    has filled further ahead; they are spread over the batches of its group."""
    loaded = np.cumsum([0, *(row.rows_loaded for row in rows)])
    covered = ends + np.array([0, *(row.filled for row in rows)])
    covered = np.maximum.accumulate(covered)
    places, first = np.unique(covered, return_index=True)
    sums = loaded[first].astype(float)
    sums[-1] = loaded[-1]
    return np.interp(ends, places, sums)
