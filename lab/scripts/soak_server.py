"""Hours of mixed load on two servers of one store, in a few minutes or in as many as are given.

`python lab/scripts/soak_server.py --minutes 30` serves a store twice: by its writer, and by a
reader that follows it, goes back to the commit before and on again. Clients pull rows of two
tables, which do not fit into memory, and check every value:

* A row of `rows` says which push wrote it. That push wrote this key, had begun, and had not been
  overwritten: no push of the key began behind its answer and was answered before the pull began.
* A row of `counts` has a column for each client, which counts its updates. It is never below those
  that were answered before the pull began, nor above those that had begun when it ended.
* Of the reader the same holds with the commits that it may be at, and of a commit that it was
  switched to nothing is newer than that commit.

Others send garbage, half requests and wrong passwords, and leave. Each minute, or each third of
less than three, it prints memory and times of both processes. In the end all rows are read, of the
servers and of the store once they have stopped. It fails on a wrong row, any error, memory that
grows and times that drift; over a minute or less times say little.
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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import embedrock

ROWS = 200_003  # a prime: keys of a push are distinct, whatever its stride
DIM = 16
MOST_KEYS = 400
MOST_PUSHES = 1 << 20
MEMORY = "8MiB"
PASSWORD = "soak"
START = "import sys; from embedrock.cli import main; sys.exit(main())"
KEPT_S = 30.0
"""Seconds for which states of the reader are kept: no pull takes longer."""

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def push_of(client: Any, number: Any) -> tuple[Any, Any, Any]:
    """First key, stride and size of a push. Number 0 of client 0 fills the table."""
    mixed = (np.int64(client) * 7_368_787 + np.int64(number) * 2_750_159) % 1_000_003
    fills = (client == 0) & (number == 0)
    first = np.where(fills, 0, mixed % ROWS)
    stride = np.where(fills, 1, 1 + mixed * 31 % (ROWS - 1))
    return first, stride, np.where(fills, ROWS, 1 + mixed % MOST_KEYS)


def rows_of(keys: Keys, client: Any, number: Any, place: Any) -> Floats:
    """Rows that say who wrote them. All values are whole and exact in float32."""
    heads = np.broadcast_arrays(keys, client, number, place)
    mixed = keys * 31 + heads[1] * 17 + heads[2] * 7 + heads[3] * 3
    rest = (mixed[:, None] + np.arange(DIM - 4) * 1009) % 8191
    return np.concatenate([np.stack(heads, 1), rest], 1).astype(np.float32)


class Known(NamedTuple):
    """Known state of a moment: a later pull finds at least this."""

    floor: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int32]


class Commit(NamedTuple):
    """A commit: what it has at least, when it was over, and which updates had begun by then."""

    least: Known
    over: float
    begun: npt.NDArray[np.int32]


class State(NamedTuple):
    """Commits that the reader may be at, from a moment on; with no newest it follows."""

    begin: float
    oldest: int
    newest: int | None


class Truth:
    """Requests that clients have begun, and the answers."""

    def __init__(self, clients: int) -> None:
        """The table is filled."""
        self.lock = threading.Lock()
        # When a push began and was answered, 0 for not yet, by client and number.
        self.began = np.zeros((clients + 1, MOST_PUSHES))
        self.answered = np.zeros((clients + 1, MOST_PUSHES))
        self.began[0, 0] = self.answered[0, 0] = time.monotonic()
        # When the newest push of a key that was answered had begun.
        self.floor = np.full(ROWS, self.began[0, 0])
        self.counts = np.zeros((ROWS, clients), np.int32)
        self.begun = np.zeros((ROWS, clients), np.int32)

    def known(self) -> Known:
        """Known state of every key."""
        with self.lock:
            return Known(self.floor.copy(), self.counts.copy())

    def check_rows(
        self,
        keys: Keys,
        rows: Floats,
        floor: npt.NDArray[np.float64],
        end: float,
        where: str,
    ) -> None:
        """Refuses a row that no push wrote that had begun by `end`, or that was overwritten."""
        heads = rows[:, :4].astype(np.int64)
        _, client, number, place = heads.T
        known = (client >= 0) & (client < len(self.began)) & (number >= 0)
        known &= number < MOST_PUSHES
        client, number = np.where(known, client, 0), np.where(known, number, 0)
        first, stride, size = push_of(client, number)
        began, answered = self.began[client, number], self.answered[client, number]
        wrong = {
            "of another key, or of no push": ~known
            | (rows != rows_of(keys, client, number, place)).any(1)
            | (place < 0)
            | (place >= size)
            | ((first + place * stride) % ROWS != keys),
            "of a push that had not begun": (began == 0) | (began > end),
            "older than one that was answered": (answered > 0) & (answered < floor),
        }
        for what, bad in wrong.items():
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                raise ValueError(
                    f"{where}: {bad.sum()} of {len(keys)} rows are {what}: key {keys[at]} has "
                    f"{rows[at].tolist()}"
                )

    def check_counts(
        self,
        keys: Keys,
        rows: Floats,
        least: npt.NDArray[np.int32],
        most: npt.NDArray[np.int32],
        where: str,
    ) -> None:
        """Refuses counts that miss an answered update, or have one that had not begun."""
        found = rows[:, : least.shape[1]]
        wrong = (found < least) | (found > most) | (found % 1 != 0)
        if wrong.any() or rows[:, least.shape[1] :].any():
            at = int(np.flatnonzero(wrong.any(1))[0]) if wrong.any() else 0
            raise ValueError(
                f"{where}: {wrong.any(1).sum()} of {len(keys)} counts are wrong: key {keys[at]} "
                f"has {rows[at].tolist()}, expected {least[at].tolist()} to {most[at].tolist()}"
            )


class Served:
    """A server in a process of its own."""

    def __init__(self, name: str, store: Path, password: Path, *options: str) -> None:
        """Starts it, and waits until it listens."""
        self.name = name
        command = [sys.executable, "-c", START, "serve", str(store), "--listen", "127.0.0.1:0"]
        command += ["--memory", MEMORY, "--warm", "--stall", "2", *options]
        command += ["--password-file", str(password)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "serving at " not in line:
            raise RuntimeError(f"the server did not start: {line!r}")
        address = line.split("serving at ")[1].split(",")[0].split()[0]
        self.port = int(address.rpartition(":")[2])
        self.url = f"redis://:{PASSWORD}@{address}"
        self.lock = threading.Lock()
        self.times: list[float] = []

    def resident_mib(self) -> float:
        """Its memory that is in RAM."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"the {self.name} has ended")
        return int(found[1]) / 1024


