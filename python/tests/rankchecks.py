"""Checks that two ranks make together, all in one start of both, and what they share.

A module of tests keeps its checks by name and makes them with `outcomes_of` on each rank. It has a
test for each, which asks `assert_passed`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import RankError

DIM = 4
SEED = 3
Check = Callable[[int, int, Path], None]


def outcomes_of(checks: Mapping[str, Check], rank: int, world: int, folder: Path) -> dict[str, str]:
    """Outcome of each check on this rank, to the first that failed: ``passed``, or its
    traceback."""
    outcomes = {}
    for name, function in checks.items():
        try:
            function(rank, world, folder)
            outcomes[name] = "passed"
        except BaseException:
            outcomes[name] = traceback.format_exc()
            break
    return outcomes


def assert_passed(name: str, outcomes: Sequence[Mapping[str, str]]) -> None:
    """That a check has passed on all ranks."""
    for rank, outcome in enumerate(outcomes):
        told = outcome.get(name, f"not reached: {list(outcome.values())[-1]}")
        assert told == "passed", f"rank {rank}: {told}"


@contextmanager
def sharing(folder: Path, name: str, rank: int, **options: Any) -> Iterator[Any]:
    """A shard over a new store of this rank."""
    store = embedrock.open(folder / f"{name}-{rank}", "16MiB", seed=SEED)
    with embedrock.distributed.Shard(store, **options) as shard:
        yield shard
        store.commit(1)


def table_of(shard: Any, name: str = "t", **options: Any) -> Any:
    given = {"optimizer": "sgd", "initializer": 0.0, **options}
    return shard.table(name, DIM, **given)


def ones(count: int) -> Any:
    return np.ones((count, DIM), np.float32)


def updates_of(shard: Any) -> dict[str, int]:
    """Number of update batches that the tables of this rank have counted."""
    core = shard.store._core
    return {name: core.table_info(t.local._handle)["updates"] for name, t in shard.tables.items()}


@contextmanager
def all_ranks_raise(kind: type[Exception], said: str, rank: int | None = None) -> Iterator[None]:
    with pytest.raises(kind, match=said) as raised:
        yield
    if rank is not None:
        assert isinstance(raised.value, RankError)
        assert raised.value.rank == rank
