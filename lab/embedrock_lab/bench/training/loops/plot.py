"""Draws the cells of ``loops``: shares of PyTorch's speed, a panel for each training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.bench.training.cells import (
    LOOKAHEAD,
    PIPELINE,
    PLAIN,
    TORCH,
    WAYS,
    Cell,
    rate,
    share,
)

__all__ = ["save_plot"]

COLUMNS = 2
COLORS = {PLAIN: "tab:gray", LOOKAHEAD: "tab:blue", PIPELINE: "tab:green"}
TOP = 1.5
"""Of the axis: bounds above it are not drawn."""


def save_plot(file: Path, cells: Sequence[Cell], notes: list[str]) -> None:
    """Writes a PNG; without matplotlib a note says so."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    loads = list(dict.fromkeys(cell["load"] for cell in cells))
    lines = -(-len(loads) // COLUMNS)
    figure, panels = pyplot.subplots(
        lines, COLUMNS, figsize=(12, 2.8 * lines), layout="constrained", squeeze=False, sharey=True
    )
    for axes in panels.flat[len(loads) :]:
        axes.set_axis_off()
    for load, axes in zip(loads, panels.flat, strict=False):
        alike = [cell for cell in cells if cell["load"] == load]
        alike.sort(key=lambda cell: (cell["memory"], cell["busy"]))
        for number, (way, color) in enumerate(COLORS.items()):
            places = [place + (number - 1) * 0.27 for place in range(len(alike))]
            axes.bar(places, [share(cell, way) for cell in alike], 0.25, color=color)
        for place, cell in enumerate(alike):
            bound = cell["bound"]["samples_per_s"] / rate(cell, TORCH)
            if bound < TOP:
                axes.plot([place - 0.42, place + 0.42], [bound, bound], color="tab:red")
        axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
        labels = [f"{cell['memory']:g} %\n{cell['busy']} busy" for cell in alike]
        axes.set_xticks(range(len(alike)), labels, fontsize=8)
        axes.set_ylim(0, TOP)
        axes.set_title(load)
    for row in panels:
        row[0].set_ylabel("share of PyTorch in memory")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    handles.append(pyplot.Line2D([], [], color="tab:red"))
    figure.legend(
        handles, [*(WAYS[way] for way in COLORS), "bound"], loc="outside upper center", ncols=4
    )
    save(pyplot, figure, file)
