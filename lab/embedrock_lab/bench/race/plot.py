"""Draws a race: distinct rows per second by contestant, and where the device bounds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embedrock_lab.bench.plots import pyplot_or_note, save

__all__ = ["save_plot"]


def save_plot(file: Path, engines: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Writes a PNG; without matplotlib a note says so."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    ran = {name: one for name, one in engines.items() if one.get("batches")}
    if not ran:
        notes.append(f"no plot: no contestant ran, {file} was not written")
        return
    names = sorted(ran, key=lambda name: ran[name]["unique_rows_per_s"])
    rates = [ran[name]["unique_rows_per_s"] / 1e3 for name in names]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.45 * len(names)), layout="constrained")
    colors = ["tab:blue" if name.startswith("embedrock") else "tab:gray" for name in names]
    axes.set_xscale("log")
    axes.set_xlim(min(rates) / 4, max(rates) * 4)
    bars = axes.barh(names, rates, color=colors)
    readable = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # also across the line
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4, bbox=readable)
    bounds = [one for one in ran.values() if one.get("limit_share")]
    if bounds:
        bound = bounds[0]["unique_rows_per_s"] / bounds[0]["limit_share"] / 1e3
        axes.set_xlim(right=max(*rates, bound) * 4)
        label = "device rate ÷ misses of the best cache"
        axes.axvline(bound, color="tab:red", linestyle="--", label=label)
        axes.legend(loc="lower right")
    axes.set_xlabel("thousand distinct rows per second")
    save(pyplot, figure, file)
