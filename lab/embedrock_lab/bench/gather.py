"""``gather``: rows that are in memory, read into a reused array.

``gather_ratio`` and ``gather_ratio_2048`` are ``table.get(keys, out=out)`` divided by
``torch.index_select(weight, 0, keys, out=out)`` on a dense tensor of the same rows, one thread
each, uniform keys, batches of 65,536 and 2,048. ``gather_scaling_2`` is two threads divided by one.
The rows lie in the cache that smaller budgets use too; nothing is read from storage. Every row is
read once before the first of these, as in a table that has been in use for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.measure.machine import device_facts
from embedrock_lab.measure.noise import Timed, interleave
from embedrock_lab.measure.rows import mismatches, open_resident, ranges, values_of

__all__ = ["Options", "run"]

Get = Callable[[npt.NDArray[np.int64]], None]

SLICE_ROWS = 1 << 19
"""Rows that a system reads before the other goes on."""
SCALING_CALLS = 4
"""Batches that each thread reads at a time."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(10_000_000, "rows of the table")
    dim: int = option(32, "float32 values per row")
    batches: list[int] = option([65_536, 2_048], "keys of the batches of each figure")
    rounds: int = option(11, "rounds of each measurement")
    patience: float = patience_of(30.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("gather", options)
    _variant(report, options, "none")
    if options.all:
        _variant(report, options, "rowwise_adagrad")
        _variant(report, options, "none", policy="lfu")
    return report.finish()


def _variant(report: Report, options: Options, optimizer: str, **opened: str) -> None:
    """One kind of rows; what is not of the definition goes to the results, not the figures."""
    rows, dim = options.rows, options.dim
    name = ",".join([optimizer, *opened.values()])
    defined = name == "none"
    into = report.results if defined else report.results.setdefault(name, {})
    names = {batch: _figure(batch, options) for batch in options.batches}
    with workspace(options, 3 * rows * (4 * dim + 20)) as place:
        report.say(f"filling {rows:,} rows of {dim} float32 ({name})")
        store, table = open_resident(place / "store", rows, dim, optimizer, **opened)
        with store:
            report.device = device_facts(store)
            for keys in ranges(rows, max(options.batches)):
                table.get(keys)
            reads_before = store.stats()["read_requests"]
            bench = _Bench(report, options, table)
            torch = import_torch(report, list(names.values()), 6 * rows * dim)
            if torch is not None:
                weight = torch.empty(rows, dim)
                for keys in ranges(rows, 1 << 18):
                    part = weight[int(keys[0]) : int(keys[-1]) + 1]
                    part.copy_(torch.from_numpy(values_of(keys, dim)))
                for batch, figure in names.items():
                    report.say(f"batches of {batch:,} against torch.index_select")
                    ratio = bench.against_torch(torch, weight, batch, into)
                    into[figure] = ratio
                    if defined:
                        report.figure(figure, ratio)
                del weight
            report.say("two threads against one")
            into["gather_scaling_2"] = bench.scaling(max(options.batches), into)
            if defined:
                report.figure("gather_scaling_2", into["gather_scaling_2"])
            into["page_reads"] = store.stats()["read_requests"] - reads_before
            into["row_bytes"] = table.row_bytes
    if into["page_reads"]:
        raise RuntimeError(f"{into['page_reads']} pages were read, expected none")


def _figure(batch: int, options: Options) -> str:
    return "gather_ratio" if batch == options.batches[0] else f"gather_ratio_{batch}"


class _Bench:
    def __init__(self, report: Report, options: Options, table: embedrock.Table) -> None:
        self.report, self.options, self.table = report, options, table
        self.rng = np.random.default_rng(options.seed)

    def keys(self, count: int) -> npt.NDArray[np.int64]:
        return self.rng.integers(0, self.options.rows, count)

    def against_torch(self, torch: Any, weight: Any, batch: int, into: dict[str, Any]) -> float:
        out = np.empty((batch, self.options.dim), np.float32)
        shared = torch.from_numpy(out)
        calls = max(2, min(SLICE_ROWS // batch, 128))
        keys = [self.keys(batch) for _ in range(calls)]
        tensors = {id(one): torch.from_numpy(one) for one in keys}

        def ours(one: npt.NDArray[np.int64]) -> None:
            self.table.get(one, out=out)

        def theirs(one: npt.NDArray[np.int64]) -> None:
            torch.index_select(weight, 0, tensors[id(one)], out=shared)

        found = interleave(
            [lambda: self.timed(ours, keys, out), lambda: self.timed(theirs, keys, out)],
            self.options.rounds,
            self.options.patience,
        )
        self.report.rounds(f"batch {batch}", found)
        into[f"rows_per_s_{batch}"] = found.rate(0)
        into[f"torch_rows_per_s_{batch}"] = found.rate(1)
        return found.ratio(0, 1)

    def timed(self, get: Get, batches: list[Any], out: npt.NDArray[np.float32]) -> Timed:
        """Reads every batch; the clock stands still while its rows are verified."""
        timed = Timed()
        for keys in batches:
            out.fill(np.nan)
            with timed:
                get(keys)
            timed.work += len(keys)
            self.report.results["mismatches"] += mismatches(out, keys)
        return timed

    def scaling(self, batch: int, into: dict[str, Any]) -> float:
        """Rows per second of two threads divided by those of one."""
        found = interleave(
            [lambda: self.together(1, batch), lambda: self.together(2, batch)],
            self.options.rounds,
            self.options.patience,
        )
        self.report.rounds("scaling", found)
        into["rows_per_s_threads_1"] = found.rate(0)
        into["rows_per_s_threads_2"] = found.rate(1)
        return found.ratio(1, 0)

    def together(self, threads: int, batch: int) -> Timed:
        """Several threads that begin at once, timed until the last one is done."""
        keys = self.keys(threads * SCALING_CALLS * batch).reshape(threads, SCALING_CALLS, batch)
        out = np.full((*keys.shape, self.options.dim), np.nan, np.float32)
        barrier = threading.Barrier(threads)
        timed: list[Timed | None] = [None] * threads

        def work(i: int) -> None:
            mine = Timed()
            barrier.wait()
            with mine:
                for call in range(SCALING_CALLS):
                    self.table.get(keys[i, call], out=out[i, call])
            timed[i] = mine

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        done = [one for one in timed if one is not None]
        if len(done) != threads:
            raise RuntimeError("a thread failed; its message is above")
        whole = done[0]
        whole.seconds = max(one.ended for one in done) - min(one.began for one in done)
        whole.waited = max(one.waited for one in done)
        whole.work = keys.size
        flat = out.reshape(-1, self.options.dim)
        self.report.results["mismatches"] += mismatches(flat, keys.reshape(-1))
        return whole
