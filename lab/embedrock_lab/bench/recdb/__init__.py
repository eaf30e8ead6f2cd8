"""``recdb``: what the parts of RecDB are worth here, beside RocksDB with the same window.

A training reads the rows of 26 tables batch by batch, computes for a fixed time and updates every
row that it has read. Contestants: RocksDB, whose peers' program reads each window of batches ahead
while the one before is used, in the order of keys (``rocksdb``) or of the batches; a log; an lsm
whose batches are read ahead one by one (``lsm``); and with the parts of RecDB added one after
another: the *sorter* (the look-ahead window, which reads each page once for many batches), the
*picker* of merges, the *scheduler* of merges (``gate`` or ``share``). The key allocator, which lays
hot rows side by side, is counted from the trace alone (``model.py``): hot rows are in memory here.

Each contestant has the same memory: ``--memory`` per cent of the rows' bytes, and the rows of two
windows. RocksDB has the former as caches and the latter as buffers; what else it works with is
beside. Ours is all within.

``recdb_vs_rocksdb`` is RocksDB's time of a step ÷ that of the lsm with all parts;
``recdb_blocked`` its share of a step that waits for rows; ``recdb_loaded_once`` the share of pages
that its window read once for the batches that it read together; ``recdb_sorter_pages`` pages read
with the sorter ÷ without - 1; ``recdb_allocator_pages`` pages that rows not in memory lie in with
hot rows apart ÷ in the order of keys - 1, ``recdb_allocator_pages_uncached`` the same of all rows
of a window; ``recdb_picker_gc`` rows that merges dropped ÷ rewrote, picked by score ÷ largest.

*Source*: RecDB, EDBT 2026, table 3 and figures 10 to 19.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.errors import MisuseError
from embedrock_lab.bench.common import Report, add_common, import_torch, workspace
from embedrock_lab.bench.race import PEERS, process
from embedrock_lab.bench.recdb.compute import dense_step_s
from embedrock_lab.bench.recdb.contestants import CONTESTANTS, ROCKSDB, Setting, absent
from embedrock_lab.bench.recdb.contestants import run as run_contestant
from embedrock_lab.bench.recdb.load import Load, criteo_log, criteo_shaped
from embedrock_lab.bench.recdb.model import EVERY, MISSED, pages_by_count
from embedrock_lab.bench.recdb.plot import save_plot
from embedrock_lab.bench.recdb.summary import summary

__all__ = ["add_arguments", "run"]

TORCH_BYTES = 1 << 30
"""Memory that measuring the dense part takes."""
LAYERS = [8, 4]
"""Hidden layers of RecDB's artifact."""
BUFFERS = 2
"""Windows whose rows are in memory: the one that is used, and the one that is read."""
WHOLE = ["+ gate", "+ share", "+ picker", "+ sorter"]
"""The lsm with all parts: the fastest of those with a scheduler, else with what there is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument(
        "--contestants",
        nargs="+",
        choices=list(CONTESTANTS),
        default=list(CONTESTANTS),
        help="who takes part",
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of all 26 tables")
    parser.add_argument("--criteo", type=Path, metavar="FILE", help="read this log instead")
    parser.add_argument("--dim", type=int, default=36, help="float32 values per row")
    parser.add_argument("--batch", type=int, default=64, help="samples of a batch")
    parser.add_argument("--window", type=int, default=512, help="batches of a window")
    parser.add_argument(
        "--ahead", type=int, help="batches that ours announces (default: those of two windows)"
    )
    parser.add_argument("--windows", type=int, default=24, help="windows of the training")
    parser.add_argument("--warm-windows", type=int, default=2, help="of these, not counted")
    parser.add_argument("--memory", type=float, default=2.5, help="per cent of the rows' bytes")
    parser.add_argument(
        "--compute-ms", type=float, help="computing of a step (default: measured with PyTorch)"
    )
    parser.add_argument(
        "--layers", type=int, nargs="+", default=LAYERS, help="hidden layers of the dense part"
    )
    parser.add_argument(
        "--hot-share", type=float, default=1.0, help="hot rows, per cent of a window's look-ups"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="runs of each contestant; the median step counts"
    )
    parser.add_argument("--peers", type=Path, default=PEERS, help="the program of `make peers`")
    parser.add_argument("--png", type=Path, help="draw the result to this file")
    add_common(parser, patience_s=0.0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report."""
    if not 0 <= options.warm_windows < options.windows:
        raise MisuseError(
            f"--warm-windows is {options.warm_windows}, expected fewer than --windows, "
            f"{options.windows}"
        )
    report = Report("recdb", options)
    load = _load(options)
    compute_s = _compute_s(report, options, len(load.sizes))
    with tempfile.TemporaryDirectory(prefix="embedrock-recdb-") as directory:
        setting = _setting(report, options, load, compute_s, Path(directory))
        found = _run_all(report, options, setting)
    report.results["contestants"] = found
    _by_count(report, options, load, found)
    _figures(report, found)
    if options.png is not None:
        save_plot(options.png, found, report.notes)
    return report.finish()


