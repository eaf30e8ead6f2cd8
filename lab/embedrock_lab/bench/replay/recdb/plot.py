"""Draws ``recdb``: what a step of each system waits for, computes and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embedrock_lab.bench.plots import pyplot_or_note, save

__all__ = ["save_plot"]

PARTS = {
    "blocked_share": "waits for rows",
    "handing_share": "has them handed over",
    "compute_share": "computes",
    "update_share": "updates",
}


def save_plot(file: Path, found: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Writes a PNG; without matplotlib a note says so."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    ran = {name: one for name, one in found.items() if "step_ms" in one}
    if not ran:
        notes.append(f"no plot: no system ran, {file} was not written")
        return
    names = list(reversed(ran))
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.45 * len(names)), layout="constrained")
    left = [0.0] * len(names)
    for share, label in PARTS.items():
        widths = [ran[name][share] * ran[name]["step_ms"] for name in names]
        axes.barh(names, widths, left=left, label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("milliseconds of a step")
    axes.legend()
    save(pyplot, figure, file)
