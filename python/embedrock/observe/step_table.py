"""A step report as a table of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from embedrock.observe.step_rows import CAUSES, add_rates

__all__ = ["text"]

_LINES = 10
_HEADER = ["step", "ms/step", "blocked by read", "computing", "updating", "drawing", "committing"]
_HEADER += ["window", "pages/step", "read once", "hit rate", "optimum"]


def text(rows: Sequence[dict[str, Any]], total: dict[str, Any]) -> str:
    """Ten lines over time, of rows of which there is one at least, and one for all."""
    ends = np.linspace(0, len(rows), min(len(rows), _LINES) + 1).astype(int)
    parts = [rows[begin:end] for begin, end in pairwise(ends)]
    lines = [_HEADER, *(_line(f"to {part[-1]['step']:,}", _summed(part)) for part in parts)]
    lines.append(_line("all", total))
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADER))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows as one, for the table."""
    total = dict(rows[-1])
    for name in total:
        if name in ("step", "window_batches") or name.endswith(("_share", "_rate")):
            continue
        known = [row[name] for row in rows if row[name] is not None]
        total[name] = sum(known) if known else None
    steps = [row["steps"] for row in rows]
    total["window_batches"] = np.average([row["window_batches"] for row in rows], weights=steps)
    ahead = [row["pages_ahead"] for row in rows]
    shares = [row["pages_once_share"] or 0.0 for row in rows]
    total["pages_once_share"] = np.average(shares, weights=ahead) if sum(ahead) else None
    add_rates(total)
    return total


def _line(name: str, row: dict[str, Any]) -> list[str]:
    """The cells of a row of the table."""
    shares = [f"{row[cause] / max(row['seconds'], 1e-9):.1%}" for cause in CAUSES]
    rates = [row[name] for name in ("pages_once_share", "hit_rate", "optimal_hit_rate")]
    return [
        name,
        f"{1e3 * row['seconds'] / row['steps']:,.1f}",
        *shares,
        f"{row['window_batches']:,.0f}",
        f"{row['pages'] / row['steps']:,.1f}",
        *("-" if rate is None else f"{rate:.2%}" for rate in rates),
    ]
