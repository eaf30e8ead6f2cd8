"""redis-py, with one server and with three that share the keys; and what its pipelines send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import DIM, rows_of

import embedrock
from clusters import Trio, cluster
from embedrock.remote import buckets_of
from embedrock.remote.wire import Refused, Wire
from servers import Served, serving

redis = pytest.importorskip("redis", reason="redis-py is not installed (pip install redis)")
KEYS = np.arange(0, 2000, 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed store: a dense table with rows of even ids, and one that grows."""
    path = tmp_path_factory.mktemp("whole") / "whole.store"
    with embedrock.open(path, "64MiB") as store:
        for name, ids in (("user", 2000), ("item", None)):
            store.table(name, DIM, ids, optimizer="sgd", initializer=0.5).put(KEYS, rows_of(KEYS))
        store.commit(3)
    return path


@pytest.fixture
def one(whole: Path, tmp_path: Path) -> Iterator[Served]:
    embedrock.copy(whole, tmp_path / "one.store")
    with serving(tmp_path / "one.store", "--writable", "--max-reply-bytes", "100000") as served:
        yield served


@pytest.fixture
def three(whole: Path, tmp_path: Path) -> Iterator[Trio]:
    with cluster(whole, tmp_path, "--writable", "--commit-every", "0") as trio:
        yield trio


def row(key: int, version: int = 0) -> bytes:
    return bytes(rows_of(np.array([key]), version)[0].tobytes())


def name(key: int, table: str = "user") -> str:
    return f"{table}:{{{buckets_of([key], dense=table == 'user')[0]:04}}}:{key}"


