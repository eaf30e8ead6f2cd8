"""``commit``: the cost of a commit follows what changed.

``commit_ratio`` is the time of a commit after updates of 100,000 uniform rows divided by that of
one after updates of every row: 10 M x 32 float32 with row-wise Adagrad, all in memory, medians of 5
and of 3. ``commit_bytes_ratio`` is what a commit writes divided by the stored bytes of the rows
that it makes durable, the larger of both kinds' medians.

``in_background`` is one commit of all rows that nobody waits for (``wait=False``), while updates of
2,048 uniform rows go on: how long the call took, and the commit, and what the updates meanwhile
cost beside those before it. The rows of that commit are verified as they were at the call.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench import steps
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.measure import machine
from embedrock_lab.measure.machine import device_facts
from embedrock_lab.measure.noise import WAIT_SHARE_MAX, Timed
from embedrock_lab.measure.rows import distinct_keys, open_resident, ranges, values_of

__all__ = ["Options", "run"]

GRADIENT = 0.01
LR = 0.05
BATCH = 1 << 16
VERIFIED_ROWS = 1 << 18
BATCH_MEANWHILE = 2048
UPDATES_BEFORE = 200


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(10_000_000, "rows of the table")
    dim: int = option(32, "float32 values per row")
    few: int = option(100_000, "rows of a small commit")
    small: int = option(5, "commits of few rows")
    full: int = option(3, "commits of all rows")
    patience: float = patience_of(90.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("commit", options)
    rows, dim = options.rows, options.dim
    with workspace(options, 5 * rows * (4 * dim + 24)) as place:
        report.say(f"filling {rows:,} rows of {dim} float32 with row-wise Adagrad")
        store, table = open_resident(place / "store", rows, dim, "rowwise_adagrad")
        with store:
            report.device = device_facts(store)
            bench = _Bench(options, table)
            bench.measure(report)
            meanwhile = bench.in_background(report)
        for step, versions in ((bench.step - 1, meanwhile), (bench.step, bench.versions)):
            report.say(f"verifying rows of commit {step}")
            with embedrock.open(
                place / "store", 256 << 20, create=False, read_only=True, step=step
            ) as store:
                report.results["mismatches"] += bench.mismatches(store.table("rows"), versions)
    return report.finish()


class _Commit(Timed):
    """One commit: its time and what it wrote."""

    rows = 0
    bytes_written = 0
    process_bytes = 0

    def bytes_ratio(self, row_bytes: int) -> float:
        return max(self.bytes_written, self.process_bytes) / (self.rows * row_bytes)


class _Bench:
    def __init__(self, options: Options, table: embedrock.Table) -> None:
        self.options, self.table = options, table
        self.rng = np.random.default_rng(options.seed)
        self.row_bytes = table.row_bytes
        self.gradients = np.full((max(BATCH, options.few), options.dim), GRADIENT, np.float32)
        self.versions = np.zeros(options.rows, np.uint8)
        self.step = 0

    def measure(self, report: Report) -> None:
        few: list[_Commit] = []
        all_rows: list[_Commit] = []
        patience = self.options.patience
        while len(few) < self.options.small or len(all_rows) < self.options.full:
            if len(all_rows) < self.options.full:
                report.say(f"updating all rows, commit {self.step + 1}")
                patience -= self.one(list(ranges(self.options.rows, BATCH)), all_rows, patience)
            for _ in range(2):
                if len(few) < self.options.small:
                    report.say(f"updating {self.options.few:,} rows, commit {self.step + 1}")
                    keys = distinct_keys(self.rng, self.options.rows, self.options.few)
                    patience -= self.one([keys], few, patience)
        medians = {"few": _median(few), "all": _median(all_rows)}
        report.figure("commit_ratio", medians["few"] / medians["all"])
        written = {
            name: statistics.median(one.bytes_ratio(self.row_bytes) for one in commits)
            for name, commits in (("few", few), ("all", all_rows))
        }
        report.figure("commit_bytes_ratio", max(written.values()))
        report.results["seconds_median"] = medians
        report.results["bytes_ratio_median"] = written
        report.results["commits"] = [
            {
                "rows": one.rows,
                "seconds": one.seconds,
                "bytes_written": one.bytes_written,
                "process_bytes_written": one.process_bytes,
                "wait_share": one.wait_share,
            }
            for one in all_rows + few
        ]
        busy = [one for one in few + all_rows if (one.wait_share or 0.0) > WAIT_SHARE_MAX]
        if busy:
            report.notes.append(
                f"the machine was busy: {len(busy)} of {len(few + all_rows)} commits waited for a "
                f"core more than {WAIT_SHARE_MAX:.0%} of the time"
            )

    def one(self, batches: list[Any], into: list[_Commit], patience: float) -> float:
        """Updates, commits, and keeps the commit unless it is void; returns the time lost."""
        store = self.table.store
        for keys in batches:
            self.table.update(keys, self.gradients[: len(keys)], lr=LR)
            self.versions[keys] += 1
        commit = _Commit()
        commit.rows = store.stats()["classes"][0]["dirty_rows"]
        written, by_process = store.stats()["bytes_written"], machine.bytes_written()
        self.step += 1
        with commit:
            store.commit(self.step)
        commit.bytes_written = store.stats()["bytes_written"] - written
        commit.process_bytes = machine.bytes_written() - by_process
        if (commit.wait_share or 0.0) > WAIT_SHARE_MAX and patience > 0:
            return commit.ended - commit.began + 0.1
        into.append(commit)
        return 0.0

    def in_background(self, report: Report) -> npt.NDArray[np.uint8]:
        """A commit of all rows while updates go on, and then one of these; returns how often each
        row had been updated at the first one."""
        report.say("a commit of all rows while updates go on")
        store = self.table.store
        for keys in ranges(self.options.rows, BATCH):
            self.table.update(keys, self.gradients[: len(keys)], lr=LR)
            self.versions[keys] += 1
        before = [self.small_update() for _ in range(UPDATES_BEFORE)]
        at_call = self.versions.copy()
        self.step += 1
        began = perf_counter()
        pending = store.commit(self.step, wait=False)
        called = perf_counter()
        meanwhile = []
        while not pending.done:
            meanwhile.append(self.small_update())
        commit = pending.wait()
        ended = perf_counter()
        self.step += 1
        store.commit(self.step)
        report.results["in_background"] = {
            "rows": commit.rows_flushed,
            "call_seconds": called - began,
            "commit_seconds": ended - began,
            "updates_meanwhile": len(meanwhile),
            "update_seconds_before": statistics.fmean(before),
            "update_seconds_meanwhile": statistics.fmean(meanwhile) if meanwhile else None,
            "update_seconds_longest": max(meanwhile, default=None),
        }
        return at_call

    def small_update(self) -> float:
        """Updates some rows; returns the seconds that took."""
        keys = distinct_keys(self.rng, self.options.rows, BATCH_MEANWHILE)
        began = perf_counter()
        self.table.update(keys, self.gradients[: len(keys)], lr=LR)
        took = perf_counter() - began
        self.versions[keys] += 1
        return took

    def mismatches(self, table: embedrock.Table, versions: npt.NDArray[np.uint8]) -> int:
        """Rows of a sample that are not their first values after as many steps as they had."""
        count = min(VERIFIED_ROWS, self.options.rows)
        keys = np.sort(distinct_keys(self.rng, self.options.rows, count))
        values = values_of(keys, self.options.dim)
        state = np.zeros((count, 1), np.float32)
        gradients = self.gradients[:1]
        for version in range(int(versions.max())):
            due = versions[keys] > version
            given = np.broadcast_to(gradients, (int(due.sum()), self.options.dim))
            values[due], state[due] = steps.row_wise_adagrad(values[due], state[due], given, LR)
        found_values, found_state = table.get(keys, state=True)
        wrong = (found_values != values).any(axis=1) | (found_state != state).any(axis=1)
        return int(wrong.sum())


def _median(commits: list[_Commit]) -> float:
    return statistics.median(one.seconds for one in commits)
