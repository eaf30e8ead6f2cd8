"""The effect of another program on a training: loops of processes of their own, at nice 10.

``python -m embedrock_lab.bench.training.busy PARENT`` is one loop; it ends when its parent has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["busy"]

NICE = 10
SPINS = 200_000
"""Between two looks at who the parent is: some milliseconds."""


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many loops compute while the block runs, and none after it."""
    command = [sys.executable, "-m", __name__, str(os.getpid())]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(loops):
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for one in started:
            assert one.stdout is not None
            if not one.stdout.readline():  # it computes from there on
                raise RuntimeError(f"a loop beside the training ended with {one.wait()}")
        yield
    finally:
        for one in started:
            one.kill()
            one.communicate()


def _compute(parent: int) -> None:
    os.nice(NICE)
    print("computing", flush=True)
    number = 1
    while os.getppid() == parent:
        for _ in range(SPINS):
            number = number * 5 % 8_191


if __name__ == "__main__":
    _compute(int(sys.argv[1]))
