"""Servers that share keys while clients of several kinds read: buckets move, a server is killed."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import DIM, rows_of

import embedrock
from clusters import BUCKETS, Trio, cluster
from embedrock.errors import IoError
from embedrock.remote import buckets_of
from embedrock.remote.wire import Wire

KEYS = np.arange(2000)
ROWS = rows_of(KEYS)
TABLES = {"user": True, "item": False}
"""Tables, and whether they are dense."""
SAYS_DOWN = {
    "all": ("IoError", "cannot connect: server"),
    "redis-cli, b": ("ConnectionError", "Could not connect to Redis at"),
    "redis-py, b": ("ConnectionError", "Connection refused"),
}
"""Errors of clients of a server that is down (docs/how-to/cluster.md)."""
CLI = shutil.which("redis-cli")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed store: a dense table, and one that grows, with the state of row-wise Adagrad."""
    path = tmp_path_factory.mktemp("whole") / "whole.store"
    with embedrock.open(path, "64MiB") as store:
        for name, dense in TABLES.items():
            table = store.table(name, DIM, len(KEYS) if dense else None, optimizer="adagrad")
            table.put(KEYS, ROWS, state=np.full((len(KEYS), DIM), 0.5, np.float32))
        store.commit(3)
    return path


class Readers:
    """Clients that read and compare until they are stopped, and what came of it, by phase."""

    def __init__(self) -> None:
        self.phase = "before"
        self.right: Counter[tuple[str, str]] = Counter()
        self.failed: list[tuple[str, str, str, Exception]] = []
        """Name of the client, the phases in which it asked and failed, and the error."""
        self.wrong: list[str] = []
        self.stopping = False
        self.threads: dict[str, threading.Thread] = {}

    def add(self, name: str, read: Callable[[], bool]) -> None:
        """One that calls ``read`` over and over; it says whether what it got is right."""

        def run() -> None:
            while not self.stopping:
                began = self.phase
                try:
                    right = read()
                except Exception as error:
                    self.failed.append((name, began, self.phase, error))
                    time.sleep(0.01)
                    continue
                if not right:
                    self.wrong.append(f"{name}, {began}")
                self.right[name, began] += 1

        self.threads[name] = threading.Thread(target=run, daemon=True)
        self.threads[name].start()

    def go(self, phase: str, least: int = 2, but: tuple[str, ...] = ()) -> None:
        """Begins a phase, and waits until each has answers that were asked for in it."""
        self.phase, until = phase, time.monotonic() + 60
        while any(self.right[name, phase] < least for name in self.threads if name not in but):
            assert time.monotonic() < until, f"no answers {phase}: {self.right}, {self.failed}"
            time.sleep(0.005)

    def stop(self) -> None:
        self.stopping = True
        for name, thread in self.threads.items():
            thread.join(60)
            assert not thread.is_alive(), f"{name} hangs"


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    try:
        yield made
    finally:
        made.stop()


def name_of(key: int, table: str = "user") -> str:
    return f"{table}:{{{int(buckets_of([key], dense=TABLES[table])[0]):04}}}:{key}"


def with_cli(trio: Trio, server: str, keys: list[int]) -> bool:
    """One `redis-cli -c`, which is told of one server and gets rows of all."""
    asked = "".join(f"GET {name_of(key)}\n" for key in keys)
    assert CLI is not None
    done = subprocess.run(
        [CLI, "-c", "-p", str(trio.ports[server])],
        input=asked.encode(),
        capture_output=True,
        timeout=30,
    )
    said = re.sub(rb"-> Redirected to slot \[\d+\] located at [\d.:]+\n", b"", done.stdout)
    if done.returncode or b"onnect" in said + done.stderr:
        raise ConnectionError((said + done.stderr).decode(errors="replace"))
    return said == b"".join(ROWS[key].tobytes() + b"\n" for key in keys)


def redis_py(trio: Trio, server: str) -> Any:
    redis = pytest.importorskip("redis", reason="redis-py is not installed (pip install redis)")
    startup = redis.cluster.ClusterNode("127.0.0.1", trio.ports[server])
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
    return redis.cluster.RedisCluster(startup_nodes=[startup], retry=retry, socket_timeout=10)


def reload(trio: Trio, server: str) -> None:
    wire = Wire("127.0.0.1", trio.ports[server], 10, None)
    assert wire.call(b"EMB.CLUSTER", b"RELOAD") == "OK"
    wire.close()


def give(trio: Trio, giving: str, taking: str, first: int, last: int) -> None:
    """The rows of these buckets, with their state, go to another store, whose server follows."""
    with (
        embedrock.open(trio.store_of(giving), "64MiB", read_only=True) as source,
        embedrock.open(trio.store_of(taking), "64MiB") as store,
    ):
        for table in source.tables.values():
            for keys, values, state in table.items(state=True):
                buckets = buckets_of(keys, dense=table.num_embeddings is not None)
                own = (buckets >= first) & (buckets <= last)
                store.tables[table.name].put(keys[own], values[own], state=state[own])
        assert store.step is not None
        store.commit(store.step + 1)
    with embedrock.connect(trio.url(taking)) as remote:
        assert remote.refresh() is not None


