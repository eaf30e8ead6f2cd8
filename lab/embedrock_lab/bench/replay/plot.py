"""Draws replays: rates of systems as bars, or over what changes, and where the device bounds them.

Without matplotlib a note says that nothing was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedrock_lab.bench.plots import pyplot_or_note, save

__all__ = ["Rates", "rates_of", "save_bars", "save_panels"]

Rates = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""By panel, then by what changes (a text that begins with a number), then by system."""


def rates_of(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Distinct rows per second of each system."""
    return {name: one.get("unique_rows_per_s") for name, one in found.items()}


def save_bars(file: Path, engines: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Writes a PNG of the systems of one workload."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    ran = {name: one for name, one in engines.items() if one.get("batches")}
    if not ran:
        notes.append(f"no plot: no system ran, {file} was not written")
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


def save_panels(
    file: Path,
    rates: Rates,
    labels: tuple[str, str],
    notes: list[str],
    *,
    doubling: bool = False,
    level: str | None = None,
) -> None:
    """Writes a PNG: panels side by side with the rates of systems over what changes.

    ``labels`` are those of both axes. ``level`` is a system whose first rate is a level for all.
    """
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    down, across = -(-len(rates) // 2), min(len(rates), 2)
    figure, panels = pyplot.subplots(
        down, across, figsize=(10, 1 + 3 * down), layout="constrained", squeeze=False, sharex=True
    )
    ran = dict.fromkeys(
        system
        for panel in rates.values()
        for one in panel.values()
        for system, rate in one.items()
        if rate
    )
    for (title, panel), axes in zip(rates.items(), panels.flat, strict=False):
        places = [float(text.split()[0]) for text in panel]
        for number, system in enumerate(ran):
            values = [(one.get(system) or float("nan")) / 1e3 for one in panel.values()]
            color = f"C{number}"
            if system == level:
                axes.axhline(values[0], linestyle="--", color=color, label=f"{system}, all rows")
            else:
                axes.plot(places, values, marker="o", color=color, label=system)
        axes.set(title=title, yscale="log", xlabel=labels[0], ylabel=labels[1])
        if doubling:
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [f"{place:g}" for place in places])
    handles, names = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=max(len(names), 1))
    save(pyplot, figure, file)
