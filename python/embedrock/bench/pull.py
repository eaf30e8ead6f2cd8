"""``pull``: rows over loopback TCP from ``embedrock serve``, against ``MGET`` of Redis.

One client, the same for all: it sends requests that were made before, and receives replies, whose
lengths are known, into one buffer. Both servers have the same rows, all in memory, one thread, and
one connection; they take turns. ``pull_vs_redis`` is the rows/s of ``EMB.PULLB`` divided by those
of ``MGET`` of Redis, 500 uniform keys of 128 float32 at a time, one request under way.
``pull_p99_vs_redis`` is the 99th percentile of the time of a request, divided likewise.
``pull_cpu_us`` is the server's CPU time per row, all its threads, in microseconds.

The results have the same with four requests under way, with keys that are skewed, and for ``MGET``
of our own server. Below ``gather`` they have a table on persistent memory, by the width of its rows
and for each mode of ``serve --gather``: three servers of the same rows, which take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.bench.common import Report, add_common, workspace
from embedrock.bench.machine import device_facts
from embedrock.bench.noise import Rounds, Timed, interleave
from embedrock.bench.rows import fill, mismatches, ranges, resident_budget, values_of
from embedrock.bench.zipf import Zipf

__all__ = ["add_arguments", "run"]

Keys = npt.NDArray[np.int64]

TABLE = "rows"
START = "import sys; from embedrock.cli import main; sys.exit(main())"
MODES = ("copy", "vectored", "zerocopy")
GATHER_DIMS = (16, 32, 64, 128, 256, 512, 1024, 2048)
GATHER_TURN_BYTES = 64 << 20
"""Bytes of the replies of a turn, where rows are wide."""
SETTLE_S = 30.0
"""Most time that a server has to begin to listen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    parser.add_argument("--dim", type=int, default=128, help="float32 values per row")
    parser.add_argument("--keys", type=int, default=500, help="keys of a request")
    parser.add_argument("--requests", type=int, default=400, help="requests of a turn")
    parser.add_argument("--depth", type=int, default=4, help="requests under way in the variants")
    parser.add_argument("--zipf", type=float, default=0.99, help="exponent of skewed keys")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measurement")
    parser.add_argument(
        "--gather-dims",
        type=int,
        nargs="*",
        default=GATHER_DIMS,
        help="float32 values per row, of tables on persistent memory (none: leave them out)",
    )
    parser.add_argument(
        "--gather-bytes", type=int, default=32 << 20, help="bytes of the rows of each of them"
    )
    parser.add_argument(
        "--redis-server", default="redis-server", help="the program to compare with"
    )
    add_common(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("pull", options)
    redis = shutil.which(options.redis_server)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(workspace(options, 4 * options.rows * options.dim * 4))
        report.say(f"filling {options.rows:,} rows of {options.dim} float32")
        budget = resident_budget(options.rows, 4 * options.dim)
        with embedrock.open(place / "store", budget) as store:
            fill(store.table(TABLE, options.dim, options.rows, optimizer="none"), options.rows)
            store.commit(0)
            report.device = device_facts(store)
        ours = stack.enter_context(_embedrock(place / "store", budget))
        theirs = stack.enter_context(_redis(redis, options)) if redis else None
        _measure(report, options, ours, theirs)
    if options.gather_dims:
        needed = 2 * len(MODES) * len(options.gather_dims) * options.gather_bytes
        with workspace(options, needed) as place, contextlib.ExitStack() as stack:
            _gather(report, options, _gathering(report, options, place, stack))
    return report.finish()


def _gathering(
    report: Report, options: argparse.Namespace, place: Path, stack: contextlib.ExitStack
) -> dict[str, _Server]:
    """A server for each mode, of tables on persistent memory, one for each width of rows."""
    servers = {}
    for mode in MODES:
        report.say(f"filling tables on persistent memory, to be sent by {mode}")
        with embedrock.open(place / mode, 256 << 20) as store:
            for dim in options.gather_dims:
                rows = _gather_rows(options, dim)
                name = _gather_table(dim)
                fill(store.table(name, dim, rows, optimizer="none", storage="pmem"), rows)
            store.commit(0)
        try:
            server = _embedrock(place / mode, 256 << 20, "--gather", mode)
            servers[mode] = stack.enter_context(server)
        except RuntimeError as error:
            # Where io_uring is refused, its mode is.
            report.notes.append(f"gather by {mode}: {error}")
    return servers


def _gather_rows(options: argparse.Namespace, dim: int) -> int:
    return int(max(options.keys, options.gather_bytes // (4 * dim)))


def _gather_table(dim: int) -> str:
    return f"{TABLE}_{dim}"


def _gather(report: Report, options: argparse.Namespace, servers: dict[str, _Server]) -> None:
    """Pulls of uniform keys, by the width of rows and the mode."""
    uniform = np.random.default_rng(options.seed)
    into = report.results.setdefault("gather", {})
    for dim in options.gather_dims:
        report.say(f"rows of {dim} float32, by how they get into sockets")
        rows = _gather_rows(options, dim)
        batches = [uniform.integers(0, rows, options.keys) for _ in range(64)]
        requests = GATHER_TURN_BYTES // (4 * dim * options.keys)
        requests = max(8, min(options.requests, requests))
        narrowed = argparse.Namespace(**{**vars(options), "dim": dim, "requests": requests})
        asks = functools.partial(_pulls, table=_gather_table(dim))
        contestants = {
            mode: _Contestant(server, batches, narrowed, 1, asks)
            for mode, server in servers.items()
        }
        for one in contestants.values():
            report.results["mismatches"] += one.verify()
        turns = [one.turn for one in contestants.values()]
        rounds = interleave(turns, options.rounds, options.patience)
        report.rounds(f"gather_{dim}", rounds)
        into[str(dim)] = {
            mode: one.summary(rounds, position)
            for position, (mode, one) in enumerate(contestants.items())
        }
        for one in contestants.values():
            one.socket.close()
    for mode, server in servers.items():
        lent = server.told("lent_pulls")
        if (lent > 0) != (mode != "copy"):
            raise RuntimeError(f"the server with --gather {mode} has lent the rows of {lent} pulls")


def _measure(
    report: Report, options: argparse.Namespace, ours: _Server, theirs: _Server | None
) -> None:
    skewed = Zipf(options.rows, options.zipf, options.seed)
    uniform = np.random.default_rng(options.seed)

    def uniform_keys(count: int) -> Keys:
        return uniform.integers(0, options.rows, count)

    for name, draw, depth in (
        ("uniform", uniform_keys, 1),
        (f"depth_{options.depth}", uniform_keys, options.depth),
        ("zipf", skewed.draw, 1),
    ):
        report.say(f"{name}: pull and mget, against Redis")
        batches = [draw(options.keys) for _ in range(64)]
        contestants = {
            "pull": _Contestant(ours, batches, options, depth, _pulls),
            "mget": _Contestant(ours, batches, options, depth, _mgets),
        }
        if theirs is not None:
            contestants["redis"] = _Contestant(theirs, batches, options, depth, _mgets)
        for one in contestants.values():
            report.results["mismatches"] += one.verify()
        turns = [one.turn for one in contestants.values()]
        rounds = interleave(turns, options.rounds, options.patience)
        report.rounds(name, rounds)
        into = report.results.setdefault(name, {})
        for position, (which, one) in enumerate(contestants.items()):
            into[which] = one.summary(rounds, position)
        if theirs is not None:
            into["pull"]["vs_redis"] = rounds.ratio(0, 2)
            into["mget"]["vs_redis"] = rounds.ratio(1, 2)
        if name == "uniform":
            _figures(report, into)


def _figures(report: Report, into: dict[str, Any]) -> None:
    report.figure("pull_cpu_us", into["pull"]["cpu_us_per_row"])
    if "redis" not in into:
        why = "redis-server is not installed (Debian: apt-get install redis-server)"
        report.missing("pull_vs_redis", why)
        report.missing("pull_p99_vs_redis", why)
        return
    report.figure("pull_vs_redis", into["pull"]["vs_redis"])
    report.figure("pull_p99_vs_redis", into["pull"]["p99_ms"] / into["redis"]["p99_ms"])


@dataclass
class _Server:
    """A process that serves, and where."""

    process: subprocess.Popen[Any]
    port: int

    def cpu_ns(self) -> int:
        """CPU time of all its threads that live."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks)

    def told(self, name: str) -> int:
        """A count of ``INFO``."""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(b"INFO\r\nQUIT\r\n")
            with client.makefile("r", newline="\r\n") as lines:
                found = (line.strip().partition(":") for line in lines)
                return next(int(value) for key, _, value in found if key == name)


@dataclass
class _Contestant:
    """A server, and the requests that it gets."""

    server: _Server
    batches: Sequence[Keys]
    options: argparse.Namespace
    depth: int
    protocol: Callable[[Sequence[Keys], int], _Protocol]
    latencies_ms: list[float] = field(default_factory=list)
    cpu_ns: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        self.asked = self.protocol(self.batches, self.options.dim)
        self.buffer = memoryview(bytearray(self.asked.reply_bytes))
        self.socket = socket.create_connection(("127.0.0.1", self.server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def verify(self) -> int:
        """Compares all rows that the requests ask for, untimed."""
        wrong = 0
        for request, keys in zip(self.asked.requests, self.batches, strict=True):
            self.socket.sendall(request)
            self._receive()
            wrong += mismatches(self.asked.rows_of(bytes(self.buffer)), keys)
        return wrong

    def turn(self) -> Timed:
        """The requests of one turn, timed."""
        timed, requests, depth = Timed(), self.asked.requests, self.depth
        count, begins = self.options.requests, [0.0] * self.options.requests
        cpu = self.server.cpu_ns()
        with timed:
            for sent in range(depth):
                begins[sent] = time.perf_counter()
                self.socket.sendall(requests[sent % len(requests)])
            for got in range(count):
                self._receive()
                now = time.perf_counter()
                self.latencies_ms.append((now - begins[got]) * 1e3)
                if got + depth < count:
                    begins[got + depth] = now
                    self.socket.sendall(requests[(got + depth) % len(requests)])
        timed.work = count * self.options.keys
        self.cpu_ns += self.server.cpu_ns() - cpu
        self.rows += count * self.options.keys
        return timed

    def summary(self, rounds: Rounds, position: int) -> dict[str, float]:
        """What it reached, over all its turns."""
        cuts = statistics.quantiles(self.latencies_ms, n=100)
        return {
            "rows_per_s": rounds.rate(position),
            "p50_ms": cuts[49],
            "p99_ms": cuts[98],
            "cpu_us_per_row": self.cpu_ns / 1e3 / self.rows,
        }

    def _receive(self) -> None:
        got, view = 0, self.buffer
        while got < len(view):
            count = self.socket.recv_into(view[got:])
            if count == 0:
                raise RuntimeError("the server closed the connection")
            got += count


@dataclass
class _Protocol:
    """Requests, how long each reply is, and the rows in one."""

    requests: list[bytes]
    reply_bytes: int
    rows_of: Callable[[bytes], npt.NDArray[np.float32]]


def _pulls(batches: Sequence[Keys], dim: int, table: str = TABLE) -> _Protocol:
    """Keys packed, rows behind a header."""
    requests = [_request(b"EMB.PULLB", table.encode(), keys.tobytes()) for keys in batches]
    count = len(batches[0])
    payload = 12 + count * dim * 4
    head = len(b"$%d\r\n" % payload)

    def rows_of(reply: bytes) -> npt.NDArray[np.float32]:
        return np.frombuffer(reply, "<f4", count * dim, head + 12).reshape(count, dim)

    return _Protocol(requests, head + payload + 2, rows_of)


def _mgets(batches: Sequence[Keys], dim: int) -> _Protocol:
    """Keys as names, each row a string."""
    requests = [_request(b"MGET", *_names(keys)) for keys in batches]
    count, head, size = len(batches[0]), len(b"*%d\r\n" % len(batches[0])), dim * 4
    around = len(b"$%d\r\n" % size)

    def rows_of(reply: bytes) -> npt.NDArray[np.float32]:
        strings = np.frombuffer(reply, np.uint8, offset=head).reshape(count, around + size + 2)
        return np.ascontiguousarray(strings[:, around : around + size]).view("<f4")

    return _Protocol(requests, head + count * (around + size + 2), rows_of)


def _names(keys: Keys) -> list[bytes]:
    return [b"%s:%d" % (TABLE.encode(), key) for key in keys.tolist()]


def _request(*arguments: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


@contextlib.contextmanager
def _embedrock(path: Path, budget: int, *options: str) -> Iterator[_Server]:
    """Our server, with one thread and every row in memory."""
    command = [sys.executable, "-c", START, "serve", str(path), "--memory", str(budget), "--warm"]
    command += ["--listen", "127.0.0.1:0", "--threads", "1", "--refresh-every", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with _ending(process):
        assert process.stdout is not None
        line = process.stdout.readline()
        if "serving at" not in line:
            raise RuntimeError("embedrock serve did not start; its message is above")
        yield _Server(process, int(line.split(",")[0].rpartition(":")[2]))


@contextlib.contextmanager
def _redis(program: str, options: argparse.Namespace) -> Iterator[_Server]:
    """Redis with the same rows."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen([*command, "--appendonly", "no"], stdout=subprocess.DEVNULL)
    with _ending(process):
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                client = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                if time.monotonic() > until or process.poll() is not None:
                    raise RuntimeError(f"{program} did not start") from None
                time.sleep(0.05)
        with client:
            for keys in ranges(options.rows, 4096):
                values = values_of(keys, options.dim)
                pairs = zip(_names(keys), values, strict=True)
                words = [word for name, row in pairs for word in (name, row.tobytes())]
                client.sendall(_request(b"MSET", *words))
                if client.recv(64) != b"+OK\r\n":
                    raise RuntimeError(f"{program} did not take the rows")
        yield _Server(process, port)


@contextlib.contextmanager
def _ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
