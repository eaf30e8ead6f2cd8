"""``schedule``: epochs whose order is known, with a schedule and without.

The trainings of ``loops`` whose rows change, as epochs: the same batches in each, in a new order
every time, from a sampler with a generator of its own. At 10 % memory (of the bytes of all rows
with their optimizer's state), in three ways: PyTorch with all rows in memory, look-ahead, and
look-ahead with ``schedule="epoch"``, which makes a schedule at the beginning of each epoch; that
counts as part of the epoch. The three train in rounds, in one process with one thread of PyTorch;
the first epochs do not count. Losses over stores have to be the same bits.

``schedule_pages`` is the pages of a step with a schedule ÷ those of look-ahead, for the rows in
Criteo's shape (``dlrm``); ``schedule_vs_memory`` and ``schedule_vs_lookahead`` are samples/s with a
schedule ÷ those of PyTorch in memory and of look-ahead, the median of the loads, and with the name
of a load those of the load. ``schedule_uses_per_s`` is how many uses of rows a second a schedule is
made of, one table and keys with a few that are used much; ``schedule_bytes_per_use`` the bytes of
its file, ``schedule_memory_bytes`` what making it takes of memory.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from embedrock.errors import MisuseError
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, listed, option
from embedrock_lab.bench.training.cells import LOOKAHEAD, SCHEDULE, TORCH, ratio, said

__all__ = ["Options", "make", "measure", "run"]

LOADS = ("deepfm", "deepfm_wide", "complex", "gru4rec", "graphsage", "dlrm")
SHAPE = "dlrm"
OVER_STORES = (LOOKAHEAD, SCHEDULE)
STORE_BYTES, MEMORY_BYTES = 2 << 30, 2 << 30
FIGURES = ["schedule_pages", "schedule_vs_memory", "schedule_vs_lookahead"]
_BATCH, _BATCHES = 1664, 512
"""Keys of a batch of which a schedule is made, and batches that are handed over together."""
_TORCH_TOLERANCE = 0.02
"""Of the mean loss of the last epoch, between PyTorch in memory and a store."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    loads: list[str] = option(list(LOADS), "trainings (default: all)", parse=listed(str))
    memory: float = option(10.0, "per cent of the rows' bytes")
    steps: int = option(384, "batches of an epoch")
    epochs: int = option(3, "epochs that count (default: %(default)s)")
    first_epochs: int = option(2, "epochs before them (default: %(default)s)")
    uses: int = option(100_000_000, "uses of rows that a schedule is made of; 0: none")
    rows: int = option(20_000_000, "rows that they are of")
    threads: int = option(1, "of PyTorch (default: %(default)s)")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    unknown = sorted({*options.loads} - {*LOADS})
    if unknown:
        raise MisuseError(f"--loads has {unknown}, expected some of {', '.join(LOADS)}")
    report = Report("schedule", options)
    if options.uses:
        _make(report, options)
    if options.loads and import_torch(report, FIGURES, MEMORY_BYTES) is not None:
        _train(report, options)
    return report.finish()


def _make(report: Report, options: Options) -> None:
    with workspace(options, 24 * options.uses) as place:
        given = {"path": str(place / "made"), "uses": options.uses, "rows": options.rows}
        made = child.call("embedrock_lab.bench.training.schedule:make", **given, seed=options.seed)
    report.results["made"] = made
    for name in ("uses_per_s", "bytes_per_use", "memory_bytes"):
        report.figure(f"schedule_{name}", made[name])
    report.say(f"a schedule of {options.uses:,} uses: {made['uses_per_s']:,.0f} uses/s")


