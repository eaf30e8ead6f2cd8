"""A server beside its users' habits: signals, renewed certificates, silent networks, interrupts."""

from __future__ import annotations

import contextlib
import dis
import itertools
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import KeyRangeError, MismatchError, NotFoundError
from embedrock.follow import LogWriter
from embedrock.remote.places import Places
from servers import START, Served, serving

DIM = 4


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store with a dense table of 1,000 rows and a growing one."""
    path = tmp_path / "filled"
    with embedrock.open(path, "32MiB") as store:
        for name, ids in (("user", 1000), ("item", None)):
            table = store.table(name, DIM, ids, optimizer="sgd", initializer=0.0)
            keys = np.arange(1000)
            table.put(keys, np.repeat(keys[:, None], DIM, 1).astype(np.float32))
        store.commit(1)
    return path


def certificate(folder: Path, name: str) -> list[str]:
    """Makes a certificate and key of this name, in the place of those before."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def hang_up(served: Served, lines: int) -> list[str]:
    """The server's reply to a SIGHUP, of a number of lines beside those of its log."""
    served.process.send_signal(signal.SIGHUP)
    assert served.process.stderr is not None
    said = (line.strip() for line in served.process.stderr if " embedrock::" not in line)
    return list(itertools.islice(said, lines))


# The server read its certificate once, and SIGHUP ended it without a commit.
def test_a_hang_up_has_a_server_read_its_files_again_and_never_ends_it(
    filled: Path, tmp_path: Path
) -> None:
    options = [*certificate(tmp_path, "first"), "--password-file", str(tmp_path / "password")]
    (tmp_path / "password").write_text("old\n")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with serving(filled, "--writable", "--commit-every", "0", *options) as served:
        url, where = served.url.replace("redis://", "rediss://:{}@"), (served.host, served.port)

        def connected(password: str) -> embedrock.RemoteStore:
            return embedrock.connect(url.format(password), tls_ca=cert, retries=0)

        first = ssl.get_server_certificate(where)
        with connected("old") as remote:
            remote["user"].put([1], np.full((1, DIM), 9, np.float32))
            certificate(tmp_path, "second")
            (tmp_path / "password").write_text("new\n")
            assert hang_up(served, 2) == [
                "embedrock: the certificate was read again",
                "embedrock: the password was read again",
            ]
            assert remote["user"].get([1])[0, 0] == 9  # authenticated clients stay
        second = ssl.get_server_certificate(where)
        assert second != first and second.strip() == cert.read_text().strip()
        with pytest.raises(embedrock.errors.MisuseError, match="invalid username-password"):
            connected("old")

        # Wrong files change nothing, and are told.
        key.write_text("no key")
        (tmp_path / "password").write_text("")
        said = hang_up(served, 2)
        assert "certificate stays the one before: no key can be read from" in said[0]
        assert "password stays the one before:" in said[1] and "holds no password" in said[1]
        assert ssl.get_server_certificate(where) == second
        with connected("new") as remote:
            assert remote["user"].get([1])[0, 0] == 9
        served.stop()
    with embedrock.open(filled, "32MiB", read_only=True) as store:
        assert store["user"].get([1])[0, 0] == 9


def test_a_hang_up_without_files_to_read_says_so(filled: Path) -> None:
    with serving(filled) as served:
        (said,) = hang_up(served, 1)
        assert "no certificate, password or map to read again" in said
        with embedrock.connect(served.url) as remote:
            assert "user" in remote


