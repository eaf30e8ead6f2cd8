"""``recdb``: what the parts of RecDB are worth here, beside RocksDB with the same window.

A training reads the rows of 26 tables batch by batch, computes for a fixed time and updates every
row that it has read. Systems: RocksDB, whose peers' program reads each window of batches ahead
while the one before is used, in the order of keys (``rocksdb``) or of the batches; a log; an lsm
whose batches are read ahead one by one (``lsm``); and with the parts of RecDB added one after
another: the *sorter* (the look-ahead window, which reads each page once for many batches), the
*picker* of merges, the *scheduler* of merges (``gate`` or ``share``). The key allocator, which lays
hot rows side by side, is counted from the trace alone (``model.py``): hot rows are in memory here.

Each system has the same memory: ``--memory`` per cent of the rows' bytes, and the rows of two
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

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.errors import MisuseError
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.replay import process
from embedrock_lab.bench.replay.recdb.compute import dense_step_s
from embedrock_lab.bench.replay.recdb.load import Load, criteo_log, criteo_shaped
from embedrock_lab.bench.replay.recdb.model import EVERY, MISSED, pages_by_count
from embedrock_lab.bench.replay.recdb.plot import save_plot
from embedrock_lab.bench.replay.recdb.summary import summary
from embedrock_lab.bench.replay.recdb.systems import ROCKSDB, SYSTEMS, Setting, absent
from embedrock_lab.bench.replay.recdb.systems import run as run_system

__all__ = ["Options", "run"]

TORCH_BYTES = 1 << 30
"""Memory that measuring the dense part takes."""
LAYERS = [8, 4]
"""Hidden layers of RecDB's artifact."""
BUFFERS = 2
"""Windows whose rows are in memory: the one that is used, and the one that is read."""
WHOLE = ["+ gate", "+ share", "+ picker", "+ sorter"]
"""The lsm with all parts: the fastest of those with a scheduler, else with what there is."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    contestants: list[str] = option(list(SYSTEMS), "who takes part", choices=list(SYSTEMS))
    rows: int = option(4_000_000, "rows of all 26 tables")
    criteo: Path | None = option(None, "read this log instead", metavar="FILE")
    dim: int = option(36, "float32 values per row")
    batch: int = option(64, "samples of a batch")
    window: int = option(512, "batches of a window")
    ahead: int | None = option(None, "batches that ours announces (default: those of two windows)")
    windows: int = option(24, "windows of the training")
    warm_windows: int = option(2, "of these, not counted")
    memory: float = option(2.5, "per cent of the rows' bytes")
    compute_ms: float | None = option(None, "computing of a step (default: measured with PyTorch)")
    layers: list[int] = option(LAYERS, "hidden layers of the dense part")
    hot_share: float = option(1.0, "hot rows, per cent of a window's look-ups")
    rounds: int = option(1, "runs of each system; the median step counts")
    peers: Path = option(process.PEERS, "the program of `make peers`")
    png: Path | None = option(None, "draw the result to this file")
    patience: float = patience_of(0.0)


def run(options: Options) -> dict[str, Any]:
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


def _load(options: Options) -> Load:
    batches = options.window * options.windows
    if options.criteo is not None:
        return criteo_log(options.criteo, options.batch, batches)
    return criteo_shaped(options.rows, options.batch, batches, options.seed)


def _compute_s(report: Report, options: Options, fields: int) -> float:
    if options.compute_ms is not None:
        return float(options.compute_ms) / 1e3
    torch = import_torch(report, [], TORCH_BYTES)
    if torch is None:
        raise MisuseError("PyTorch cannot be used here to measure a step; give --compute-ms")
    took = dense_step_s(torch, fields, options.dim, options.batch, options.layers)
    report.say(f"the dense part of a step takes {took * 1e3:.3g} ms")
    return took


def _setting(
    report: Report, options: Options, load: Load, compute_s: float, directory: Path
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


def _run_all(report: Report, options: Options, setting: Setting) -> dict[str, dict[str, Any]]:
    """Results of each system in the round with its median step; or the reason why it did not take
    part."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contestants}
    without = absent(options.contestants, options.peers)
    rows = sum(setting.sizes)
    for _ in range(options.rounds):
        for name in options.contestants:
            if name in without:
                continue
            report.say(f"{name}: writing {rows:,} rows, {setting.batches:,} steps")
            try:
                with workspace(options, 4 * rows * (4 * setting.dim + 24)) as place:
                    raw = run_system(name, place, setting, options.peers)
            except process.SystemFailed as error:
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
    report: Report, options: Options, load: Load, found: dict[str, dict[str, Any]]
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
    """Sets the figure to one system's value ÷ another's, less a number."""
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
