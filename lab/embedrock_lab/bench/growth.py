"""``growth``: the same share of memory for ever more rows.

From 1 M to 64 M rows, doubled each time, with 10 % of their bytes as memory: the engine reads,
changes and writes batches of Zipf-distributed keys with a full cache. The cost of a row may grow
only with its chance of a miss: ``growth_excess`` is the growth per doubling, by least squares over
all sizes, of time per row (times the device's rate of that moment) divided by reads per row;
``growth_excess_cpu`` the same of processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.measure import machine
from embedrock_lab.measure.rows import LOAD_ROWS, fill, ranges, values_of

__all__ = ["Options", "run"]

ROWS = [million * 1_000_000 for million in (1, 2, 4, 8, 16, 32, 64)]
LOAD_CACHE_BYTES = 64 << 20
DEVICE = (4096, 64)
FIGURES = {"growth_excess": "device_reads_per_row", "growth_excess_cpu": "cpu_us_per_row"}
"""Figures and the cost that each is about."""
ADDED = np.float32(2.0**-23)


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: list[int] = option(ROWS, "rising")
    dim: int = option(32, "float32 values per row")
    memory: float = option(10.0, "per cent of the rows' bytes")
    zipf: float = option(0.9, "exponent of the skew; 0: uniform")
    batch: int = option(4096, "keys of a batch")
    batches: int = option(600, "the last two thirds count")
    png: Path | None = option(None, "draw the result to this file")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("growth", options)
    found: dict[int, dict[str, Any]] = {}
    for rows in options.rows:
        row_bytes = 4 * options.dim
        with workspace(options, 3 * rows * (row_bytes + 16)) as place:
            report.say(f"{rows:,} rows: writing")
            shape = {"store": str(place / "store"), "rows": rows, "dim": options.dim}
            child.call(f"{__name__}:load", **shape)
            report.say(f"{rows:,} rows: training with {options.memory:g} % in memory")
            found[rows] = child.call(
                f"{__name__}:measure",
                **shape,
                memory_bytes=int(rows * row_bytes * options.memory / 100),
                zipf=options.zipf,
                batch=options.batch,
                batches=options.batches,
                seed=options.seed,
            )
        report.results["mismatches"] += found[rows].pop("mismatches")
        report.device = found[rows].pop("device")
    report.results["rows"] = {f"{rows:,}": one for rows, one in found.items()}
    for figure, cost in FIGURES.items():
        if len(found) < 2 or any(one[cost] is None for one in found.values()):
            report.missing(figure, "needs two sizes, and a device that reads go to directly")
        else:
            report.figure(figure, excess(found, cost))
    if options.png is not None:
        _save_plot(options.png, found, report.notes)
    return report.finish()


def excess(found: dict[int, dict[str, Any]], cost: str) -> float:
    """The growth of a cost beyond that of the reads per row, per doubling of the rows.

    >>> sizes = {rows: {"t": rows * 0.2, "requests_per_row": 0.1} for rows in (1, 2, 4)}
    >>> round(excess(sizes, "t"), 3)
    2.0
    """
    doublings = np.log2(np.array(list(found)))
    costs = np.array([one[cost] / one["requests_per_row"] for one in found.values()])
    slope, _ = np.polyfit(doublings, np.log2(costs), 1)
    return float(2.0**slope)


def load(store: str, rows: int, dim: int) -> None:
    """Writes every row and commits. Runs in a child process."""
    with embedrock.open(store, rows * 4 + LOAD_CACHE_BYTES) as opened:
        table = opened.table("rows", dim, rows, optimizer="none")
        fill(table, rows)
        opened.commit(0)


def measure(
    store: str,
    rows: int,
    dim: int,
    memory_bytes: int,
    zipf: float,
    batch: int,
    batches: int,
    seed: int,
) -> dict[str, Any]:
    """Trains with a full cache. Runs in a child process."""
    keys_of = Zipf(rows, zipf, seed)
    versions = np.zeros(rows, np.uint16)
    with embedrock.open(store, memory_bytes, create=False) as opened:
        table = opened.table("rows")
        capacity = opened.stats()["classes"][0]["cache_capacity"]
        # Any rows will do: what the trace needs displaces them.
        for keys in ranges(min(rows, capacity + capacity // 8), LOAD_ROWS):
            table.get(keys)
        out = np.empty((batch, dim), np.float32)
        counted, seconds, cpu_s, wrong, rates = 0, 0.0, 0.0, 0, []
        before = opened.stats()
        for number in range(batches):
            if number == batches // 3:
                before = opened.stats()
                counted, seconds, cpu_s = 0, 0.0, 0.0
            keys = keys_of.distinct(batch)
            values = out[: len(keys)]
            get = _timed(table.get, keys, out=values)
            expected = values_of(keys, dim) + versions[keys][:, None] * ADDED
            wrong += int((values != expected).any(axis=1).sum())
            values += ADDED
            put = _timed(table.put, keys, values)
            versions[keys] += 1
            counted += len(keys)
            seconds += get[0] + put[0]
            cpu_s += get[1] + put[1]
            if number % max(batches // 16, 1) == 0 and before["device"]["direct"]:
                rates.append(opened._core.device_rate(0.2, *DEVICE))
        after = opened.stats()
        one = after["classes"][0]
        rate = statistics.median(rates) if rates else None
        facts = machine.device_facts(opened)
        # Changes without a commit are given up without a warning.
        opened._core.close()
        return {
            "unique_rows_per_s": counted / seconds,
            "us_per_row": 1e6 * seconds / counted,
            "requests_per_row": (after["read_requests"] - before["read_requests"]) / counted,
            "device_rate": rate,
            "device_reads_per_row": seconds * rate / counted if rate else None,
            "cpu_us_per_row": 1e6 * cpu_s / counted,
            "capacity_rows": one["cache_capacity"],
            "resident_rows": one["resident_rows"],
            "index_bytes": one["index_bytes"],
            "page_bytes": one["page_bytes"],
            "read_depth": one["read_depth"],
            "mismatches": wrong,
            "device": facts,
        }


def _timed(work: Callable[..., object], *given: Any, **named: Any) -> tuple[float, float]:
    """Seconds, and processor seconds of all threads, that a call takes."""
    spent, begin = time.process_time(), time.perf_counter()
    work(*given, **named)
    return time.perf_counter() - begin, time.process_time() - spent


def _save_plot(file: Path, found: dict[int, dict[str, Any]], notes: list[str]) -> None:
    """Writes a PNG: what a row costs, and the reads that it needs, over the number of rows."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    millions = [rows / 1e6 for rows in found]
    for name, label in (
        ("device_reads_per_row", "time per row, in reads of the device"),
        ("requests_per_row", "reads per row"),
    ):
        axes.plot(millions, [one[name] for one in found.values()], marker="o", label=label)
    micro = axes.twinx()
    cpu = [one["cpu_us_per_row"] for one in found.values()]
    micro.plot(millions, cpu, marker="s", color="tab:gray", label="processor time per row")
    micro.set_ylabel("microseconds")
    micro.set_ylim(bottom=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(millions, [f"{million:g}" for million in millions])
    axes.set_xlabel("million rows")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("reads")
    lines, others = axes.get_legend_handles_labels(), micro.get_legend_handles_labels()
    micro.legend(lines[0] + others[0], lines[1] + others[1], loc="lower center")
    save(pyplot, figure, file)