# A closed terminal ended it at once: without its commit.
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_follower_whose_terminal_is_closed_commits_first(
    filled: Path, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "updates.log"
    with LogWriter(log) as writer:
        writer.put("user", [1], np.full((1, DIM), 9, np.float32))
        writer.sync()
    command = [sys.executable, "-c", START, "follow", str(filled), "--log", str(log)]
    command += ["--from", "begin", "--commit-every", "3600s", "--memory", "32MiB"]
    terminal, inside = os.openpty()
    process = subprocess.Popen(
        command, stdin=inside, stdout=subprocess.PIPE, stderr=inside, start_new_session=True
    )
    os.close(inside)
    handled = Path(f"/proc/{process.pid}/status")
    until("it takes signals", lambda: process.poll() is not None or takes(handled, number))
    assert process.poll() is None, os.read(terminal, 1 << 16).decode()
    shown = b""

    def has_read() -> bool:
        nonlocal shown
        while select.select([terminal], [], [], 0)[0]:
            shown += os.read(terminal, 4096)
        return b"following: 1," in shown

    until("it reads the record", has_read)
    os.close(terminal)  # further output is an error of the device
    process.send_signal(number)
    process.send_signal(signal.SIGHUP)  # of a terminal, several may come
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and b"1 records" in out, out
    with embedrock.open(filled, "32MiB", read_only=True) as store:
        assert store["user"].get([1])[0, 0] == 9


def takes(status: Path, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    caught = [line for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught[0].split()[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="tells timers on Linux alone")
@pytest.mark.parametrize("seconds", [300.0, None])
def test_silent_connections_are_asked_for_on_both_sides(
    filled: Path, seconds: float | None
) -> None:
    option = "300s" if seconds else "0"
    with (
        serving(filled, "--tcp-keepalive", option) as served,
        embedrock.connect(served.url, tcp_keepalive=seconds) as remote,
    ):
        assert "user" in remote
        expected = {"02"} if seconds else {"00"}
        until("both sides ask, or none", lambda: timers_of(served.port) == expected)


def timers_of(port: int) -> set[str]:
    """Timers of connections to and from a port: 02 is that of keep-alive, 00 none."""
    timers = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = {int(fields[place].split(":")[1], 16) for place in (1, 2)}
        if port in ports and fields[3] == "01":
            timers.add(fields[5].split(":")[0])
    return timers


class Stop(BaseException):
    """Raised by a handler of a signal."""


class Raised:
    """Raises ``Stop`` in the client at one instant of those at which Python runs handlers.

    They are behind a call, behind a jump back, and at the beginning of a function.
    """

    def __init__(self, instant: int) -> None:
        self.left = instant
        self.before: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if "embedrock/remote" not in code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self.before.get(frame)
            self.before[frame] = frame.f_lasti
            name = "RESUME" if before is None else dis.opname[code.co_code[before]]
            if name.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME")):
                self.left -= 1
                if self.left == 0:
                    raise Stop
        return self


# Behind a place that was taken, and before the `try` that gives it back, such an exception kept it
# for ever; amid the count of places it locked all of them.
def test_an_exception_at_any_instant_costs_no_place_of_the_pool(filled: Path) -> None:
    with serving(filled) as served, embedrock.connect(served.url, connections=2) as remote:
        users, keys = remote["user"], np.arange(20)
        rows, instants = users.get(keys), 0
        while True:
            instants += 1
            raised = Raised(instants)
            with contextlib.suppress(Stop):
                sys.settrace(raised)
                try:
                    users.get(keys)
                finally:
                    sys.settrace(None)
                    raised.before.clear()  # frames have what their functions had
            if raised.left > 0:
                break
            assert remote._pool._free._value == 2, f"a place is lost at instant {instants}"
            np.testing.assert_array_equal(users.get(keys), rows)
        assert instants > 50


def test_who_waits_for_a_place_gets_it_and_no_more_than_there_are_are_taken() -> None:
    places = Places(2)
    first, second = places.take(0), places.take(0)
    assert first is not None and second is not None and places.take(0.01) is None
    came: list[bool] = []
    waiting = threading.Thread(target=lambda: came.append(places.take(20) is not None))
    waiting.start()
    places.leave(first)
    waiting.join(30)
    assert came == [True]
    until("the place of a thread that has ended is free", lambda: places._value == 1)
    del second
    assert places._value == 2


# Each subscript asked the server for all of its tables.
def test_a_server_is_asked_once_for_its_tables(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(filled) as served, embedrock.connect(served.url) as remote:
        asked, tables = [], type(remote)._tables
        monkeypatch.setattr(type(remote), "_tables", lambda self: asked.append(1) or tables(self))
        for key in range(5):
            assert remote["user"].get([key])[0, 0] == key
        assert len(asked) == 1
        with pytest.raises(KeyRangeError):
            remote["user"].get([1000])
        assert remote["user"].get([1])[0, 0] == 1 and len(asked) == 2  # it may have grown
        remote.refresh()
        assert remote["item"].get([1])[0, 0] == 1 and len(asked) == 3
        assert list(remote) == ["user", "item"] and "user" in remote and "none" not in remote
        with pytest.raises(NotFoundError, match="no table 'none'"):
            remote["none"]


def test_a_table_that_was_made_anew_is_told_from_the_one_before(
    filled: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with embedrock.open(other, "32MiB") as store:
        store.table("user", 2 * DIM, 50, optimizer="sgd", initializer=0.5)
        store.commit(1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = ["--listen", f"127.0.0.1:{port}"]
    with serving(filled, *listen) as served:
        remote = embedrock.connect(served.url)
        kept = remote["user"]
        assert kept.get([1]).shape == (1, DIM)
        served.stop()
    with remote, serving(other, *listen):
        with pytest.raises(MismatchError, match="8 values per row; this one is of 4: take it"):
            kept.get([1])
        assert remote["user"].get([1]).shape == (1, 2 * DIM)


def test_a_store_that_is_here_is_asked_as_one_of_a_server(filled: Path) -> None:
    with embedrock.open(filled, "32MiB") as store:
        assert list(store) == ["user", "item"] and "user" in store and "none" not in store
        assert 7 not in store
        with pytest.raises(NotFoundError, match="no table 'none'"):
            store["none"]
        rows, found = store["item"].get([[5, 7777], [-1, 6]], found=True)
        assert rows.shape == (2, 2, DIM)
        np.testing.assert_array_equal(found, [[True, False], [False, True]])
        (rows, state), found = store["user"].get([5], state=True, found=True)
        assert rows[0, 0] == 5 and state.shape == (1, 0) and found.tolist() == [True]
        out = np.empty((1, DIM), np.float32)
        answer, found = store["user"].get([3], out, found=True)
        assert answer is out and out[0, 0] == 3 and found.tolist() == [True]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells memory on Linux alone")
def test_memory_of_clients_that_left_is_given_back(filled: Path) -> None:
    def resident() -> int:
        for line in Path(f"/proc/{served.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no memory is told")

    options = ["--threads", "1", "--client-memory", "160MiB", "--max-reply-bytes", "16MiB"]
    with serving(filled, *options) as served:
        before, most = resident(), 0
        greedy = [socket.create_connection((served.host, served.port)) for _ in range(12)]
        request = b"GET user:7\r\n" * 100_000
        deadline = time.monotonic() + 30
        while most < before + (64 << 20):
            assert time.monotonic() < deadline, f"{most - before} bytes more"
            for one in greedy:
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    one.send(request)
            most = max(most, resident())
        for one in greedy:
            one.close()
        until("it is given back", lambda: resident() < before + (32 << 20))
