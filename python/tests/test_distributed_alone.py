"""What one rank alone meets in the middle of something: the other hears of it, or is not misled.

All checks are made in one start of two ranks; each is a test of its own here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embedrock
import ranks
from embedrock.errors import IoError

torch = pytest.importorskip("torch")

from test_distributed_traps import DIM, ones, sharing, table_of  # noqa: E402

CHECKS: dict[str, Callable[[int, int, Path], None]] = {}


def check(function: Callable[[int, int, Path], None]) -> Callable[[int, int, Path], None]:
    CHECKS[function.__name__] = function
    return function


@check
def going_back_within_a_loop_keeps_the_ids_and_reads_rows_anew(
    rank: int, world: int, folder: Path
) -> None:
    loader = [{"t": np.arange(i, i + 5)} for i in range(6)]
    with embedrock.distributed.open(folder / "back", "4MiB", shard={"reduction": "sum"}) as shard:
        table = table_of(shard)
        shard.commit(1)
        for i, batch in enumerate(shard.batches(loader, keys_of=lambda batch: batch, ahead=2)):
            table.get(batch["t"])
            table.update(batch["t"], ones(5), lr=1.0)
            if i == 2:
                shard.go_back(1)
                assert (table.get(np.arange(12)) == 0.0).all()
        assert shard.stats()["gets_ahead"] == 6
        steps = np.array([sum(key in loader[i]["t"] for i in (3, 4, 5)) for key in range(12)])
        np.testing.assert_array_equal(table.get(np.arange(12)), -world * steps[:, None] * ones(1))
        shard.commit(2)


@check
def a_verb_that_is_cut_off_ends_all_later_ones(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "cut", rank, timeout=1.0) as shard:
        table = table_of(shard)
        if rank == 1:
            with pytest.raises(IoError, match="update of table 't' on rank 1 of 2: the other"):
                table.update(np.arange(8), ones(8), lr=1.0)
            return
        sending = shard._payload.ids
        shard._payload.ids = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            table.update(np.arange(8), ones(8), lr=1.0)
        shard._payload.ids = sending
        for _ in range(2):
            with pytest.raises(
                IoError, match="update of table 't' on rank 0 of 2 was cut off by KeyboardInterrupt"
            ):
                table.get(np.arange(1000))


def run_all(rank: int, world: int, folder: Path) -> dict[str, str]:
    outcomes = {}
    for name, function in CHECKS.items():
        try:
            function(rank, world, folder)
            outcomes[name] = "passed"
        except BaseException:
            outcomes[name] = traceback.format_exc()
            break
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return ranks.run(2, run_all, tmp_path_factory.mktemp("alone"), limit=20)


@pytest.mark.parametrize("name", [*CHECKS])
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    for rank, outcome in enumerate(outcomes):
        told = outcome.get(name, f"not reached: {list(outcome.values())[-1]}")
        assert told == "passed", f"rank {rank}: {told}"
