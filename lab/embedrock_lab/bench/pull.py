"""``pull``: rows over loopback TCP from ``embedrock serve``, against ``MGET`` of Redis.

``redis``: both servers have the same rows, all in memory, one thread, and one connection; they are
timed in rounds. ``pull_vs_redis`` is the rows/s of ``EMB.PULLB`` divided by those of ``MGET`` of
Redis, 500 uniform keys of 128 float32 at a time, one request under way. ``pull_p99_vs_redis`` is
the 99th percentile of the time of a request, divided likewise. ``pull_cpu_us`` is the server's CPU
time per row, all its threads, in microseconds. The results have the same with four requests under
way, with keys that are skewed, for ``MGET`` of our own server, and with a push among 49 pulls
(``mixed``).

``gather``: rows of a region of 16 to 2,048 float32, by each way of getting them into a socket.

``disk``: rows from ``log`` and from frozen ``pages`` with memory for a tenth of the rows, and the
device alone beside them, in rounds. ``pull_rows_per_core`` is rows per second of the server's CPU
time, ``pull_device_share`` its reads per second divided by the device's own rate, both of ``log``.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.serving import capacity, device_alone, with_cache
from embedrock_lab.bench.wire import (
    TABLE,
    Asked,
    Keys,
    Server,
    System,
    embedrock_server,
    mgets,
    msets,
    pulls,
    pushes,
    redis_server,
)
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.measure.machine import device_facts
from embedrock_lab.measure.noise import Rounds, Timed, interleave
from embedrock_lab.measure.rows import distinct_keys, fill, resident_budget

__all__ = ["Options", "run"]

PARTS: dict[str, tuple[str, ...]] = {
    "redis": ("pull_vs_redis", "pull_p99_vs_redis", "pull_cpu_us"),
    "gather": (),
    "disk": ("pull_rows_per_core", "pull_device_share"),
}
BATCHES = 64
"""Requests that are made before, and sent again and again."""
MIXED = 50
"""One request of so many is a push."""
DIMS = (16, 32, 64, 128, 256, 512, 1024, 2048)
GATHERS = ("copy", "vectored", "zerocopy")
TURN_BYTES = 64 << 20
"""Bytes of the replies of a round, where rows are wide."""
SHARE = 10
"""A cache on disk has room for one row of so many."""
DEVICE_S = 0.5
"""Time of a round of the device alone."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    parts: list[str] = option([*PARTS], "what to measure", choices=PARTS)
    rows: int = option(200_000, "rows of the table")
    dim: int = option(128, "float32 values per row")
    keys: int = option(500, "keys of a request")
    requests: int = option(400, "requests of a round")
    depth: int = option(4, "requests under way in the variants")
    zipf: float = option(0.99, "exponent of skewed keys")
    dims: list[int] = option(DIMS, "values of gathered rows")
    gather_bytes: int = option(32 << 20, "bytes of the rows of each region")
    rounds: int = option(9, "rounds of each measurement")
    tmpfs: Path = option(Path("/dev/shm"), "where regions are made")
    redis_server: str = option("redis-server", "the program to compare with")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("pull", options)
    needed = 4 * options.rows * options.dim * 4
    needed += 2 * len(GATHERS) * len(options.dims) * options.gather_bytes
    with workspace(options, needed) as place:
        if {"redis", "disk"} & {*options.parts}:
            report.say(f"filling {options.rows:,} rows of {options.dim} float32")
            with embedrock.open(place / "store", _all_resident(options)) as store:
                fill(store.table(TABLE, options.dim, options.rows, optimizer="none"), options.rows)
                store.commit(0)
                report.device = device_facts(store)
        if "redis" in options.parts:
            _beside_redis(report, options, place / "store")
        if "disk" in options.parts:
            _from_disk(report, options, place)
        if "gather" in options.parts:
            _by_gather(report, options, place)
    for part, figures in PARTS.items():
        for figure in figures:
            if part not in options.parts:
                report.missing(figure, f"it needs --parts {part}")
    return report.finish()


