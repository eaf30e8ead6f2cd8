"""``arrival``: pages that training reads, by the order in which rows are written.

Training writes each row where the log is when it leaves memory, so rows that arrive together lie
together. That order is compared with others on queries that were made, in which scattered rows
belong together, or on those of traces.

* ``arrival_saved``: 1 - pages read per batch of a store that is trained as the queries come,
  divided by those of one whose batches come sorted by key, which loses their order. Each batch is
  read and updated in one call for all tables; those after half of the queries count.
* ``rank_flush``, ``rank_clean``, ``rank_both``: pages per batch divided by those of arrival, in a
  model of the log: rows are flushed, moved by cleaning, or both, in the order of a plan
  (``embedrock.placement``) that was made of the queries before, half of them and then more.
  ``rank_gathered``: both, with eight segments cleaned together. ``rank_kept``: if each row always
  lay in the order of the plan, which no writing reaches.

With several traces the figures are geometric means. Every row that the store reads is compared
with how often it was trained before. *Source*: MaxEmbed has the plan, of rows that do not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock.errors import MisuseError
from embedrock.trace import Trace
from embedrock_lab.bench.arrival.model import (
    Load,
    Plan,
    Settings,
    pages_of_training,
    pages_when_kept,
)
from embedrock_lab.bench.arrival.stored import Training, train
from embedrock_lab.bench.common import Report, named_traces, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.serve import communities

__all__ = ["Options", "run"]

PLANNED = (0.5, 0.75)
"""Shares of the batches after which a plan is made of those before."""
GATHERED = 8
BESIDE_BYTES = 320 << 10
"""Least memory of a store beside rows and index."""
MODELS: dict[str, dict[str, Any]] = {
    "flush": {"flushes": "rank"},
    "clean": {"cleans": "rank"},
    "both": {"flushes": "rank", "cleans": "rank"},
    "gathered": {"flushes": "rank", "cleans": "rank", "gathered": GATHERED},
}
"""The kinds of writes that follow the order of a plan."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    trace: list[Path] | None = option(None, "queries, instead of made ones", metavar="FILE")
    table: str | None = option(None, "table of a trace whose file does not say it")
    rows: int = option(50_000, "rows of the made table")
    queries: int = option(20_000, "made queries")
    length: float = option(20, "mean keys of a made query")
    batch: int = option(64, "queries of a batch")
    epochs: int = option(1, "times that the queries come")
    commits: int = option(20, "commits, evenly spread")
    dim: int = option(60, "float32 values per row")
    page_bytes: int = option(4096, "bytes of a page")
    cache: float = option(10.0, "memory, per cent of the rows")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    _check(options)
    report = Report("arrival", options)
    found = [_measured(report, options, name, trace) for name, trace in _traces(options)]
    for figure in found[0]:
        ratios = [one[figure] for one in found]
        if not all(ratios):
            report.missing(figure, "a trace read no page: all that it asks for was in memory")
            continue
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        report.figure(figure, 1 - mean if figure == "arrival_saved" else mean)
    return report.finish()


def _check(options: Options) -> None:
    """Errors: ``MisuseError``."""
    for name in ("rows", "queries", "batch", "epochs", "commits", "dim"):
        value = getattr(options, name)
        if value < 1:
            raise MisuseError(f"--{name} is {value}, expected 1 at least")
    named_traces(options.trace)


def _traces(options: Options) -> Iterator[tuple[str, Trace]]:
    if options.trace is None:
        yield "made", communities(options.rows, options.queries, options.length, options.seed)
    for name, file in named_traces(options.trace).items():
        yield name, Trace.load(file, table=options.table)


def _measured(report: Report, options: Options, name: str, trace: Trace) -> dict[str, float]:
    """Pages of each order, divided by what they are compared with."""
    queries = [(one.values, one.offsets) for one in trace.tables.values()]
    tables, keys, numbers, ends = _core.number_rows(queries)
    rows, offsets = _repeated(numbers.astype(np.int64), ends, options.epochs)
    load = Load(rows, offsets, len(keys), options.batch)
    report.say(f"{name}: {load.queries:,} queries of {len(keys):,} rows")
    stored, rows_per_page = _stored(report, options, load, tables)
    settings = Settings(rows_per_page, options.cache / 100, options.commits, measured=PLANNED[0])
    plans = _plans(options, load, settings.rows_per_page)
    counts = {"arrival": pages_of_training(load, settings)}
    identity = replace(settings, flushes="identity", cleans="identity")
    counts["identity"] = pages_of_training(load, identity)
    for order, changes in MODELS.items():
        report.say(f"{name}: rank, {order}")
        counts[f"rank {order}"] = pages_of_training(load, replace(settings, **changes), plans)
    # Before there is a plan, none of what is read counts.
    counts["rank kept"] = pages_when_kept(load, settings, plans)
    report.results[name] = {"store": stored, "model": {k: asdict(v) for k, v in counts.items()}}
    return {
        "arrival_saved": _ratio(stored["arrival"]["pages"], stored["identity"]["pages"]),
        **{
            f"rank_{order}": _ratio(counts[f"rank {order}"].pages, counts["arrival"].pages)
            for order in (*MODELS, "kept")
        },
    }


def _ratio(pages: float, of: float) -> float:
    """0 where nothing was read."""
    return pages / of if of else 0.0


def _repeated(
    rows: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], epochs: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    begins = [offsets[1:] + len(rows) * epoch for epoch in range(epochs)]
    return np.tile(rows, epochs), np.concatenate([offsets[:1], *begins])


def _stored(
    report: Report, options: Options, load: Load, tables: npt.NDArray[np.uint16]
) -> tuple[dict[str, dict[str, float]], int]:
    """Reads of a store that is trained in the order of the queries, and sorted by key; and the rows
    of its pages."""
    training = Training(
        tables,
        load.rows,
        load.offsets,
        options.batch,
        options.dim,
        options.page_bytes,
        _memory(options, load.num_rows),
        options.commits,
        PLANNED[0],
    )
    found = {}
    with workspace(options, 8 * load.num_rows * (4 * options.dim + 16)) as directory:
        for name, ordered in (("arrival", False), ("identity", True)):
            report.say(f"training a store, {name}")
            one = train(directory / name, replace(training, ordered=ordered))
            report.results["mismatches"] += one.mismatches
            found[name] = {"pages": one.pages, "rows": one.rows, "written": one.written}
    return found, one.rows_per_page


def _memory(options: Options, rows: int) -> int:
    """Bytes with which a store holds the share of the rows, beside its index and least buffers."""
    return int(options.cache / 100 * rows * 4 * options.dim) + 4 * rows + BESIDE_BYTES


def _plans(options: Options, load: Load, rows_per_page: int) -> list[Plan]:
    """Plans of the queries before each of the batches at which one is made."""
    plans, count = [], -(-load.queries // load.batch)
    for share in PLANNED:
        begins = int(share * count)
        offsets = load.offsets[: begins * load.batch + 1]
        rows = load.rows[: offsets[-1]].astype(np.uint32)
        order = _core.place_rows(
            rows, offsets, load.num_rows, rows_per_page, "partition", seed=options.seed
        )
        rank = np.empty(load.num_rows, np.int64)
        rank[order] = np.arange(load.num_rows)
        unknown = np.ones(load.num_rows, np.bool_)
        unknown[rows] = False
        rank[unknown] = load.num_rows
        plans.append(Plan(begins, rank))
    return plans
