"""The common part of benches that draw: matplotlib if it is installed, else a note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["pyplot_or_note", "save"]


def pyplot_or_note(notes: list[str]) -> Any:
    """``matplotlib.pyplot`` for files; None, and a note, without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        notes.append("no plot: matplotlib is not installed: pip install matplotlib")
        return None
    return pyplot


def save(pyplot: Any, figure: Any, file: Path) -> None:
    """Writes a PNG and forgets the figure."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
