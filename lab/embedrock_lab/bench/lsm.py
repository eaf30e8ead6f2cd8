"""``lsm``: what rows cost that are stored as an lsm, beside a log.

* ``index_bytes_lsm_dense``, ``index_bytes_lsm``: index bytes per row of a dense and of a growing
  table after all rows are written, in random order where the table grows, and commits have merged
  the top down to its share. ``lsm_pages_per_key``: pages read per key of the growing table that was
  not in memory, random keys that exist; a key whose page another key of its batch reads costs none.
* ``lsm_vs_log``: rows/s of one load on both storages at equal memory, in rounds: a batch of Zipf
  0.9 keys gets an optimizer step, another is read, a round ends with a commit.
  ``lsm_small_budget`` is the lsm with a fifth of the log's memory.
* ``lsm_write_amplification``: bytes of rows and their pages, merges and cleaning included, divided
  by the bytes of rows that left memory changed; ``lsm_space_amplification``: the most that the
  store took on disk divided by the bytes of its rows; both of the lsm during these rounds.
* ``lsm_reopen_s``: from ``open`` until a batch of random keys is returned, without the page cache.

Every row that is read is compared with its formula or with a replay of its steps.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench import child, write
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.reopen import drop_page_cache
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Timed, interleave
from embedrock_lab.measure.rows import LOAD_ROWS, fill, mismatches, ranges, scattered, values_of

__all__ = ["Options", "bytes_of_rows", "commit_all", "run"]

STORAGES = ("lsm", "log")
GROWING, DENSE = "growing", "dense"
COMMITS_MAX = 50
"""Commits after which an index that still shrinks is taken as it is."""
LSM, LOG, SMALL = "lsm", "log", "lsm, small"
"""Systems of the load."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(500_000, "rows of each table that waits")
    dim: int = option(16, "float32 values per row")
    fill_memory: str = option("25%", "budget while rows are written")
    batch: int = option(4096, "keys of a batch")
    reads: int = option(20, "batches read from each table")
    load_rows: int = option(1_000_000, "rows under the load")
    memory: str = option("10%", "budget under the load")
    small_memory: str = option("2%", "budget of the lsm with less")
    exponent: float = option(0.9, "skew of the load's keys")
    warm_batches: int = option(100, "batches before the rounds")
    batches: int = option(20, "batches of a round")
    rounds: int = option(5, "rounds of each system")
    patience: float = patience_of(10.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("lsm", options)
    for kind in (DENSE, GROWING):
        report.results[kind] = {one: _waiting(report, options, kind, one) for one in STORAGES}
    dense, growing = report.results[DENSE]["lsm"], report.results[GROWING]["lsm"]
    report.figure("index_bytes_lsm_dense", dense["index_bytes_per_row"])
    report.figure("index_bytes_lsm", growing["index_bytes_per_row"])
    report.figure("lsm_pages_per_key", growing["pages_per_key"])
    report.figure("lsm_reopen_s", growing["reopen_s"])
    _load(report, options)
    return report.finish()


def _waiting(report: Report, options: Options, kind: str, storage: str) -> dict[str, Any]:
    """A table whose rows are written once and then read."""
    rows, dim = options.rows, options.dim
    with workspace(options, 3 * rows * (4 * dim + 24)) as place:
        shape = {"store": str(place / "store"), "storage": storage, "rows": rows, "dim": dim}
        report.say(f"writing {rows:,} rows of a {kind} table as {storage}")
        written = child.call(
            f"{__name__}:fill_table", **shape, kind=kind, memory=options.fill_memory
        )
        report.say("reading some")
        found = child.call(
            f"{__name__}:read",
            store=str(place / "store"),
            kind=kind,
            rows=rows,
            memory=options.fill_memory,
            batch=options.batch,
            batches=options.reads,
            seed=options.seed,
        )
    report.results["mismatches"] += found.pop("mismatches")
    report.device = found.pop("device")
    return {**written, **found}


def fill_table(
    store: str, storage: Any, rows: int, dim: int, kind: str, memory: str
) -> dict[str, Any]:
    """Writes every row, commits until nothing is left to merge. Runs in a child process."""
    with _open(store, memory) as opened:
        rest: dict[str, Any] = {"storage": storage, "optimizer": "none"}
        if kind == GROWING:
            table = opened.table("rows", dim, expected_rows=rows, **rest)
        else:
            table = opened.table("rows", dim, rows, **rest)
        begin = time.perf_counter()
        for numbers in ranges(rows, LOAD_ROWS):
            keys = _keys(numbers, kind)
            table.put(keys, values_of(keys, dim), reset_state=True)
        commits = commit_all(opened)
        fill_s = time.perf_counter() - begin
        stats, facts = opened.stats(), _facts(opened)
        changed = stats["written"]["rows"]
        return {
            "index_bytes_per_row": facts["index_bytes"] / rows,
            "index_bytes": facts["index_bytes"],
            "row_bytes": facts["row_bytes"],
            "disk_bytes_per_row_byte": stats["disk_bytes"] / (rows * facts["row_bytes"]),
            "fill_s": fill_s,
            "fill_write_amplification": bytes_of_rows(stats) / changed,
            "budget_bytes": stats["budget_bytes"],
            "commits": commits,
        }


def read(
    store: str, kind: str, rows: int, memory: str, batch: int, batches: int, seed: int
) -> dict[str, Any]:
    """Reads random keys from a store that has none in memory. Runs in a child process."""
    rng = np.random.default_rng(seed)
    drop_page_cache(Path(store))
    asked = [_keys(rng.choice(rows, batch, replace=False), kind) for _ in range(batches)]
    begin = time.perf_counter()
    with _open(store, memory, create=False) as opened:
        open_s = time.perf_counter() - begin
        table = opened.table("rows")
        wrong = 0
        for number, keys in enumerate(asked):
            found = table.get(keys)
            if number == 0:
                reopen_s = time.perf_counter() - begin
            wrong += mismatches(found, keys)
        stats = opened.stats()
        return {
            "pages_per_key": stats["pages_read"] / max(stats["rows_loaded"], 1),
            "pages": stats["pages_read"],
            "rows_loaded": stats["rows_loaded"],
            "page_bytes": _facts(opened)["page_bytes"],
            "open_s": open_s,
            "reopen_s": reopen_s,
            "mismatches": wrong,
            "device": machine.device_facts(opened),
        }


def _load(report: Report, options: Options) -> None:
    """Both storages, and the lsm with less memory, under one load."""
    names = ("batch", "exponent", "warm_batches", "batches", "rounds", "patience", "seed")
    chosen = {name: getattr(options, name) for name in names}
    budgets = {LSM: options.memory, LOG: options.memory, SMALL: options.small_memory}
    rows, row_bytes = options.load_rows, 4 * options.dim + 4
    with workspace(options, len(budgets) * 5 * rows * row_bytes) as place:
        report.say(f"updates and reads of {rows:,} rows in each of {len(budgets)} stores")
        found = child.call(
            f"{__name__}:load",
            place=str(place),
            rows=rows,
            dim=options.dim,
            budgets=budgets,
            **chosen,
        )
        for name in budgets:
            report.say(f"reading every row back: {name}")
            store, counts = str(place / name), str(place / f"{name}.npy")
            wrong = child.call("embedrock_lab.bench.write:verify", store=store, counts=counts)
            report.results["mismatches"] += wrong
    figures, notes = found.pop("figures"), found.pop("notes")
    report.results["load"] = found.pop("systems")
    report.results["noise"] = {"load": found.pop("noise")}
    report.notes += notes
    for name, value in figures.items():
        report.figure(name, value)


def load(
    place: str,
    rows: int,
    dim: int,
    budgets: dict[str, str],
    batch: int,
    exponent: float,
    warm_batches: int,
    batches: int,
    rounds: int,
    patience: float,
    seed: int,
) -> dict[str, Any]:
    """Lets the systems run in rounds. Runs in a child process."""
    for name in budgets:
        with _open(f"{place}/{name}", "1GiB") as opened:
            storage: Any = "log" if name == LOG else "lsm"
            table = opened.table("rows", dim, rows, optimizer="rowwise_adagrad", storage=storage)
            fill(table, rows, state=True)
            commit_all(opened)
    sides = {
        name: _Side(Path(place) / name, memory, Zipf(rows, exponent, seed), batch)
        for name, memory in budgets.items()
    }
    for one in sides.values():
        one.round(warm_batches)
        one.begin()
    found = interleave(
        [lambda one=one: one.round(batches) for one in sides.values()],  # type: ignore[misc]
        rounds,
        patience,
    )
    answers = {name: one.answer(found.rate(i)) for i, (name, one) in enumerate(sides.items())}
    for name, one in sides.items():
        one.store.close()
        np.save(f"{place}/{name}.npy", one.counts)
    at = {name: i for i, name in enumerate(sides)}
    asked = [
        f"{name}: memory={budgets[name]} is too little, {one['budget_bytes']} bytes were taken"
        for name, one in answers.items()
        if one["budget_bytes"] > one["asked_bytes"]
    ]
    return {
        "systems": answers,
        "figures": {
            "lsm_vs_log": found.ratio(at[LSM], at[LOG]),
            "lsm_small_budget": found.ratio(at[SMALL], at[LOG]),
            "lsm_write_amplification": answers[LSM]["write_amplification"],
            "lsm_space_amplification": answers[LSM]["space_amplification"],
        },
        "noise": found.summary(),
        "notes": [*asked, *(f"lsm_vs_log: {note}" for note in found.notes)],
    }


class _Side:
    """A store under updates and reads, and how many steps each of its rows had."""

    def __init__(self, store: Path, memory: str, keys: Zipf, batch: int) -> None:
        self.store = _open(str(store), memory, create=False)
        self.keys, self.batch = keys, batch
        self.table = self.store.table("rows")
        dim = self.table.embedding_dim
        self.counts = np.zeros(len(self.table), np.uint32)
        self.gradients = np.full((batch, dim), write.GRADIENT, np.float32)
        self.out = np.empty((batch, dim), np.float32)
        self.step = self.store.step or 0
        self.disk_bytes_max = 0
        self.before: dict[str, Any] = {}

    def round(self, batches: int) -> Timed:
        """So many batches, half of whose rows change, and a commit."""
        timed = Timed()
        for _ in range(batches):
            changed, read_only = self.keys.distinct(self.batch), self.keys.distinct(self.batch)
            with timed:
                self.table.update(changed, self.gradients[: len(changed)], lr=write.LR)
                self.table.get(read_only, out=self.out[: len(read_only)])
            timed.work += len(changed) + len(read_only)
            self.counts[changed] += 1
        self.step += 1
        with timed:
            self.store.commit(self.step)
        self.disk_bytes_max = max(self.disk_bytes_max, self.store.stats()["disk_bytes"])
        return timed

    def begin(self) -> None:
        """Counting begins here."""
        self.before = self.store.stats()
        self.disk_bytes_max = self.before["disk_bytes"]

    def answer(self, rate: float) -> dict[str, Any]:
        stats, facts = self.store.stats(), _facts(self.store)
        new = {name: stats[name] - self.before[name] for name in ("pages_read", "rows_loaded")}
        written = {
            name: stats["written"][name] - self.before["written"][name] for name in stats["written"]
        }
        changed = max(written["rows"], 1)
        rows = len(self.counts) * facts["row_bytes"]
        seconds = {
            f"{name}_s": stats["time"][name] - self.before["time"][name] for name in stats["time"]
        }
        return {
            "rows_per_s": rate,
            "budget_bytes": stats["budget_bytes"],
            "asked_bytes": stats["asked_bytes"],
            **stats["memory"],
            "resident_rows": facts["resident_rows"],
            "pages_per_row": new["pages_read"] / max(new["rows_loaded"], 1),
            "rows_loaded": new["rows_loaded"],
            "rows_written": written["rows"] // facts["row_bytes"],
            "write_amplification": (bytes_of_rows(stats) - bytes_of_rows(self.before)) / changed,
            "moved_per_row": written["moved"] / changed,
            "journal_per_row": (written["deltas"] + written["pieces"]) / changed,
            "space_amplification": self.disk_bytes_max / rows,
            **seconds,
        }


def _open(store: str, memory: str, create: bool = True) -> embedrock.Store:
    with warnings.catch_warnings():
        # A budget that is too small for a log's index is part of what is compared.
        warnings.simplefilter("ignore", embedrock.BudgetWarning)
        return embedrock.open(store, memory, create=create)


def commit_all(store: embedrock.Store) -> int:
    """Commits until nothing is left to merge: what a commit merges, the next one makes durable."""
    commits, before = 0, -1
    while commits < COMMITS_MAX and (now := _facts(store)["index_bytes"]) != before:
        commits, before = commits + 1, now
        store.commit(commits)
    return commits


def _facts(store: embedrock.Store) -> dict[str, int]:
    """The store's one row class."""
    facts: dict[str, int] = store.stats()["classes"][0]
    return facts


def bytes_of_rows(stats: dict[str, Any]) -> int:
    """Bytes written to files of rows: rows, rows that moved, what pages have beside them."""
    return sum(int(stats["written"][name]) for name in ("rows", "moved", "pages"))


def _keys(numbers: npt.NDArray[np.int64], kind: str) -> npt.NDArray[np.integer]:
    return scattered(numbers) if kind == GROWING else numbers
