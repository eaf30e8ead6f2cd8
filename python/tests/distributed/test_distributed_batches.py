"""Batches of ranks: loops that end together, and what a loader tells of itself amid one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from embedrock.errors import FullError
from rankchecks import Check, all_ranks_raise, assert_passed, outcomes_of, sharing, table_of

pytest.importorskip("torch")

CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


@check
def trap_3_loops_of_different_length_end_together(rank: int, world: int, folder: Path) -> None:
    loader = [{"t": np.arange(step, step + 3)} for step in range(5 + 2 * rank)]
    with sharing(folder, "three", rank) as shard:
        table = table_of(shard)
        plain = shard.batches(loader)
        assert len(list(plain)) == 5
        assert plain.left_out == (1 if rank else 0)
        for ahead in (1, 4, 32):
            batches = shard.batches(loader, keys_of=lambda batch: batch, ahead=ahead)
            for _ in range(2):
                count = 0
                for batch in batches:
                    rows = table.get(batch["t"])
                    table.update(batch["t"], np.ones_like(rows), lr=0.1)
                    count += 1
                assert count == 5
                assert batches.left_out == (min(ahead + 1, 2) if rank else 0)
        assert shard.stats()["gets_ahead"] == 30

        def failing() -> Iterator[Any]:
            yield {"t": [1]}
            if rank == 1:
                raise FullError("the loader of rank 1 is full")
            yield {"t": [1]}
            yield {"t": [1]}

        for keys_of in (None, lambda batch: batch):
            seen = []
            with all_ranks_raise(FullError, "rank 1 of 2: the loader of rank 1 is full", 1):
                seen.extend(shard.batches(failing(), keys_of=keys_of))
            assert len(seen) <= 1
        table.get([1])  # all are still together


class Counted:
    """A loader of batches that tells how far it is."""

    def __init__(self, count: int) -> None:
        self.done, self._count = 0, count

    def __iter__(self) -> Iterator[Any]:
        while self.done < self._count:
            self.done += 1
            yield {"t": np.arange(self.done, self.done + 3)}

    def state_dict(self) -> int:
        return self.done

    def load_state_dict(self, state: int) -> None:
        self.done = state


@check
def trap_3_a_loader_tells_the_batch_at_hand_whatever_is_drawn_ahead(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "three-c", rank) as shard:
        table = table_of(shard)
        for ahead in (0, 3):
            loader = Counted(6 + rank)
            batches = shard.batches(loader, keys_of=lambda batch: batch, ahead=ahead)
            for done, batch in enumerate(batches, 1):
                table.get(batch["t"])
                assert batches.state_dict() == done == batch["t"][0]
                assert len(shard.window._open) <= ahead + 1, "what is done with is let go"
                if done == 4:
                    break
            del batch
            batches.load_state_dict(2)
            assert batches.state_dict() == 2
            assert [batch["t"][0] for batch in batches] == [3, 4, 5, 6]
            assert not shard.window._open
        numbers = [shard.window.announce({table: [i]}) for i in range(513)]
        assert None not in numbers[:-1] and numbers[-1] is None
        shard.window.begin(numbers[-2])
        shard.window.finish(numbers[-2])
        assert not shard.window._open, "all before it, too"
        number = shard.window.announce({table: [1]})
        assert number is not None
        shard.window.finish(number)


def run_all(rank: int, world: int, folder: Path) -> dict[str, str]:
    return outcomes_of(CHECKS, rank, world, folder)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return ranks.run(2, run_all, tmp_path_factory.mktemp("batches"))


@pytest.mark.parametrize("name", [*CHECKS])
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    assert_passed(name, outcomes)
