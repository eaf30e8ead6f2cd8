"""``kill -9`` under pushes alone: every push that was acknowledged is there, and no row is torn.

The file is its own child: run as a program it pushes batches and says each one that has returned.
``EMBEDROCK_KILLS`` sets how often the chain of children is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import embedrock

DIM, KEYS, BATCH = 24, 3000, 200
KILLS = int(os.environ.get("EMBEDROCK_KILLS", "3"))
LIFE_S_MAX = 0.4


def batch_of(number: int) -> np.ndarray:
    """The distinct keys of a push, some of which no push had before."""
    rng = np.random.default_rng(number)
    return rng.choice(KEYS, BATCH, replace=False).astype(np.int64) * 0x1F3D5B79


def push(path: str, memory: str, first: int) -> None:
    """The child: rows of a push have its number in every value."""
    store = embedrock.open(path, "4MiB", pmem_path=memory or None)
    table = store.table("t", DIM, storage="pmem", capacity=KEYS, optimizer="adagrad")
    if store.step is None:
        store.commit(0)
    print("ready", flush=True)
    for number in range(first, first + 100_000):
        keys = batch_of(number)
        table.put(keys, np.full((BATCH, DIM), number, np.float32))
        os.write(1, f"{number}\n".encode())


@pytest.mark.parametrize(
    "in_memory", [False, pytest.param(True, marks=pytest.mark.long)], ids=["file", "tmpfs"]
)
def test_acknowledged_pushes_survive_kills(tmp_path: Path, in_memory: bool) -> None:
    memory = ""
    if in_memory:
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("this machine has no /dev/shm to write to")
        memory = f"/dev/shm/embedrock-test-{os.getpid()}"
    path = tmp_path / "a.store"
    newest: dict[int, int] = {}
    chance, first, pushed = random.Random(7), 1, 0
    try:
        for _ in range(KILLS):
            command = [sys.executable, __file__, str(path), memory, str(first)]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.02, LIFE_S_MAX))
            child.send_signal(signal.SIGKILL)
            acknowledged = [int(line) for line in child.stdout.read().splitlines()]
            child.wait()
            for number in acknowledged:
                newest.update(dict.fromkeys(batch_of(number).tolist(), number))
            pushed += len(acknowledged)
            under_way = first + len(acknowledged)
            check(path, newest, under_way)
            first = under_way + 1
        assert pushed > 0
        assert embedrock.check(path)["problems"] == []
    finally:
        for region in Path(memory or tmp_path / "none").glob("*"):
            region.unlink()
        if memory:
            Path(memory).rmdir()


def check(path: Path, newest: dict[int, int], under_way: int) -> None:
    """Each key has its newest acknowledged row, or that of the push that was under way, whole."""
    touched = set(batch_of(under_way).tolist())
    with embedrock.open(path, "4MiB") as store:
        table = store.table("t")
        keys = np.array(sorted({*newest, *touched}))
        values, state = table.get(keys, state=True)
        found = table.contains(keys)
        assert len(table) == found.sum()
        assert (values[found] == values[found][:, :1]).all(), "a row is torn"
        assert (state[found] == 0).all()
        for key, value, is_there in zip(keys.tolist(), values[:, 0], found, strict=True):
            if key in touched and is_there and value == under_way:
                newest[key] = under_way
            elif key in newest:
                assert is_there, f"key {key} is lost"
                assert value == newest[key], f"key {key}"
            else:
                assert not is_there, f"key {key} was never pushed"


if __name__ == "__main__":
    push(sys.argv[1], sys.argv[2], int(sys.argv[3]))
