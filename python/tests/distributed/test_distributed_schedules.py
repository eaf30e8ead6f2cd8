"""Schedules of ranks: each knows when its rows are used next, by the batches of all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import ranks
from embedrock.errors import FullError, IoError, LookaheadWarning, MisuseError
from embedrock.pipeline.scheduled import PassSchedule
from rankchecks import Check, all_ranks_raise, assert_passed, outcomes_of, sharing, table_of

pytest.importorskip("torch")

CHECKS: dict[str, Check] = {}
KEYS, SAMPLES, IDS = 4000, 1200, 6


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def keys_of(batch: Any) -> Any:
    return {"t": batch}


def trained(shard: Any, loader: Iterable[Any], passes: int, **options: Any) -> dict[str, Any]:
    """Trains by a loader; the rows in the end, and the counters of the window."""
    table, scheduled = table_of(shard), []
    batches = shard.batches(loader, keys_of=keys_of, ahead=24, **options)
    for number in range(passes):
        sampler = getattr(loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(number)
        for batch in batches:
            keys = np.asarray(batch)
            rows = table.get(keys)
            table.update(keys, 0.1 * rows + np.float32(1), lr=0.1)
        scheduled.append(batches.scheduled)
    return {"digest": shard.store.table("t").digest(), "scheduled": scheduled}


def both_ways(folder: Path, name: str, rank: int, make: Any, passes: int = 2) -> list[int]:
    """Trains without and with a schedule; the batches of each pass that were in it."""
    found = {}
    for schedule in (None, "epoch"):
        with sharing(folder, f"{name}-{schedule}", rank) as shard:
            found[schedule] = trained(shard, make(), passes, schedule=schedule)
    assert found[None]["digest"] == found["epoch"]["digest"]
    assert found[None]["scheduled"] == [0] * passes
    scheduled: list[int] = found["epoch"]["scheduled"]
    return scheduled


@check
def lists_of_batches_that_ranks_repeat(rank: int, world: int, folder: Path) -> None:
    random = np.random.default_rng(rank)
    batches = [random.integers(0, KEYS, (8, IDS)) for _ in range(60 + 3 * rank)]
    assert both_ways(folder, "lists", rank, lambda: batches) == [60, 60]


def loader_of(rank: int, world: int, shuffle: bool = True) -> Any:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    ids = torch.randint(0, KEYS, (SAMPLES, IDS), generator=torch.Generator().manual_seed(5))
    dataset: Any = ids
    sampler = DistributedSampler(dataset, world, rank, shuffle=shuffle, seed=9)
    return DataLoader(dataset, 8, sampler=sampler)


@check
def a_sampler_of_ranks_shuffles_each_epoch(rank: int, world: int, folder: Path) -> None:
    assert both_ways(folder, "sampler", rank, lambda: loader_of(rank, world), 3) == [75] * 3


@check
def where_one_rank_repeats_and_the_other_does_not(rank: int, world: int, folder: Path) -> None:
    mixed = both_ways(folder, "mixed", rank, lambda: loader_of(rank, world, shuffle=rank == 0), 3)
    assert mixed == [75] * 3


@check
def one_rank_that_fails_has_all_go_on_without(rank: int, world: int, folder: Path) -> None:
    class Failing(list[Any]):
        """Batches that cannot be gone through before they are trained."""

        left = 1

        def __iter__(self) -> Any:
            if rank == 1 and self.left:
                self.left -= 1
                raise FullError("the first look at rank 1 fails")
            return super().__iter__()

    batches = [np.arange(3 * i, 3 * i + 9) for i in range(30)]
    with sharing(folder, "failing", rank) as shard:
        with pytest.warns(LookaheadWarning, match="the first look at rank 1 fails"):
            found = trained(shard, Failing(batches), 2, schedule="epoch")
        assert found["scheduled"] == [0, 30], "the second pass has one"


@check
def one_rank_that_cannot_write_has_all_go_on_without(rank: int, world: int, folder: Path) -> None:
    batches = [np.arange(3 * i, 3 * i + 9) for i in range(30)]
    with sharing(folder, "full", rank) as shard, pytest.MonkeyPatch.context() as patch:
        if rank == 0:

            def full(*_: object, **__: object) -> None:
                raise FullError("the disk of rank 0 is full")

            patch.setattr("embedrock.pipeline.schedule.Maker.finish", full)
        with pytest.warns(LookaheadWarning, match="the disk of rank 0 is full"):
            found = trained(shard, batches, 1, schedule="epoch")
        assert found["scheduled"] == [0]


@check
def a_rank_without_a_batch_has_all_go_on_without(rank: int, world: int, folder: Path) -> None:
    batches = [np.arange(3 * i, 3 * i + 9) for i in range(30 * rank)]
    with sharing(folder, "none", rank) as shard:
        assert trained(shard, batches, 2, schedule="epoch")["scheduled"] == [0, 0]


@check
def a_schedule_that_cannot_be_read_costs_its_rank_the_schedule(
    rank: int, world: int, folder: Path
) -> None:
    batches = [np.arange(3 * i, 3 * i + 9) for i in range(30)]
    with sharing(folder, "unread", rank) as shard, pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            assert trained(shard, batches, 1, schedule="epoch")["scheduled"] == [30]
            return
        read = PassSchedule.of

        def failing(self: Any, place: int, parts: Any) -> Any:
            if place == 5:
                raise IoError("the disk of rank 0 does not answer")
            return read(self, place, parts)

        patch.setattr(PassSchedule, "of", failing)
        with pytest.warns(LookaheadWarning, match="the disk of rank 0 does not answer"):
            assert trained(shard, batches, 1, schedule="epoch")["scheduled"] == [5]


@check
def what_was_announced_by_hand_is_exchanged_first(rank: int, world: int, folder: Path) -> None:
    batches = [np.arange(3 * i, 3 * i + 9) for i in range(30)]
    with sharing(folder, "by-hand", rank) as shard:
        table = table_of(shard)
        for i in range(50):
            shard.window.announce({table: np.arange(i, i + 100 * (1 + rank))})
        assert trained(shard, batches, 1, schedule="epoch")["scheduled"] == [30]


@check
def what_a_loader_raises_comes_in_its_place(rank: int, world: int, folder: Path) -> None:
    def failing(batch: Any) -> Any:
        if rank == 1 and batch[0] == 4:
            raise FullError("batch 4 of rank 1 is full")
        return {"t": batch}

    batches = [np.arange(i, i + 3) for i in range(8)]
    with sharing(folder, "raises", rank) as shard:
        table_of(shard)
        seen = []
        with (
            pytest.warns(LookaheadWarning, match="batch 4 of rank 1 is full"),
            all_ranks_raise(FullError, "rank 1 of 2: batch 4 of rank 1 is full", 1),
        ):
            seen.extend(shard.batches(batches, keys_of=failing, schedule="epoch"))
        assert len(seen) == 4


@check
def arguments_that_cannot_be_are_named(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "named", rank) as shard:
        with pytest.raises(MisuseError, match="nothing is read ahead"):
            shard.batches([], schedule="epoch")
        with pytest.raises(MisuseError, match="schedule is 'pass', expected 'epoch' or None"):
            shard.batches([], keys_of=keys_of, schedule="pass")
        with pytest.raises(MisuseError, match="needs to know the order of generator"):
            shard.batches((one for one in [1]), keys_of=keys_of, schedule="epoch")
        with all_ranks_raise(embedrock.errors.MismatchError, "with a schedule"):
            schedule = "epoch" if rank else None
            list(shard.batches([np.arange(3)], keys_of=keys_of, schedule=schedule))


def run_all(rank: int, world: int, folder: Path) -> dict[str, str]:
    return outcomes_of(CHECKS, rank, world, folder)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return ranks.run(2, run_all, tmp_path_factory.mktemp("schedules"))


@pytest.mark.parametrize("name", [*CHECKS])
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    assert_passed(name, outcomes)
