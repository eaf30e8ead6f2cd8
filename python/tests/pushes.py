"""Stores that are pushed and pulled, and what is compared of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import embedrock

DIM = 8
DENSE, KEYS = 20_000, 4_000
SMALL: dict[str, Any] = {
    "memory": "8MiB",
    "page_bytes": 4096,
    "segment_bytes": 256 << 10,
    "check_disk": False,
}


def made(path: Path, storage: str = "log", **more: Any) -> embedrock.Store:
    """A store with a dense table and a growing one whose updates round by chance."""
    store = embedrock.open(path, **{**SMALL, **more})
    store.table("d", DIM, DENSE, optimizer="rowwise_adagrad", storage=storage)
    store.table("g", DIM, optimizer="adagrad", dtype="bfloat16", storage=storage)
    return store


def train(
    store: embedrock.Store, seed: int, dense: int = DENSE // 4, keys: int = KEYS // 4
) -> None:
    """Updates some rows, writes some, deletes some."""
    draw = np.random.default_rng(seed)
    d, g = store.table("d"), store.table("g")
    ids = draw.integers(0, DENSE, dense)
    d.update(ids, draw.normal(size=(dense, DIM)).astype(np.float32), lr=0.1)
    some = draw.integers(0, KEYS * 1000, keys)
    g.update(some, draw.normal(size=(keys, DIM)).astype(np.float32), lr=0.1)
    g.delete(some[::7])


def commit(store: embedrock.Store, step: int, **more: Any) -> None:
    store.commit(step, {"at": step}, {"dense": b"state %d" % step * 100}, **more)


def contents(store: embedrock.Store) -> dict[str, Any]:
    """All that a commit says of a store."""
    tables = store.tables
    return {
        "step": store.step,
        "meta": store.meta,
        "state": store.state(),
        "rows": {name: len(table) for name, table in tables.items()},
        "digests": {name: table.digest() for name, table in tables.items()},
    }


def contents_at(path: Path, **more: Any) -> dict[str, Any]:
    with embedrock.open(path, "8MiB", read_only=True, **more) as reader:
        return contents(reader)


def objects_in(folder: Path) -> dict[str, int]:
    """Files below a folder, by name, and their bytes."""
    return {
        str(Path(root, name).relative_to(folder)): os.path.getsize(Path(root, name))
        for root, _, names in os.walk(folder)
        for name in names
    }