def _load(options: argparse.Namespace) -> Load:
    batches = options.window * options.windows
    if options.criteo is not None:
        return criteo_log(options.criteo, options.batch, batches)
    return criteo_shaped(options.rows, options.batch, batches, options.seed)


def _compute_s(report: Report, options: argparse.Namespace, fields: int) -> float:
    if options.compute_ms is not None:
        return float(options.compute_ms) / 1e3
    torch = import_torch(report, [], TORCH_BYTES)
    if torch is None:
        raise MisuseError("PyTorch cannot be used here to measure a step; give --compute-ms")
    took = dense_step_s(torch, fields, options.dim, options.batch, options.layers)
    report.say(f"the dense part of a step takes {took * 1e3:.3g} ms")
    return took


def _setting(
    report: Report, options: argparse.Namespace, load: Load, compute_s: float, directory: Path
) -> Setting:
    row_bytes = 4 * options.dim
    cache_bytes = int(load.rows * row_bytes * options.memory / 100)
    offsets = load.trace.offsets[:: options.window]
    values = load.trace.values
    distinct = [len(np.unique(values[begin:end])) for begin, end in pairwise(offsets)]
    buffers = BUFFERS * max(distinct) * row_bytes
    report.results["load"] = {
        "rows": load.rows,
        "row_bytes": row_bytes,
        "lookups_per_window": len(load.lookups.values) / options.windows,
        "distinct_per_window": float(np.mean(distinct)),
        "distinct_per_batch": len(values) / load.trace.batches,
        "compute_ms": compute_s * 1e3,
        "cache_bytes": cache_bytes,
        "memory_bytes": cache_bytes + buffers,
    }
    return Setting(
        files=load.trace.save(directory),
        sizes=load.sizes,
        dim=options.dim,
        batches=load.trace.batches,
        window=options.window,
        ahead=options.ahead or 2 * options.window,
        compute_ns=round(compute_s * 1e9),
        cache_bytes=cache_bytes,
        memory_bytes=cache_bytes + buffers,
    )