def test_buckets_move_while_clients_read(whole: Path, tmp_path: Path, readers: Readers) -> None:
    """Buckets 300 to 340 go from "a" to "b", then, with others, to "c"."""
    moved = [300, 317, 1340]
    with cluster(whole, tmp_path, "--refresh-every", "0") as trio:
        ours = embedrock.connect(trio.url("a"), cluster=True)

        def rows_are_right() -> bool:
            return all(np.array_equal(ours[name].get(KEYS), ROWS) for name in TABLES)

        readers.add("batches of all", rows_are_right)
        readers.add("moved keys", lambda: np.array_equal(ours["user"].get(moved), ROWS[moved]))
        if CLI is not None:
            readers.add("redis-cli", lambda: with_cli(trio, "a", [*moved, 900]))
        try:
            client = redis_py(trio, "c")
        except pytest.skip.Exception:
            client = None
        if client is not None:
            asked = [name_of(key, table) for key in (*moved, 5, 900) for table in TABLES]
            rows = [ROWS[key].tobytes() for key in (*moved, 5, 900) for _ in TABLES]
            readers.add("redis-py", lambda: client.mget_nonatomic(asked) == rows)
        readers.go("before")

        for phase, giving, taking, buckets in (
            ("at b", "a", "b", {"a": "0-299", "b": "300-700", "c": "701-1023"}),
            ("at c", "b", "c", {"a": "0-299", "b": "341-700", "c": "300-340,701-1023"}),
        ):
            give(trio, giving, taking, 300, 340)
            trio.write_map(buckets)
            reload(trio, taking)
            readers.go(f"both before {phase}")
            reload(trio, giving)
            readers.go(f"two know {phase}")
            (third,) = {*BUCKETS} - {giving, taking}
            reload(trio, third)
            readers.go(phase)
        readers.stop()
        assert readers.wrong == [] and readers.failed == []
        # "c" alone has them by now, with their optimizer state.
        wire = Wire("127.0.0.1", trio.ports["b"], 10, None)
        with pytest.raises(Exception, match=f"^MOVED [0-9]+ {trio.address('c')}$"):
            wire.call(b"GET", name_of(317).encode())
        wire.close()
        with embedrock.open(trio.store_of("c"), "64MiB", read_only=True) as store:
            values, state = store.table("user").get(moved, state=True)
            np.testing.assert_array_equal(values, ROWS[moved])
            assert (state == 0.5).all()
        ours.close()


@pytest.mark.long
def test_a_server_is_killed_while_clients_read(
    whole: Path, tmp_path: Path, readers: Readers
) -> None:
    """Keys of "b" cannot be had until it is back, and nothing else of that is seen."""
    at = buckets_of(KEYS, dense=True)
    b, others = KEYS[(at >= 341) & (at <= 700)], KEYS[(at < 341) | (at > 700)]
    with cluster(whole, tmp_path, "--threads", "1") as trio:
        ours = embedrock.connect([trio.url("b"), trio.url("a")], timeout=10)
        table = ours["user"]
        readers.add("others", lambda: np.array_equal(table.get(others), ROWS[others]))
        readers.add("all", lambda: np.array_equal(table.get(KEYS), ROWS))
        down = ["all"]
        if CLI is not None:
            readers.add("redis-cli, others", lambda: with_cli(trio, "a", [5, 900]))
            readers.add("redis-cli, b", lambda: with_cli(trio, "a", [500]))
            down.append("redis-cli, b")
        try:
            clients = [redis_py(trio, server) for server in "bb"]
        except pytest.skip.Exception:
            clients = []
        if clients:
            for client, which, keys in zip(
                clients, ("others", "b"), ((5, 900), (500,)), strict=True
            ):
                asked, rows = [name_of(k) for k in keys], [ROWS[k].tobytes() for k in keys]
                readers.add(
                    f"redis-py, {which}",
                    lambda client=client, asked=asked, rows=rows: (
                        client.mget_nonatomic(asked) == rows
                    ),
                )
            down.append("redis-py, b")
        readers.go("before")
        readers.phase = "dying"
        trio.kill("b")
        readers.go("down", but=tuple(down))
        until = time.monotonic() + 60
        while {name for name, began, _, _ in readers.failed if began == "down"} != {*down}:
            assert time.monotonic() < until, f"{down} should have errors: {readers.failed}"
            time.sleep(0.01)
        # A port that nobody listens at is known at once, and not when the patience is at its end.
        refused = f"cannot connect: server {trio.address('b')}.*[Rr]efused"
        with pytest.raises(IoError, match=refused):
            table.get(b[:1])
        readers.phase = "starting"
        trio.start("b")
        readers.go("back")
        readers.stop()
        assert readers.wrong == []
        # Those that want nothing of "b" have seen nothing, others until it was back.
        assert {name for name, *_ in readers.failed} == {*down}
        for name, began, ended, error in readers.failed:
            assert ended != "before" and began != "back"
            if began == "down":
                kind, said = SAYS_DOWN[name]
                assert type(error).__name__ == kind and str(trio.ports["b"]) in str(error)
                assert said in str(error)
        ours.close()
