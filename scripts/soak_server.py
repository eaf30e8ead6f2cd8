"""Hours of mixed load on a server, in a few minutes or in as many as are given.

`python scripts/soak_server.py --minutes 30` serves a store twice: by its writer, and by a reader
that follows. Clients pull rows and check every value (98 of 100 requests), push and update others
(2 of 100), look rows ahead, commit, have the reader refreshed, and connect anew; others send
garbage, half requests, wrong passwords, and leave. Each minute it prints memory and times. It fails
on a wrong row, on any error, on memory that grows by more than 5 % after the warm-up, and on times
that drift by more than 50 %.
"""

from __future__ import annotations

import argparse
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import embedrock

ROWS = 200_000
DIM = 16
KEYS = 200
PASSWORD = "soak"
START = "import sys; from embedrock.cli import main; sys.exit(main())"
#: A row tells its key, and in steps of 1 below that how often it was updated since its last push.
VERSIONS = 1024


def rows_of(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Rows as they are pushed."""
    base = (keys % 1024 * VERSIONS).astype(np.float32)
    return base[:, None] + np.arange(DIM, dtype=np.float32) / 16


def check(keys: npt.NDArray[np.int64], rows: npt.NDArray[np.float32]) -> None:
    """Refuses a row of another key, or of two versions."""
    steps = rows - rows_of(keys)
    if (steps != steps[:, :1]).any() or (steps < 0).any() or (steps >= VERSIONS).any():
        raise ValueError(f"wrong rows among those of keys {keys[:5]}...")


class Served:
    """A server in a process of its own."""

    def __init__(self, store: Path, password: Path, *options: str) -> None:
        """Starts it, and waits until it listens."""
        command = [sys.executable, "-c", START, "serve", str(store), "--listen", "127.0.0.1:0"]
        command += ["--memory", "24MiB", "--warm", "--stall", "2", *options]
        command += ["--password-file", str(password)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "serving at " not in line:
            raise RuntimeError(f"the server did not start: {line!r}")
        address = line.split("serving at ")[1].split(",")[0].split()[0]
        self.port = int(address.rpartition(":")[2])
        self.url = f"redis://:{PASSWORD}@{address}"

    def resident_mib(self) -> float:
        """Its memory that is in RAM."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        assert found is not None
        return int(found[1]) / 1024


class Soak:
    """The load, and what it has measured."""

    def __init__(self, writer: Served, reader: Served) -> None:
        """Begins nothing yet."""
        self.writer, self.reader = writer, reader
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.times: list[float] = []
        self.errors: list[str] = []

    def guarded(self, run: Callable[[int], None], number: int) -> None:
        """Runs a thread; its error ends all."""
        try:
            run(number)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.over.set()

    def load(self, number: int) -> None:
        """Pulls and a few changes, with a connection that is made anew now and then."""
        draw = np.random.default_rng(number)
        served = self.reader if number % 2 else self.writer
        while not self.over.is_set():
            with embedrock.connect(served.url, connections=1, timeout=30) as remote:
                table = remote["user"]
                for _ in range(500):
                    if self.over.is_set():
                        return
                    keys = draw.integers(0, ROWS, int(draw.integers(1, 2 * KEYS)))
                    kind = draw.random()
                    if served is self.writer and kind < 0.02:
                        table.put(keys, rows_of(keys))
                    elif served is self.writer and kind < 0.04:
                        gradients = np.full((len(keys), DIM), -1, np.float32)
                        table.update(keys, gradients, lr=1.0)
                    else:
                        if kind > 0.99:
                            table.lookahead(keys)
                        begin = time.perf_counter()
                        rows = table.get(keys)
                        took = time.perf_counter() - begin
                        check(keys, rows)
                        with self.lock:
                            self.times.append(took)

    def commits(self, _number: int) -> None:
        """Commits, and refreshes and switches the reader."""
        with (
            embedrock.connect(self.writer.url, timeout=60) as writer,
            embedrock.connect(self.reader.url, timeout=60) as reader,
        ):
            while not self.over.wait(1.0):
                step = writer.commit()
                if step % 10 == 0:
                    reader.switch(step)
                reader.refresh()

    def bad(self, number: int) -> None:
        """Clients as none should be. Whatever they get is right, but no end of the server."""
        draw = random.Random(number)
        kept: list[socket.socket] = []
        admitted = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(PASSWORD), PASSWORD.encode())
        while not self.over.wait(0.02):
            client = socket.create_connection(("127.0.0.1", self.writer.port), 10)
            sent = draw.choice(
                [
                    draw.randbytes(draw.randrange(1, 4000)),
                    b"*2\r\n$4\r\nAUTH\r\n$5\r\nwrong\r\n" * draw.randrange(1, 10),
                    admitted + b"*3\r\n$9\r\nEMB.PULLB\r\n$4\r\nuser\r\n$80000",
                    b"*2\r\n$4\r\nAU",
                    b"\x16\x03\x01\x02\x00",
                    b"*1\r\n$99999999999\r\n",
                    b"PING\r\n",
                    b"",
                ]
            )
            try:
                client.sendall(sent)
                if draw.random() < 0.5:
                    client.settimeout(0.05)
                    client.recv(4096)
            except OSError:
                pass
            kept.append(client)
            if len(kept) > 50:
                kept.pop(draw.randrange(50)).close()