def _all_resident(options: Options) -> int:
    return resident_budget(options.rows, 4 * options.dim)


def _beside_redis(report: Report, options: Options, path: Path) -> None:
    """Rows in memory, one server after another."""
    rows, dim, budget = options.rows, options.dim, _all_resident(options)
    program = shutil.which(options.redis_server)
    skewed = Zipf(rows, options.zipf, options.seed)
    random = np.random.default_rng(options.seed)

    def uniform(count: int) -> Keys:
        return random.integers(0, rows, count)

    def distinct(count: int) -> Keys:
        return distinct_keys(random, rows, count)

    loads: list[tuple[str, Callable[[int], Keys], int]] = [
        ("uniform", uniform, 1),
        (f"depth_{options.depth}", uniform, options.depth),
        ("zipf", skewed.draw, 1),
    ]
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(redis_server(program, rows, dim)) if program else None
        with embedrock_server(path, budget, "--warm") as ours:
            for name, draw, depth in loads:
                batches = [draw(options.keys) for _ in range(BATCHES)]
                asked = {one: [one(keys, dim) for keys in batches] for one in (pulls, mgets)}
                sides = {"pull": (ours, asked[pulls]), "mget": (ours, asked[mgets])}
                if theirs is not None:
                    sides["redis"] = (theirs, asked[mgets])
                _compare(report, options, name, sides, depth)
        with embedrock_server(path, budget, "--warm", "--writable", "--commit-every", "0") as ours:
            batches = [distinct(options.keys) for _ in range(MIXED)]
            sides = {"pull": (ours, _mixed(batches, dim, pushes, pulls))}
            if theirs is not None:
                sides["redis"] = (theirs, _mixed(batches, dim, msets, mgets))
            _compare(report, options, "mixed", sides, 1)
    found = report.results["uniform"]
    report.figure("pull_cpu_us", found["pull"]["cpu_us_per_row"])
    if theirs is None:
        why = "redis-server is not installed (Debian: apt-get install redis-server)"
        report.missing("pull_vs_redis", why)
        report.missing("pull_p99_vs_redis", why)
    else:
        report.figure("pull_vs_redis", found["pull"]["vs_redis"])
        report.figure("pull_p99_vs_redis", found["pull"]["p99_ms"] / found["redis"]["p99_ms"])


def _mixed(
    batches: Sequence[Keys],
    dim: int,
    writes: Callable[[Keys, int], Asked],
    reads: Callable[[Keys, int], Asked],
) -> list[Asked]:
    """A write, then reads."""
    return [writes(batches[0], dim), *(reads(keys, dim) for keys in batches[1:])]


