"""``index``: memory per row beside the rows.

``index_bytes_dense`` is the index of a dense table, counters of segments included, divided by its
rows; ``index_bytes_sparse`` the largest quotient of a growing table's index and its stored keys
while it grows to 16 M keys from 1 M on, then loses half of them and gets as many new ones.
``budget_rows_16`` and ``budget_rows_64`` are the part of a budget of a tenth of a table that is
rows, with 16 and 64 values each, once all rows are stored. ``cache_bytes`` is what the warm row
cache takes beyond the rows that it holds, empty places included, per resident row. Every byte is
counted by the engine's allocations, not by formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.measure.machine import device_facts
from embedrock_lab.measure.rows import LOAD_ROWS, fill, mismatches, scattered, values_of

__all__ = ["Options", "run"]

CHECKED_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(10_000_000, "rows of the dense table")
    dim: int = option(32, "float32 values per row")
    memory: str = option("25%", "budget of the dense table")
    grow_from: int = option(1_000_000, "keys at the first look")
    grow_to: int = option(16_000_000, "keys at the last one")
    sparse_memory: str = option("2GiB", "budget of the growing table")
    budget_rows: int = option(1_000_000, "rows of the tables whose budget is divided")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("index", options)
    index, cache = _dense(report, options, options.dim)
    report.figure("index_bytes_dense", index)
    report.figure("cache_bytes", cache)
    _dense(report, options, 8)
    # Of rows of 16 bytes a quarter is hardly more than their index.
    _dense(report, options, 8, "float16", "60%")
    report.figure("index_bytes_sparse", _sparse(report, options))
    for dim in (16, 64):
        report.figure(f"budget_rows_{dim}", _divided(report, options, dim))
    return report.finish()


def _facts(store: embedrock.Store) -> dict[str, int]:
    """The store's one row class."""
    facts: dict[str, int] = store.stats()["classes"][0]
    return facts


def _dense(
    report: Report,
    options: Options,
    dim: int,
    dtype: str = "float32",
    memory: str | None = None,
) -> tuple[float, float]:
    """Bytes of index per row, and of cache beyond the rows per resident row."""
    rows, memory = options.rows, memory or options.memory
    with workspace(options, 3 * rows * (4 * dim + 24)) as place:
        report.say(f"filling {rows:,} rows of {dim} {dtype}, dense, memory {memory}")
        with embedrock.open(place / "store", memory) as store:
            table = store.table("rows", dim, rows, dtype=dtype)
            report.device = device_facts(store)
            most = 0

            def look() -> None:
                nonlocal most
                most = max(most, _facts(store)["index_bytes"])

            fill(table, rows, each=look)
            store.commit(1)
            look()
            _verify(report, table, np.random.default_rng(options.seed).integers(0, rows, 1 << 16))
            facts = _facts(store)
            store.commit(2)
    resident = facts["resident_rows"]
    beyond = (facts["cache_bytes"] - resident * facts["row_bytes"]) / resident
    name = f"dense_{dim}" if dtype == "float32" else f"dense_{dim}_{dtype}"
    report.results[name] = {
        "row_bytes": facts["row_bytes"],
        "index_bytes": most,
        "index_bytes_per_row": most / rows,
        "resident_rows": resident,
        "cache_bytes": facts["cache_bytes"],
        "cache_bytes_per_resident_row": beyond,
    }
    return most / rows, beyond


def _divided(report: Report, options: Options, dim: int) -> float:
    """The part of a tenth of a table that is rows, in pages of a size that no device chooses."""
    rows = options.budget_rows
    with (
        workspace(options, 3 * rows * (4 * dim + 24)) as place,
        embedrock.open(place / "store", "10%", page_bytes=4096) as store,
    ):
        table = store.table("rows", dim, rows, storage="log")
        report.say(f"dividing the budget of {rows:,} rows of {dim} float32")
        fill(table, rows)
        store.commit(1)
        _verify(report, table, np.random.default_rng(options.seed).integers(0, rows, 1 << 12))
        stats = store.stats()
    parts: dict[str, float] = stats["budget"]
    report.results[f"budget_{dim}"] = {"budget_bytes": stats["budget_bytes"], **parts}
    return parts["rows_share"]


def _sparse(report: Report, options: Options) -> float:
    """The most bytes of index per stored key."""
    dim, most = options.dim, options.grow_to
    half = most // 2
    with (
        workspace(options, 5 * most * (4 * dim + 24)) as place,
        embedrock.open(place / "store", options.sparse_memory) as store,
    ):
        table = store.table("rows", dim)
        seen = _Seen(store, options.grow_from)
        report.say(f"growing to {most:,} keys")
        for begin in range(0, most, LOAD_ROWS):
            _insert(table, begin, min(begin + LOAD_ROWS, most))
            seen.look("growing")
        store.commit(1)
        seen.look("growing")
        report.say(f"deleting {half:,} keys")
        for begin in range(0, most, 8 * LOAD_ROWS):
            table.delete(scattered(np.arange(begin, min(begin + 8 * LOAD_ROWS, most), 2)))
            seen.look("deleting")
        store.commit(2)
        seen.look("deleting")
        report.say(f"inserting {half:,} keys")
        for begin in range(most, most + half, LOAD_ROWS):
            _insert(table, begin, min(begin + LOAD_ROWS, most + half))
            seen.look("inserting")
        store.commit(3)
        seen.look("inserting")
        report.say("verifying rows")
        _verify_sparse(report, table, options)
        stats = store.stats()
        report.results["sparse"] = {
            "keys": len(table),
            "index_bytes": _facts(store)["index_bytes"],
            "bytes_per_key_max": dict(seen.most),
            "bytes_per_key_end": seen.last,
            "tag_collisions": stats["tag_collisions"],
            "pages_read": stats["pages_read"],
        }
    return max(seen.most.values())


class _Seen:
    """The most bytes of index per key that the index holds, by phase."""

    def __init__(self, store: embedrock.Store, keys_min: int) -> None:
        self.store, self.keys_min = store, keys_min
        self.most: dict[str, float] = {}
        self.last = 0.0

    def look(self, phase: str) -> None:
        facts = _facts(self.store)
        # Rows that are only in the cache have no place in the index yet.
        indexed = facts["newest_copies"]
        if indexed >= self.keys_min:
            self.last = facts["index_bytes"] / indexed
            self.most[phase] = max(self.most.get(phase, 0.0), self.last)


def _insert(table: embedrock.Table, begin: int, end: int) -> None:
    keys = scattered(np.arange(begin, end))
    table.put(keys, values_of(keys, table.embedding_dim), reset_state=True)


def _verify(report: Report, table: embedrock.Table, keys: npt.NDArray[np.integer]) -> None:
    report.results["mismatches"] += mismatches(table.get(keys), keys, dtype=table.dtype)


def _verify_sparse(report: Report, table: embedrock.Table, options: Options) -> None:
    """Kept keys read as written, deleted ones are gone."""
    rng = np.random.default_rng(options.seed)
    numbers = rng.integers(0, options.grow_to + options.grow_to // 2, CHECKED_ROWS)
    deleted = (numbers < options.grow_to) & (numbers % 2 == 0)
    _verify(report, table, scattered(numbers[~deleted]))
    there = table.contains(scattered(numbers))
    report.results["mismatches"] += int((there == deleted).sum())