def minute(soak: Soak, seconds: float) -> tuple[float, float, float, float, int]:
    """Memory of both servers, P50 and P99 of pulls in ms, and how many those were."""
    soak.over.wait(seconds)
    with soak.lock:
        times, soak.times = soak.times, []
    ordered = sorted(times) or [0.0]
    p50, p99 = (ordered[int(len(ordered) * part)] * 1e3 for part in (0.5, 0.99))
    return (
        soak.writer.resident_mib(),
        soak.reader.resident_mib(),
        p50,
        p99,
        len(times),
    )


def verdict(rows: list[tuple[float, float, float, float, int]]) -> list[str]:
    """What is wrong with the minutes behind the warm-up."""
    if len(rows) < 2:
        return []
    part = max(1, len(rows) // 3)
    first, last = rows[:part], rows[-part:]
    wrong = []
    for at, name in ((0, "memory of the writer"), (1, "memory of the reader")):
        before, after = (statistics.mean(row[at] for row in part) for part in (first, last))
        if after > before * 1.05:
            wrong.append(f"{name} grew from {before:.0f} to {after:.0f} MiB")
    for at, name in ((2, "P50"), (3, "P99")):
        before, after = (statistics.median(row[at] for row in part) for part in (first, last))
        if after > before * 1.5:
            wrong.append(f"{name} went from {before:.2f} to {after:.2f} ms")
    return wrong


def main() -> int:
    """Runs the load; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=int, default=30, help="behind the warm-up (30)")
    parser.add_argument("--warm-up", type=float, default=60.0, help="in seconds (60)")
    parser.add_argument("--clients", type=int, default=4, help="threads with load (4)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        path, password = Path(folder) / "store", Path(folder) / "password"
        password.write_text(PASSWORD)
        with embedrock.open(path, "24MiB") as store:
            table = store.table("user", DIM, ROWS, optimizer="sgd", initializer=0.0)
            table.put(np.arange(ROWS), rows_of(np.arange(ROWS)))
            store.commit(step=1)
        writer = Served(path, password, "--writable", "--commit-every", "5s")
        reader = Served(path, password, "--refresh-every", "2s")
        soak = Soak(writer, reader)
        jobs = [(soak.load, number) for number in range(arguments.clients)]
        jobs += [(soak.commits, 0), (soak.bad, 1)]
        threads = [threading.Thread(target=soak.guarded, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        minute(soak, arguments.warm_up)
        print("minute  writer MiB  reader MiB  P50 ms  P99 ms   pulls", flush=True)
        rows = []
        for number in range(arguments.minutes):
            if soak.over.is_set():
                break
            rows.append(minute(soak, 60.0))
            print("{:6}  {:10.1f}  {:10.1f}  {:6.2f}  {:6.2f}  {:6}".format(number + 1, *rows[-1]))
            sys.stdout.flush()
        soak.over.set()
        for thread in threads:
            thread.join()
        for served in (writer, reader):
            if served.process.poll() is not None:
                soak.errors.append(f"a server ended with {served.process.returncode}")
            served.process.terminate()
            if served.process.wait(60) != 0:
                soak.errors.append(f"a server ended with {served.process.returncode}")
    wrong = soak.errors + verdict(rows)
    for text in wrong:
        print(f"wrong: {text}")
    print("failed" if wrong else "memory and times are flat, no error, every row right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
