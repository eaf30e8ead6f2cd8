"""``reopen``: from a crash to the first rows.

A trainer makes ten commits, writes at least a gigabyte that no commit holds, and is killed. With
the page cache dropped, ``reopen_s_per_100m`` is the time from ``open`` until 65,536 uniform keys
are returned and verified: 100 M x 8 float32 at 10 % memory, or the smallest budget that works,
because the index of rows this short takes more. The trainer's last writes must not be there.

With fewer ``--rows`` the figure is scaled to 100 M: what is read grows with the index, and the
part that does not (the first keys, what no commit holds) is then counted more than once.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.measure import machine
from embedrock_lab.measure.rows import fill, least_budget, mismatches, ranges, values_of

__all__ = ["Options", "drop_page_cache", "run"]

DEFINED_ROWS = 100_000_000
COMMITS = 10
ROWS_PER_COMMIT_SHARE = 0.01
UNCOMMITTED_VERSION = 200
"""Version in rows that no commit has: versions of committed rows are below."""
LOAD_ROWS = 1 << 18
READY = "uncommitted\n"


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(DEFINED_ROWS, "rows of the table")
    dim: int = option(8, "float32 values per row")
    memory: str = option("10%", "budget of the store")
    keys: int = option(65_536, "keys of the first read")
    uncommitted: int = option(10**9, "bytes written after the last commit")
    rounds: int = option(3, "openings; the median counts")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    rows = options.rows
    report = Report("reopen", options)
    needed = 5 * rows * (4 * options.dim + 16) + 3 * options.uncommitted
    with workspace(options, needed) as place:
        store = place / "store"
        report.say(f"loading {rows:,} rows of {options.dim} float32, {COMMITS} commits")
        report.results["killed"] = _killed(store, rows, options.dim, options.uncommitted)
        budget, instead = _budget(store, options.memory)
        report.results["memory"] = budget
        if instead:
            report.notes.append(f"memory={options.memory} is too little: {instead}")
        rounds: list[dict[str, Any]] = []
        for _ in range(options.rounds):
            dropped = drop_page_cache(store)
            report.say(f"opening with the page cache dropped ({dropped})")
            rounds.append(
                child.call(
                    f"{__name__}:measure",
                    store=str(store),
                    memory=budget,
                    keys=options.keys,
                    seed=options.seed + len(rounds),
                )
            )
    report.results["page_cache"] = dropped
    report.results["mismatches"] += sum(one["mismatches"] for one in rounds)
    report.device = rounds[0]["device"]
    for name in ("reopen_s", "open_s", "first_read_s"):
        report.results[name] = statistics.median(one[name] for one in rounds)
    report.results["rounds_s"] = {str(i): one["reopen_s"] for i, one in enumerate(rounds)}
    report.results["within_budget"] = all(one["within_budget"] for one in rounds)
    report.figure("reopen_s_per_100m", report.results["reopen_s"] * DEFINED_ROWS / rows)
    if rows != DEFINED_ROWS:
        report.notes.append(f"measured with {rows:,} rows and scaled to {DEFINED_ROWS:,}")
    return report.finish()


def _killed(store: Path, rows: int, dim: int, uncommitted: int) -> dict[str, Any]:
    """Lets a trainer work until it has written enough since its last commit, and kills it."""
    program = f"import sys; from {__name__} import train; train(*sys.argv[1:])"
    arguments = [str(store), str(rows), str(dim), str(uncommitted)]
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    trainer = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert trainer.stdin is not None and trainer.stdout is not None
    try:
        said = trainer.stdout.readline()
        if said != READY:
            raise child.ChildError(f"the trainer ended with {trainer.wait()} before it was killed")
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        trainer.stdin.close()
        trainer.stdout.close()
    files = {file.name: file.stat().st_size for file in store.iterdir()}
    journal = sum(size for name, size in files.items() if name.startswith("journal-"))
    return {"commits": COMMITS + 1, "uncommitted_bytes_min": uncommitted, "journal_bytes": journal}


def version_of(keys: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """The version that the last commit has of each row: commit ``i`` rewrites block ``i``."""
    block = max(int(rows * ROWS_PER_COMMIT_SHARE), 1)
    found = keys // block + 1
    return np.where(found <= COMMITS, found, 0)


def train(store: str, rows_text: str, dim_text: str, uncommitted_text: str) -> None:
    """Loads, commits, writes on, and waits to be killed. Runs in a child process."""
    rows, dim, uncommitted = int(rows_text), int(dim_text), int(uncommitted_text)
    # The index, and a cache that is too small for what is written after the last commit.
    budget = rows * 4 + max(rows * 4 * dim // 8, 1 << 20) + (2 << 20)
    opened = embedrock.open(store, budget)
    table = opened.table("rows", dim, rows, optimizer="sgd")
    fill(table, rows)
    opened.commit(0)
    block = max(int(rows * ROWS_PER_COMMIT_SHARE), 1)
    for step in range(1, COMMITS + 1):
        begin = (step - 1) * block
        for part in ranges(block, LOAD_ROWS):
            keys = part + begin
            table.put(keys, values_of(keys, dim, version=step), reset_state=True)
        opened.commit(step)
    before = opened.stats()["bytes_written"]
    while True:
        before_pass = opened.stats()["bytes_written"]
        for keys in ranges(rows, LOAD_ROWS):
            table.put(keys, values_of(keys, dim, version=UNCOMMITTED_VERSION), reset_state=True)
            if opened.stats()["bytes_written"] - before >= uncommitted:
                sys.stdout.write(READY)
                sys.stdout.flush()
                # Between commits, with rows in every buffer. Killed here, or left alone.
                sys.stdin.read()
                os._exit(1)
        if opened.stats()["bytes_written"] == before_pass:
            sys.exit(f"{rows} rows of {dim} fit the cache, so that nothing is written; give more")


def _budget(store: Path, memory: str) -> tuple[str, str]:
    """The budget that works, and why the one that was asked for does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedrock.BudgetWarning)
            with embedrock.open(store, memory, create=False) as opened:
                opened.table("rows").get(np.arange(1))
                stats = opened.stats()
    except embedrock.errors.BudgetError as error:
        return str(least_budget(error)), str(error)
    asked, taken = stats["asked_bytes"], stats["budget_bytes"]
    return (str(taken), f"{asked} bytes, {taken} are taken") if asked < taken else (memory, "")


