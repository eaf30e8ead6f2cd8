"""``device``: what the device gives, and what a store makes of it.

Random reads of every request size and depth, on the written pages of a store, in rounds; beside
them what the store measured when its first table was made, and the page and the depth that follow.
The figure ``device_rate_4096_64`` is what other benches mean by the device's rate.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import embedrock
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.measure import machine
from embedrock_lab.measure.rows import fill

__all__ = ["Options", "run"]

SIZES = [512, 1024, 2048, 4096, 8192, 16_384]
DEPTHS = [1, 4, 16, 32, 64, 128, 256]
COMMON = (4096, 64)
"""Request size and depth by which devices are compared."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(4_000_000, "of the store that is read")
    dim: int = option(32, "float32 values per row")
    rounds: int = option(3, "rounds of each size and depth")
    slice: float = option(0.5, "seconds of a round", metavar="S")
    png: Path | None = option(None, "draw the curves to this file")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("device", options)
    rows, dim = options.rows, options.dim
    figure = f"device_rate_{COMMON[0]}_{COMMON[1]}"
    with workspace(options, 3 * rows * (4 * dim + 16)) as place:
        report.say(f"writing {rows:,} rows of {dim} float32")
        # A budget that reads with any depth: buffers take a part of it.
        budget = rows * 4 + (256 << 20)
        with embedrock.open(place / "store", budget) as store:
            fill(store.table("rows", dim, rows, optimizer="none"), rows)
            store.commit(0)
            report.device = machine.device_facts(store)
            if not report.device["direct"]:
                report.missing(figure, "reads do not bypass the page cache on this file system")
                return report.finish()
            found = _measure(report, store, options)
            chosen = store.stats()["classes"][0]
    report.figure(figure, found[COMMON])
    report.results["requests_per_s"] = {
        f"{size} bytes": {f"depth {depth}": found[size, depth] for depth in DEPTHS}
        for size in SIZES
        if (size, DEPTHS[0]) in found
    }
    report.results["chosen"] = _chosen(report, chosen, found)
    if options.png is not None:
        _save_plot(options.png, found, chosen, report.notes)
    return report.finish()


def _measure(
    report: Report, store: embedrock.Store, options: Options
) -> dict[tuple[int, int], float]:
    """The median rate of each request size and depth."""
    alignment = report.device["alignment"]
    places = [(size, depth) for size in SIZES if size >= alignment for depth in DEPTHS]
    found: dict[tuple[int, int], list[float]] = {place: [] for place in places}
    for number in range(options.rounds):
        report.say(f"reading, round {number + 1} of {options.rounds}")
        for (size, depth), rates in found.items():
            rates.append(store._core.device_rate(options.slice, size, depth))
    return {place: statistics.median(rates) for place, rates in found.items()}


def _chosen(
    report: Report, chosen: dict[str, Any], found: dict[tuple[int, int], float]
) -> dict[str, Any]:
    """The store's choice, its own measurements, and the present rate and cost of the choice."""
    page, depth = chosen["page_bytes"], chosen["read_depth"]
    curve = report.device["curve"] or {"depth": None, "points": []}
    best = max(found.values())
    now = found.get((page, depth))
    report.notes.append(
        "the depth is the least that gave 97 % of the best for the smallest request when the first "
        "table was made; the page the largest whose rate was 85 % of the best, and which rows fill "
        "to three quarters"
    )
    return {
        "page_bytes": page,
        "rows_per_page": chosen["rows_per_page"],
        "read_depth": depth,
        "share_of_best": now / best if now else None,
        "measured_at_creation": {
            f"{point['bytes']} bytes, depth {curve['depth']}": point["requests_per_s"]
            for point in curve["points"]
        },
    }


def _save_plot(
    file: Path, found: dict[tuple[int, int], float], chosen: dict[str, Any], notes: list[str]
) -> None:
    """Writes a PNG: requests per second over depth, a line for each size."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for size in dict.fromkeys(size for size, _ in found):
        rates = [found[size, depth] / 1e3 for depth in DEPTHS]
        wide = 3 if size == chosen["page_bytes"] else 1
        axes.plot(DEPTHS, rates, marker="o", linewidth=wide, label=f"{size:,} bytes")
    axes.axvline(chosen["read_depth"], color="tab:red", linestyle="--", label="chosen depth")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("reads in flight")
    axes.set_ylabel("thousand random reads per second")
    axes.set_ylim(bottom=0)
    axes.legend()
    save(pyplot, figure, file)
