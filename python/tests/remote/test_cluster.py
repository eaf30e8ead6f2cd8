"""Several servers that share the keys of their tables, as their users meet them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import DIM, Reordered, rows_of

import embedrock
from clusters import BUCKETS, Trio, cluster, free_ports
from embedrock.errors import IoError, KeyRangeError, MisuseError, NonFiniteError, NotFoundError
from embedrock.remote import buckets_of, routed
from embedrock.remote.nodes import Map
from embedrock.remote.routed import RoutedWire
from embedrock.remote.wire import Refused, Wire
from servers import serving, start

ALL = np.arange(2000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed store: a dense table with rows of even ids, one that grows, one with Adam."""
    path = tmp_path_factory.mktemp("whole") / "whole.store"
    keys = np.arange(0, 2000, 2)
    with embedrock.open(path, "64MiB") as store:
        for name, ids, optimizer in (
            ("user", 2000, "adagrad"),
            ("key", None, "adagrad"),
            ("adam", 2000, "adam"),
        ):
            table = store.table(name, DIM, ids, optimizer=optimizer, initializer=0.5)
            table.put(keys, rows_of(keys))
            table.update(keys, np.ones((1000, DIM), np.float32), lr=0.125)
        store.commit(3, {"epoch": 1}, {"dense": b"weights"})
    return path


