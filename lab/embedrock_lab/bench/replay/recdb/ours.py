"""Systems of this package in ``recdb``: filling a store, and the loop of a training.

A step has the rows of its batch, computes for a fixed time, and updates every row that it has read;
batches are announced up to a window ahead. Rows are compared with what they must be while the step
computes, so that what the store does meanwhile is hidden behind the same time as elsewhere.

A row starts as ``values_of`` of its number, and each update adds 2^-23: a step of SGD whose
gradients are -1 and whose learning rate is 2^-23, exact in float32.
"""

from __future__ import annotations

import gc
import time
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench.lsm import bytes_of_rows, commit_all
from embedrock_lab.bench.replay.workload import MODES, STEP, wrong_rows
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Timed
from embedrock_lab.measure.rows import LOAD_ROWS, ranges, values_of

__all__ = ["fill", "train"]

Numbers = npt.NDArray[np.int64]

FILL_BYTES = 1 << 30
"""Memory while rows are written, at most; no more than half of what is available."""


def fill(store: str, storage: Any, sizes: list[int], dim: int) -> dict[str, Any]:
    """Writes every row, commits until nothing is left to merge. Runs in a child process."""
    begin = time.monotonic()
    memory = min(FILL_BYTES, machine.available_memory_bytes() // 2)
    with embedrock.open(store, memory) as opened:
        first = 0
        for place, rows in enumerate(sizes, start=1):
            table = opened.table(f"C{place}", dim, rows, optimizer="sgd", storage=storage)
            for ids in ranges(rows, LOAD_ROWS):
                table.put(ids, values_of(ids + first, dim), reset_state=True)
            first += rows
        commit_all(opened)
        return {"load_s": time.monotonic() - begin, "device": machine.device_facts(opened)}


def train(
    store: str,
    values: str,
    offsets: str,
    sizes: list[int],
    memory_bytes: int,
    window: int,
    depth: int,
    compute_ns: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Trains over all batches, with a checkpoint after each window; times of every batch, and what
    the store had counted at the beginning of every window. Runs in a child process."""
    numbers, bounds = np.fromfile(values, "<u8").view(np.int64), np.fromfile(offsets, "<i8")
    with warnings.catch_warnings():
        # A budget that is too small is part of what is compared; the report says what was taken.
        warnings.simplefilter("ignore", embedrock.BudgetWarning)
        opened = embedrock.open(store, memory_bytes, create=False, **options)
    with opened:
        loop = _Loop(opened, numbers, bounds, sizes, depth, compute_ns)
        machine.reset_peak_rss()
        rss_before = machine.rss_bytes()
        timed = Timed()
        with timed:
            for step in range(len(bounds) - 1):
                if step % window == 0:
                    loop.checkpoint(step)
                loop.step(step)
            loop.checkpoint(step + 1)
        found = loop.found()
        found["peak_rss_grown_bytes"] = machine.peak_rss_bytes() - rss_before
        found["core_wait_share"] = timed.wait_share
        found["mismatches"] += loop.wrong_now()
    return found


class _Loop:
    """A training between steps."""

    def __init__(
        self,
        store: embedrock.Store,
        numbers: Numbers,
        bounds: Numbers,
        sizes: list[int],
        depth: int,
        compute_ns: int,
    ) -> None:
        self.store, self.depth, self.compute_ns = store, depth, compute_ns
        self.numbers, self.bounds = numbers, bounds
        self.tables = [store.table(f"C{place}") for place in range(1, len(sizes) + 1)]
        self.firsts = np.cumsum([0, *sizes])
        self.dim = self.tables[0].embedding_dim
        most = int(np.diff(bounds).max())
        self.room = np.zeros((most, self.dim), np.float32)
        self.counts = np.zeros(sum(sizes), np.uint16)
        gradients = np.full((most, self.dim), -1, np.float32)
        self.reads: list[list[tuple[embedrock.Table, Numbers]]] = []
        self.outs: list[list[npt.NDArray[np.float32]]] = []
        self.updates: list[list[tuple[embedrock.Table, Numbers, npt.NDArray[np.float32]]]] = []
        for step in range(len(bounds) - 1):
            parts = list(self._parts(self._numbers(step)))
            self.reads.append([(self.tables[f], ids) for f, ids, _ in parts])
            self.outs.append([self.room[at : at + len(ids)] for _, ids, at in parts])
            self.updates.append(
                [(self.tables[f], ids, gradients[: len(ids)]) for f, ids, _ in parts]
            )
        self.announced: list[int | None] = []
        self.pending: embedrock.PendingCommit | None = None
        self.commits = store.step or 0
        self.read_ns: list[int] = []
        self.blocked_ns: list[int] = []
        self.compute_took_ns: list[int] = []
        self.update_ns: list[int] = []
        self.commit_ns = 0
        self.ahead: list[int] = []
        self.windows: list[dict[str, Any]] = []
        self.wrong = 0
        # The garbage collector must not scan the loop's data while it is timed.
        gc.freeze()

    def step(self, step: int) -> None:
        """One batch, from its rows to their update."""
        reads_before = self.store._core.row_reads()[3]
        began = time.perf_counter_ns()
        self._announce(step)
        number = self.announced[step] if step < len(self.announced) else None
        announced = time.perf_counter_ns()
        if number is not None:
            self.store.window.begin(number)
        filled = time.perf_counter_ns()
        self.store.get(self.reads[step], out=self.outs[step])
        arrived = time.perf_counter_ns()
        in_reads_ns = round(1e9 * (self.store._core.row_reads()[3] - reads_before))
        numbers = self._numbers(step)
        found = self.room[: len(numbers)]
        self.wrong += wrong_rows(
            found, numbers.view(np.uint64), self.counts[numbers], MODES["train"]
        )
        self.counts[numbers] += np.uint16(1)
        while time.perf_counter_ns() - arrived < self.compute_ns:
            pass
        computed = time.perf_counter_ns()
        self.store.update(self.updates[step], lr=float(STEP))
        if number is not None:
            self.store.window.finish(number)
        updated = time.perf_counter_ns()
        self.read_ns.append(arrived - began)
        self.blocked_ns.append(filled - announced + min(in_reads_ns, arrived - filled))
        self.compute_took_ns.append(computed - arrived)
        self.update_ns.append(updated - computed + self.commit_ns)
        self.commit_ns = 0

    def checkpoint(self, step: int) -> None:
        """Notes what the store has counted, and begins a commit in the background."""
        self.windows.append(self._counted())
        if step == 0:
            return
        began = time.perf_counter_ns()
        if self.pending is not None:
            self.pending.wait()
        self.commits += 1
        self.pending = self.store.commit(self.commits, wait=False)
        self.commit_ns = time.perf_counter_ns() - began

    def found(self) -> dict[str, Any]:
        """Everything noted."""
        if self.pending is not None:
            self.pending.wait()
        stats = self.store.stats()
        one = stats["classes"][0]
        return {
            "read_ns": self.read_ns,
            "blocked_ns": self.blocked_ns,
            "compute_ns": self.compute_took_ns,
            "update_ns": self.update_ns,
            "windows": self.windows,
            "announced_ahead": float(np.mean(self.ahead)) if self.depth else 0.0,
            "mismatches": self.wrong,
            "budget_bytes": stats["budget_bytes"],
            "memory": stats["memory"],
            "cache_rows": one["cache_capacity"],
            "page_bytes": one["page_bytes"],
            "rows_per_page": one["rows_per_page"],
        }

    def wrong_now(self) -> int:
        """Number of used rows without all their updates, when the loop has ended."""
        used, wrong = np.flatnonzero(self.counts), 0
        for begin in range(0, len(used), len(self.room)):
            numbers = used[begin : begin + len(self.room)]
            found = self.room[: len(numbers)]
            parts = list(self._parts(numbers))
            reads = [(self.tables[f], ids) for f, ids, _ in parts]
            self.store.get(reads, out=[found[at : at + len(ids)] for _, ids, at in parts])
            counts = self.counts[numbers]
            wrong += wrong_rows(found, numbers.view(np.uint64), counts, MODES["train"])
        return wrong

    def _announce(self, step: int) -> None:
        """Announces batches up to a window ahead, as far as the store has room."""
        while self.depth and len(self.announced) < min(step + self.depth, len(self.reads)):
            number = self.store.window.announce(dict(self.reads[len(self.announced)]))
            if number is None:
                break
            self.announced.append(number)
        if self.depth and len(self.announced) <= step:
            self.announced.append(None)  # it is too late to announce this one
        self.ahead.append(len(self.announced) - step)

    def _numbers(self, step: int) -> Numbers:
        return self.numbers[self.bounds[step] : self.bounds[step + 1]]

    def _parts(self, numbers: Numbers) -> Any:
        """Tables with ids of these numbers in order, and where they begin among them."""
        ends = np.searchsorted(numbers, self.firsts)
        for f, (begin, end) in enumerate(pairwise(ends)):
            if end > begin:
                yield f, numbers[begin:end] - self.firsts[f], int(begin)

    def _counted(self) -> dict[str, Any]:
        stats, window = self.store.stats(), self.store.window.stats()
        row_bytes = stats["classes"][0]["row_bytes"]
        return {
            "pages_read": stats["pages_read"],
            "rows_loaded": stats["rows_loaded"],
            "pages_ahead": window["pages"],
            "pages_again": window["pages_again"],
            "groups": window["groups"],
            "group_batches": window["group_batches"],
            "lost": window["lost"],
            "turned_away": window["turned_away"],
            "skipped": window["skipped"],
            "starved": window["starved"],
            "changed_bytes": stats["written"]["rows"],
            "written_bytes": bytes_of_rows(stats),
            "journal_bytes": stats["written"]["deltas"] + stats["written"]["pieces"],
            "disk_bytes": stats["disk_bytes"],
            "row_bytes": row_bytes,
            "merges": _merges(stats["upkeep"]),
        }


def _merges(upkeep: dict[str, Any]) -> dict[str, Any]:
    """Statistics of merges since open."""
    return {
        "count": upkeep["merges"],
        "seconds": upkeep["seconds"],
        "seconds_max": upkeep["seconds_max"],
        "rows_dropped": upkeep["rows_outdated"],
        "rows_written": upkeep["rows_taken"] + upkeep["rows_copied"],
        "latency": upkeep["latency"],
        "put_off": upkeep["put_off"],
    }
