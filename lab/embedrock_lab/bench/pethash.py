"""``pethash``: the index of rows on persistent memory, beside other maps, and opened again.

Three parts, all by a program that `make peers` builds (`lab/hashbench`):

* **Buckets visited** at a load of 0.8, counted: by keys that are random, sequential, and multiples
  of 2^8 to 2^32; after twice as many exchanges of a key for a new one as there are keys, with
  re-homing beside them, four passes over all buckets and one after, and without.
* **Look-ups** of uniform keys that are there, in batches, one thread. PETHash takes a batch and
  asks for memory ahead: of nothing, of the next key's bucket (the paper's form), or staged over the
  batch. Other maps offer single look-ups alone and get nothing ahead, so the ratios compare a batch
  with single look-ups. All have 8-byte keys and values, the same hash function, and huge pages.
  Maps are built one at a time and run in rounds beside PETHash. A round counts the time that
  its thread had a core.
* **Regions** of rows in a file on a disk, opened with none of their pages in memory: until a
  request has its rows, also after a process that put rows was killed; and until a request of new
  keys is put.

``pethash_hit_probes`` and the like are the worst of all orders of keys; ``lookups_vs_best`` is the
smallest ratio of those with papaya, dashmap and scc. *Source*: PetPS, sections 3.2 and 5.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.program import Program, quietest, timed_of
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Timed, interleave

__all__ = ["Options", "run"]

PROGRAM = Path(".cache/peers/embedrock-hashbench")
ORDERS: dict[str, int | None] = {"random": None, "sequential": 0}
ORDERS |= {f"stride 2^{shift}": shift for shift in (8, 12, 16, 20, 24, 28, 32)}
CONCURRENT = ("papaya", "dashmap", "scc")
PEERS = (*CONCURRENT, "hashbrown")
FORMS = ("staged", "next-key", "none")
BYTES_PER_KEY = 180
"""Of PETHash and the largest of the other maps together, while that is built."""
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
FEW_ROWS_SHARE = 10
"""The smaller region has a tenth of the rows."""
ROOM = 20
"""A region has room for a twentieth more rows."""
PROBES = ["pethash_hit_probes", "pethash_miss_probes", "pethash_within_three"]
TURNED = ["pethash_turned_hit_probes", "pethash_turned_miss_probes"]
LOOK_UPS = ["lookups_vs_best", "lookups_vs_hashbrown", "staged_vs_none", "staged_vs_next_key"]
REOPENED = ["reopen_ms", "reopen_growth", "reopen_killed_ms", "reopen_first_put_ms"]
PARTS = {"probes": [*PROBES, *TURNED], "look-ups": LOOK_UPS, "regions": REOPENED}
FIGURES = [figure for figures in PARTS.values() for figure in figures]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    parts: list[str] = option([*PARTS], "what to measure", choices=PARTS)
    keys: int = option(64_000_000, "keys of the look-ups")
    look_ups: int = option(4_000_000, "look-ups of a round")
    batch: int = option(500, "keys of a batch, and of a request")
    probe_keys: int = option(4_000_000, "keys where buckets are counted")
    rows: int = option(20_000_000, "rows of the region")
    dim: int = option(16, "float32 values of its rows")
    pushes: int = option(5, "requests until the process dies, 2 at least")
    rounds: int = option(5, "rounds of each measurement")
    tmpfs: Path = option(Path("/dev/shm"), "where regions are made at first")
    program: Path = option(PROGRAM, "built by `make peers`")
    patience: float = patience_of(30.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("pethash", options)
    if not options.program.exists():
        for figure in FIGURES:
            report.missing(figure, f"{options.program} is not built; `make peers` builds it")
        return report.finish()
    with Program(options.program, os.environ | HUGE_PAGES) as program:
        bench = _Bench(report, options, program)
        if "probes" in options.parts:
            bench.count_buckets()
        if "look-ups" in options.parts:
            bench.look_up()
    if "regions" in options.parts:
        bench.open_regions()
    for part, figures in PARTS.items():
        for figure in figures if part not in options.parts else []:
            report.missing(figure, f"not asked for; use --parts {part}")
    return report.finish()


class _Bench:
    """The three parts, and what they have in common."""

    def __init__(self, report: Report, options: Options, program: Program) -> None:
        self.report, self.options, self.program = report, options, program
        self.report.results["rows_verified"] = 0
        self.openings = 0

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, with what it has verified added up."""
        self.report.results["mismatches"] += answer.pop("mismatches")
        self.report.results["rows_verified"] += answer.pop("rows_verified", 0)
        return answer

    def count_buckets(self) -> None:
        """The buckets that look-ups visit."""
        keys = self.options.probe_keys
        probes: dict[str, dict[str, float]] = {}
        for name, shift in ORDERS.items():
            self.report.say(f"buckets visited, {keys:,} keys, {name}")
            asked = {"probes": {"keys": keys, "shift": shift}}
            probes[name] = self._checked(self.program.ask(asked))
        self.report.results["probes"] = probes
        self.report.figure(PROBES[0], max(one["hit"] for one in probes.values()))
        self.report.figure(PROBES[1], max(one["miss"] for one in probes.values()))
        self.report.figure(PROBES[2], min(one["within_three"] for one in probes.values()))
        turned: dict[str, dict[str, float]] = {}
        for name, rehoming in (("re-homing", True), ("without", False)):
            self.report.say(f"buckets visited after 200 % turnover, {name}")
            asked = {"turnover": {"keys": keys, "rehoming": rehoming}}
            turned[name] = self._checked(self.program.ask(asked))
        self.report.results["turnover"] = turned
        self.report.figure(TURNED[0], turned["re-homing"]["hit"])
        self.report.figure(TURNED[1], turned["re-homing"]["miss"])

    def look_up(self) -> None:
        """Look-ups of PETHash in its three forms, then beside each other map."""
        keys = self.options.keys
        while keys > 1 and machine.available_memory_bytes() < keys * BYTES_PER_KEY:
            keys //= 2
        if keys != self.options.keys:
            self.report.notes.append(
                f"look-ups are of {keys:,} keys: {self.options.keys:,} need "
                f"{self.options.keys * BYTES_PER_KEY:,} bytes of memory"
            )
        table: dict[str, dict[str, float]] = {}
        self.report.results["look_up_keys"] = keys
        self.report.results["look_ups"] = table
        self._build("pethash", keys)
        found = self._race([("pethash", form) for form in FORMS], keys, "forms")
        for at, form in enumerate(FORMS):
            table[f"pethash, {form}"] = {"millions_per_s": found.rate(at) / 1e6}
        self.report.figure("staged_vs_none", found.ratio(0, 2))
        self.report.figure("staged_vs_next_key", found.ratio(0, 1))
        for peer in PEERS:
            self._build(peer, keys)
            found = self._race([("pethash", "staged"), (peer, "none")], keys, peer)
            table[peer] = {
                "millions_per_s": found.rate(1) / 1e6,
                "pethash_beside_it": found.rate(0) / 1e6,
                "pethash_vs_it": found.ratio(0, 1),
            }
            self.program.ask({"free": {"map": peer}})
        self._build("pethash-file", keys)
        found = self._race([("pethash-file", form) for form in FORMS], keys, "file")
        for at, form in enumerate(FORMS):
            rate = {"millions_per_s": found.rate(at) / 1e6}
            table[f"in a file of {self.options.tmpfs}, {form}"] = rate
        ratios = {peer: table[peer]["pethash_vs_it"] for peer in PEERS}
        self.report.figure("lookups_vs_best", min(ratios[peer] for peer in CONCURRENT))
        self.report.figure("lookups_vs_hashbrown", ratios["hashbrown"])

    def _build(self, name: str, keys: int) -> None:
        """Makes a map and compares every value that look-ups of it will find."""
        self.report.say(f"look-ups of {keys:,} keys: {name}")
        folder = str(self.options.tmpfs)
        self.program.ask({"build": {"map": name, "keys": keys, "folder": folder}})
        self._checked(self._look_ups(name, "staged", keys, verify=True))

    def _race(self, systems: list[tuple[str, str]], keys: int, name: str) -> Any:
        deadline = time.monotonic() + self.options.patience
        timed = [self._timed(map_name, form, keys, deadline) for map_name, form in systems]
        found = interleave(timed, self.options.rounds, self.options.patience)
        self.report.rounds(f"look_ups_{name}", found)
        return found

    def _timed(self, name: str, form: str, keys: int, deadline: float) -> Callable[[], Timed]:
        def one_round() -> Timed:
            answer = self._look_ups(name, form, keys, verify=False)
            timed = timed_of(self._checked(answer), "look_ups")
            # One thread that computes: what it waited for a core says nothing of the map. So its
            # rate is what it did with a core, while the share of waiting stays one of the round.
            timed.work *= timed.seconds / (timed.seconds - timed.waited)
            return timed

        return lambda: quietest(one_round, deadline)

    def _look_ups(self, name: str, form: str, keys: int, *, verify: bool) -> dict[str, Any]:
        look_ups = {
            "keys": keys,
            "count": self.options.look_ups,
            "batch": self.options.batch,
            "seed": self.options.seed,
            "ahead": form,
            "verify": verify,
        }
        return self.program.ask({"look_ups": {"map": name, "look_ups": look_ups}})

    def open_regions(self) -> None:
        """Regions that are opened without any of their pages in memory."""
        rows = self.options.rows
        few = max(rows // FEW_ROWS_SHARE, self.options.batch)
        row_bytes = 4 * self.options.dim
        # Row slots with their heads, a bucket for 11 keys, and what is made before it is copied.
        needed = (rows + few) * (row_bytes + 16 + 24) * 12 // 10
        with workspace(self.options, needed) as place:
            files = {count: place / f"rows-{count}" for count in (few, rows)}
            for count, file in files.items():
                self._make(file, count, row_bytes)
            opened: dict[int, list[dict[str, Any]]] = {few: [], rows: []}
            for _ in range(self.options.rounds):
                for count, file in files.items():
                    opened[count].append(self._open(file, count))
            killed = []
            for _ in range(self.options.rounds):
                push_ms = self._kill(files[rows], rows)
                one = self._open(files[rows], rows, pushes=self.options.pushes, put=True)
                killed.append(one | {"push_before_it_ms": push_ms})
        pulls = {name: [one["first_pull_ms"] for one in many] for name, many in opened.items()}
        ratios = [many / one for many, one in zip(pulls[rows], pulls[few], strict=True)]
        self.report.figure("reopen_ms", statistics.median(pulls[rows]))
        self.report.figure("reopen_growth", statistics.median(ratios))
        self.report.figure("reopen_killed_ms", _median(killed, "first_pull_ms"))
        self.report.figure("reopen_first_put_ms", _median(killed, "first_put_ms"))
        measured = {f"{few:,} rows": opened[few], f"{rows:,} rows": opened[rows], "killed": killed}
        self.report.results["reopen"] = {
            name: {what: _median(many, what) for what in many[0]} for name, many in measured.items()
        }

    def _make(self, file: Path, rows: int, row_bytes: int) -> None:
        """A region with rows, made in memory and copied: a file waits for the disk at each put."""
        self.report.say(f"making a region of {rows:,} rows")
        made = self.options.tmpfs / f"embedrock-{os.getpid()}-{file.name}"
        capacity = rows + max(rows // ROOM, 2 * self.options.batch * self.options.pushes)
        asked = {"file": str(made), "rows": rows, "capacity": capacity, "row_bytes": row_bytes}
        try:
            with Program(self.options.program) as program:
                program.ask({"make": asked})
            shutil.copyfile(made, file)
        finally:
            made.unlink(missing_ok=True)

    def _open(self, file: Path, rows: int, *, pushes: int = 0, put: bool = False) -> dict[str, Any]:
        """Opens it in a process of its own, without any page of it in memory."""
        machine.forget_pages(file)
        self.report.say(f"opening {rows:,} rows{' after a kill' * (pushes > 0)}")
        self.openings += 1
        asked = {
            "file": str(file),
            "rows": rows,
            "keys": self.options.batch,
            "seed": self.options.seed + self.openings,
            "pushes": pushes,
            "put": put,
        }
        with Program(self.options.program) as program:
            return self._checked(program.ask({"open": asked}))

    def _kill(self, file: Path, rows: int) -> float:
        """Lets a process put requests, and kills it after some were acknowledged. Milliseconds of a
        request, from the second one on.
        """
        asked = {"file": str(file), "rows": rows, "keys": self.options.batch}
        with Program(self.options.program) as program:
            program.tell({"push": asked})
            program.listen()
            begin = time.perf_counter()
            while program.listen()["acknowledged"] < self.options.pushes:
                pass
            return 1e3 * (time.perf_counter() - begin) / float(max(self.options.pushes - 1, 1))


def _median(answers: list[dict[str, Any]], what: str) -> float:
    return float(statistics.median(one[what] for one in answers))
