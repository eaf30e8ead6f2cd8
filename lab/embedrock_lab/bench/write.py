"""``write``: what is written for a row that leaves memory because it changed.

``write_amplification`` is all bytes that the io layer wrote (rows, page headers and directories,
cleaning, journal, commits) divided by the stored bytes of the rows that left memory because they
were dirty: Zipf 0.9 updates of a table with row-wise Adagrad, 10 % memory, under a disk bound of
the live row bytes ÷ 0.7, with a commit whenever its ``rows_flushed`` reaches 2 % of the live rows
(rows written since the last commit and those that are still to be: a commit writes what is dirty),
until five times the disk bound is written. The last fifth counts. ``/proc/self/io`` is the check.

When the store says ``Full``, the bench commits and goes on, as the message says; such commits are
counted. At the end every row is read, values and state, and compared with a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock_lab.bench import child, steps
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.measure import machine
from embedrock_lab.measure.rows import fill, ranges, resident_budget, values_of

__all__ = ["Options", "run"]

GRADIENT = 0.01
LR = 0.05
POINTS = 20
"""Points of the curve over time; the last fifth of them counts."""
FULL_IN_A_ROW_MAX = 50
"""Refusals after which no commit will help."""
VARIANTS = {"live_share 0.6": {"live_share": 0.6}, "live_share 0.5": {"live_share": 0.5}}
VARIANTS["commits when evictions alone reach the share"] = {"evictions_only": True}


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(1_000_000, "rows of the table")
    dim: int = option(32, "float32 values per row")
    memory: str = option("10%", "budget of the store")
    exponent: float = option(0.9, "skew of the keys")
    batch: int = option(4096, "draws of a batch")
    live_share: float = option(0.7, "live row bytes of the disk bound")
    commit_share: float = option(0.02, "live rows that a commit makes durable")
    evictions_only: bool = option(
        False, "commit when the rows that evictions wrote reach that share, dirty ones not counted"
    )
    times: float = option(5.0, "bytes to write, as multiples of the disk bound")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("write", options)
    _variant(report, options, "", {})
    if options.all:
        for name, changes in VARIANTS.items():
            _variant(report, options, name, changes)
    return report.finish()


def _variant(report: Report, options: Options, name: str, changes: dict[str, Any]) -> None:
    settings = {**vars(options), **changes}
    rows, dim = options.rows, options.dim
    shape = {"rows": rows, "dim": dim, "live_share": settings["live_share"]}
    with workspace(options, int(2 * rows * (4 * dim + 4) / settings["live_share"])) as place:
        report.say(f"loading {rows:,} rows of {dim} float32 {name}")
        child.call(f"{__name__}:load", store=str(place / "store"), **shape)
        report.say(f"updating until {options.times:g} times the disk bound is written")
        names = ("memory", "exponent", "batch", "commit_share", "evictions_only", "times", "seed")
        chosen = {key: settings[key] for key in names}
        found = child.call(f"{__name__}:measure", store=str(place / "store"), **shape, **chosen)
        report.say("reading every row back")
        counts = str(place / "counts.npy")
        wrong = child.call(f"{__name__}:verify", store=str(place / "store"), counts=counts)
    report.results["mismatches"] += wrong
    amplification = found.pop("write_amplification")
    notes, device = found.pop("notes"), found.pop("device")
    if name:
        found["write_amplification"] = amplification
        report.results[name] = found
        return
    report.notes += notes
    report.device = device
    report.results.update(found)
    report.results["rows_verified"] = rows
    if amplification is None:
        report.missing("write_amplification", "no commit makes room for another batch")
    else:
        report.figure("write_amplification", amplification)


def load(store: str, rows: int, dim: int, live_share: float) -> None:
    """Writes every row, values and state, and commits. Runs in a child process."""
    budget = min(resident_budget(rows, 4 * dim + 4), machine.available_memory_bytes() // 2)
    with _open(Path(store), budget, rows, dim, live_share) as opened:
        fill(opened.table("rows", dim, rows, optimizer="rowwise_adagrad"), rows, state=True)
        opened.commit(1)


def _open(
    store: Path, memory: int | str, rows: int, dim: int, live_share: float
) -> embedrock.Store:
    most = int(rows * (4 * dim + 4) / live_share)
    # The disk's own check asks for more than this bench's bound, whose point is to be tight.
    return embedrock.open(store, memory, max_disk_bytes=most, check_disk=False)


def measure(
    store: str,
    rows: int,
    dim: int,
    live_share: float,
    memory: str,
    exponent: float,
    batch: int,
    commit_share: float,
    evictions_only: bool,
    times: float,
    seed: int,
) -> dict[str, Any]:
    """Updates until enough is written. Runs in a child process."""
    opened = _open(Path(store), memory, rows, dim, live_share)
    with opened:
        bench = _Bench(opened, Zipf(rows, exponent, seed), batch, commit_share, evictions_only)
        bench.fill(times)
        np.save(Path(store).parent / "counts.npy", bench.counts)
        return bench.answer(live_share)


class _Bench:
    """An open store under updates."""

    def __init__(
        self,
        store: embedrock.Store,
        keys: Zipf,
        batch: int,
        commit_share: float,
        evictions_only: bool,
    ) -> None:
        self.store, self.keys, self.batch = store, keys, batch
        self.table = store.table("rows")
        self.due = commit_share * len(self.table)
        self.evictions_only = evictions_only
        self.counts = np.zeros(len(self.table), np.uint32)
        self.gradients = np.full((batch, self.table.embedding_dim), GRADIENT, np.float32)
        self.most = self.store.stats()["max_disk_bytes"]
        self.step, self.full, self.stuck = 1, 0, False
        self.committed_rows = self.store.stats()["rows_written"]
        self.disk_bytes_max = 0
        self.points: list[dict[str, Any]] = []

    def fill(self, times: float) -> None:
        """Updates and commits; a point of the curve after each share of what is to be written."""
        goal = times * self.most
        self._point(0.0)
        while len(self.points) <= POINTS and not self.stuck:
            self._update(self.keys.distinct(self.batch))
            done = self.store.stats()["bytes_written"] - self.points[0]["bytes"]
            if done >= goal * len(self.points) / POINTS:
                self._point(done / self.most)
        self._commit()

    def _update(self, keys: Any) -> None:
        for _ in range(FULL_IN_A_ROW_MAX):
            try:
                self.table.update(keys, self.gradients[: len(keys)], lr=LR)
            except embedrock.errors.FullError:
                self.full += 1
                self._commit()
                continue
            self.counts[keys] += 1
            stats = self.store.stats()
            changed = stats["rows_written"] - self.committed_rows
            if not self.evictions_only:
                changed += stats["classes"][0]["dirty_rows"]
            if changed >= self.due:
                self._commit()
            return
        self.stuck = True

    def _commit(self) -> None:
        self.step += 1
        self.store.commit(self.step)
        self.committed_rows = self.store.stats()["rows_written"]
        used = sum(file.stat().st_blocks * 512 for file in self.store.path.iterdir())
        self.disk_bytes_max = max(self.disk_bytes_max, used)

    def _point(self, written: float) -> None:
        stats = self.store.stats()
        self.points.append(
            {
                "disk_bounds_written": written,
                "bytes": stats["bytes_written"],
                "process_bytes": machine.bytes_written(),
                "causes": stats["written"],
                "commits": self.step,
                "full": self.full,
                "reads": stats["pages_read"],
            }
        )

    def answer(self, live_share: float) -> dict[str, Any]:
        facts = self.store.stats()
        one = facts["classes"][0]
        live = len(self.table) * self.table.row_bytes
        steps = list(zip(self.points, self.points[1:], strict=False))
        curve = [_between(before, after) for before, after in steps]
        fifth = max(len(self.points) // 5, 1)
        last = _between(self.points[-1 - fifth], self.points[-1]) if curve else {}
        before = _between(self.points[-1 - 2 * fifth], self.points[-1 - fifth])
        by_io, by_process = last["write_amplification"], last["by_process"]
        notes = []
        if by_process and abs(by_process / by_io - 1) > 0.02:
            notes.append(
                f"/proc/self/io counts {by_process / by_io:.3f} of the bytes that the io layer "
                "does: it counts whole pages of files that are not written around the page cache"
            )
        if self.full:
            notes.append(
                f"the store was full {self.full} times before a commit was due; it was committed "
                "then, and the rows of such a commit are fewer"
            )
        if self.disk_bytes_max > self.most:
            notes.append(f"the files took {self.disk_bytes_max} bytes of {self.most} allowed")
        return {
            "write_amplification": None if self.stuck else by_io,
            "write_amplification_by_process": by_process,
            "write_amplification_fifth_before": before["write_amplification"],
            "by_cause": last["by_cause"],
            "moved_per_row": last["moved_per_row"],
            "live_rows_per_commit": last["row_bytes_per_commit"] / live,
            "full": self.full,
            "commits": self.step,
            "disk_bytes_allowed": self.most,
            "disk_bytes_max": self.disk_bytes_max,
            "live_share_of_disk": live_share,
            "live_share_of_slots": one["newest_copies"] / max(_slots(one), 1),
            "hit_rate": facts["hit_rate"],
            "page_bytes": one["page_bytes"],
            "segment_bytes": one["segment_bytes"],
            "curve": {
                f"{point['disk_bounds_written']:.2f}": point["write_amplification"]
                for point in curve
            },
            "device": machine.device_facts(self.store),
            "notes": notes,
        }


def _slots(facts: dict[str, Any]) -> int:
    return int(facts["disk_bytes"] // facts["page_bytes"] * facts["rows_per_page"])


def _between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Writes between two points, per byte of the rows that left memory."""
    rows = max(after["causes"]["rows"] - before["causes"]["rows"], 1)
    causes = {
        name: (after["causes"][name] - before["causes"][name]) / rows for name in after["causes"]
    }
    return {
        "disk_bounds_written": after["disk_bounds_written"],
        "write_amplification": (after["bytes"] - before["bytes"]) / rows,
        "by_process": (after["process_bytes"] - before["process_bytes"]) / rows,
        "moved_per_row": causes["moved"],
        "row_bytes_per_commit": rows / max(after["commits"] - before["commits"], 1),
        "full": after["full"] - before["full"],
        "by_cause": causes,
    }


def verify(store: str, counts: str) -> int:
    """Rows that are not their first values after as many steps as they had. Runs in a child."""
    updates = np.load(counts)
    order = np.argsort(-updates.astype(np.int64), kind="stable")
    with embedrock.open(store, "2GiB", create=False) as opened:
        table = opened.table("rows")
        values = values_of(order, table.embedding_dim)
        state = values_of(order, table.state_words, version=1)
        gradient = np.full((1, table.embedding_dim), GRADIENT, np.float32)
        due = len(order)
        for version in range(int(updates.max(initial=0))):
            # Rows come by falling number of updates: those that are due are the first ones.
            due = int(np.searchsorted(-updates[order[:due]].astype(np.int64), -version))
            given = np.broadcast_to(gradient, (due, table.embedding_dim))
            values[:due], state[:due] = steps.row_wise_adagrad(values[:due], state[:due], given, LR)
        wrong = 0
        for part in ranges(len(order), 1 << 16):
            found, found_state = table.get(order[part], state=True)
            differs = (found != values[part]).any(axis=1)
            differs |= (found_state != state[part]).any(axis=1)
            wrong += int(differs.sum())
    return wrong
