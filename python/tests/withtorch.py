"""Processes that have PyTorch from the beginning: children of one process that has imported it.

PyTorch and what it imports with its first optimizer take seconds of a core, which each process of
a test would spend again. Here they are imported once, in a process without threads or stores,
which forks itself for each program. A child then runs a script or a module as `python` does: with
a directory, an environment, standard files and an end of its own. It is a program of its own to
everything but the imports, and can be killed like one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

_REQUEST_BYTES = 1 << 20
_PATIENCE_S = 300
"""A program that runs longer is killed, and its status says so."""


class Process:
    """A running program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        errors: IO[Any] | None = None,
        terminal: int | None = None,
    ) -> None:
        """Starts `python` with these words: a script, `-m` and a module or `-c` and code, and more.

        Its input and output are pipes; `errors` None are those of this process. With a terminal
        it has that for all three, and a session of its own.
        """
        asked, given = os.pipe()
        shown, told = os.pipe()
        self._status, ended = os.pipe()
        request = {
            "words": list(words),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "terminal": terminal is not None,
        }
        files = [asked, told, 2 if errors is None else errors.fileno(), ended]
        if terminal is not None:
            files[:3] = [terminal] * 3
        server = _server()
        socket.send_fds(server, [json.dumps(request).encode()], files)
        for file in (asked, told, ended):
            os.close(file)
        self.pid = int(server.recv(64))
        self.returncode: int | None = None
        self.stdin = os.fdopen(given, "w", 1)
        self.stdout = os.fdopen(shown)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(os.read(self._status, 64))
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        """Its status if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            # It may have ended, and nobody has told so yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def communicate(self) -> tuple[str, None]:
        """Closes its input, reads what it still prints, and waits for its end."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        said = self.stdout.read()
        self.stdout.close()
        self.wait()
        return said, None


def run(
    words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and gives what it printed, as `subprocess.run` with `text=True`."""
    with tempfile.TemporaryFile("w+") as errors:
        process = Process(words, cwd=cwd, env=env, errors=errors)
        watch = threading.Timer(_PATIENCE_S, process.kill)
        watch.start()
        said, _ = process.communicate()
        watch.cancel()
        errors.seek(0)
        return subprocess.CompletedProcess(list(words), process.wait(), said, errors.read())


@cache
def _server() -> socket.socket:
    """A connection to the process that has imported PyTorch: one for all workers of a run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"of {os.getpid()}")
    name = f"\0embedrock tests {run}"  # a socket without a file
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(name)
            except OSError:
                pass  # another worker was first
            else:
                listener.listen()
                _start(listener)
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # It ends with the last of its connections: between the two it may just have done so.
        with contextlib.suppress(ConnectionError):
            ours.connect(name)
            if ours.recv(64) == b"ready":
                atexit.register(ours.close)
                return ours
        ours.close()
        assert not _started or _started[-1].poll() in (None, 0), "PyTorch was not imported"


_started: list[subprocess.Popen[bytes]] = []


def _start(listener: socket.socket) -> None:
    process = subprocess.Popen(
        [sys.executable, __file__, str(listener.fileno())],
        pass_fds=[listener.fileno()],
        start_new_session=True,  # Ctrl-C is for whoever runs the tests
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    _started.append(process)
    atexit.register(process.wait)  # behind the closing of the connection, which is registered later


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Forks for each request. A child gets its request back, and the server None at the end."""
    # Frozen, Triton's types would say on standard error that they leak. No test compiles for a GPU.
    sys.modules["triton"] = None  # type: ignore[assignment]
    import torch

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    # The collector of a child that ends would write into all objects, and so copy them: it took a
    # second of a core.
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a child has one thread of its parent's"
    clients: list[socket.socket] = []
    children: dict[int, int] = {}
    while True:
        for ready in select.select([listener, *clients, *children], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
                with contextlib.suppress(OSError):  # it has ended
                    clients[-1].send(b"ready")
            elif isinstance(ready, int):
                _tell_end(ready, children.pop(ready))
            else:
                request = _forked(ready, [listener, *clients], children)
                if request is not None:
                    return request
                if ready.fileno() < 0:
                    clients.remove(ready)
                if not clients:
                    return None


def _tell_end(child: int, told: int) -> None:
    """Writes the status of a child that has ended to whoever asked for it."""
    status = os.waitid(os.P_PIDFD, child, os.WEXITED)
    assert status is not None
    code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
    with contextlib.suppress(BrokenPipeError):
        os.write(told, b"%d" % code)
    os.close(child)
    os.close(told)


def _forked(
    client: socket.socket, sockets: list[socket.socket], children: dict[int, int]
) -> dict[str, Any] | None:
    """Forks for a request of a client, or closes the connection of one that has ended.

    Returns the request in the child.
    """
    text, files = b"", []
    with contextlib.suppress(ConnectionError):
        text, files, _, _ = socket.recv_fds(client, _REQUEST_BYTES, 4)
    if not text:
        client.close()
        return None
    pid = os.fork()
    if pid == 0:
        for one in [*children, *children.values()]:
            os.close(one)
        for place, file in enumerate(files[:3]):
            os.dup2(file, place)
        for file in files:
            os.close(file)
        for each in sockets:
            each.close()
        found: dict[str, Any] = json.loads(text)
        return found
    for file in files[:3]:
        os.close(file)
    children[os.pidfd_open(pid)] = files[3]
    with contextlib.suppress(BrokenPipeError):
        client.send(b"%d" % pid)
    return None


def _become(request: dict[str, Any]) -> None:
    """Runs the program of a request in this process."""
    os.environ.clear()
    os.environ.update(request["env"])
    # A new `python` looks where its environment says: in the folder of a test, for one.
    places = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path]
    os.chdir(request["cwd"])
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    kind, *rest = request["words"]
    if kind == "-m":
        sys.path[0] = request["cwd"]
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(kind).parent)
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _request is not None:
        _become(_request)
