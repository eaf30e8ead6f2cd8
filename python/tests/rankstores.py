"""Stores of ranks for tests: opened together, trained the same by any number of ranks, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.remote.nodes import buckets_of

IDS = 3000
MEMORY = "2MiB"


def opened(path: Path, **options: Any) -> Any:
    """A shard whose steps are the same for any number of ranks."""
    return embedrock.distributed.open(
        path, MEMORY, shard={"reduction": "sum"}, **{"seed": 5, **options}
    )


def step_of(shard: Any, step: int) -> None:
    """One step of training that all ranks make together, whatever their number."""
    shared = np.random.default_rng(step)
    keys = shared.integers(0, IDS, 120).astype(np.int64)
    gradients = shared.standard_normal((120, 4)).astype(np.float32)
    mine = slice(shard.rank, None, shard.world)
    tables = tables_of(shard)
    for name, table in tables.items():
        wide = keys * (1 << 33) if name == "grow" else keys
        table.update(wide[mine], gradients[mine], lr=0.1)


def tables_of(shard: Any) -> dict[str, Any]:
    return {
        "dense": shard.table("dense", 4, IDS, optimizer="adagrad"),
        "grow": shard.table("grow", 4, optimizer="adagrad", expected_rows=IDS),
        "half": shard.table("half", 4, IDS, dtype="float16", optimizer="adam", storage="lsm"),
    }


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """An error of that kind, on this rank as on all, which says these words."""
    with pytest.raises(kind) as caught:
        yield
    for word in words:
        assert word in str(caught.value), caught.value


def all_rows(folder: Path) -> dict[str, dict[int, bytes]]:
    """Every row of all stores of a folder with its state, by table and key, and counts of steps."""
    found: dict[str, dict[int, bytes]] = {}
    for store_folder in sorted(folder.glob("buckets-*")):
        with embedrock.open(store_folder, MEMORY, read_only=True) as store:
            run = embedrock.distributed.binding.binding_of(store.state(), store_folder).buckets
            for name, table in store.tables.items():
                rows = found.setdefault(name, {})
                for keys, values, state in table.items(state=True):
                    buckets = buckets_of(keys, dense=table.num_embeddings is not None)
                    assert ((buckets >= run.first) & (buckets <= run.last)).all()
                    for key, row, words in zip(keys.tolist(), values, state, strict=True):
                        assert key not in rows, f"{name} has {key} in two stores"
                        rows[key] = row.tobytes() + words.tobytes()
    return found


def steps_of_manifests(path: Path) -> list[int]:
    return [int(file.stem.split("-")[1]) for file in sorted(path.glob("manifest-*.json"))]
