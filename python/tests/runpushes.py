"""Stores of two ranks, made in this process as ranks make theirs, and what becomes of them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock.distributed.binding import NAME, Binding, runs_of, table_digests
from embedrock.store.opening import open_part
from pushes import SMALL, contents

ROWS, DIM = 600, 8


class Run:
    """A run of several ranks whose stores this process has open."""

    def __init__(self, path: Path, world: int = 2, name: str = "a run") -> None:
        self.path, self.world, self.name = path, world, name
        self.stores = {}
        for run in runs_of(world):
            store = embedrock.open(path / run.folder, **SMALL)
            store.commit(0, None, {NAME: Binding(name, world, run, {}, initial=True).encoded(0)})
            store.table("d", DIM, 1 << 20, optimizer="rowwise_adagrad")
            store.table("g", DIM, optimizer="adagrad")
            self.stores[run] = store
        self.then: dict[int, dict[str, Any]] = {}
        """Content of the stores at each step that was committed."""

    def commit(self, step: int, *, of: slice = slice(None), pin: str | None = None) -> None:
        """Trains and commits the stores, or some of them, one after the other."""
        token = secrets.token_hex(8)
        for run in list(self.stores)[of]:
            store = self.stores[run]
            draw = np.random.default_rng([step, run.first])
            ids = draw.integers(0, ROWS, 50)
            for name in ("d", "g"):
                gradients = draw.normal(size=(50, DIM)).astype(np.float32)
                store.table(name).update(ids, gradients, lr=0.1)
            bound = Binding(self.name, self.world, run, table_digests(store), token=token)
            store.commit(step, {"at": step}, {"dense": b"w" * 99, NAME: bound.encoded(step)})
            if pin is not None:
                store.pin(step, pin)
            self.then.setdefault(step, {})[run.folder] = contents(store)

    def close(self) -> None:
        for store in self.stores.values():
            store.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def contents_of(path: Path) -> dict[str, Any]:
    """All that the stores in a folder have."""
    found = {}
    for folder in sorted(path.glob("buckets-*")):
        with open_part(folder, "8MiB", read_only=True) as store:
            found[folder.name] = contents(store)
    return found
