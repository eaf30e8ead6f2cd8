"""A server as its users meet it: the command, Redis's own tools, and the client of the package."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import embedrock
import servers
from embedrock.errors import (
    ClosedError,
    IoError,
    KeyRangeError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
)
from embedrock.remote.wire import Wire
from servers import START, serving, start

DIM = 8


def rows_of(keys: np.ndarray, version: int = 0) -> np.ndarray:
    """Rows that tell their key and version."""
    steps = np.arange(DIM, dtype=np.float32)
    return (keys[:, None] % 4096 * 16 + version).astype(np.float32) + steps / 16


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A committed store: a dense table with rows of even keys, one that grows, one of float16."""
    path = tmp_path / "served.store"
    keys = np.arange(0, 2000, 2)
    with embedrock.open(path, "64MiB") as store:
        for name, ids, dtype in (
            ("user", 2000, "float32"),
            ("key", None, "float32"),
            ("half", 2000, "float16"),
        ):
            table = store.table(name, DIM, ids, optimizer="adagrad", initializer=0.5, dtype=dtype)
            values = np.ones((1000, DIM), np.float32) if name == "half" else rows_of(keys)
            table.put(keys, values)
        store.commit(3, {"epoch": 1}, {"dense": b"weights"})
    return path


def tool(name: str) -> str:
    """A tool of Redis. If it is not installed, the test is skipped, and pytest says so."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install redis-tools)")
    return found


def test_a_table_of_a_server_reads_as_one_that_is_here(filled: Path) -> None:
    keys = np.array([[4, 3], [1998, 4]])
    with embedrock.open(filled, "64MiB", read_only=True) as store:
        expected = {name: store.table(name).get(keys) for name in ("user", "key", "half")}
    with serving(filled) as served, embedrock.connect(served.url) as remote:
        assert [*remote.tables] == ["user", "key", "half"]
        for name, rows in expected.items():
            table = remote[name]
            got, found = table.get(keys, found=True)
            np.testing.assert_array_equal(got, rows)
            assert found.tolist() == [[True, False], [True, True]]
            out = np.empty((2, 2, DIM), np.float32)
            assert table.get(keys, out) is out
            np.testing.assert_array_equal(out, rows)
            assert table.get([]).shape == (0, DIM)
            table.lookahead(keys)
        assert remote["user"].num_embeddings == 2000 and remote["half"].dtype == "float16"
        assert "'user'" in repr(remote["user"])
        with pytest.raises(KeyRangeError, match="2000"):
            remote["user"].get([2000])
        with pytest.raises(NotFoundError, match=r"no table 'nobody' .it has 'user', 'key'"):
            remote["nobody"]
        with pytest.raises(MisuseError, match="--writable"):
            remote["user"].put([1], np.zeros((1, DIM), np.float32))
        assert remote.refresh() is None
        served.stop()
        with pytest.raises(IoError, match="cannot connect"):
            remote["user"]
    with pytest.raises(ClosedError):
        _ = remote.tables


def test_updates_of_a_server_give_the_bits_of_a_store_that_is_here(
    filled: Path, tmp_path: Path
) -> None:
    embedrock.copy(filled, tmp_path / "here.store")
    random = np.random.default_rng(0)
    with (
        embedrock.open(tmp_path / "here.store", "64MiB") as store,
        serving(filled, "--writable", "--commit-every", "0") as served,
        embedrock.connect(served.url) as remote,
    ):
        for name in ("user", "key", "half"):
            here, there = store.table(name), remote[name]
            for step in range(5):
                keys = random.integers(0, 2000, 300)
                gradients = random.standard_normal((300, DIM)).astype(np.float32)
                given = {"lr": 0.05, "weight_decay": 0.01 * step}
                assert there.update(keys, gradients, **given) == here.update(
                    keys, gradients, **given
                )
            here.put([1, 1], rows_of(np.array([7, 9])))
            there.put([1, 1], rows_of(np.array([7, 9])))
            everything = np.arange(2000)
            np.testing.assert_array_equal(there.get(everything), here.get(everything))
        with pytest.raises(NonFiniteError):
            remote["user"].update([1], np.full((1, DIM), np.nan, np.float32), lr=0.1)
        with pytest.raises(MisuseError, match="takes no momentum"):
            remote["user"].update([1], np.ones((1, DIM), np.float32), lr=0.1, momentum=0.5)
        assert remote.commit() == 4
        assert "stopping" in served.stop()
        store.commit(4)
        digest = store.table("key").digest()
    with embedrock.open(filled, "64MiB", read_only=True) as store:
        assert (store.step, store.meta, store.state()) == (4, {"epoch": 1}, {"dense": b"weights"})
        assert store.table("key").digest() == digest


def test_a_server_follows_a_trainer_by_itself(filled: Path) -> None:
    with (
        serving(filled, "--refresh-every", "0.05") as served,
        embedrock.connect(served.url) as remote,
        embedrock.open(filled, "64MiB") as trainer,
    ):
        table = remote["user"]
        trainer.table("user").put([1], np.full((1, DIM), 9, np.float32))
        trainer.commit(4)
        until = time.monotonic() + 20
        while table.get([1])[0, 0] != 9:
            assert time.monotonic() < until, "the server does not follow"


def test_a_password_and_tls_are_asked_for(filled: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    cert, key, secret = (tmp_path / name for name in ("cert.pem", "key.pem", "password"))
    secret.write_text("s:cret/ü\n", encoding="utf-8")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-keyout", key, "-out", cert, "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    options = ["--password-file", secret, "--tls-cert", cert, "--tls-key", key]
    with serving(filled, *map(str, options)) as served:
        url = f"rediss://:s%3Acret%2F%C3%BC@127.0.0.1:{served.port}"
        keys = np.arange(0, 2000, 2)
        with embedrock.connect(url, tls_ca=cert) as remote:
            np.testing.assert_array_equal(remote["user"].get(keys), rows_of(keys))
        for other, said in (
            (url.replace("cret", "crat"), "invalid username-password"),
            (f"rediss://127.0.0.1:{served.port}", "[Aa]uthentication required"),
        ):
            with pytest.raises(MisuseError, match=said):
                embedrock.connect(other, tls_ca=cert)
        with pytest.raises(IoError, match="certificate"):
            embedrock.connect(url, retries=0)
        with pytest.raises(MisuseError, match="speaks TLS"):
            embedrock.connect(url.replace("rediss", "redis"), retries=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "0.0.0.0:0"], "neither a password nor TLS"),
        pytest.param(["--metrics", "0.0.0.0:0"], "a proxy", marks=pytest.mark.long),
        pytest.param(["--tls-cert", "a"], "go together", marks=pytest.mark.long),
        (["--tls-cert", "absent", "--tls-key", "absent"], "no certificate can be read from absent"),
        pytest.param(["--password-file", "/dev/null"], "no password", marks=pytest.mark.long),
        pytest.param(["--threads", "0"], "no whole number", marks=pytest.mark.long),
    ],
)
def test_a_server_that_cannot_work_says_why(filled: Path, options: list[str], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        start(filled, *options)


def test_a_password_file_that_is_no_text_is_named(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"abc\xff\n")
    with pytest.raises(AssertionError, match="is not UTF-8 at byte 3, expected one line of text"):
        start(filled, "--password-file", str(tmp_path / "password"))


def test_a_server_that_nobody_listens_to_commits_at_its_end(filled: Path) -> None:
    with serving(filled, "--writable", "--commit-every", "0") as served:
        with embedrock.connect(served.url) as remote:
            remote["user"].put([1], np.full((1, DIM), 9, np.float32))
        assert served.process.stdout is not None and served.process.stderr is not None
        served.process.stdout.close()
        served.process.stderr.close()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=60) == 0
    with embedrock.open(filled, "64MiB", read_only=True) as store:
        assert store.step == 4
        np.testing.assert_array_equal(store.table("user").get([1]), np.full((1, DIM), 9))


@pytest.mark.parametrize(
    "mode",
    [
        "auto",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("copy", "vectored")),
        "zerocopy",
    ],
)
def test_rows_are_the_same_however_they_get_into_sockets(filled: Path, mode: str) -> None:
    keys = np.random.default_rng(0).integers(0, 2000, 1500)
    expected = np.where(keys[:, None] % 2 == 0, rows_of(keys), np.float32(0.5))
    with serving(filled, "--gather", mode) as served:
        with embedrock.connect(served.url) as remote:
            for count in (1, 511, 512, 513, 1500):
                rows = remote["user"].get(keys[:count])
                np.testing.assert_array_equal(rows, expected[:count])
        with socket.create_connection(("127.0.0.1", served.port)) as asking:
            asking.sendall(b"INFO gather\r\n")
            told = asking.recv(1 << 16).decode()
        assert "gather" not in served.stop()
    assert f"gather:{mode}\r\n" in told
    modes = r"64:\w+( \d+:\w+){4}" if mode == "auto" else mode
    assert re.search(rf"^gather_modes:{modes}\r$", told, re.MULTILINE)


def test_no_more_connections_are_let_in_than_the_process_may_have_files(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (%d, %d)); "
    monkeypatch.setattr(servers, "START", limit % (100, 400) + servers.START)
    with serving(filled) as served:
        said = served.stop()
        most = int(re.search(r"at most (\d+) connections instead of 10000.*ulimit", said)[1])
        assert 50 < most <= 400 - 256
    monkeypatch.setattr(servers, "START", limit % (200, 200) + START)
    with pytest.raises(AssertionError, match="may have 200 files open, and needs"):
        start(filled)


def test_metrics_and_health_are_over_http(filled: Path) -> None:
    with serving(filled, "--metrics", "127.0.0.1:0") as served:
        assert served.process.stdout is not None
        url = served.process.stdout.readline().split()[-1]
        with embedrock.connect(served.url) as remote:
            remote["user"].get([1, 2, 4])
        text = urllib.request.urlopen(url).read().decode()
        assert "embedrock_rows_read_total 3\n" in text and text.endswith("# EOF\n")
        health = urllib.request.urlopen(url.replace("metrics", "healthz"))
        assert (health.status, health.read()) == (200, b"ok\ncommit step 3, follows\n")


def test_redis_cli_reads_rows_and_tables(filled: Path) -> None:
    cli = tool("redis-cli")
    with serving(filled, "--writable") as served:

        def said(*words: str) -> bytes:
            command = [cli, "-p", str(served.port), *words]
            return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout

        assert said("PING") == b"PONG\n"
        row = rows_of(np.array([42]))[0]
        assert said("GET", "user:42") == row.tobytes() + b"\n"
        pulled = said("EMB.PULL", "user", "42", "43")
        assert np.frombuffer(pulled[:16], "<u4").tolist() == [1, 2, 1, 1]
        np.testing.assert_array_equal(np.frombuffer(pulled[16 : 16 + 4 * DIM], "<f4"), row)
        assert b"embedding_dim" in said("EMB.TABLES")
        assert b"writable:1" in said("-3", "INFO")
        assert b"num_embeddings" in said("-3", "EMB.TABLES")
        assert said("EMB.PULL", "user", "2000").startswith(b"KEYRANGE key 2000")


def test_redis_benchmark_runs_against_a_server(filled: Path) -> None:
    benchmark = tool("redis-benchmark")
    with serving(filled, "--writable") as served:
        # Its keys are `key:000000000042`: rows of the table "key".
        command = [benchmark, "-p", str(served.port), "-t", "ping,get,set", "-d", str(4 * DIM)]
        command += ["-n", "20000", "-c", "20", "-P", "8", "-r", "2000", "--csv"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "ERR" not in done.stdout + done.stderr, done
        found = re.findall(r'^"(\w+)","([\d.]+)"', done.stdout, re.MULTILINE)
        rates = {name: float(rate) for name, rate in found}
        assert {"PING_INLINE", "PING_MBULK", "GET", "SET"} <= {*rates}, done.stdout


def test_redis_py_works_with_a_server(filled: Path) -> None:
    redis = pytest.importorskip("redis", reason="redis-py is not installed")
    with serving(filled, "--writable") as served:
        for protocol in (2, 3):
            client = redis.Redis(port=served.port, protocol=protocol)
            row = rows_of(np.array([42]))[0].tobytes()
            assert client.mget("user:42", "user:45", "key:42") == [row, None, row]
            assert client.set("user:43", row) and client.get("user:43") == row
            client.set("user:43", rows_of(np.array([43]))[0].tobytes())
            assert client.info()["writable"] == 1


class Reordered:
    """A server that closes a connection at a request, as often as it is told to."""

    def __init__(self, served_port: int, closes: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.closes = closes
        self.requests: list[bytes] = []
        self._served_port = served_port
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            client = self.listener.accept()[0]
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._served_port)) as server:
            while True:
                request = client.recv(1 << 20)
                if not request:
                    return
                self.requests.append(request)
                if b"CONFIG" not in request and b"EMB.TABLES" not in request and self.closes:
                    self.closes -= 1
                    return
                server.sendall(request)
                client.sendall(server.recv(1 << 20))


def test_reads_are_tried_again_and_updates_are_not(filled: Path) -> None:
    with serving(filled, "--writable") as served:
        between = Reordered(served.port, closes=2)
        url = f"redis://127.0.0.1:{between.port}"
        with embedrock.connect(url, connections=1) as remote:
            table = remote["user"]
            np.testing.assert_array_equal(table.get([2]), rows_of(np.array([2])))
            assert between.closes == 0
            between.closes, before = 1, len(between.requests)
            with pytest.raises(IoError, match="no reply"):
                table.update([2], np.ones((1, DIM), np.float32), lr=1.0)
            assert len(between.requests) == before + 1
            # The next call finds that its connection was closed, and takes another.
            assert table.update([2], np.ones((1, DIM), np.float32), lr=1.0)["rows"] == 1


def test_a_silent_server_is_waited_for_no_longer_than_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(IoError, match=r"nothing came within 0\.2 s"):
            embedrock.connect(f"redis://127.0.0.1:{port}", timeout=0.2, retries=0)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:6380", "http://a:1", "redis://", "redis://a:b", "redis://a/7", "redis://a?x"]
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(MisuseError, match="expected redis://"):
        embedrock.connect(url)


def test_a_bad_url_does_not_tell_its_password() -> None:
    with pytest.raises(MisuseError) as caught:
        embedrock.connect("redis://:hidden@host:port")
    assert "hidden" not in str(caught.value)


def test_threads_share_a_few_connections(filled: Path) -> None:
    keys = np.arange(0, 2000, 2)
    wrong: list[int] = []
    with (
        serving(filled, "--threads", "2") as served,
        embedrock.connect(served.url, connections=2) as remote,
    ):
        table = remote["user"]

        def read(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(50):
                some = random.choice(keys, 100)
                if not np.array_equal(table.get(some), rows_of(some)):
                    wrong.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_large_batches_are_read_in_parts_and_too_large_writes_are_refused(filled: Path) -> None:
    options = ["--max-keys", "100", "--max-reply-bytes", "2000", "--max-request-bytes", "20000"]
    with serving(filled, "--writable", *options) as served:
        with embedrock.connect(served.url) as remote:
            table, keys = remote["user"], np.arange(2000)
            rows, found = table.get(keys, found=True)
            assert found.tolist() == [True, False] * 1000
            np.testing.assert_array_equal(rows[::2], rows_of(keys[::2]))
            table.lookahead(keys)
            np.testing.assert_array_equal(table.get(keys), rows)
            with pytest.raises(KeyRangeError, match="2000"):
                table.lookahead(np.arange(2001))
            with pytest.raises(MisuseError, match=r"101 keys, .* at most 100"):
                table.put(keys[:101], rows[:101])
        wire = Wire("127.0.0.1", served.port, 10, None)
        wire.send(b"SET", b"user:1", b"x" * 30_000)
        with pytest.raises(Exception, match="expected at most 20000"):
            wire.reply()
        assert wire.call(b"PING") == "PONG"
        wire.close()


def test_kill_9_under_pushes_loses_nothing_that_was_committed(filled: Path) -> None:
    """Rows carry their version: what is read after the kill is of the last commit or a later one,
    whole, and the same for all keys of a push."""
    keys = np.arange(500)
    for turn in range(int(os.environ.get("EMBEDROCK_KILLS", "3"))):
        served = start(filled, "--writable", "--commit-every", "0")
        committed = step = 0
        try:
            with embedrock.connect(served.url, timeout=20, retries=0) as remote:
                table = remote["user"]
                killer = threading.Timer(0.05 + 0.05 * (turn % 10), served.process.kill)
                for version in range(1, 100_000):
                    table.put(keys, rows_of(keys, version % 16))
                    if version % 10 == 0:
                        step = remote.commit()
                        committed = version
                    if version == 10:
                        killer.start()
        except IoError:
            pass
        served.process.communicate(timeout=60)
        assert committed > 0, "the server was killed before it did anything"
        with embedrock.open(filled, "64MiB", read_only=True) as store:
            rows = store.table("user").get(keys)
            assert store.step in (step, step + 1)
        versions = rows[:, 0] - (keys % 4096 * 16)
        assert len({*versions.tolist()}) == 1, f"turn {turn}: {versions}"
        if store.step == step:
            assert versions[0] == committed % 16
        np.testing.assert_array_equal(rows, rows_of(keys, int(versions[0])))


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def test_memory_stays_flat_under_mixed_load_and_garbage(filled: Path) -> None:
    random = np.random.default_rng(1)
    with serving(filled, "--writable", "--commit-every", "0.2", "--stall", "0.5") as served:

        def load(rounds: int) -> None:
            with embedrock.connect(served.url, connections=2) as remote:
                table = remote["user"]
                for turn in range(rounds):
                    keys = random.integers(0, 2000, int(random.integers(1, 1500)))
                    table.get(keys)
                    if turn % 5 == 0:
                        table.update(keys, np.ones((len(keys), DIM), np.float32), lr=0.01)
            for _ in range(rounds // 2):
                with socket.create_connection((served.host, served.port)) as client:
                    client.sendall(b"*3\r\n$9\r\nEMB.PULLB\r\n$4\r\nuser\r\n$800000\r\n")
                    client.sendall(random.bytes(int(random.integers(0, 100_000))))
                with socket.create_connection((served.host, served.port)) as client:
                    client.sendall(random.bytes(200))

        load(200)
        before = resident_mib(served.process.pid)
        for _ in range(4):
            load(200)
        assert resident_mib(served.process.pid) - before < 24
        served.stop()