def _train(report: Report, options: Options) -> None:
    found = {}
    for load in options.loads:
        with workspace(options, STORE_BYTES) as place:
            report.say(f"{load}: writing its rows")
            given = {"name": load, "seed": options.seed, "path": str(place)}
            cell = child.call(
                "embedrock_lab.bench.training.schedule:measure",
                **given,
                memory=options.memory,
                steps=options.steps,
                epochs=options.epochs,
                first_epochs=options.first_epochs,
                threads=options.threads,
            )
        found[load] = report.results[load] = cell
        report.results["mismatches"] += cell["mismatches"]
        report.device = report.device or cell["device"]
        report.say(f"{load}: {said(cell)}; pages {cell['pages_ratio']:.3f}")
        report.figure(f"schedule_vs_memory_{load}", ratio(cell, SCHEDULE, TORCH))
        report.figure(f"schedule_vs_lookahead_{load}", ratio(cell, SCHEDULE, LOOKAHEAD))
        report.figure(f"schedule_pages_{load}", cell["pages_ratio"])
    for base, name in ((TORCH, "memory"), (LOOKAHEAD, "lookahead")):
        ratios = [ratio(cell, SCHEDULE, base) for cell in found.values()]
        report.figure(f"schedule_vs_{name}", statistics.median(ratios))
    if SHAPE in found:
        report.figure("schedule_pages", found[SHAPE]["pages_ratio"])


def make(path: str, uses: int, rows: int, seed: int) -> dict[str, Any]:
    """Makes a schedule, and reads a part of it. Runs in a child process."""
    from embedrock.pipeline.schedule import Maker

    random = np.random.default_rng(seed)
    maker = Maker(Path(path), 64)
    maker.begin(["rows"])
    offsets = np.arange(_BATCHES + 1, dtype=np.int64) * _BATCH
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
    while maker.batches * _BATCH < uses:
        keys = (random.random(_BATCHES * _BATCH) ** 3 * rows).astype(np.uint64)
        begun = perf_counter()
        maker.add_many(keys, offsets)
        seconds += perf_counter() - begun
    begun = perf_counter()
    schedule = maker.finish()
    seconds += perf_counter() - begun
    last = maker.batches - _BATCHES
    for number in range(_BATCHES):
        some = keys[number * _BATCH : (number + 1) * _BATCH]
        if schedule.batch(last + number, {"rows": some}) is None:
            raise RuntimeError(f"batch {last + number} of {path} has other keys than were added")
    return {
        "uses": schedule.uses,
        "uses_per_s": schedule.uses / seconds,
        "bytes_per_use": Path(path).stat().st_size / schedule.uses,
        "memory_bytes": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
        "furthest": schedule.furthest,
    }


def measure(
    name: str,
    path: str,
    seed: int,
    memory: float,
    steps: int,
    epochs: int,
    first_epochs: int,
    threads: int,
) -> dict[str, Any]:
    """Trains in every way, and compares. Runs in a child process."""
    import torch

    from embedrock_lab.bench.training.loops.cell import make as load_of
    from embedrock_lab.bench.training.places import fill
    from embedrock_lab.bench.training.ways import Shuffled, Ways
    from embedrock_lab.measure import machine

    torch.set_num_threads(threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, made explicit
    load = load_of(name, seed, steps, 1)
    stores = {way: Path(path) / way for way in OVER_STORES}
    for store in stores.values():
        fill(load, store)
    with contextlib.ExitStack() as stack:
        ways = Ways(
            load,
            seed,
            stores,
            memory,
            stack,
            announce=True,
            source=lambda: Shuffled(load.batches, seed),
        )
        for number in range(first_epochs + epochs):
            if number == first_epochs:
                for way in ways.all.values():
                    way.forget_rounds()
            ways.round(load.batches, number)
        found, wrong = ways.found(), ways.unlike()
        last = {way: float(one[-load.steps :].mean()) for way, one in ways.losses().items()}
        device = machine.device_facts(ways.over[LOOKAHEAD].store)
    apart = abs(last[SCHEDULE] - last[TORCH]) / abs(last[TORCH])
    pages = {way: found["ways"][way]["pages_per_step"] for way in OVER_STORES}
    return {
        **found,
        "load": name,
        "bytes": load.bytes,
        "pages_ratio": pages[SCHEDULE] / max(pages[LOOKAHEAD], 1e-9),
        "loss": last[SCHEDULE],
        "loss_apart_from_torch": apart,
        "mismatches": wrong + (apart > _TORCH_TOLERANCE),
        "device": device,
    }
