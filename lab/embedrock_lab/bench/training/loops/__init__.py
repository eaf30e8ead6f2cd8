"""``loops``: what speed to expect, by training, memory, and what else computes on the machine.

Trainings that people run, in plain PyTorch with the loop that they write: DeepFM on a click log,
ComplEx with shared negatives, GRU4Rec, GraphSAGE with rows that are trained and with features that
are only read, DLRM on samples in Criteo's shape. Each at 10, 30 and 130 % memory (of the bytes of
all rows with their optimizer's state; the smallest budget that works where that is more), beside 0,
1 and 2 loops of another process at nice 10, in four ways: PyTorch with all rows in memory, a plain
loop over a store, with ``LookaheadLoader``, with ``Pipeline`` around that. The four train in
rounds, in one process with one thread of PyTorch; a round is a pass over batches that are new.
Medians count.

Losses over stores have to be the same bits, those in memory nearly the same: each batch whose loss
is another is a mismatch.

``lookahead_min`` is the smallest look-ahead ÷ plain loop of all cells; a cell whose difference is
less than the spread of its rounds counts as held, with 0.9 at least. ``pipeline_min`` is the same
of the pipeline, ``..._unexcused`` without that rule. ``lookahead_130`` is the smallest look-ahead ÷
plain loop at 130 % with nothing beside, ``resident_vs_torch`` the smallest plain loop ÷ PyTorch
there. ``<load>_<memory>`` is the plain loop ÷ PyTorch in memory with nothing beside,
``<load>_<memory>_lookahead`` that of look-ahead. Beside each cell stands what bounds it, as
``Store.record`` has it: the device, at its measured rate for the loads of the best cache, or the
cores, which compute the loop outside of the store and copy every row once. Look-ahead reads rows of
a page together, so that it can be faster than that bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedrock.errors import MisuseError
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, listed, option
from embedrock_lab.bench.training.cells import (
    LOOKAHEAD,
    PIPELINE,
    PLAIN,
    WAYS,
    Cell,
    rate,
    said,
)
from embedrock_lab.bench.training.loops.figures import of_cells
from embedrock_lab.bench.training.loops.plot import save_plot
from embedrock_lab.bench.training.loops.table import markdown, write_between

__all__ = ["Options", "run"]

LOADS = ("deepfm", "deepfm_wide", "complex", "gru4rec", "graphsage", "features", "dlrm")
MEMORY = [10.0, 30.0, 130.0]
BUSY = [0, 1, 2]
FIRST_STEPS = 320
"""They fill caches, and loaders have compared steps with announced batches and without."""
STORE_BYTES = 2 << 30
"""Disk for three stores of the largest load, changed rows included."""
MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    loads: list[str] = option(list(LOADS), "trainings (default: all)", parse=listed(str))
    memory: list[float] = option(MEMORY, "per cent of the rows' bytes, listed", parse=listed(float))
    busy: list[int] = option(BUSY, "loops beside the training, listed", parse=listed(int))
    turns: int = option(3, "of each way (default: %(default)s)")
    steps: int | None = option(None, "batches of a round (default: the load's own)")
    first_steps: int = option(
        FIRST_STEPS,
        "batches of a first round, which does not count, at least (default: %(default)s)",
    )
    threads: int = option(1, "of PyTorch (default: %(default)s)")
    announce_all: bool = option(
        False, "announce every batch, where loaders would choose (LookaheadLoader's announce)"
    )
    earlier: list[Path] = option(
        [],
        "cells that these reports have are taken from there and not measured",
        metavar="REPORT",
        flag="--from",
    )
    markdown: Path | None = option(
        None, "put the table between the marks of a page", metavar="PAGE"
    )
    png: Path | None = option(None, "also draw the shares", metavar="FILE")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    unknown = sorted({*options.loads} - {*LOADS})
    if unknown:
        raise MisuseError(f"--loads has {unknown}, expected some of {', '.join(LOADS)}")
    report = Report("loops", options)
    known = _earlier(options.earlier)
    wanted = {
        load: [(load, memory, busy) for memory in options.memory for busy in options.busy]
        for load in options.loads
    }
    missing = {load: [key for key in keys if key not in known] for load, keys in wanted.items()}
    if any(missing.values()) and import_torch(report, ["lookahead_min"], MEMORY_BYTES) is None:
        missing = {}
    for load, keys in missing.items():
        if keys:
            known |= _measured(report, options, load, keys)
    cells = [known[key] for keys in wanted.values() for key in keys if key in known]
    for cell in cells:
        report.results["mismatches"] += cell["mismatches"]
        beside = report.results.setdefault(cell["load"], {})
        beside[f"{cell['memory']:g} %, {cell['busy']} busy"] = cell
        report.device = report.device or cell["device"]
        report.notes += _notes(cell)
    for name, value in of_cells(cells).items():
        report.figure(name, value)
    if options.png is not None and cells:
        save_plot(options.png, cells, report.notes)
    if options.markdown is not None and cells:
        write_between(options.markdown, markdown(cells))
    return report.finish()


Key = tuple[str, float, int]


def _measured(report: Report, options: Options, load: str, keys: Iterable[Key]) -> dict[Key, Cell]:
    found = {}
    with workspace(options, STORE_BYTES) as place:
        report.say(f"{load}: writing its rows")
        prepared = {"name": load, "seed": options.seed, "path": str(place)}
        child.call("embedrock_lab.bench.training.loops.cell:prepare", **prepared)
        for key in keys:
            cell = child.call(
                "embedrock_lab.bench.training.loops.cell:measure",
                **prepared,
                memory=key[1],
                loops=key[2],
                rounds=options.turns,
                steps=options.steps,
                threads=options.threads,
                first_steps=options.first_steps,
                announce=True if options.announce_all else None,
            )
            rates = {way: rate(cell, way) for way in WAYS}
            best = max(rates[way] for way in (PLAIN, LOOKAHEAD, PIPELINE))
            cell["bound_by"] = cell["bound"]["by"]
            cell["bound_share"] = best / cell["bound"]["samples_per_s"]
            cell |= {f"{way}_samples_per_s": value for way, value in rates.items()}
            found[key] = cell
            report.say(f"{load}: {key[1]:g} % memory, {key[2]} busy: {said(cell)}")
    return found


def _earlier(files: Iterable[Path]) -> dict[Key, Cell]:
    """The cells of reports; those of later files count."""
    found: dict[Key, Cell] = {}
    for file in files:
        results = json.loads(file.read_text(encoding="utf-8"))["results"]
        for load in LOADS:
            for cell in results.get(load, {}).values():
                found[load, float(cell["memory"]), int(cell["busy"])] = cell
    return found


def _notes(cell: Cell) -> Iterable[str]:
    name = f"{cell['load']}, {cell['memory']:g} %, {cell['busy']} busy"
    if cell["raised"]:
        share = cell["memory_bytes"] / cell["bytes"]
        yield f"{name}: with {cell['memory_bytes']} bytes ({share:.0%}), the least that works"
    if cell["mismatches"]:
        yield (
            f"{name}: losses differ: {cell['mismatches']} between the ways over stores and from "
            f"PyTorch's, that by {cell['loss_apart_from_torch']:.2%}"
        )
