"""``miss``: rows that have to be read from storage.

``miss_ratio`` is the requests per second that ``table.get`` completes, with 2 % of the rows in
memory, uniform keys, batches of 65,536 and one page per request, divided by the device's own rate
for random reads of that size and depth on the same file, in alternating slices. ``miss_cpu_us`` is
the CPU time of the process, user and system, per request.

Loading and measuring are processes of their own without PyTorch, so that peak memory can be held
against the budget.
"""

from __future__ import annotations

import os
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock import _core
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Rounds, Timed, interleave
from embedrock_lab.measure.rows import fill, least_budget, mismatches, resident_budget

__all__ = ["Options", "run"]

DEVICE_BYTES = 4096
DEVICE_DEPTH = 64
"""Request size and depth of `device rate` unless others are given."""
TRIES = 6
"""Openings until the budget keeps the wanted share of rows in memory."""
STATE_ROWS = 4096
"""Rows whose optimizer state is read and verified too."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(10_000_000, "rows of the table")
    dim: int = option(32, "float32 values per row")
    batch: int = option(65_536, "keys of a batch")
    resident: float = option(0.02, "share of rows in memory")
    rounds: int = option(5, "rounds of each measurement")
    slice: float = option(3.0, "seconds of a slice", metavar="S")
    io: str = option("auto", "who reads pages", choices=["auto", "uring", "pread"])
    page_bytes: int | None = option(None, "page size; the default measures the device")
    patience: float = patience_of(90.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("miss", options)
    _variant(report, options, options.io, merge_reads=False)
    if options.all:
        _variant(report, options, "pread", merge_reads=False)
        _variant(report, options, options.io, merge_reads=True)
    return report.finish()


def _variant(report: Report, options: Options, io: str, merge_reads: bool) -> None:
    rows, dim = options.rows, options.dim
    defined = io == options.io and not merge_reads
    with workspace(options, 3 * rows * (4 * dim + 24)) as place:
        store = str(place / "store")
        report.say(f"loading {rows:,} rows of {dim} float32 with row-wise Adagrad")
        shape = {"store": store, "rows": rows, "dim": dim}
        child.call(f"{__name__}:load", **shape, page_bytes=options.page_bytes)
        report.say(f"reading with {options.resident:.0%} of the rows in memory ({io})")
        found = child.call(
            f"{__name__}:measure",
            **shape,
            io=io,
            merge_reads=merge_reads,
            resident=options.resident,
            batch=options.batch,
            rounds=options.rounds,
            slice_s=options.slice,
            patience_s=options.patience,
            seed=options.seed,
        )
    report.results["mismatches"] += found.pop("mismatches")
    notes = found.pop("notes")
    if not defined:
        report.results[f"{io}{', merging neighbours' if merge_reads else ''}"] = found
        return
    report.notes += notes
    report.device = found.pop("device")
    ratio, cpu = found.pop("miss_ratio"), found.pop("miss_cpu_us")
    report.results.update(found)
    report.figure("miss_cpu_us", cpu)
    if report.device["direct"]:
        report.figure("miss_ratio", ratio)
    else:
        report.missing("miss_ratio", "reads do not bypass the page cache on this file system")


def load(store: str, rows: int, dim: int, page_bytes: int | None) -> None:
    """Writes every row, values and state, and commits. Runs in a child process."""
    budget = min(resident_budget(rows, 4 * dim + 4), machine.available_memory_bytes() // 2)
    with embedrock.open(store, budget, page_bytes=page_bytes) as opened:
        table = opened.table("rows", dim, rows, optimizer="rowwise_adagrad")
        fill(table, rows, state=True)
        opened.commit(1)


def measure(
    store: str,
    rows: int,
    dim: int,
    io: str,
    merge_reads: bool,
    resident: float,
    batch: int,
    rounds: int,
    slice_s: float,
    patience_s: float,
    seed: int,
) -> dict[str, Any]:
    """Reads uniform keys from the loaded store. Runs in a child process."""
    wanted = int(rows * resident)
    budget = _budget_for(store, wanted, io, merge_reads)
    out = np.full((batch, dim), np.nan, np.float32)
    rng = np.random.default_rng(seed)
    mismatches(out, rng.integers(0, rows, batch))
    machine.reset_peak_rss()
    rss_before = machine.rss_bytes()
    opened = _open(store, budget, io, merge_reads)
    with opened:
        bench = _Bench(opened, out, rng, slice_s)
        table = opened.table("rows")
        for _ in range(1 + 4 * wanted // batch):
            table.get(rng.integers(0, rows, batch), out=out)
        found = interleave([bench.reads, bench.device], rounds, patience_s)
        usual = [bench.rate(DEVICE_BYTES, DEVICE_DEPTH) for _ in range(min(rounds, 3))]
        bench.verify_state()
        answer = bench.answer(found)
        answer["device_rate_4096_64"] = statistics.median(one.rate for one in usual)
        answer["memory"] = machine.memory_facts(opened, budget, rss_before)
        answer["device"] = machine.device_facts(opened)
    return answer


def _open(store: str, budget: int, io: str, merge_reads: bool) -> embedrock.Store:
    def engine(_: int | str | None, /, *, later_pins_stay: bool = False) -> _core.Store:
        return _core.Store(store, str(budget), io=io, merge_reads=merge_reads, create=False)

    return embedrock.Store(engine, Path(store), str(budget))


def _budget_for(store: str, wanted: int, io: str, merge_reads: bool) -> int:
    """The budget that keeps as many rows in memory as wanted; opening is how to find out."""
    budget, found = 64 << 20, 0
    for _ in range(TRIES):
        try:
            opened = _open(store, budget, io, merge_reads)
        except embedrock.errors.BudgetError as error:
            budget = least_budget(error)
            continue
        with opened:
            opened.table("rows").get(np.arange(1))
            facts = opened.stats()["classes"][0]
        found = facts["cache_capacity"]
        if abs(found - wanted) <= wanted // 100 + 32:
            return budget
        budget += int((wanted - found) * facts["cache_bytes"] / max(found, 1))
    raise RuntimeError(f"memory={budget} keeps {found} rows, wanted {wanted}")


class _Bench:
    """An open store of which a small part is in memory."""

    def __init__(
        self, store: embedrock.Store, out: Any, rng: np.random.Generator, slice_s: float
    ) -> None:
        self.store, self.out, self.rng, self.slice_s = store, out, rng, slice_s
        self.table = store.table("rows")
        self.mismatches = 0
        self.cpu: dict[int, float] = {}

    def reads(self) -> Timed:
        """Batches for a slice; the clock stands still while their rows are verified."""
        timed = Timed()
        before = self.store.stats()["read_requests"]
        cpu = 0.0
        while timed.seconds < self.slice_s:
            keys = self.rng.integers(0, len(self.table), len(self.out))
            self.out.fill(np.nan)
            cpu_before = _cpu_seconds()
            with timed:
                self.table.get(keys, out=self.out)
            cpu += _cpu_seconds() - cpu_before
            self.mismatches += mismatches(self.out, keys)
        timed.work = self.store.stats()["read_requests"] - before
        self.cpu[id(timed)] = cpu / max(timed.work, 1)
        return timed

    def device(self) -> Timed:
        """The device alone, on the store's own pages, with the engine's request size and depth."""
        return self.rate(None, None)

    def rate(self, size: int | None, depth: int | None) -> Timed:
        timed = Timed()
        with timed:
            rate = self.store._core.device_rate(self.slice_s, size, depth)
        timed.work = rate * timed.seconds
        return timed

    def verify_state(self) -> None:
        keys = self.rng.integers(0, len(self.table), STATE_ROWS)
        values, state = self.table.get(keys, state=True)
        self.mismatches += mismatches(values, keys) + mismatches(state, keys, version=1)

    def answer(self, found: Rounds) -> dict[str, Any]:
        facts = self.store.stats()
        pages, requests = facts["pages_read"], facts["read_requests"]
        one = facts["classes"][0]
        return {
            "miss_ratio": found.ratio(0, 1),
            "miss_cpu_us": 1e6 * statistics.median(self.cpu[id(r[0])] for r in found.counted),
            "requests_per_s": found.rate(0),
            "device_requests_per_s": found.rate(1),
            "request_bytes": facts["bytes_read"] / max(requests, 1),
            "pages_per_request": pages / max(requests, 1),
            "page_bytes": one["page_bytes"],
            "read_depth": one["read_depth"],
            "hit_rate": facts["hit_rate"],
            "resident_share": one["resident_rows"] / len(self.table),
            "noise": found.summary(),
            "notes": [f"miss_ratio: {note}" for note in found.notes],
            "mismatches": self.mismatches,
            "cores": len(os.sched_getaffinity(0)),
        }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
