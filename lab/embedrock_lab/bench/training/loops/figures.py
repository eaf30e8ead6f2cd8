"""Figures of ``loops`` from its cells: what look-ahead gives, and shares of PyTorch's speed.

A cell is what ``cell.measure`` returns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from embedrock_lab.bench.training.cells import LOOKAHEAD, PIPELINE, PLAIN, Cell, ratio, share

__all__ = ["BAR", "held_ratio", "of_cells", "spread"]

BAR = 0.9
"""Look-ahead has to keep this share of the plain loop's rate in every cell."""
RESIDENT = 100.0
"""Memory in per cent from which on all rows may fit."""


def spread(rates: Sequence[float]) -> float:
    """Range of rates."""
    return max(rates) - min(rates)


def held_ratio(rates: Sequence[float], plain: Sequence[float]) -> float:
    """The median of the rounds' ratios; at least ``BAR`` where noise explains the difference.

    It does where the medians differ by less than rounds of one way do. Of the two spreads the
    smaller counts: noise of the machine meets both ways, and one that is unsteady by itself is not
    excused by that.

    >>> held_ratio([80, 80, 82], [100, 100, 102])
    0.8
    >>> held_ratio([70, 85, 100], [80, 100, 120])
    0.9
    >>> held_ratio([20, 30, 110], [100, 100, 102])
    0.3
    """
    found = statistics.median(one / other for one, other in zip(rates, plain, strict=True))
    apart = abs(statistics.median(rates) - statistics.median(plain))
    if apart < min(spread(rates), spread(plain)):
        found = max(found, BAR)
    return round(found, 4)


def of_cells(cells: Sequence[Cell]) -> dict[str, float]:
    """All figures that these cells have; none that they lack."""
    found: dict[str, float] = {}
    for way in (LOOKAHEAD, PIPELINE):
        if cells:
            found[f"{way}_min"] = min(
                held_ratio(cell["ways"][way]["turns"], cell["ways"][PLAIN]["turns"])
                for cell in cells
            )
            found[f"{way}_min_unexcused"] = min(ratio(cell, way, PLAIN) for cell in cells)
    resident = [cell for cell in cells if cell["memory"] >= RESIDENT and not cell["busy"]]
    if resident:
        found["resident_vs_torch"] = min(share(cell, PLAIN) for cell in resident)
    for memory in sorted({cell["memory"] for cell in resident}):
        alike = [cell for cell in resident if cell["memory"] == memory]
        found[f"lookahead_{memory:g}"] = min(ratio(cell, LOOKAHEAD, PLAIN) for cell in alike)
    for cell in cells:
        if not cell["busy"]:
            name = f"{cell['load']}_{cell['memory']:g}"
            found[name] = share(cell, PLAIN)
            found[f"{name}_lookahead"] = share(cell, LOOKAHEAD)
    return found
