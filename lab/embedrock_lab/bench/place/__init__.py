"""``place``: what ways to lay out rows cost to learn, and what held-out queries read from them.

Pages are counted, and nothing is stored: eleven logs of a folder, or traces of yours, are learned
from by their first 80 % of queries, and the others are served by simulation, with an exact LRU
cache of rows that the learned queries have filled, one by one and as unions of 32. Layouts are the
order of keys (``identity``), any (``random``), by how often rows are asked for (``frequency``), the
partition as the MaxEmbed paper makes it (``shp``), ours (``partition``), Mt-KaHyPar's where that is
installed; with replicas by ``residual`` greedy and by the paper's ``connectivity``, and the paper's
strawmen ``rpp`` and ``fpr``. Each is made in a process of its own.

* ``shp_gain_c0``, ``shp_gain_c10``: pages of identity ÷ pages of the partition, which are the
  useful rows of a page the other way round: without a cache, and with one for 10 % of the rows,
  geometric means; ``_worst``: of the worst trace.
* ``partition_vs_shp``: pages of the paper's partition ÷ ours, without a cache, geometric mean.
  ``mtkahypar_pages``, ``mtkahypar_time``: our pages ÷ Mt-KaHyPar's on the worst list or session
  log; our time ÷ its time, median.
* ``pipeline_gain``, ``_worst``: pages of the paper's partition without replicas ÷ pages of ours
  with residual greedy's for the largest share, unions of 32, that cache: median, worst trace.
  ``residual_vs_paper``: pages of the paper's strategy with replicas for 40 % ÷ pages of residual
  greedy with 20 %, in the same way, median.
* ``partition_pins_per_s``: pins (rows of queries) ÷ seconds of one core, all traces together.
  ``partition_bytes_per_pin``, ``partition_scaling``: memory beside the trace and time per pin of
  made queries, the largest; the latter ÷ that of the smallest.

A sample of every layout is served by plain Python too, and each row has to be served by a page that
is counted; what differs is a mismatch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.errors import MisuseError
from embedrock.trace import Trace
from embedrock_lab.bench import common
from embedrock_lab.bench.common import Report, named_traces, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.place.compare import compared
from embedrock_lab.bench.place.figures import fill
from embedrock_lab.bench.place.hypergraph import is_installed
from embedrock_lab.bench.place.layouts import Maker
from embedrock_lab.bench.place.logs import LOGS, Hyperedges, of_trace
from embedrock_lab.bench.place.plot import save_plot
from embedrock_lab.bench.place.summary import summarised
from embedrock_lab.bench.serve import communities

__all__ = ["Options", "render", "run"]

FOLDER = "EMBEDROCK_DATA"
"""The variable that says where the logs are."""
LENGTH, ROWS_PER_QUERY = 20, 1
"""Of made queries: mean rows, and rows of the table for each query."""
MOST_PINS = 30_000_000
"""The size that ``--all`` adds."""
DISK_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    data: Path = option(
        os.environ.get(FOLDER),
        f"where the eleven logs are ({FOLDER} in the environment says it too)",
        metavar="FOLDER",
    )
    logs: list[str] = option(
        [one.name for one in LOGS],
        "those of the logs that are wanted",
        choices=[one.name for one in LOGS],
    )
    trace: list[Path] | None = option(None, "traces of yours, instead of the logs", metavar="FILE")
    table: str | None = option(None, "table of the traces, where their files do not say it")
    queries: int = option(40_000, "most queries of a trace")
    rows_per_page: int = option(16, "rows of a page")
    replicate: list[float] = option(
        [0.1, 0.2, 0.4, 0.8], "shares of rows that are stored again", nargs="*"
    )
    pins: list[int] = option(
        [1_000_000, 10_000_000],
        "rows of made queries that tell how a partition scales; --all adds 30 million",
        nargs="*",
    )
    limit: float = option(30.0, "most time of Mt-KaHyPar on a trace", metavar="S")
    threads: int = option(len(os.sched_getaffinity(0)), "threads that work")
    png: Path | None = option(None, "draw the result to this file")


def run(options: Options) -> dict[str, Any]:
    """Compares, and returns the report."""
    _check(options)
    report = Report("place", options)
    installed = is_installed()
    if not installed:
        report.notes.append("mtkahypar is not installed and was left out: pip install mtkahypar")
    found: dict[str, dict[str, Any]] = {}
    with workspace(options, DISK_BYTES) as directory:
        for name, kind, every in _traces(report, options):
            folder = directory / name
            folder.mkdir()
            notes: list[str] = []
            say = partial(_say, report, name)
            one, wrong = compared(every, folder, options, notes, installed, say)
            found[name] = {"kind": kind, **one}
            report.notes += [f"{name}: {note}" for note in notes]
            report.results["mismatches"] += wrong
        scaling = _scaling(report, options, directory)
    report.results["traces"] = found
    report.results["scaling"] = scaling
    fill(report, found, sorted(share for share in options.replicate if share > 0))
    if options.png is not None:
        save_plot(options.png, found, report.notes)
    return report.finish()


def _say(report: Report, name: str, text: str) -> None:
    report.say(f"{name}: {text}")


def render(report: dict[str, Any]) -> str:
    """Gains by trace; all the rest is in the JSON."""
    results = report["results"]
    kept = {name: one for name, one in results.items() if name != "traces"}
    return common.render({**report, "results": {**summarised(results["traces"]), **kept}})


def _check(options: Options) -> None:
    """Errors: ``MisuseError``."""
    for name, value, least in (
        ("--queries", options.queries, 10),
        ("--rows-per-page", options.rows_per_page, 1),
        ("--threads", options.threads, 1),
    ):
        if value < least:
            raise MisuseError(f"{name} is {value}, expected {least} at least")
    named_traces(options.trace)
    for share in options.replicate:
        if not 0 <= share <= 1:
            raise MisuseError(f"--replicate has {share:g}, expected shares from 0 to 1")


def _traces(report: Report, options: Options) -> Iterator[tuple[str, str, Hyperedges]]:
    """Name, kind and queries of each trace; what is missing is noted."""
    if options.trace is not None:
        for name, path in named_traces(options.trace).items():
            trace = Trace.load(path, table=options.table)
            yield name, "trace", of_trace(trace, options.queries)
        return
    if options.data is None:
        report.notes.append(
            f"there are no logs to learn from: --data FOLDER, or {FOLDER} in the environment, says "
            f"where they are; --trace FILE takes a trace of yours"
        )
        return
    for log in LOGS:
        if log.name not in options.logs:
            continue
        missing = log.missing(options.data)
        if missing:
            report.notes.append(f"{log.name} was left out: there is no file {missing[0]}")
            continue
        report.say(f"{log.name}: reading")
        yield log.name, log.kind, log.read(options.data, options.queries)


def _scaling(report: Report, options: Options, directory: Path) -> dict[str, Any]:
    """Cost of a partition of made queries, by their number."""
    sizes = sorted({*options.pins, *([MOST_PINS] if options.all else [])})
    found: dict[str, Any] = {}
    for pins in sizes:
        report.say(f"partitioning {pins:,} pins")
        queries = max(pins // LENGTH, 2)
        rows = queries * ROWS_PER_QUERY
        trace = communities(rows, queries, LENGTH, options.seed)
        every = Hyperedges(trace.values.astype(np.uint32), trace.offsets, rows)
        folder = directory / f"made-{pins}"
        folder.mkdir()
        maker = Maker(every, folder, options.rows_per_page, options.seed, options.threads)
        maker.home("partition")
        took = maker.took["partition"]
        found[f"{pins:,}"] = {
            **took,
            "pins_per_cpu_s": took["pins"] / max(took["cpu_seconds"], 1e-9),
            "ns_per_pin": 1e9 * took["cpu_seconds"] / took["pins"],
        }
        (folder / "learned.npz").unlink()
    if len(found) < 2:
        for name in ("partition_bytes_per_pin", "partition_scaling"):
            report.missing(name, "--pins has fewer than two sizes")
        return found
    least, *_, most = found.values()
    report.figure("partition_bytes_per_pin", most["bytes_per_pin"])
    report.figure("partition_scaling", most["ns_per_pin"] / least["ns_per_pin"])
    return found
