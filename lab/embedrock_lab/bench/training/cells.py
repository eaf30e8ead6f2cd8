"""Cells: what a load did in each way, at one budget. Rates are medians of rounds.

A cell has under ``ways`` a dict for each, with the rates of its rounds as ``turns``.
"""

from __future__ import annotations

import statistics
from typing import Any

__all__ = ["LOOKAHEAD", "PIPELINE", "PLAIN", "SCHEDULE", "TORCH", "WAYS", "Cell", "rate"]
__all__ += ["ratio", "said", "share"]

TORCH = "torch"
PLAIN = "plain"
LOOKAHEAD = "lookahead"
PIPELINE = "pipeline"
SCHEDULE = "schedule"
WAYS = {
    TORCH: "PyTorch in memory",
    PLAIN: "plain loop",
    LOOKAHEAD: "look-ahead",
    PIPELINE: "look-ahead and pipeline",
}
"""The ways to run a training, in the order in which they are shown, and how each is called."""
_CALLED = {**WAYS, SCHEDULE: "schedule"}

Cell = dict[str, Any]


def rate(cell: Cell, way: str) -> float:
    """Samples per second: the median of the rounds."""
    return float(statistics.median(cell["ways"][way]["turns"]))


def ratio(cell: Cell, way: str, base: str) -> float:
    """One way's rate ÷ another's: the median of the rounds' ratios, which ran one after another."""
    both = zip(cell["ways"][way]["turns"], cell["ways"][base]["turns"], strict=True)
    return float(statistics.median(one / other for one, other in both))


def share(cell: Cell, way: str) -> float:
    """A way's rate ÷ that of PyTorch in memory, whose rounds lay between."""
    return ratio(cell, way, TORCH)


def said(cell: Cell) -> str:
    """A cell for whoever waits."""
    shares = ", ".join(
        f"{_CALLED[way]} {share(cell, way):.2f}" for way in cell["ways"] if way != TORCH
    )
    return f"{rate(cell, TORCH):,.0f} samples/s in memory; of that {shares}"