def _run_all(
    report: Report, options: argparse.Namespace, setting: Setting
) -> dict[str, dict[str, Any]]:
    """What each contestant did in the round with its median step; or why it did not take part."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contestants}
    without: dict[str, str] = {}
    rows = sum(setting.sizes)
    for name in options.contestants:
        why = absent(name, options.peers)
        if why is not None:
            without[name] = why
    for _ in range(options.rounds):
        for name in options.contestants:
            if name in without:
                continue
            report.say(f"{name}: writing {rows:,} rows, {setting.batches:,} steps")
            try:
                with workspace(options, 4 * rows * (4 * setting.dim + 24)) as place:
                    raw = run_contestant(name, place, setting, options.peers)
            except process.ContestantError as error:
                without[name] = str(error)
                continue
            report.results["mismatches"] += raw.pop("mismatches")
            report.device = raw.pop("device", report.device)
            runs[name].append(summary(raw, options.window, options.warm_windows, rows))
    report.notes += [f"{name}: {why}" for name, why in without.items()]
    found: dict[str, dict[str, Any]] = {}
    for name, each in runs.items():
        if name in without:
            found[name] = {"absent": without[name]}
        else:
            each.sort(key=lambda one: float(one["step_ms"]))
            found[name] = each[(len(each) - 1) // 2]
            found[name]["step_ms_of_rounds"] = [one["step_ms"] for one in each]
    return found


def _by_count(
    report: Report, options: argparse.Namespace, load: Load, found: dict[str, dict[str, Any]]
) -> None:
    """Pages by count, for a cache and pages like those of the lsm with the sorter."""
    one = next(
        (found[name] for name in ["+ sorter", *WHOLE] if "step_ms" in found.get(name, {})), None
    )
    figures = ("recdb_allocator_pages", "recdb_allocator_pages_uncached")
    if one is None:
        for name in figures:
            report.missing(name, "no lsm with the sorter took part, whose cache is followed")
        return
    counted = pages_by_count(
        load,
        options.window,
        options.warm_windows,
        one["cache_rows"],
        one["rows_per_page"],
        options.hot_share / 100,
    )
    report.results["pages_by_count"] = counted
    for name, rows in zip(figures, (MISSED, EVERY), strict=True):
        pages = counted[rows]
        if pages["pages_sorted"]:
            report.figure(name, pages["pages_hot_apart"] / pages["pages_sorted"] - 1)
        else:
            report.missing(name, "every row that was read was in memory")


def _figures(report: Report, found: dict[str, dict[str, Any]]) -> None:
    ran = {name: one for name, one in found.items() if "step_ms" in one}
    scheduled = [name for name in WHOLE[:2] if name in ran]
    whole = min(scheduled, key=lambda name: float(ran[name]["step_ms"])) if scheduled else None
    whole = whole or next((name for name in WHOLE[2:] if name in ran), None)
    report.results["whole"] = whole
    if ROCKSDB in ran and report.results["load"]["compute_ms"] > 0:
        most = ran[ROCKSDB]["step_ms"] / report.results["load"]["compute_ms"]
        report.results["most_vs_rocksdb"] = most
    _ratio(report, "recdb_vs_rocksdb", found, (ROCKSDB, whole), "step_ms")
    for figure, name in (
        ("recdb_blocked", "blocked_share"),
        ("recdb_loaded_once", "pages_loaded_once"),
    ):
        value = None if whole is None else ran[whole][name]
        if value is None:
            report.missing(figure, "no lsm with the sorter took part, or nothing was read ahead")
        else:
            report.figure(figure, value)
    _ratio(report, "recdb_sorter_pages", found, ("+ sorter", "lsm"), "pages_per_window", less=1.0)
    _ratio(report, "recdb_picker_gc", found, ("+ picker", "+ sorter"), "gc_efficiency")
    _ratio(report, "recdb_log_vs_rocksdb", found, (ROCKSDB, "log"), "step_ms")


def _ratio(
    report: Report,
    figure: str,
    found: dict[str, dict[str, Any]],
    names: tuple[str | None, str | None],
    value: str,
    less: float = 0.0,
) -> None:
    """Sets the figure to one contestant's value ÷ another's, less a number."""
    values = []
    for name in names:
        one = found.get(name or "", {"absent": "did not take part"})
        if one.get(value) is None:
            report.missing(figure, f"{name}: {one.get('absent', f'{value} is not known')}")
            return
        values.append(float(one[value]))
    if values[1] == 0:
        report.missing(figure, f"{names[1]}: {value} is 0")
    else:
        report.figure(figure, values[0] / values[1] - less)
