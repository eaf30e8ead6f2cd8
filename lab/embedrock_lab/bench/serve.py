"""``serve``: pages and time of queries, by how rows lie together in frozen pages.

Without a store it makes its own: the rows of a trace are frozen in the order of keys
(``identity``), by how often they are asked for (``frequency``), by which rows are asked for
together (``partition``), and that with replicas for a share of the rows, chosen as the MaxEmbed
paper does (``connectivity``), each for what it still saves (``residual``), and so of the pages of
other partitions (``partitions``). Plans learn from the first 80 % of the queries; the others are
served, one by one and as unions. With a store and a trace of held-out queries it measures that
store alone.

* ``serve_pages_identity``, ``_frequency``, ``_partition``, ``_replicas``: pages read per query with
  the smallest cache that works; the last is the better kind with the largest share of replicas.
* ``serve_gain_c0``, ``serve_gain_c10``: pages of identity divided by pages of the partition, so
  useful rows per page: with that cache, and with one for 10 % of the rows.
* ``serve_replicas_gain``, ``pipeline_throughput``: pages of the partition divided by pages of the
  better kind with the largest share of replicas, and queries/s of this one divided by that: unions
  of 32, a cache for 10 %. ``serve_device_share``: its pages/s divided by the device's own rate.
* ``greedy_gain``: pages that greedy set cover reads of these replicas divided by those of the one
  pass that the store makes, for the same unions without a cache.
* ``serve_p50_us``, ``serve_p99_us``: a query alone, with that cache. ``selection_us``: choosing
  pages, per page read, the most that any store with replicas took. ``serve_index_bytes``,
  ``serve_disk_mb``: memory per row, and megabytes on disk, of that with most replicas.

Rows that are read are compared with the formula of their key; those of a store that was given with
rows read before in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.errors import MisuseError
from embedrock.placement import Plan, place
from embedrock.placement.classes import of_store
from embedrock.trace import Trace
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.serving import CACHES, LOADS, round_name
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.measure import machine
from embedrock_lab.measure.rows import LOAD_ROWS, resident_budget, values_of

__all__ = ["Options", "communities", "run"]

LEARN = 0.8
"""Share of the queries that plans learn from."""
OWN_ROWS, SHARED_ROWS = 32, 16
"""Rows of a community: those that are of no other, and those that others may have, too."""
NOISE = 0.3
"""Share of a made query that is not of its community."""
EXPONENT = 0.9
"""Skew of communities, of the rows that they share, and of the noise."""
TABLE = "rows"
STORE = "store"
REPLICAS: tuple[Literal["connectivity", "residual", "partitions"], ...] = (
    "connectivity",
    "residual",
    "partitions",
)
DENSE_SHARE = 0.5
"""Keys of a trace are a dense table where at least so many of those below the largest are there."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    store: Path | None = option(
        None, "measure this store, with --trace", nargs="?", metavar="STORE", positional=True
    )
    trace: Path | None = option(
        None,
        "queries to learn from and to serve, instead of made ones; with STORE to serve",
        metavar="FILE",
    )
    table: str | None = option(None, "table of the trace, where its file does not say it")
    rows: int = option(100_000, "rows of the made table")
    queries: int = option(100_000, "made queries")
    length: float = option(20, "mean keys of a made query")
    dim: int = option(64, "float32 values per row")
    page_bytes: int = option(4096, "bytes of a page")
    replicate: list[float] = option([0.1, 0.2, 0.8], "shares of replicas")
    cache: str = option("10%", "share of the rows that the larger cache holds")
    union: int = option(32, "queries that are asked together")
    served: int = option(3_000, "most held-out queries that are served")
    warm: int = option(4_000, "most queries before them, which fill the cache")
    threads: list[int] = option([1, 2], "threads that ask")
    rounds: int = option(3, "rounds of each store that is timed")
    slice: float = option(0.4, "seconds of a round", metavar="S")
    patience: float = patience_of(5.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("serve", options)
    cache = _share(options.cache)
    if options.store is not None:
        _given(report, options, options.store, cache)
    else:
        _made(report, options, cache)
    return report.finish()


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        found = float(number) / 100 if number != text else -1.0
    except ValueError:
        found = -1.0
    if not 0 < found <= 1:
        raise MisuseError(f"--cache is {text!r}, expected per cent of the rows: --cache 10%")
    return found


def _given(report: Report, options: Options, given: Path, cache: float) -> None:
    """A store of somebody's, and queries that it has not learned from."""
    if options.trace is None:
        raise MisuseError("a store needs the queries to serve from it: --trace FILE")
    trace = Trace.load(options.trace, table=options.table)
    of_store(list(trace.tables), given, None)  # names a table that the store has not
    before, held = trace.split(0.5)
    before, held = _last(before, options.warm), _first(held, options.served)
    stores = {STORE: str(given)}
    with workspace(options, 16 * trace.keys) as directory:
        found = _serve(report, options, cache, directory, stores, held, before, [])
    counted, timed = found["counted"], found["timed"]
    for name in CACHES:
        pages = counted[name][STORE]["single"]["pages_per_request"]
        report.figure(f"serve_pages_{_label(name, cache)}", pages)
    _times(report, options, timed, STORE)
    _selection(report, counted, [STORE])
    _sizes(report, found["stores"][STORE])


def _made(report: Report, options: Options, cache: float) -> None:
    """Stores that this bench makes, with one order of rows each."""
    if options.trace is None:
        trace = communities(options.rows, options.queries, options.length, options.seed)
        keys: dict[str, npt.NDArray[np.uint64]] = {TABLE: np.arange(options.rows, dtype=np.uint64)}
    else:
        trace = _named(Trace.load(options.trace, table=options.table))
        keys = {name: np.unique(of.values) for name, of in trace.tables.items()}
    learn, held = trace.split(LEARN)
    held = _first(held, options.served)
    rows = sum(map(len, keys.values()))
    shares = sorted({share for share in options.replicate if share > 0})
    copies = 4 + sum(1 + share for share in shares) * len(REPLICAS)
    report.results["trace"] = {
        "learned": learn.queries,
        "served": held.queries,
        "rows": rows,
        "length_mean": trace.keys / trace.queries,
    }
    with workspace(options, int(1.3 * copies * rows * (4 * options.dim + 16))) as directory:
        report.say(f"writing {rows:,} rows of {options.dim} float32")
        source = directory / "source"
        _write(source, keys, options)
        plans = _plans(report, options, source, keys, learn, shares)
        stores, frozen = {}, {}
        for name, plan in plans.items():
            report.say(f"freezing: {name}")
            stores[name] = str(directory / name.replace(" ", "-"))
            frozen[name] = embedrock.freeze(
                source, stores[name], plan=plan, page_bytes=options.page_bytes
            )["pages"]
        report.results["pages"] = frozen
        best = [_layout(kind, shares[-1]) for kind in REPLICAS] if shares else []
        warm = _last(learn, options.warm)
        found = _serve(report, options, cache, directory, stores, held, warm, best)
    _compare(report, options, found, best, cache)
    if best:
        plan, unions = plans[report.results["best"]], _unions(held, options.union)
        greedy = plan.evaluate(unions, selection="greedy").pages
        report.figure("greedy_gain", greedy / plan.evaluate(unions).pages)


def communities(rows: int, queries: int, length: float, seed: int) -> Trace:
    """Queries of scattered rows that belong together, and of others that many ask for.

    >>> communities(1000, 50, 20, seed=1).queries
    50
    """
    rng = np.random.default_rng(seed)
    count = max(rows // OWN_ROWS, 1)
    own = rng.permutation(max(rows, OWN_ROWS))[: count * OWN_ROWS] % rows
    shared = Zipf(rows, EXPONENT, seed + 1).draw(count * SHARED_ROWS)
    members = np.concatenate(
        [own.reshape(count, OWN_ROWS), shared.reshape(count, SHARED_ROWS)], axis=1
    )
    lengths = 1 + rng.poisson(max(length - 1, 0), queries)
    community = np.repeat(Zipf(count, EXPONENT, seed).draw(queries), lengths)
    total = len(community)
    together = members[community, rng.integers(0, OWN_ROWS + SHARED_ROWS, total)]
    others = Zipf(rows, EXPONENT, seed + 2).draw(total)
    values = np.where(rng.random(total) < NOISE, others, together)
    return Trace({TABLE: (values, np.concatenate([[0], np.cumsum(lengths)]))})


def _named(trace: Trace) -> Trace:
    """A trace whose tables all have a name, without those that nobody asks."""
    asked = {name: of for name, of in trace.tables.items() if len(of.values)}
    return Trace({name or TABLE: of for name, of in asked.items()})


def _first(trace: Trace, queries: int) -> Trace:
    return Trace({n: of.between(0, min(queries, len(of))) for n, of in trace.tables.items()})


def _unions(trace: Trace, queries: int) -> Trace:
    """So many queries as one."""
    ends = {n: np.append(of.offsets[:-1:queries], of.offsets[-1]) for n, of in trace.tables.items()}
    return Trace({n: (of.values, ends[n]) for n, of in trace.tables.items()})


def _last(trace: Trace, queries: int) -> Trace:
    begin = max(trace.queries - queries, 0)
    return Trace({n: of.between(begin, len(of)) for n, of in trace.tables.items()})


def _write(path: Path, keys: dict[str, npt.NDArray[np.uint64]], options: Options) -> None:
    """A store with a row for each key, in the order of keys."""
    rows = sum(map(len, keys.values()))
    budget = min(resident_budget(rows, 4 * options.dim), machine.available_memory_bytes() // 2)
    with embedrock.open(path, budget, page_bytes=options.page_bytes) as store:
        for name, of_table in keys.items():
            most = int(of_table[-1]) + 1
            if len(of_table) >= DENSE_SHARE * most:
                table = store.table(name, options.dim, most, optimizer="none")
            else:
                table = store.table(
                    name, options.dim, expected_rows=len(of_table), optimizer="none"
                )
            for begin in range(0, len(of_table), LOAD_ROWS):
                part = of_table[begin : begin + LOAD_ROWS]
                table.put(part, values_of(part, options.dim), reset_state=True)
        store.commit(0)


def _plans(
    report: Report,
    options: Options,
    source: Path,
    keys: dict[str, npt.NDArray[np.uint64]],
    learn: Trace,
    shares: list[float],
) -> dict[str, Plan]:
    """A plan for each order of rows."""
    every = Trace({name: (one, [0, len(one)]) for name, one in keys.items()})
    plans = {
        "identity": place(every, store=source, method="identity"),
        "frequency": place(learn, store=source, method="frequency"),
    }
    most = shares[-1] if shares else 0.0
    report.say(f"placing by {learn.queries:,} queries")
    plans["partition"] = home = place(learn, store=source, seed=options.seed)
    for kind in REPLICAS if shares else ():
        report.say(f"replicas by {kind}")
        plan = place(learn, home=home, replicate=most, replicas=kind, seed=options.seed)
        plans |= {_layout(kind, share): plan.with_replicas(share) for share in shares}
    return plans


def _layout(kind: str, share: float) -> str:
    """The name of a layout with replicas. Tables show its beginning, so the share comes first."""
    return f"{share:g} {kind}"


def _serve(
    report: Report,
    options: Options,
    cache: float,
    directory: Path,
    stores: dict[str, str],
    held: Trace,
    warm: Trace,
    choices: list[str],
) -> dict[str, Any]:
    """Results of a process that serves from these stores; all of them go into the report."""
    report.say(f"serving {held.queries:,} queries from {len(stores)} stores")
    held.save(directory / "held.npz")
    warm.save(directory / "warm.npz")
    found: dict[str, Any] = child.call(
        "embedrock_lab.bench.serving:serve",
        stores=stores,
        made=options.store is None,
        trace=str(directory / "held.npz"),
        warm=str(directory / "warm.npz"),
        union=options.union,
        cache=cache,
        timed=[name for name in (STORE, "identity", "partition") if name in stores],
        choices=choices,
        threads=options.threads,
        rounds=options.rounds,
        slice_s=options.slice,
        patience=options.patience,
    )
    report.results["mismatches"] += found["mismatches"]
    report.results["noise"] = found["noise"]
    report.notes += found["notes"]
    report.device = found["device"]
    for name in CACHES:
        label = _label(name, cache)
        report.results[f"counted_{label}"] = {
            load: {one: each[load] for one, each in found["counted"][name].items()}
            for load in LOADS
        }
        report.results[f"timed_{label}"] = found["timed"][name]
        report.results[f"cached_share_{label}"] = found["cached_share"][name]
    report.results["stores"] = found["stores"]
    return found


def _compare(
    report: Report,
    options: Options,
    found: dict[str, Any],
    best: list[str],
    cache: float,
) -> None:
    """The figures of stores that were made; ``best`` are those with most replicas."""
    counted, timed = found["counted"], found["timed"]

    def pages(cache: str, load: str, store: str) -> float:
        return float(counted[cache][store][load]["pages_per_request"])

    for name in ("identity", "frequency", "partition"):
        report.figure(f"serve_pages_{name}", pages("c0", "single", name))
    for name in CACHES:
        gain = pages(name, "single", "identity") / pages(name, "single", "partition")
        report.figure(f"serve_gain_{_label(name, cache)}", gain)
    if not best:
        return
    report.figure("serve_pages_replicas", min(pages("c0", "single", name) for name in best))
    chosen = min(best, key=lambda name: pages("cache", "union", name))
    report.results["best"] = chosen
    gain = pages("cache", "union", "partition") / pages("cache", "union", chosen)
    report.figure("serve_replicas_gain", gain)
    rates = timed["cache"][round_name("union", options.threads[0])]
    report.figure("pipeline_throughput", rates[chosen]["rate_versus"]["partition"])
    _times(report, options, timed, chosen)
    _selection(report, counted, [name for name in counted["c0"] if name.split()[-1] in REPLICAS])
    _sizes(report, found["stores"][chosen])


def _times(report: Report, options: Options, timed: dict[str, Any], store: str) -> None:
    single, union = (timed["cache"][round_name(load, options.threads[0])][store] for load in LOADS)
    report.figure("serve_p50_us", single["p50_us"])
    report.figure("serve_p99_us", single["p99_us"])
    if union["device_share"] is None:
        report.missing("serve_device_share", "the store is too small to measure the device on it")
    else:
        report.figure("serve_device_share", union["device_share"])


def _selection(report: Report, counted: dict[str, Any], stores: list[str]) -> None:
    found = [
        counted[cache][store][load]["selection_us"]
        for cache in CACHES
        for store in stores
        for load in LOADS
    ]
    report.figure("selection_us", max(found))


def _sizes(report: Report, store: dict[str, Any]) -> None:
    report.figure("serve_index_bytes", store["index_bytes_per_row"])
    report.figure("serve_disk_mb", store["disk_mb"])


def _label(cache: str, share: float) -> str:
    """The end of a figure's name: c0, c10."""
    return "c0" if cache == "c0" else f"c{100 * share:g}"