class Soak:
    """The load."""

    def __init__(self, writer: Served, reader: Served, clients: int) -> None:
        """Begins nothing yet."""
        self.writer, self.reader, self.clients = writer, reader, clients
        self.truth = Truth(clients)
        self.over = threading.Event()
        self.errors: list[str] = []
        self.lock = threading.Lock()
        now = time.monotonic()
        self.commits = {1: Commit(self.truth.known(), now, self.truth.begun.copy())}
        self.states = [State(now, 1, None)]
        self.done = dict.fromkeys(
            ("pulls", "pushes", "updates", "commits", "switches", "refreshes", "bad clients"), 0
        )

    def count(self, what: str) -> None:
        """Counts what was done."""
        with self.lock:
            self.done[what] += 1

    def guarded(self, run: Callable[[int], None], number: int) -> None:
        """Runs a thread; its error ends all."""
        try:
            run(number)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.over.set()

    def load(self, client: int) -> None:
        """Pulls of either server and changes, with connections made anew now and then."""
        draw = np.random.default_rng(client)
        numbers = [0]  # of the last push
        while not self.over.is_set():
            with (
                embedrock.connect(self.writer.url, connections=1, timeout=20) as writer,
                embedrock.connect(self.reader.url, connections=1, timeout=20) as reader,
            ):
                tables = {
                    served: (remote["rows"], remote["counts"])
                    for served, remote in ((self.writer, writer), (self.reader, reader))
                }
                for _ in range(500):
                    if self.over.is_set():
                        return
                    kind = draw.random()
                    if kind < 0.03:
                        self.push(tables[self.writer][0], client, numbers)
                    elif kind < 0.06:
                        self.update(tables[self.writer][1], client, draw)
                    else:
                        served = self.reader if draw.random() < 0.5 else self.writer
                        keys = draw.integers(0, ROWS, int(draw.integers(1, MOST_KEYS)))
                        if kind > 0.98:
                            tables[served][0].lookahead(keys)
                        self.pull(served, tables[served], keys, counts=draw.random() < 0.5)

    def push(self, table: Any, client: int, numbers: list[int]) -> None:
        """Writes rows that tell who wrote them."""
        number = numbers[0] = numbers[0] + 1
        if number == MOST_PUSHES:
            raise OverflowError(f"a client has pushed {number} times, which is all that it can")
        first, stride, size = push_of(client, number)
        places = np.arange(int(size))
        keys = (first + places * stride) % ROWS
        began = self.truth.began[client, number] = time.monotonic()
        table.put(keys, rows_of(keys, client, number, places))
        self.truth.answered[client, number] = time.monotonic()
        with self.truth.lock:
            self.truth.floor[keys] = np.maximum(self.truth.floor[keys], began)
        self.count("pushes")

    def update(self, table: Any, client: int, draw: np.random.Generator) -> None:
        """Adds one to the client's column."""
        keys = np.unique(draw.integers(0, ROWS, int(draw.integers(1, MOST_KEYS))))
        gradients = np.zeros((len(keys), DIM), np.float32)
        gradients[:, client - 1] = -1
        self.truth.begun[keys, client - 1] += 1
        table.update(keys, gradients, lr=1.0)
        with self.truth.lock:
            self.truth.counts[keys, client - 1] += 1
        self.count("updates")

    def pull(self, served: Served, tables: Any, keys: Keys, *, counts: bool) -> None:
        """Pulls rows and checks them."""
        begin = time.monotonic()
        with self.truth.lock:
            known = Known(self.truth.floor[keys], self.truth.counts[keys])
        rows = tables[counts].get(keys)
        end = time.monotonic()
        with served.lock:
            served.times.append(end - begin)
        self.count("pulls")
        most, where = self.truth.begun[keys], f"the {served.name}"
        if served is self.reader:
            oldest, newest = self.may_be_at(begin, end)
            known = Known(oldest.least.floor[keys], oldest.least.counts[keys])
            if newest is not None:
                end, most = min(end, newest.over), newest.begun[keys]
        if counts:
            self.truth.check_counts(keys, rows, known.counts, most, where)
        else:
            self.truth.check_rows(keys, rows, known.floor, end, where)

    def may_be_at(self, begin: float, end: float) -> tuple[Commit, Commit | None]:
        """The oldest and the newest commit that the reader may have been at meanwhile."""
        with self.lock:
            ends = [state.begin for state in self.states[1:]] + [np.inf]
            states = [
                state
                for state, over in zip(self.states, ends, strict=True)
                if over >= begin and state.begin <= end
            ]
            newest = [state.newest for state in states]
            oldest = self.commits[min(state.oldest for state in states)]
            known = [step for step in newest if step is not None]
            return oldest, self.commits[max(known)] if len(known) == len(newest) else None

    def move(self, call: Callable[[], Any], oldest: int, newest: int | None) -> Any:
        """Moves the reader. Meanwhile it is at the state before or at the new one."""
        with self.lock:
            before = self.states[-1]
            either = (before.newest, newest)
            most = None if None in either else max(step for step in either if step is not None)
            self.states.append(State(time.monotonic(), min(before.oldest, oldest), most))
        found = call()
        with self.lock:
            now = time.monotonic()
            self.states.append(State(now, oldest, newest))
            while len(self.states) > 1 and self.states[1].begin < now - KEPT_S:
                del self.states[0]
            least = min(state.oldest for state in self.states)
            self.commits = {step: known for step, known in self.commits.items() if step >= least}
        return found

    def commit(self, remote: Any) -> int:
        """Commits, and keeps what the commit has."""
        least = self.truth.known()
        step = int(remote.commit())
        self.commits[step] = Commit(least, time.monotonic(), self.truth.begun.copy())
        self.count("commits")
        return step

    def moves(self, _number: int) -> None:
        """Commits; moves the reader on, back, forth, and has it follow again."""
        draw = np.random.default_rng(99)
        with (
            embedrock.connect(self.writer.url, timeout=20) as writer,
            embedrock.connect(self.reader.url, timeout=20) as reader,
        ):
            tables = reader["rows"], reader["counts"]

            def switch(step: int) -> None:
                found = self.move(lambda: reader.switch(step), step, step)
                if found != step:
                    raise ValueError(f"switched to step {step}, the reader is at {found}")
                self.count("switches")
                for counts in (False, True):
                    keys = draw.integers(0, ROWS, MOST_KEYS)
                    self.pull(self.reader, tables, keys, counts=counts)

            last = 1
            while not self.over.wait(1.0):
                before, last = last, self.commit(writer)
                kind = draw.random()
                if kind < 0.4:
                    switch(before)
                    if kind < 0.2:  # the reader holds its commit
                        self.over.wait(1.0)
                        before, last = last, self.commit(writer)
                        last = self.commit(writer)
                    self.over.wait(draw.random())
                    switch(last)
                found = self.move(reader.refresh, last, None)
                if found not in (None, last):
                    raise ValueError(f"refreshed at step {last}, the reader is at {found}")
                self.count("refreshes")

    def bad(self, number: int) -> None:
        """Misbehaving clients. Any reply to them is right, but the server must not end."""
        draw = random.Random(number)
        kept: list[socket.socket] = []
        admitted = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(PASSWORD), PASSWORD.encode())
        while not self.over.wait(0.02):
            port = draw.choice([self.writer.port, self.reader.port])
            client = socket.create_connection(("127.0.0.1", port), 10)
            sent = draw.choice(
                [
                    draw.randbytes(draw.randrange(1, 4000)),
                    b"*2\r\n$4\r\nAUTH\r\n$5\r\nwrong\r\n" * draw.randrange(1, 10),
                    admitted + b"*3\r\n$9\r\nEMB.PULLB\r\n$4\r\nrows\r\n$80000",
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
            self.count("bad clients")
            kept.append(client)
            if len(kept) > 50:
                kept.pop(draw.randrange(50)).close()
        for client in kept:
            client.close()

    def all_rows(self) -> tuple[Floats, Floats]:
        """Every row of both tables, once all clients have ended: the same of both servers."""
        known, keys = self.truth.known(), np.arange(ROWS)
        if (known.counts != self.truth.begun).any():
            raise ValueError("an update has begun and was not answered")
        answers = []
        with (
            embedrock.connect(self.writer.url, timeout=60) as writer,
            embedrock.connect(self.reader.url, timeout=60) as reader,
        ):
            self.commit(writer)
            reader.refresh()
            for name, remote in (("writer", writer), ("reader", reader)):
                rows, counts = remote["rows"].get(keys), remote["counts"].get(keys)
                where = f"the {name} in the end"
                self.truth.check_rows(keys, rows, known.floor, time.monotonic(), where)
                self.truth.check_counts(keys, counts, known.counts, known.counts, where)
                answers.append((rows, counts))
        if any((a != b).any() for a, b in zip(*answers, strict=True)):
            raise ValueError("writer and reader of one commit have other rows")
        return answers[0]


class Figures(NamedTuple):
    """A server's part of a line."""

    resident_mib: float
    p50_ms: float
    p99_ms: float
    pulls: int


def figures(served: Served) -> Figures:
    """Figures since the last time."""
    with served.lock:
        times, served.times = served.times, []
    ordered = sorted(times) or [float("nan")]
    p50, p99 = (ordered[int(len(ordered) * part)] * 1e3 for part in (0.5, 0.99))
    return Figures(served.resident_mib(), p50, p99, len(times))


def verdict(
    name: str, lines: list[Figures], most_growth: float, most_drift: float
) -> tuple[str, list[str]]:
    """A server's last third beside its first, in words, and what is wrong with it."""
    part = max(1, len(lines) // 3)
    first, last = lines[:part], lines[-part:]
    before, after = (statistics.mean(line.resident_mib for line in some) for some in (first, last))
    early, late = (statistics.median(line.p99_ms for line in some) for some in (first, last))
    growth, drift = after / before - 1, late / early
    said = (
        f"{name}: memory {before:.1f} to {after:.1f} MiB ({growth:+.1%}), "
        f"P99 {early:.2f} to {late:.2f} ms (x {drift:.2f})"
    )
    wrong = []
    if not growth <= most_growth:
        wrong.append(f"memory of the {name} grew by {growth:.1%}, at most {most_growth:.0%}")
    if not drift <= most_drift:
        wrong.append(f"P99 of the {name} is {drift:.2f} times the first, at most {most_drift}")
    return said, wrong


def run(arguments: argparse.Namespace, folder: Path) -> int:
    """Runs the load; 1 where something is wrong."""
    path, password = folder / "store", folder / "password"
    password.write_text(PASSWORD)
    keys = np.arange(ROWS)
    with embedrock.open(path, "64MiB") as store:
        table = store.table("rows", DIM, ROWS, optimizer="sgd", initializer=0.0)
        table.put(keys, rows_of(keys, 0, 0, keys))
        store.table("counts", DIM, ROWS, optimizer="sgd", initializer=0.0)
        store.commit(step=1)
    writer = Served("writer", path, password, "--writable", "--commit-every", "0")
    reader = Served("reader", path, password, "--refresh-every", "2s")
    both = (writer, reader)
    soak = Soak(writer, reader, arguments.clients)
    jobs: list[tuple[Callable[[int], None], int]]
    jobs = [(soak.load, number + 1) for number in range(arguments.clients)]
    jobs += [(soak.moves, 0), (soak.bad, 1)]
    threads = [threading.Thread(target=soak.guarded, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    lines: list[tuple[Figures, ...]] = []
    # A successful run reads every row; a failed one ends the servers all the same.
    try:
        seconds = arguments.minutes * 60
        every = min(60.0, seconds / 3)
        soak.over.wait(arguments.warm_up)
        for served in both:
            figures(served)
        head = "  ".join(f"{served.name} MiB  P50 ms  P99 ms    pulls" for served in both)
        print(f"minute  {head}", flush=True)
        for number in range(1, round(seconds / every) + 1):
            if soak.over.wait(every):
                break
            lines.append(tuple(figures(served) for served in both))
            texts = ("{:10.1f}  {:6.2f}  {:6.2f}  {:7}".format(*one) for one in lines[-1])
            print(f"{number * every / 60:6.1f}  {'  '.join(texts)}", flush=True)
        soak.over.set()
        for thread in threads:
            thread.join()
        rows = None if soak.errors else soak.all_rows()
    except Exception as error:
        soak.errors.append(f"{type(error).__name__}: {error}")
        rows = None
    soak.over.set()
    for served in both:
        served.process.terminate()
        if served.process.wait(60) != 0:
            soak.errors.append(f"the {served.name} ended with {served.process.returncode}")
    if rows is not None:
        with embedrock.open(path, "64MiB", read_only=True) as store:
            for name, expected in zip(("rows", "counts"), rows, strict=True):
                if (store.table(name).get(keys) != expected).any():
                    soak.errors.append(f"table {name!r} of the stopped server has other rows")
    print(", ".join(f"{count} {what}" for what, count in soak.done.items()))
    wrong = [*soak.errors]
    if lines:
        for served, its in zip(both, zip(*lines, strict=True), strict=True):
            said, more = verdict(served.name, list(its), arguments.growth, arguments.drift)
            print(said)
            wrong += more
    for text in wrong:
        print(f"wrong: {text}")
    failed = f"failed: {len(soak.errors)} errors, {len(wrong) - len(soak.errors)} figures"
    print(failed if wrong else "passed: memory and times are flat, no error, every row right")
    return 1 if wrong else 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="behind the warm-up (30)")
    parser.add_argument("--warm-up", type=float, default=300.0, help="in seconds (300)")
    parser.add_argument("--clients", type=int, default=4, help="threads with load, 1 to 16 (4)")
    parser.add_argument("--growth", type=float, default=0.05, help="of memory, at most (0.05)")
    parser.add_argument(
        "--drift", type=float, default=1.5, help="of P99, the last third by the first (1.5)"
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.clients <= DIM:
        parser.error(f"--clients is {arguments.clients}, expected 1 to {DIM}")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return run(arguments, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
