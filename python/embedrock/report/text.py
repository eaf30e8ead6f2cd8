"""Format of values for people: units, digits that matter, columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["bytes_text", "decimals", "seconds_text", "significant", "table"]


def bytes_text(count: float | None) -> str:
    """Three digits and a binary unit.

    >>> bytes_text(9), bytes_text(1.5 * 2**30), bytes_text(None)
    ('9 B', '1.5 GiB', '-')
    """
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if size < 1024 else f"{size:,.0f} TiB"


def seconds_text(seconds: float | None) -> str:
    """Three digits and the unit that suits.

    >>> seconds_text(75.04), seconds_text(0.0123), seconds_text(4e-6), seconds_text(0)
    ('75 s', '12.3 ms', '4 µs', '0 s')
    """
    if seconds is None:
        return "-"
    if seconds == 0 or abs(seconds) >= 1:
        return f"{significant(seconds)} s"
    if abs(seconds) >= 1e-3:
        return f"{significant(1e3 * seconds)} ms"
    return f"{significant(1e6 * seconds)} µs"


def decimals(value: float | None, places: int) -> str:
    """So many places behind the point; a dash where there is no such figure.

    >>> decimals(0.72915, 4), decimals(None, 4), decimals(float("nan"), 4)
    ('0.7291', '-', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{value:.{places}f}"


def significant(value: float, digits: int = 3) -> str:
    """So many digits that matter, thousands apart, no exponent within reach.

    >>> significant(25276.5), significant(1234, 5), significant(0.12345), significant(2.0)
    ('25,276', '1,234', '0.123', '2')
    """
    if value == 0:
        return "0"
    if abs(value) >= min(10**digits, 1000):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def table(rows: Sequence[Sequence[str]], *, header: bool = True) -> str:
    """Columns, the first one to the left, the others to the right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
        if header and number == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)
