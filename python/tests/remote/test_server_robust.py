"""A server among clients that do not speak TLS, or speak nothing else, and among very many."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import IoError, MisuseError, NonFiniteError, NotFoundError
from embedrock.follow import LogWriter
from servers import START, Served, serving, start

DIM = 8
CONNECTIONS = int(os.environ.get("EMBEDROCK_CONNECTIONS", "1000"))
"""Held open at a time; each is an open file here, and one of the server."""


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store of a table whose rows are all ones, with the commits of steps 3 and 4."""
    path = tmp_path / "served.store"
    with embedrock.open(path, "64MiB") as store:
        table = store.table("user", DIM, 2000, optimizer="sgd", initializer=0.5)
        for step in (3, 4):
            table.put(np.arange(2000), np.full((2000, DIM), step, np.float32))
            store.commit(step)
    return path


@pytest.fixture
def encrypted(filled: Path, tmp_path: Path) -> list[str]:
    """Options of a server with TLS."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def test_who_speaks_tls_or_not_is_told_what_the_server_speaks(
    filled: Path, encrypted: list[str]
) -> None:
    with serving(filled, *encrypted) as served, serving(filled) as plain:
        with embedrock.connect(f"rediss://127.0.0.1:{served.port}", tls_ca=encrypted[1]) as other:
            for _ in range(3):
                with pytest.raises(MisuseError, match=r"speaks TLS: connect with a rediss://"):
                    embedrock.connect(served.url)
                with pytest.raises(IoError, match="does not speak TLS: connect with redis://"):
                    embedrock.connect(plain.url.replace("redis", "rediss"), retries=0)
                assert other["user"].get([1])[0, 0] == 4
        with embedrock.connect(plain.url) as remote:
            assert remote["user"].get([1])[0, 0] == 4


def test_an_encrypted_client_that_ends_amid_the_handshake_leaves_nothing(
    filled: Path, encrypted: list[str]
) -> None:
    with serving(filled, *encrypted, "--stall", "0.5") as served:
        for hello in (b"\x16", b"\x16\x03\x01\x02\x00", b"\x16" * 600):
            with socket.create_connection((served.host, served.port), 20) as client:
                client.sendall(hello)
                while client.recv(4096):
                    pass
        context = ssl.create_default_context(cafile=encrypted[1])
        with socket.create_connection((served.host, served.port), 20) as client:
            wrapped = context.wrap_socket(client, server_hostname="127.0.0.1")
            wrapped.sendall(b"PING\r\n")
            assert wrapped.recv(100) == b"+PONG\r\n"


def resident_kib(pid: int) -> int:
    """Memory of a process that is in RAM."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0])


def test_very_many_connections_are_held_open_while_others_are_served(filled: Path) -> None:
    options = ["--max-connections", str(CONNECTIONS + 8), "--stall", "600s"]
    with serving(filled, *options) as served, embedrock.connect(served.url) as remote:
        table = remote["user"]
        table.get(np.arange(2000))
        before = resident_kib(served.process.pid)
        held: list[socket.socket] = []
        try:
            for number in range(CONNECTIONS):
                client = socket.create_connection((served.host, served.port), 30)
                held.append(client)
                client.sendall(b"PING\r\n" if number % 2 else b"*2\r\n$3\r\nGET\r\n$6\r\nuse")
                if number % 100 == 0:
                    assert table.get([number % 2000])[0, 0] == 4
            for client in held[1::2]:
                assert client.recv(100) == b"+PONG\r\n"
            for client in held[::2]:
                client.sendall(b"r:1\r\n")
                assert client.recv(100).startswith(b"$32\r\n")
            assert table.get([5])[0, 0] == 4
            each = (resident_kib(served.process.pid) - before) / CONNECTIONS
            # Half a request keeps its buffer of 64 KiB, of which few pages were touched.
            assert each < 16, f"{each:.1f} KiB for each connection"
        finally:
            for client in held:
                client.close()
        until = time.monotonic() + 60
        while b"connected_clients:1\r\n" not in info(served):
            assert time.monotonic() < until, "connections that ended are still counted"


def info(served: Served, section: str = "clients") -> bytes:
    """A section of a server's INFO; the client that asks is not counted."""
    with socket.create_connection((served.host, served.port), 30) as client:
        client.sendall(f"INFO {section}\r\n".encode())
        said = client.recv(4096)
    return re.sub(
        rb"connected_clients:(\d+)", lambda m: b"connected_clients:%d" % (int(m[1]) - 1), said
    )


def test_a_server_is_switched_from_python_and_started_at_a_step(filled: Path) -> None:
    options = ["--step", "3", "--refresh-every", "0.05s"]
    with serving(filled, *options) as served, embedrock.connect(served.url) as remote:
        table = remote["user"]
        # A server that is pinned does not look for newer commits (crates/server/tests/robust.rs).
        assert b"pinned:1\r\n" in info(served, "store")
        assert table.get([1])[0, 0] == 3
        assert remote.switch(4) == 4 and table.get([1])[0, 0] == 4
        assert remote.switch(3) == 3 and table.get([1])[0, 0] == 3
        with pytest.raises(NotFoundError, match=r"keeps steps \[3, 4\]"):
            remote.switch(7)
        assert remote.refresh() == 4 and table.get([1])[0, 0] == 4
    with pytest.raises(AssertionError, match="--step is for a server that reads"):
        start(filled, "--writable", "--step", "3")
    with pytest.raises(AssertionError, match="is no time in seconds"):
        start(filled, "--idle", "5m")


def test_a_growing_table_without_a_size_is_told_to_give_memory_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "growing.store"
    with embedrock.open(path, "16MiB") as store:
        table = store.table("key", DIM, optimizer="sgd", initializer=0.5)
        table.put([1], np.ones((1, DIM), np.float32))
        store.commit(1)
    with pytest.raises(AssertionError, match=r"give --memory in bytes, such as 2GiB"):
        start(path, "--memory", "10%")


def test_values_that_are_no_numbers_are_refused_in_words_of_python(filled: Path) -> None:
    with (
        serving(filled, "--writable") as served,
        embedrock.connect(served.url) as remote,
        pytest.raises(NonFiniteError, match='non_finite="skip"'),
    ):
        remote["user"].put([1], np.full((1, DIM), np.nan, np.float32))


def test_a_follower_that_is_asked_to_end_commits_first(filled: Path, tmp_path: Path) -> None:
    log = tmp_path / "updates.log"
    with LogWriter(log) as writer:
        writer.put("user", [1], np.full((1, DIM), 9, np.float32))
        writer.put("nobody's", [1], np.full((1, DIM), 9, np.float32))
        writer.sync()
    command = [sys.executable, "-c", START, "follow", str(filled), "--log", str(log)]
    command += ["--from", "begin", "--commit-every", "3600s", "--skip-bad"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "left out" in process.stderr.readline()  # it has read what lies before that
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "1 records" in out, (out, said)
    with embedrock.open(filled, "64MiB", read_only=True) as store:
        assert store.table("user").get([1])[0, 0] == 9
