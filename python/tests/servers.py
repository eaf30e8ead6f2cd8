"""Servers in processes of their own, as the command line starts them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

START = "import sys; from embedrock.cli import main; sys.exit(main())"


class Served:
    """A server that listens."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.url = f"redis://{address}"

    def stop(self) -> str:
        """Asks it to end, and returns what it said on its way. It has to end well."""
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, said
        return said


def start(store: Path, *options: str) -> Served:
    """Starts `embedrock serve` at a free port of this machine."""
    command = [sys.executable, "-c", START, "serve", str(store), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--memory", "64MiB", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        said = process.communicate(timeout=60)[1]
        raise AssertionError(f"the server did not start: {said}")
    return Served(process, line.split("serving at ")[1].split(",")[0].split()[0])


@contextlib.contextmanager
def serving(store: Path, *options: str) -> Iterator[Served]:
    """A server for as long as the block runs."""
    served = start(store, *options)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
        served.process.communicate(timeout=60)