@pytest.fixture(scope="module")
def readers(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Servers that nobody writes to."""
    with cluster(whole, tmp_path_factory.mktemp("readers"), "--threads", "1") as trio:
        yield trio


def owner(key: int, dense: bool = True) -> str:
    bucket = int(buckets_of([key], dense=dense)[0])
    return next(
        name
        for name, text in BUCKETS.items()
        if int(text.split("-")[0]) <= bucket <= int(text.split("-")[1])
    )


def moved_to(port: int, bucket: int) -> str:
    return f"MOVED {slot(bucket)} 127.0.0.1:{port}"


def slot(bucket: int) -> int:
    import binascii

    return binascii.crc_hqx(b"%04d" % bucket, 0) % 16384


def refused(wire: Wire, *words: bytes) -> str:
    with pytest.raises(Refused) as caught:
        wire.call(*words)
    return str(caught.value)


def test_copies_by_bucket_divide_the_rows_and_keep_ids(whole: Path, tmp_path: Path) -> None:
    rows = {"user": 0, "key": 0, "adam": 0}
    with embedrock.open(whole, "64MiB", read_only=True) as store:
        for name, buckets in BUCKETS.items():
            done = embedrock.copy(whole, tmp_path / name, buckets=buckets)
            with embedrock.open(tmp_path / name, "64MiB") as part:
                assert (part.step, part.meta, part.state()) == (3, store.meta, store.state())
                assert sum(len(table) for table in part.tables.values()) == done["rows"]
                for table in part.tables.values():
                    keys = np.concatenate(list(table.keys()))
                    dense = table.num_embeddings is not None
                    first, last = map(int, buckets.split("-"))
                    found = buckets_of(keys, dense=dense)
                    assert ((found >= first) & (found <= last)).all()
                    rows[table.name] += len(keys)
                    expected = store.table(table.name).get(keys)
                    np.testing.assert_array_equal(table.get(keys), expected)
        assert rows == {"user": 1000, "key": 1000, "adam": 1000}
    with pytest.raises(MisuseError, match="a number from 0 to 1023"):
        embedrock.copy(whole, tmp_path / "none", buckets="0-1024")


def test_a_table_of_a_cluster_reads_as_one_that_is_here(whole: Path, readers: Trio) -> None:
    keys = np.array([[4, 3, 999], [1998, 4, 1024]])
    urls = [readers.url(name) for name in BUCKETS]
    for url, options in ((urls, {}), (urls[1], {"cluster": True})):
        with (
            embedrock.open(whole, "64MiB", read_only=True) as store,
            embedrock.connect(url, **options) as remote,
        ):
            assert [*remote.tables] == ["user", "key", "adam"]
            for name in ("user", "key", "adam"):
                table, here = remote[name], store.table(name)
                got, found = table.get(keys, found=True)
                np.testing.assert_array_equal(got, here.get(keys))
                assert found.tolist() == [[True, False, False], [True, True, True]]
                out = np.empty((2000, DIM), np.float32)
                assert table.get(ALL, out) is out
                np.testing.assert_array_equal(out, here.get(ALL))
                np.testing.assert_array_equal(table.get([17, 17]), here.get([17, 17]))
                assert table.get([]).shape == (0, DIM)
                table.lookahead(ALL)
            with pytest.raises(KeyRangeError, match="2000"):
                remote["user"].get([2000])
            with pytest.raises(NotFoundError, match="no table 'nobody'"):
                remote["nobody"]
            with pytest.raises(MisuseError, match="--writable"):
                remote["user"].put(ALL, np.zeros((2000, DIM), np.float32))
            assert remote.refresh() is None
    with embedrock.connect(urls[0]) as alone, pytest.raises(MisuseError, match="cluster=True"):
        alone["user"].get(ALL)


def test_servers_that_are_no_cluster_are_told_from_one(whole: Path, readers: Trio) -> None:
    with serving(whole) as served:
        with pytest.raises(MisuseError, match="started without --cluster"):
            embedrock.connect(served.url, cluster=True)
        wire = Wire("127.0.0.1", served.port, 10, None)
        assert b"cluster_enabled:0" in wire.call(b"INFO", b"cluster")
        # The same names work without a cluster.
        assert wire.call(b"GET", b"user:{0004}:4") == wire.call(b"GET", b"user:4")
        assert len(wire.call(b"MGET", b"user:{0004}:4", b"user:{0006}:6", b"key:4")) == 3
        assert refused(wire, b"GET", b"user:{0004}:6").startswith("CROSSSLOT key 6 of table 'user'")
        wire.close()
    with pytest.raises(MisuseError, match="one password and scheme"):
        embedrock.connect([readers.url("a"), "redis://:secret@127.0.0.1:1"])


def test_steps_of_a_cluster_give_the_bits_of_a_store_that_is_here(
    whole: Path, tmp_path: Path
) -> None:
    embedrock.copy(whole, tmp_path / "here.store")
    random = np.random.default_rng(0)
    with (
        embedrock.open(tmp_path / "here.store", "64MiB") as store,
        cluster(whole, tmp_path, "--writable", "--commit-every", "0") as trio,
        embedrock.connect(trio.url("c"), cluster=True) as remote,
    ):
        for name in ("user", "key", "adam"):
            here, there = store.table(name), remote[name]
            for size in (300, 3, 1, 0, 500):  # few keys leave servers without any
                keys = random.integers(0, 2000, size)
                gradients = random.standard_normal((size, DIM)).astype(np.float32)
                assert there.update(keys, gradients, lr=0.05) == here.update(
                    keys, gradients, lr=0.05
                )
            here.put([1, 1, 900], rows_of(np.array([7, 9, 3])))
            there.put([1, 1, 900], rows_of(np.array([7, 9, 3])))
            np.testing.assert_array_equal(there.get(ALL), here.get(ALL))
        with pytest.raises(MisuseError, match="takes no momentum"):
            remote["user"].update(ALL, np.ones((2000, DIM), np.float32), lr=0.1, momentum=0.5)
        before = remote["user"].get(ALL)
        gradients = np.ones((2000, DIM), np.float32)
        gradients[500] = np.nan
        with pytest.raises(NonFiniteError, match="key 500"):
            remote["user"].update(ALL, gradients, lr=0.1)
        np.testing.assert_array_equal(remote["user"].get(ALL), before)
        # All are at one step, whatever they were at before.
        with embedrock.connect(trio.url("b")) as alone:
            assert alone.commit() == 4
        assert (remote.commit(), remote.commit(9)) == (5, 9)
        store.commit(9)
    for name in BUCKETS:
        with embedrock.open(trio.store_of(name), "64MiB", read_only=True) as store:
            assert (store.step, store.meta) == (9, {"epoch": 1})


def test_a_bucket_that_moves_is_found_and_an_update_of_it_made_once(
    whole: Path, tmp_path: Path
) -> None:
    """Key 17 is in bucket 17, which goes from "a" to "b"."""
    keys = np.array([17, 18, 500, 900])
    with (
        cluster(whole, tmp_path, "--writable", "--commit-every", "0") as trio,
        embedrock.connect(trio.url("a"), cluster=True) as remote,
    ):
        table = remote["user"]
        before = table.get(keys)
        trio.write_map({"a": "0-16,18-340", "b": "17,341-700", "c": "701-1023"})

        def reload(name: str) -> None:
            wire = Wire("127.0.0.1", trio.ports[name], 10, None)
            assert wire.call(b"EMB.CLUSTER", b"RELOAD") == "OK"
            wire.close()

        # First the server that takes the bucket over, then its rows, then the server that had it.
        reload("b")
        with embedrock.connect(trio.url("b")) as taking:
            taking["user"].put([17], before[:1])
        reload("a")
        trio.servers["c"].process.send_signal(signal.SIGHUP)

        np.testing.assert_array_equal(table.get(keys), before)
        table.put(keys, before + 1)
        np.testing.assert_array_equal(table.get(keys), before + 1)
        wire = Wire("127.0.0.1", trio.ports["a"], 10, None)
        packed = np.array([18, 17]).tobytes()
        assert refused(wire, b"EMB.PULLB", b"user", packed) == moved_to(trio.ports["b"], 17)
        wire.close()
        wire, until = Wire("127.0.0.1", trio.ports["c"], 10, None), time.monotonic() + 20
        while refused(wire, b"GET", b"user:{0017}:17") != moved_to(trio.ports["b"], 17):
            assert time.monotonic() < until, "SIGHUP does not have the map read again"
            time.sleep(0.02)
        # A map that is none changes nothing.
        trio.map.write_text("{}")
        assert "missing field `nodes`" in refused(wire, b"EMB.CLUSTER", b"RELOAD")
        trio.write_map()
        trio.map.write_text(trio.map.read_text().replace('"c"', '"d"'))
        assert "no node 'c', which this server is" in refused(wire, b"EMB.CLUSTER", b"RELOAD")
        assert refused(wire, b"GET", b"user:{0017}:17") == moved_to(trio.ports["b"], 17)
        wire.close()
        remote.commit()
    for name, expected in (("a", before[:1]), ("b", before[:1] + 1)):
        with embedrock.open(trio.store_of(name), "64MiB", read_only=True) as store:
            assert store.step == 4
            np.testing.assert_array_equal(store.table("user").get([17]), expected)


def test_a_server_that_is_down_fails_its_own_keys_and_an_update_changes_nothing(
    whole: Path, tmp_path: Path
) -> None:
    b = np.array([key for key in range(0, 2000, 2) if owner(key) == "b"])
    others = np.array([key for key in range(0, 2000, 2) if owner(key) != "b"])
    with (
        cluster(whole, tmp_path, "--writable", "--commit-every", "0") as trio,
        embedrock.connect([trio.url("b"), trio.url("a")], timeout=5) as remote,
    ):
        table = remote["user"]
        before = table.get(ALL)
        trio.kill("b")
        np.testing.assert_array_equal(table.get(others), before[others])
        with pytest.raises(IoError, match=f"cannot connect: server {trio.address('b')}"):
            table.get(b[:1])
        for write in (
            lambda: table.update(ALL, np.ones((2000, DIM), np.float32), lr=0.5),
            lambda: table.put(ALL, np.ones((2000, DIM), np.float32)),
            remote.commit,
        ):
            with pytest.raises(IoError, match="cannot connect"):
                write()
        np.testing.assert_array_equal(table.get(others), before[others])
        # Keys of servers that are there can still be written.
        table.put(others[:1], before[others[:1]] + 1)
        with embedrock.connect([trio.url("b"), trio.url("a")]) as second:
            np.testing.assert_array_equal(second["user"].get(others[1:]), before[others[1:]])
        trio.start("b")
        np.testing.assert_array_equal(table.get(b), before[b])
        assert table.update(b, np.ones((len(b), DIM), np.float32), lr=0.5)["rows"] == len(b)


def test_an_update_that_one_server_does_not_answer_says_who_has_made_it(
    whole: Path, tmp_path: Path
) -> None:
    with cluster(whole, tmp_path, "--writable", "--commit-every", "0") as trio:
        between = Reordered(trio.ports["b"], closes=0)
        trio.write_map(ports={"b": between.port})
        for name in ("a", "c"):
            wire = Wire("127.0.0.1", trio.ports[name], 10, None)
            assert wire.call(b"EMB.CLUSTER", b"RELOAD") == "OK"
            wire.close()
        with (
            embedrock.connect(trio.url("a")) as alone,
            embedrock.connect(trio.url("c"), cluster=True) as remote,
        ):
            table, some = remote["user"], ALL[::20]
            before = table.get(some)
            between.closes, asked = 1, len(between.requests)
            counts = {name: sum(owner(int(key)) == name for key in some) for name in BUCKETS}
            with pytest.raises(IoError) as caught:
                table.put(some, before + 1)
            said = str(caught.value)
            assert f"EMB.PUSH was made by server {trio.address('a')} ({counts['a']} keys)" in said
            assert f"server {trio.address('c')} ({counts['c']} keys)" in said
            unknown = f"127.0.0.1:{between.port} ({counts['b']} keys) has made it is not known"
            assert unknown in said and caught.value.errno is not None
            assert len(between.requests) == asked + 1, "an update was sent again"
            b = np.array([owner(int(key)) == "b" for key in some])
            np.testing.assert_array_equal(table.get(some[~b]), before[~b] + 1)
            np.testing.assert_array_equal(table.get(some[b]), before[b])
            assert alone.commit() == 4


def test_a_step_that_some_servers_have_made_is_not_made_again(whole: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with (
        cluster(whole, tmp_path, "--writable", "--commit-every", "0") as trio,
        embedrock.connect(trio.url("a"), cluster=True) as remote,
    ):
        bag = embedrock.nn.Embedding(2000, DIM, store=remote, name="user", optimizer="adagrad")
        optimizer = embedrock.optim.Adagrad(bag, lr=1.0)
        before = remote["user"].get(ALL)
        bag(torch.from_numpy(ALL)).sum().backward()
        # One that only reads refuses its part; the others make theirs.
        trio.kill("b")
        trio.options = ()
        trio.start("b")
        with pytest.raises(MisuseError, match=r"EMB\.UPDATE was made by") as caught:
            optimizer.step()
        assert f"server {trio.address('b')}" in str(caught.value)
        after = remote["user"].get(ALL)
        b = np.array([owner(int(key)) == "b" for key in ALL])
        assert (after[~b] != before[~b]).all()
        np.testing.assert_array_equal(after[b], before[b])
        assert not [*bag.parameters()], "the step is settled"
        optimizer.step()
        np.testing.assert_array_equal(remote["user"].get(ALL), after)


@pytest.mark.long
def test_a_step_that_was_never_sent_to_several_servers_can_be_made_again(
    whole: Path, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    options = ("--writable", "--commit-every", "0")
    with (
        cluster(whole, tmp_path, *options) as trio,
        embedrock.connect(trio.url("a"), cluster=True) as remote,
    ):
        bag = embedrock.nn.Embedding(2000, DIM, store=remote, name="user", optimizer="adagrad")
        optimizer = embedrock.optim.Adagrad(bag, lr=1.0)
        before = remote["user"].get(ALL)
        bag(torch.from_numpy(ALL)).sum().backward()
        trio.kill("b")
        with pytest.raises(IoError):
            optimizer.step()
        assert len([*bag.parameters()]) == 1, "the gradients are there"
        trio.start("b")
        np.testing.assert_array_equal(remote["user"].get(ALL), before)
        optimizer.step()
        after = remote["user"].get(ALL)
        assert (after != before).all()
        # NaN is found before anything is sent, and leaves them, too.
        (bag(torch.from_numpy(ALL)) * float("nan")).sum().backward()
        with pytest.raises(NonFiniteError):
            optimizer.step()
        assert len([*bag.parameters()]) == 1
        np.testing.assert_array_equal(remote["user"].get(ALL), after)


def test_threads_share_the_connections_to_all_servers(whole: Path, readers: Trio) -> None:
    with embedrock.open(whole, "64MiB", read_only=True) as store:
        expected = store.table("user").get(ALL)
    wrong: list[Any] = []
    with embedrock.connect(readers.url("a"), cluster=True, connections=2) as remote:
        table = remote["user"]

        def read(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(30):
                some = random.integers(0, 2000, 100)
                try:
                    if not np.array_equal(table.get(some), expected[some]):
                        wrong.append(seed)
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda nodes: nodes[0].update(buckets="0-339"), "bucket.* are of no node, 340 to 340"),
        *(
            pytest.param(change, said, marks=pytest.mark.long)
            for change, said in [
                (
                    lambda nodes: nodes[0].update(buckets="0-341"),
                    "341 is of node 'a' and of node 'b'",
                ),
                (
                    lambda nodes: nodes[1].update(address=nodes[0]["address"]),
                    "have one address",
                ),
                (lambda nodes: nodes[1].update(id="a"), "two nodes have the id 'a'"),
                (
                    lambda nodes: nodes[1].update(id="x"),
                    "no node 'b', which this server is; it has 'a'",
                ),
            ]
        ),
    ],
)
def test_a_map_that_cannot_be_is_refused_at_the_start(
    whole: Path, tmp_path: Path, change: Any, said: str
) -> None:
    trio = Trio(tmp_path)
    found = json.loads(trio.map.read_text())
    change(found["nodes"])
    trio.map.write_text(json.dumps(found))
    with pytest.raises(AssertionError, match=said):
        start(whole, "--cluster", str(trio.map), "--cluster-node", "b")


# The store of another server answered initial rows for all keys, without a word.
def test_a_map_and_a_store_of_other_buckets_are_told_from_each_other(
    whole: Path, tmp_path: Path
) -> None:
    trio = Trio(tmp_path)
    embedrock.copy(whole, tmp_path / "c.store", buckets="701-1023")
    options = ["--cluster", str(trio.map), "--cluster-node"]
    said = "node 'b', the buckets 341-700, and its store was made with 701-1023: for keys of bucket"
    with pytest.raises(AssertionError, match=said):
        start(tmp_path / "c.store", *options, "b")
    with serving(tmp_path / "c.store", *options, "c", "--writable") as served:
        found = json.loads(trio.map.read_text())
        wire = Wire("127.0.0.1", served.port, 10, None)
        # A bucket that it takes over has its rows later; none of its own is a mistake.
        found["nodes"][1]["buckets"], found["nodes"][2]["buckets"] = "342-700", "341,701-1023"
        trio.map.write_text(json.dumps(found))
        assert wire.call(b"EMB.CLUSTER", b"RELOAD") == "OK"
        found["nodes"][1]["buckets"], found["nodes"][2]["buckets"] = "701-1023", "341-700"
        trio.map.write_text(json.dumps(found))
        with pytest.raises(Refused, match="the buckets 341-700, and its store was made with"):
            wire.call(b"EMB.CLUSTER", b"RELOAD")
        wire.close()


def test_a_server_finds_its_node_by_where_it_listens(whole: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    toml = tmp_path / "map.toml"
    toml.write_text(f'[[nodes]]\nid = "one"\naddress = "localhost:{port}"\nbuckets = "0-1023"\n')
    options = ["--cluster", str(toml)]
    with serving(whole, *options, "--listen", f"127.0.0.1:{port}") as served:
        wire = Wire("127.0.0.1", port, 10, None)
        assert wire.call(b"CLUSTER", b"MYID") == b"one"
        wire.close()
        with embedrock.connect(served.url, cluster=True) as remote:
            assert remote["user"].get(ALL).shape == (2000, DIM)
    with pytest.raises(AssertionError, match=r"no node of .*map\.toml has the address 127"):
        start(whole, *options)
    with pytest.raises(AssertionError, match="goes with --cluster"):
        start(whole, "--cluster-node", "one")


def test_servers_tell_clients_of_redis_cluster_what_they_ask(readers: Trio) -> None:
    wire = Wire("127.0.0.1", readers.ports["b"], 10, None)
    assert wire.call(b"CLUSTER", b"MYID") == b"b"
    assert wire.call(b"CLUSTER", b"KEYSLOT", b"user:{0017}:17") == slot(17)
    slots, have = wire.call(b"CLUSTER", b"SLOTS"), np.full(16384, -1)
    for first, last, (host, port, _, _) in slots:
        assert host == b"127.0.0.1"
        have[first : last + 1] = port
    for bucket in range(1024):
        assert have[slot(bucket)] == readers.ports[owner(bucket)]
    assert (have > 0).all()
    shards = wire.call(b"CLUSTER", b"SHARDS")
    ranges = {shard[3][0][1]: shard[1] for shard in shards}
    for first, last, (_, port, name, _) in slots:
        assert first in ranges[name] and last in ranges[name]
        assert readers.ports[name.decode()] == port
    lines = wire.call(b"CLUSTER", b"NODES").decode().splitlines()
    assert [line.split()[2] for line in lines] == ["master", "myself,master", "master"]
    assert b"cluster_state:ok" in wire.call(b"CLUSTER", b"INFO")
    assert b"cluster_enabled:1" in wire.call(b"INFO")
    assert "rows are not kept by slot" in refused(wire, b"CLUSTER", b"COUNTKEYSINSLOT", b"1")
    for word in (b"READONLY", b"READWRITE", b"ASKING"):
        assert wire.call(word) == "OK"
    keys = wire.call(b"COMMAND", b"GETKEYS", b"MSET", b"a", b"1", b"b", b"2")
    assert keys == [b"a", b"b"]
    name = b"user:{0017}"
    assert wire.call(b"COMMAND", b"GETKEYS", b"EMB.PULLB", name, b"12345678") == [name]
    assert "no key arguments" in refused(wire, b"COMMAND", b"GETKEYS", b"PING")

    # 350 and 351 are its own, 17 is of "a".
    assert len(wire.call(b"GET", b"user:{0350}:350")) == 4 * DIM
    assert len(wire.call(b"MGET", b"user:{0350}:350", b"user:{0350}:1374")) == 2
    for words in (
        (b"GET", b"user:{0017}:17"),
        (b"MGET", b"user:{0017}:17", b"user:{0017}:1041"),
        (b"EMB.PULL", b"user:{0017}", b"17"),
        (b"EMB.PULL", b"user", b"350", b"17"),
    ):
        assert refused(wire, *words) == moved_to(readers.ports["a"], 17)
    said = refused(wire, b"MGET", b"user:{0350}:350", b"user:{0351}:351")
    assert said.startswith("CROSSSLOT Keys in request")
    assert "ask for user:{0350}:350" in refused(wire, b"GET", b"user:350")
    assert "key 351 of table 'user' is in bucket 0351" in refused(
        wire, b"EMB.PULL", b"user:{0350}", b"350", b"351"
    )
    assert "is no bucket" in refused(wire, b"GET", b"user:{350}:350")
    wire.close()


def test_redis_cli_follows_to_the_server_that_has_a_row(whole: Path, readers: Trio) -> None:
    cli = shutil.which("redis-cli")
    if cli is None:
        pytest.skip("redis-cli is not installed (Debian: apt-get install redis-tools)")
    with embedrock.open(whole, "64MiB", read_only=True) as store:
        row = store.table("user").get([900]).tobytes()
    command = [cli, "-c", "-p", str(readers.ports["a"]), "GET", "user:{0900}:900"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    assert done.stdout == row + b"\n"


class Elsewhere:
    """A server, and all that is known of its cluster: it says that others have the keys."""

    address = ("10.0.0.1", 6380)
    is_broken = False

    def map(self) -> Map:
        return Map([self.address], np.zeros(1024, np.intp))

    def is_dense(self, _: bytes) -> bool:
        return True

    def learn(self, _: object) -> Map:
        raise IoError("cannot connect: server 10.0.0.2:6380")

    def lend(self, _: object) -> Elsewhere:
        return self

    def take_back(self, *_: object, is_usable: bool) -> None:
        pass

    def send(self, *_: object) -> None:
        pass

    def reply(self) -> None:
        raise Refused("MOVED 17 :6380")


def test_keys_that_are_elsewhere_name_the_server_that_said_so() -> None:
    """It was ":0" where the server did not say who has them."""
    nodes: Any = Elsewhere()
    wire = RoutedWire(nodes)
    wire.send(b"EMB.PUSH", b"user", np.arange(2).tobytes(), np.ones(4, np.float32).tobytes())
    with pytest.raises(IoError) as caught:
        wire.reply()
    said = str(caught.value)
    assert said.startswith("cannot connect: server 10.0.0.2:6380; EMB.PUSH was made by no server")
    assert said.endswith("server 10.0.0.1:6380 (2 keys) refused it: MOVED 17 :6380")


class Disputed(Elsewhere):
    """Two servers, each of which says that the other has the keys, as amid a move."""

    def learn(self, _: object) -> Map:
        return self.map()

    def rows(self, *_: object) -> None:
        raise Refused("MOVED 17 10.0.0.2:6380")


def test_servers_that_disagree_amid_a_move_are_no_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was MisuseError, with the advice to connect as the client had connected."""
    monkeypatch.setattr(routed, "_PAUSE_S", 0.0)
    nodes: Any = Disputed()
    wire = RoutedWire(nodes)
    wire.send(b"EMB.PULLB", b"user", np.arange(2).tobytes())
    with pytest.raises(Refused) as caught:
        wire.rows(np.empty((2, 2), np.float32), 2)
    error = caught.value.mirrored()
    assert isinstance(error, IoError)
    said = str(error)
    assert "10.0.0.2:6380 at last" in said and "ask again" in said, said
    alone = Refused("MOVED 17 10.0.0.2:6380").mirrored()  # of a client of one server
    assert isinstance(alone, MisuseError) and "connect with cluster=True" in str(alone)