@pytest.mark.parametrize("protocol", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_pipeline_runs_as_it_is_by_default(one: Served, protocol: int) -> None:
    client = redis.Redis(port=one.port, protocol=protocol)
    with client.pipeline() as pipe:
        for key in (2, 3):
            pipe.get(f"user:{key}")
        pipe.set("user:3", row(3))
        pipe.mget("user:3", "item:4", "item:5")
        pipe.execute_command("EMB.PULL", "user", 3)
        pipe.execute_command("EMB.COMMIT", 7)
        pipe.get("user:5")
        found = pipe.execute()
    assert found[:3] == [row(2), None, True]
    assert found[3] == [row(3), row(4), None] and found[4].endswith(row(3))
    commit = found[5].items() if protocol == 3 else zip(found[5][::2], found[5][1::2], strict=True)
    assert dict(commit)[b"step"] == 7 and found[6] is None
    # Those before an error are made, and those behind it: nothing is taken back.
    with client.pipeline() as pipe:
        pipe.set("user:3", row(3, 1)).set("user:3", b"short").set("user:5", row(5))
        found = pipe.execute(raise_on_error=False)
    assert found[0] is True and found[2] is True and "row of 5 bytes" in str(found[1])
    assert client.get("user:3") == row(3, 1)
    # More replies than may wait: they come as the client takes them.
    with client.pipeline() as pipe:
        for _ in range(200):
            pipe.mget([f"user:{key}" for key in KEYS[:100]])
        found = pipe.execute()
    assert found == [[row(int(key)) for key in KEYS[:100]]] * 200


def refused(wire: Wire, *words: bytes) -> str:
    with pytest.raises(Refused) as caught:
        wire.call(*words)
    return str(caught.value)


def test_a_queue_that_has_failed_runs_nothing(one: Served) -> None:
    wire = Wire("127.0.0.1", one.port, 10, None)
    for words, said in (
        ((b"NOPE",), "unknown command"),
        ((b"GET",), "wrong number of arguments"),
        ((b"HELLO", b"3"), "not allowed between"),
        ((b"AUTH", b"x"), "not allowed between"),
    ):
        assert wire.call(b"MULTI") == "OK"
        assert wire.call(b"SET", b"user:3", row(9)) == "QUEUED"
        assert said in refused(wire, *words)
        assert wire.call(b"SET", b"user:3", row(9)) == "QUEUED"
        assert refused(wire, b"EXEC").startswith("EXECABORT")
    assert wire.call(b"MULTI") == "OK"
    assert "nested" in refused(wire, b"MULTI")
    assert "WATCH is not there" in refused(wire, b"WATCH", b"user:3")
    assert wire.call(b"SET", b"user:3", row(9)) == "QUEUED"
    assert wire.call(b"DISCARD") == "OK"
    assert "EXEC without" in refused(wire, b"EXEC")
    assert "DISCARD without" in refused(wire, b"DISCARD")
    assert wire.call(b"MULTI") == "OK"
    assert wire.call(b"RESET") == "RESET"
    assert "EXEC without" in refused(wire, b"EXEC")
    assert wire.call(b"MULTI") == "OK"
    assert wire.call(b"EXEC") == []
    assert wire.call(b"GET", b"user:3") is None
    wire.close()


def test_a_queue_holds_no_more_than_a_request(whole: Path) -> None:
    with serving(whole, "--max-request-bytes", "20000") as served:
        wire = Wire("127.0.0.1", served.port, 10, None)
        assert wire.call(b"MULTI") == "OK"
        for _ in range(9):
            assert wire.call(b"ECHO", b"x" * 2000) == "QUEUED"
        assert "more than 20000 bytes" in refused(wire, b"ECHO", b"x" * 2000)
        assert refused(wire, b"EXEC").startswith("EXECABORT")
        assert wire.call(b"PING") == "PONG"
        wire.close()


def test_a_large_request_in_a_pipeline_is_an_error_in_its_place(
    whole: Path, tmp_path: Path
) -> None:
    """The connection ended behind the error, and redis-py, which sends the whole pipeline before it
    reads, told of that instead: ``Connection closed by server``."""
    embedrock.copy(whole, tmp_path / "one.store")
    with serving(tmp_path / "one.store", "--writable", "--max-request-bytes", "1MiB") as served:
        client = redis.Redis(port=served.port)
        for transaction in (False, True):
            pipe = client.pipeline(transaction=transaction)
            pipe.set("user:2", row(2, 1)).set("user:4", b"x" * (4 << 20)).get("user:6")
            with pytest.raises(redis.exceptions.ResponseError, match="expected at most 1048576"):
                pipe.execute()
        replies = client.pipeline(transaction=False).get("user:2").set("user:4", b"x" * (2 << 20))
        first, refused, last = replies.get("user:4").execute(raise_on_error=False)
        assert (first, last) == (row(2, 1), row(4))
        assert "expected at most 1048576; send it in parts" in str(refused)
        assert client.connection_pool._created_connections == 1
        client.close()


def client_of(three: Trio, **options: Any) -> Any:
    startup = redis.cluster.ClusterNode("127.0.0.1", three.ports["b"])
    return redis.cluster.RedisCluster(startup_nodes=[startup], **options)


@pytest.mark.parametrize("protocol", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_cluster_client_finds_the_server_of_every_key(three: Trio, protocol: int) -> None:
    client = client_of(three, protocol=protocol)
    assert {node.port for node in client.get_nodes()} == {*three.ports.values()}
    names = [name(int(key), table) for key in KEYS[:200] for table in ("user", "item")]
    rows = [row(int(key)) for key in KEYS[:200] for _ in range(2)]
    assert [client.get(one) for one in names[:40]] == rows[:40]
    assert client.mget_nonatomic(names) == rows
    assert client.mget(name(17), name(1041)) == [None, None]
    with pytest.raises(redis.exceptions.RedisClusterException, match="same"):
        client.mget(names[0], names[2])
    for key in (3, 501, 901):
        assert client.set(name(key), row(key)) and client.get(name(key)) == row(key)
    assert client.mset_nonatomic({name(key): row(key, 1) for key in (3, 501, 901)})
    assert client.mget_nonatomic([name(key) for key in (3, 501, 901)]) == [
        row(key, 1) for key in (3, 501, 901)
    ]
    # The bucket is the key of Embedrock's own commands.
    for key in (4, 500, 900):
        table = name(key).rpartition(":")[0]
        pulled = client.execute_command("EMB.PULL", table, key)
        assert pulled.endswith(row(key)) and pulled == client.execute_command(
            "EMB.PULLB", table, np.array([key]).tobytes()
        )
    everywhere = client.execute_command("EMB.COMMIT", 8, target_nodes=client.get_nodes())
    assert len(everywhere) == 3
    for node in client.get_nodes():
        assert client.info(target_nodes=node)["commit_step"] == 8
    with client.pipeline() as pipe:
        for key in (2, 500, 900):
            pipe.get(name(key))
        assert pipe.execute() == [row(2), row(500), row(900)]
    client.close()


def test_the_cluster_client_follows_a_bucket_that_moves(three: Trio) -> None:
    client = client_of(three)
    assert client.get(name(18)) == row(18)
    three.write_map({"a": "0-17,19-340", "b": "18,341-700", "c": "701-1023"})
    for server in "bac":
        node = client.get_node("127.0.0.1", three.ports[server])
        assert client.execute_command("EMB.CLUSTER", "RELOAD", target_nodes=node)
        if server == "b":
            wire = Wire("127.0.0.1", three.ports["b"], 10, None)
            wire.call(b"SET", name(18).encode(), row(18, 1))
            wire.close()
    assert client.get(name(18)) == row(18, 1)
    # A transaction is refused whole before anything of it runs.
    wire = Wire("127.0.0.1", three.ports["a"], 10, None)
    assert wire.call(b"MULTI") == "OK"
    assert wire.call(b"SET", name(17).encode(), row(17)) == "QUEUED"
    assert refused(wire, b"SET", name(18).encode(), row(18)).startswith("MOVED")
    assert refused(wire, b"EXEC").startswith("EXECABORT")
    assert wire.call(b"GET", name(17).encode()) is None
    wire.close()
    client.close()


def test_the_cluster_client_goes_on_without_a_server_that_is_down(three: Trio) -> None:
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
    client = client_of(three, retry=retry, socket_timeout=5)
    assert client.get(name(900)) == row(900)
    three.kill("c")
    with pytest.raises((redis.exceptions.ConnectionError, redis.exceptions.RedisClusterException)):
        client.get(name(900))
    assert client.get(name(2)) == row(2) and client.get(name(500)) == row(500)
    three.start("c")
    assert client.get(name(900)) == row(900)
    client.close()
