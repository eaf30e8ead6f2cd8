"""``commit``: the cost of a commit follows what changed.

``commit_ratio`` is the time of a commit after updates of 100,000 uniform rows divided by that of
one after updates of every row: 10 M x 32 float32 with row-wise Adagrad, all in memory, medians of 5
and of 3. ``commit_bytes_ratio`` is what a commit writes divided by the stored bytes of the rows
that it makes durable, the larger of both kinds' medians.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

import embedrock
from embedrock.bench import machine, replay
from embedrock.bench.common import Report, add_common, workspace
from embedrock.bench.machine import device_facts
from embedrock.bench.noise import WAIT_SHARE_MAX, Timed
from embedrock.bench.rows import distinct_keys, open_resident, ranges, values_of

__all__ = ["add_arguments", "run"]

GRADIENT = 0.01
LR = 0.05
BATCH = 1 << 16
VERIFIED_ROWS = 1 << 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--few", type=int, default=100_000, help="rows of a small commit")
    parser.add_argument("--small", type=int, default=5, help="commits of few rows")
    parser.add_argument("--full", type=int, default=3, help="commits of all rows")
    add_common(parser, patience_s=90.0)


def run(options: argparse.Namespace) -> dict[str, Any]:
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
        report.say("reopening and verifying rows")
        with embedrock.open(place / "store", 256 << 20, create=False) as store:
            report.results["mismatches"] += bench.mismatches(store.table("rows"))
    return report.finish()


class _Commit(Timed):
    """One commit: its time and what it wrote."""

    rows = 0
    bytes_written = 0
    process_bytes = 0

    def bytes_ratio(self, row_bytes: int) -> float:
        return max(self.bytes_written, self.process_bytes) / (self.rows * row_bytes)


class _Bench:
    def __init__(self, options: argparse.Namespace, table: embedrock.Table) -> None:
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

    def mismatches(self, table: embedrock.Table) -> int:
        """Rows of a sample that are not their first values after as many steps as they had."""
        count = min(VERIFIED_ROWS, self.options.rows)
        keys = np.sort(distinct_keys(self.rng, self.options.rows, count))
        values = values_of(keys, self.options.dim)
        state = np.zeros((count, 1), np.float32)
        gradients = self.gradients[:1]
        for version in range(int(self.versions.max())):
            due = self.versions[keys] > version
            given = np.broadcast_to(gradients, (int(due.sum()), self.options.dim))
            values[due], state[due] = replay.row_wise_adagrad(values[due], state[due], given, LR)
        found_values, found_state = table.get(keys, state=True)
        wrong = (found_values != values).any(axis=1) | (found_state != state).any(axis=1)
        return int(wrong.sum())


def _median(commits: list[_Commit]) -> float:
    return statistics.median(one.seconds for one in commits)
