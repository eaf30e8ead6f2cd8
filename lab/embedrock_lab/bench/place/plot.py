"""Draws ``place``: the MaxEmbed paper's figures 8, 9, 12, 13, 14 and 16, from counted pages."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from embedrock_lab.bench.place.compare import CANDIDATES
from embedrock_lab.bench.place.figures import gain
from embedrock_lab.bench.place.layouts import (
    HOMES,
    MTKAHYPAR,
    STRATEGIES,
    STRAWMEN,
    layout_name,
)
from embedrock_lab.bench.plots import pyplot_or_note, save

__all__ = ["save_plot"]

Traces = dict[str, dict[str, Any]]

LABELS = {
    "residual": "residual greedy",
    "connectivity": "as MaxEmbed",
    "rpp": "before the partition (RPP)",
    "fpr": "finer, filled up (FPR)",
    "shp": "MaxEmbed's partition",
    "partition": "partition",
    MTKAHYPAR: "Mt-KaHyPar",
}
STYLES = {"residual": "C0o-", "connectivity": "C1s-", "rpp": "C2^--", "fpr": "C3v--"}


def save_plot(file: Path, found: Traces, notes: list[str]) -> None:
    """Writes a PNG; without matplotlib, and without traces, a note says so."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    if not found:
        notes.append(f"no plot: there is no trace, {file} was not written")
        return
    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    _homes(axes[0][0], found)
    shares = _shares(found)
    _replicas(axes[0][1], found, shares, "c0_union", STRATEGIES, "no cache")
    _replicas(axes[0][2], found, shares, "c10_union", (*STRATEGIES, *STRAWMEN), "a 10 % cache")
    _caches(axes[1][0], found)
    _served(axes[1][1], found, shares)
    _candidates(axes[1][2], found)
    which = f"{len(found)} traces, medians" if len(found) > 1 else next(iter(found))
    figure.suptitle(f"Pages that held-out queries read: {which}")
    save(pyplot, figure, file)


def _shares(found: Traces) -> list[float]:
    names = next(iter(found.values()))["layouts"]
    return sorted(float(name.split()[0]) for name in names if name.endswith(" residual"))


def _homes(axes: Any, found: Traces) -> None:
    """Reduction of pages relative to the order of keys, by trace."""
    present = [
        name
        for name in (*HOMES[2:], MTKAHYPAR)
        if any(name in one["layouts"] for one in found.values())
    ]
    height = 0.8 / len(present)
    for i, layout in enumerate(present):
        traces = [name for name in found if layout in found[name]["layouts"]]
        places = [list(found).index(name) - i * height for name in traces]
        widths = [gain(found[name], "c0", "identity", layout) for name in traces]
        axes.barh(places, widths, height, label=LABELS.get(layout, layout))
    axes.set_yticks([i - 0.4 + height / 2 for i in range(len(found))], list(found))
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xlabel("useful rows of a page ÷ those in the order of keys")
    axes.set_title("home pages, no cache")
    axes.legend(fontsize="small")


def _replicas(
    axes: Any,
    found: Traces,
    shares: list[float],
    condition: str,
    kinds: tuple[str, ...],
    cache: str,
) -> None:
    """Figures 8 and 13, with 14: what replicas save beside the partition alone."""
    for kind in kinds:
        gains = [
            statistics.median(
                gain(one, condition, "partition", layout_name(kind, share))
                for one in found.values()
            )
            for share in shares
        ]
        axes.plot([0, *shares], [1, *gains], STYLES[kind], label=LABELS[kind])
    axes.axhline(1, color="grey", linewidth=1)
    axes.set_xlabel("rows stored again ÷ rows")
    axes.set_ylabel("pages of the partition ÷ pages with replicas")
    axes.set_title(f"replicas, unions of 32, {cache}")
    axes.legend(fontsize="small")


def _caches(axes: Any, found: Traces) -> None:
    """Figure 12: by the share of rows that the cache holds."""
    first = next(iter(found.values()))["caches"]
    for layout in first:
        kind = layout.split()[-1]
        label = LABELS[kind] + (f", {layout.split()[0]}" if layout != kind else "")
        gains = [
            statistics.median(
                one["caches"]["shp"][cache] / one["caches"][layout][cache] for one in found.values()
            )
            for cache in first[layout]
        ]
        axes.plot([100 * float(cache) for cache in first[layout]], gains, "o-", label=label)
    axes.set_xlabel("rows in the cache, per cent")
    axes.set_ylabel("pages of MaxEmbed's partition ÷ pages")
    axes.set_title("caches, unions of 32")
    axes.legend(fontsize="small")


def _served(axes: Any, found: Traces, shares: list[float]) -> None:
    """Figure 9: how many useful rows a page has, of the first trace."""
    name, one = next(iter(found.items()))
    wanted = ["identity", "shp", "partition"]
    wanted += [layout_name("residual", share) for share in shares[:1]]
    for layout in wanted:
        served = one["layouts"][layout]["served"]
        total, below, shown = sum(served), 0, []
        for pages in served[1:]:
            below += pages
            shown.append(below / total)
        mean = one["layouts"][layout]["c0"]["rows_per_page"]
        axes.step(range(1, len(served)), shown, where="post", label=f"{layout}: mean {mean:.2f}")
    axes.set_xlabel("useful rows of a page, at most")
    axes.set_ylabel("share of the pages read")
    axes.set_title(f"{name}, no cache")
    axes.legend(fontsize="small")


def _candidates(axes: Any, found: Traces) -> None:
    """Figure 16: what is lost if selection looks at few pages of a row."""
    labels = [f"{one}" for one in CANDIDATES[:-1]] + ["all"]
    for layout in next(iter(found.values()))["candidates"]:
        kind = layout.split()[-1]
        share = [
            statistics.median(
                _pages(one, layout, -1) / _pages(one, layout, i) for one in found.values()
            )
            for i in range(len(CANDIDATES))
        ]
        axes.plot(labels, share, STYLES[kind], label=f"{LABELS[kind]}, {layout.split()[0]}")
    axes.set_xlabel("pages of a row that selection looks at")
    axes.set_ylabel("useful rows of a page ÷ those with all")
    axes.set_title("selection, no cache")
    axes.legend(fontsize="small")


def _pages(one: dict[str, Any], layout: str, setting: int) -> float:
    return float(list(one["candidates"][layout].values())[setting])