def drop_page_cache(store: Path) -> str:
    """Makes the next reads come from the device; says how."""
    files = [file for file in store.iterdir() if file.is_file()]
    for file in files:
        machine.forget_pages(file)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return "advised of each file"
    return "drop_caches"


def measure(store: str, memory: str, keys: int, seed: int) -> dict[str, Any]:
    """Opens and reads uniform keys, against the clock. Runs in a child process."""
    rng = np.random.default_rng(seed)
    machine.reset_peak_rss()
    rss_before = machine.rss_bytes()
    begin = time.perf_counter()
    with embedrock.open(store, memory, create=False) as opened:
        open_s = time.perf_counter() - begin
        table = opened.table("rows")
        asked = rng.integers(0, len(table), keys)
        found = table.get(asked)
        read_s = time.perf_counter() - begin - open_s
        versions = version_of(asked, len(table))
        wrong = sum(
            mismatches(found[versions == version], asked[versions == version], int(version))
            for version in np.unique(versions)
        )
        seconds = time.perf_counter() - begin
        budget = opened.stats()["budget_bytes"]
        grown = machine.peak_rss_bytes() - rss_before
        return {
            "reopen_s": seconds,
            "open_s": open_s,
            "first_read_s": read_s,
            "mismatches": wrong + int(len(found) != keys),
            "within_budget": grown <= machine.memory_limit(budget),
            "peak_rss_grown_bytes": grown,
            "step": opened.step,
            "device": machine.device_facts(opened),
        }
