"""Requests over TCP to servers, and what they take: what ``bench pull`` times in rounds.

One client, the same for all: it sends requests that were made before, and receives replies, whose
lengths are known, into one buffer.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedrock_lab.measure.noise import Rounds, Timed
from embedrock_lab.measure.rows import mismatches, ranges, values_of

__all__ = ["TABLE", "Asked", "Keys", "Server", "System", "embedrock_server", "mgets", "msets"]
__all__ += ["pulls", "pushes", "redis_server"]

Keys = npt.NDArray[np.int64]

TABLE = "rows"
START = "import sys; from embedrock.cli import main; sys.exit(main())"
SETTLE_S = 30.0
"""Most time that a server has to begin to listen."""


@dataclass
class Server:
    """A process that serves, and where."""

    process: subprocess.Popen[str]
    port: int
    metrics_url: str = ""

    def cpu_ns(self) -> int:
        """CPU time of all its threads that live."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks)

    def info(self) -> dict[str, str]:
        """Reply to ``INFO``."""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(_request(b"INFO"))
            with client.makefile("rb") as replies:
                text = replies.read(int(replies.readline()[1:])).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def counts(self) -> dict[str, float]:
        """Its metrics that have no labels."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.split() for line in lines if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in pairs}


@dataclass
class Asked:
    """A request, how long its reply is, and how many rows of a reply are wrong."""

    request: bytes
    reply_bytes: int
    wrong: Callable[[bytes], int]
    rows: int


@dataclass
class System:
    """A server, and the requests that it gets."""

    server: Server
    asked: Sequence[Asked]
    requests: int
    """Requests of a round."""
    depth: int = 1
    """Requests under way."""
    latencies_ms: list[float] = field(default_factory=list)
    cpu_ns: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        self.buffer = memoryview(bytearray(max(one.reply_bytes for one in self.asked)))
        self.socket = socket.create_connection(("127.0.0.1", self.server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def verify(self) -> int:
        """Sends every request once, untimed, and compares all rows."""
        wrong = 0
        for one in self.asked:
            self.socket.sendall(one.request)
            self._receive(one)
            wrong += one.wrong(bytes(self.buffer[: one.reply_bytes]))
        return wrong

    def round(self) -> Timed:
        """The requests of one round, timed."""
        timed, asked, depth = Timed(), self.asked, min(self.depth, self.requests)
        count, begins, rows = self.requests, [0.0] * self.requests, 0
        cpu = self.server.cpu_ns()
        with timed:
            for sent in range(depth):
                begins[sent] = time.perf_counter()
                self.socket.sendall(asked[sent % len(asked)].request)
            for got in range(count):
                one = asked[got % len(asked)]
                self._receive(one)
                now = time.perf_counter()
                self.latencies_ms.append((now - begins[got]) * 1e3)
                rows += one.rows
                if got + depth < count:
                    begins[got + depth] = now
                    self.socket.sendall(asked[(got + depth) % len(asked)].request)
        timed.work = rows
        self.cpu_ns += self.server.cpu_ns() - cpu
        self.rows += rows
        return timed

    def summary(self, rounds: Rounds, position: int) -> dict[str, float]:
        """Figures over all its rounds."""
        cuts = statistics.quantiles(self.latencies_ms, n=100)
        return {
            "rows_per_s": rounds.rate(position),
            "p50_ms": cuts[49],
            "p99_ms": cuts[98],
            "cpu_us_per_row": self.cpu_ns / 1e3 / self.rows,
        }

    def _receive(self, one: Asked) -> None:
        got, view = 0, self.buffer[: one.reply_bytes]
        while got < len(view):
            count = self.socket.recv_into(view[got:])
            if count == 0:
                raise RuntimeError("the server closed the connection")
            got += count
            if view[0] == ord("-"):
                raise RuntimeError(f"the server replied {bytes(view[:got]).decode()!r}")


def pulls(keys: Keys, dim: int, table: str = TABLE) -> Asked:
    """Rows behind a header, keys packed: ``EMB.PULLB``."""
    payload = 12 + len(keys) * dim * 4
    head = len(b"$%d\r\n" % payload)

    def wrong(reply: bytes) -> int:
        rows = np.frombuffer(reply, "<f4", len(keys) * dim, head + 12)
        return mismatches(rows.reshape(len(keys), dim), keys)

    request = _request(b"EMB.PULLB", table.encode(), keys.tobytes())
    return Asked(request, head + payload + 2, wrong, len(keys))


def mgets(keys: Keys, dim: int) -> Asked:
    """Each row a string, keys as names: ``MGET``."""
    count, head, size = len(keys), len(b"*%d\r\n" % len(keys)), dim * 4
    around = len(b"$%d\r\n" % size)

    def wrong(reply: bytes) -> int:
        strings = np.frombuffer(reply, np.uint8, offset=head).reshape(count, around + size + 2)
        rows = np.ascontiguousarray(strings[:, around : around + size]).view("<f4")
        return mismatches(rows, keys)

    return Asked(_request(b"MGET", *_names(keys)), head + count * (around + size + 2), wrong, count)


def pushes(keys: Keys, dim: int) -> Asked:
    """The rows that distinct keys have, written once more: ``EMB.PUSH``."""
    reply = b"*4\r\n$4\r\nrows\r\n:%d\r\n$7\r\nskipped\r\n:0\r\n" % len(keys)
    rows = values_of(keys, dim).tobytes()
    request = _request(b"EMB.PUSH", TABLE.encode(), keys.tobytes(), rows)
    return Asked(request, len(reply), lambda got: len(keys) * (got != reply), len(keys))


def msets(keys: Keys, dim: int) -> Asked:
    """The same as strings: ``MSET``."""
    pairs = zip(_names(keys), values_of(keys, dim), strict=True)
    words = [word for name, row in pairs for word in (name, row.tobytes())]
    request = _request(b"MSET", *words)
    return Asked(request, len(SET), lambda got: len(keys) * (got != SET), len(keys))


SET = b"+OK\r\n"


def _names(keys: Keys) -> list[bytes]:
    return [b"%s:%d" % (TABLE.encode(), key) for key in keys.tolist()]


def _request(*arguments: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


@contextlib.contextmanager
def embedrock_server(path: Path, budget: int, *options: str) -> Iterator[Server]:
    """Our server, with one thread, which looks for no other commit."""
    command = [sys.executable, "-c", START, "serve", str(path), "--memory", str(budget)]
    command += ["--listen", "127.0.0.1:0", "--threads", "1", "--refresh-every", "0"]
    command += ["--metrics", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with _ending(process):
        assert process.stdout is not None
        line = process.stdout.readline()
        if "serving at" not in line:
            raise RuntimeError("embedrock serve did not start; its message is above")
        port = int(line.split(",")[0].rpartition(":")[2])
        yield Server(process, port, process.stdout.readline().split()[-1])


@contextlib.contextmanager
def redis_server(program: str, rows: int, dim: int) -> Iterator[Server]:
    """Redis with the same rows, which it writes to no disk."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(
        [*command, "--appendonly", "no"], stdout=subprocess.DEVNULL, text=True
    )
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
            for keys in ranges(rows, 4096):
                client.sendall(msets(keys, dim).request)
                if client.recv(64) != SET:
                    raise RuntimeError(f"{program} did not take the rows")
        yield Server(process, port)


@contextlib.contextmanager
def _ending(process: subprocess.Popen[str]) -> Iterator[None]:
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