def _by_gather(report: Report, options: Options, place: Path) -> None:
    """Rows in regions, by their width and each way into the socket."""
    budget = 64 << 20
    random = np.random.default_rng(options.seed)
    rows = {dim: max(options.keys, options.gather_bytes // (4 * dim)) for dim in options.dims}
    with contextlib.ExitStack() as stack:
        servers = {}
        for how in GATHERS:
            report.say(f"filling regions, to be sent by {how}")
            # One process has a region at a time.
            regions = stack.enter_context(tempfile.TemporaryDirectory(dir=options.tmpfs))
            with embedrock.open(place / how, budget, pmem_path=regions) as store:
                for dim, count in rows.items():
                    table = store.table(
                        _of(dim), dim, count, optimizer="none", storage="pmem", capacity=count
                    )
                    fill(table, count)
                store.commit(0)
            try:
                begun = embedrock_server(place / how, budget, "--gather", how)
                servers[how] = stack.enter_context(begun)
            except RuntimeError as error:
                # If io_uring is refused, its mode is left out.
                report.notes.append(f"gather by {how}: {error}")
        for dim, count in rows.items():
            batches = [random.integers(0, count, options.keys) for _ in range(BATCHES)]
            asked = [pulls(keys, dim, _of(dim)) for keys in batches]
            sides = {how: (server, asked) for how, server in servers.items()}
            requests = max(8, min(options.requests, TURN_BYTES // (4 * dim * options.keys)))
            _compare(report, options, f"gather_{dim}", sides, 1, requests=requests)
        for how, server in servers.items():
            lent = int(server.info()["lent_pulls"])
            if (lent > 0) != (how != "copy"):
                raise RuntimeError(f"the server with --gather {how} lent rows of {lent} pulls")


def _of(dim: int) -> str:
    return f"{TABLE}_{dim}"


def _from_disk(report: Report, options: Options, place: Path) -> None:
    """Memory for a tenth of the rows: what the server, the device and the processor reach."""
    report.say("freezing")
    embedrock.freeze(place / "store", place / "frozen")
    random = np.random.default_rng(options.seed)
    batches = [random.integers(0, options.rows, options.keys) for _ in range(BATCHES)]
    asked = [pulls(keys, options.dim) for keys in batches]
    servers, shares = {}, {}
    with contextlib.ExitStack() as stack:
        for storage, path in (("log", place / "store"), ("pages", place / "frozen")):
            with with_cache(str(path), 1 / SHARE, [(TABLE, batches[0].astype(np.uint64))]) as store:
                budget = store.stats()["budget_bytes"]
                shares[storage] = capacity(store) / options.rows
            servers[storage] = stack.enter_context(embedrock_server(path, budget, "--warm"))
        reader = stack.enter_context(embedrock.open(place / "frozen", "64MiB", read_only=True))
        sides = {storage: (server, asked) for storage, server in servers.items()}
        before = {storage: server.counts() for storage, server in servers.items()}
        device = partial(device_alone, reader, DEVICE_S)
        rounds = _compare(report, options, "disk", sides, options.depth, [device])
        after = {storage: server.counts() for storage, server in servers.items()}
    into = report.results["disk"]
    into["device_reads_per_s"] = rate = rounds.rate(len(sides))
    for position, storage in enumerate(sides):
        hits, misses, reads = (
            after[storage][name] - before[storage][name]
            for name in (
                "embedrock_store_hits_total",
                "embedrock_store_misses_total",
                "embedrock_store_read_requests_total",
            )
        )
        one = into[storage]
        one["cached_share"] = shares[storage]
        one["miss_rate"] = misses / (hits + misses)
        one["reads_per_s"] = reads / (hits + misses) * rounds.rate(position)
        one["device_share"] = one["reads_per_s"] / rate
        one["rows_per_core_s"] = 1e6 / one["cpu_us_per_row"]
    report.figure("pull_rows_per_core", into["log"]["rows_per_core_s"])
    report.figure("pull_device_share", into["log"]["device_share"])


def _compare(
    report: Report,
    options: Options,
    name: str,
    sides: Mapping[str, tuple[Server, Sequence[Asked]]],
    depth: int,
    beside: Sequence[Callable[[], Timed]] = (),
    requests: int | None = None,
) -> Rounds:
    """Lets servers run in rounds, and ``beside`` behind them; what Redis is beaten by, too."""
    report.say(f"{name}: {', '.join(sides)}")
    systems = {
        which: System(server, asked, requests or options.requests, depth)
        for which, (server, asked) in sides.items()
    }
    for one in systems.values():
        report.results["mismatches"] += one.verify()
    timed = [one.round for one in systems.values()]
    rounds = interleave([*timed, *beside], options.rounds, options.patience)
    report.rounds(name, rounds)
    into = report.results.setdefault(name, {})
    names = list(systems)
    for position, (which, one) in enumerate(systems.items()):
        into[which] = one.summary(rounds, position)
        if "redis" in names and which != "redis":
            into[which]["vs_redis"] = rounds.ratio(position, names.index("redis"))
        one.socket.close()
    return rounds
