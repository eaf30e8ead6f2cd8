"""Messages to ranks for mistakes of users, each a check that two ranks make together.

All checks are made in one start of the ranks; each is a test of its own here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import ranks
from embedrock.errors import FullError, LockedError, MismatchError, MisuseError
from rankchecks import Check, assert_passed, outcomes_of

torch = pytest.importorskip("torch")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

MEMORY = "4MiB"
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def same_on_both(text: str) -> str:
    """A message that both ranks were given."""
    told = [None, None]
    torch.distributed.all_gather_object(told, text)
    assert told[0] == told[1], told
    return text


def refusal(kind: type[Exception], act: Callable[[], Any]) -> str:
    with pytest.raises(kind) as raised:
        act()
    return str(raised.value)


class Run:
    """A model over a shard, whose dense part is as it is given."""

    def __init__(self, shard: Any, top: Any) -> None:
        self.shard, self.top = shard, top
        bag = embedrock.nn.EmbeddingBag(
            None, 4, mode="sum", store=shard, name="t", optimizer="sgd", initializer=1.0
        )
        self.model = torch.nn.ModuleDict({"bag": bag, "top": top})
        self.optimizers = [
            embedrock.optim.SGD(bag, lr=0.1),
            torch.optim.SGD(top.parameters(), lr=0.1, momentum=0.9),
        ]

    def step(self) -> None:
        ids = torch.arange(8 + 4 * self.shard.rank).reshape(4, -1)
        self.model["top"](self.model["bag"](ids)).square().mean().mul(
            1 + self.shard.rank
        ).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def save(self, step: int, **more: Any) -> None:
        embedrock.save(self.shard, self.model, self.optimizers, step, **more)

    def resume(self) -> int:
        return embedrock.resume(self.shard, self.model, self.optimizers)


def opened(path: Path, **options: Any) -> Any:
    return embedrock.distributed.open(path, MEMORY, **options)


def linear() -> Any:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 1)


@check
def a_dense_part_that_nobody_averages_is_not_saved(rank: int, world: int, folder: Path) -> None:
    """Each rank saved its own, resumed its own, and nothing said so."""
    with opened(folder / "forgotten") as shard:
        run = Run(shard, linear())
        run.step()
        said = same_on_both(refusal(MismatchError, lambda: run.save(1)))
        assert said.startswith("parameter top.weight of the model is not the same on all ranks")
        assert "rank 1 differs from rank 0 by" in said
        assert "DistributedDataParallel" in said and "average its gradients" in said
        assert shard.step is None
        for parameter in run.top.parameters():
            torch.distributed.broadcast(parameter.data, 0)
        said = same_on_both(refusal(MismatchError, lambda: run.save(1)))
        assert said.startswith("momentum_buffer of parameter top.weight in optimizer.1 is not")
        for state in run.optimizers[1].state.values():
            torch.distributed.broadcast(state["momentum_buffer"], 0)
        run.save(1)
        run.top.register_parameter("own", torch.nn.Parameter(torch.ones(2 + rank)))
        said = same_on_both(refusal(MismatchError, lambda: run.save(2)))
        assert "on rank 0 it is float32 (2,), on rank 1 it is float32 (3,)" in said
        assert shard.step == 1


@check
def a_forgotten_resume_is_told_on_every_rank(rank: int, world: int, folder: Path) -> None:
    """As on one process: rows of a commit went on with a dense part that began anew."""
    with opened(folder / "begun") as shard:
        Run(shard, linear()).save(3)
    with opened(folder / "begun") as shard:
        run = Run(shard, linear())
        run.step()
        for state in (*run.top.parameters(), *run.optimizers[1].state.values()):
            tensor = state["momentum_buffer"] if isinstance(state, dict) else state.data
            torch.distributed.broadcast(tensor, 0)
        said = same_on_both(refusal(MisuseError, lambda: run.save(4)))
        assert "of step 3" in said and "'top.weight' and 1 more" in said and "resume" in said
        # An argument of one rank alone is refused on all.
        said = same_on_both(refusal(MisuseError, lambda: run.save(4, new_model=rank == 0)))
        assert "rank 1 of 2" in said and "nobody has restored" in said
        assert shard.step == 3
        run.save(4, new_model=True)
        assert shard.step == 4
        run.save(5)
    with opened(folder / "begun") as shard:
        run = Run(shard, linear())
        assert run.resume() == 5
        run.save(6)


@check
def ranks_that_differ_by_rounding_are_warned(rank: int, world: int, folder: Path) -> None:
    with opened(folder / "rounded") as shard:
        run = Run(shard, linear())
        with torch.no_grad():
            run.top.weight.mul_(1 + 3e-6 * rank)
        with pytest.warns(
            UserWarning, match=r"rounding, parameter top.weight of the model by [23]"
        ):
            run.save(1)
        assert shard.step == 1


@check
def what_is_each_ranks_own_is_saved_and_resumed(rank: int, world: int, folder: Path) -> None:
    """Running statistics, what DistributedDataParallel leaves out, generators, and extra."""

    def made() -> Any:
        top = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        top[0].register_parameter("own", torch.nn.Parameter(torch.full((2,), float(rank))))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(top, ["0.own"])
        return DistributedDataParallel(top)

    with opened(folder / "own") as shard, warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(rank)
        run = Run(shard, made())
        run.step()
        means = [None, None]
        own = run.top.module[0].running_mean
        torch.distributed.all_gather_object(means, own)
        assert not torch.equal(*means), "the check needs ranks that differ"
        run.model["bag"](torch.arange(3 + rank).reshape(1, -1))  # rows that wait for a step
        embedrock.save(shard, run.model, run.optimizers, 1, extra={"rank": rank})
    with opened(folder / "own") as shard:
        again, extra = Run(shard, made()), {}
        assert embedrock.resume(shard, again.model, again.optimizers, extra=extra) == 1
        assert torch.equal(again.top.module[0].running_mean, own)
        assert (extra["rank"], again.top.module[0].own.tolist()) == (rank, [float(rank)] * 2)


@check
def a_dense_part_is_resumed_whether_it_was_wrapped_or_not(
    rank: int, world: int, folder: Path
) -> None:
    """Wrapped after resume, the next one found mlp.module.0.weight for mlp.0.weight."""
    wrapped = [False, True, False, True]
    last: Any = None
    for step, wraps_before in enumerate(wrapped):
        with opened(folder / "wrapped") as shard:
            run = Run(shard, torch.nn.Sequential(linear()))
            if wraps_before:
                run.model["top"] = DistributedDataParallel(run.model["top"])
            assert run.resume() == step
            told = [None, None]
            torch.distributed.all_gather_object(told, run.top[0].weight.tolist())
            if step:
                assert told == [last, last]
            if step < 2 and not wraps_before:
                run.model["top"] = DistributedDataParallel(run.model["top"])
            if step < 2:
                run.step()
            last = run.top[0].weight.tolist()
            run.save(step + 1)
    with opened(folder / "wrapped") as shard:
        run = Run(shard, torch.nn.Sequential(torch.nn.Linear(4, 1, bias=False)))
        with pytest.raises(RuntimeError, match=r"top\.module\.0\.bias"):
            run.resume()


@check
def a_shard_that_is_made_by_hand_says_what_it_cannot(rank: int, world: int, folder: Path) -> None:
    path = folder / f"by-hand-{rank}"
    with embedrock.open(path, MEMORY) as store:
        store.commit(1)
        run = Run(embedrock.distributed.Shard(store), linear())
        said = refusal(MisuseError, lambda: run.save(2))
        assert "made by hand" in said and "embedrock.distributed.open(path)" in said
        store.commit(2)
    with embedrock.open(path, MEMORY, read_only=rank == 1) as store:
        said = refusal(MisuseError, lambda: embedrock.distributed.Shard(store))
        assert f"rank 1 of 2: the store {folder / 'by-hand-1'} was opened read_only=True" in said
        store.close()


@check
def a_full_store_does_not_say_to_commit(rank: int, world: int, folder: Path) -> None:
    """No rank may commit after it, and the message of the store said to."""
    options = {"max_disk_bytes": 16 << 20} if rank == 1 else {}
    with opened(folder / "full", check_disk=False, **options) as shard:
        table = shard.table("t", 64, optimizer="sgd", initializer=0.0, expected_rows=40_000)
        keys, gradients = np.arange(40_000), np.ones((40_000, 64), np.float32)
        table.put(keys, gradients)
        shard.commit(1)
        with pytest.raises(FullError) as raised:
            for _ in range(20):
                table.update(keys, gradients, lr=0.1)
        said = same_on_both(str(raised.value))
        assert said.startswith("update of table 't': rank 1 of 2: store"), said
        assert "other ranks have made this change: go back to the last common commit" in said
        assert "which commits release" not in said and "commit:" not in said
        assert "change fewer rows between commits" in said
        if rank == 1:
            own = raised.value.__cause__
            assert own is not None and "commit: " in str(own.__cause__), own
        shard.go_back(1)


@check
def tables_that_differ_are_told_by_the_fields_that_do(rank: int, world: int, folder: Path) -> None:
    with opened(folder / "fields") as shard:
        optimizer = embedrock.optimizers.adagrad(initial_accumulator=0.1 * (1 + rank))
        said = refusal(MismatchError, lambda: shard.table("v", 4, optimizer=optimizer))
        assert said == (
            "opening of table 'v': rank 0 has optimizer.initial_accumulator=0.1, rank 1 has "
            "optimizer.initial_accumulator=0.2; expected the same on all ranks"
        )
        shard.commit(1)


@check
def ranks_that_give_different_paths_are_told_which(rank: int, world: int, folder: Path) -> None:
    path, other = folder / "b", folder / "b.other"
    with opened(path) as shard:
        shard.commit(1)
    said = same_on_both(refusal(MismatchError, lambda: opened(path if rank == 0 else other)))
    host = os.uname().nodename
    assert "ranks of one machine gave different paths" in said
    assert f"rank 0 ({host}) {path}, rank 1 ({host}) {other}; " in said
    assert f"512-1023 is in {path}, where rank 0 ({host}) alone looks" in said


@check
def one_rank_is_not_called_1_ranks(rank: int, world: int, folder: Path) -> None:
    with opened(folder / "two") as shard:
        shard.table("t", 4, optimizer="sgd")
        shard.commit(1)
    if rank == 0:
        embedrock.distributed.reshard(folder / "two", folder / "one-rank", 1, memory=MEMORY)
    torch.distributed.barrier()
    said = refusal(MismatchError, lambda: opened(folder / "one-rank"))
    assert "are of 1 rank, and there are 2 now" in said


# The last one: the ranks have made other groups of processes afterwards, and torch counts them.
@check
def a_store_in_use_is_told_apart_from_ranks_that_share_it(
    rank: int, world: int, folder: Path
) -> None:
    """Giving each rank a store of its own, as the message advised, trained two models."""
    path, groups = folder / "one", [torch.distributed.new_group([one]) for one in range(2)]
    before = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    held = opened(path, group=groups[0]) if rank == 0 else None
    torch.distributed.barrier()
    if rank == 1:
        said = refusal(LockedError, lambda: opened(path, group=groups[1]))
        assert "is written to by another process" in said and "wait for it or stop it" in said
        assert "distributed" not in said.partition(path.name)[2] and "read_only" not in said
        said = refusal(LockedError, lambda: embedrock.open(path / "buckets-0000-1023", MEMORY))
        assert "open with embedrock.distributed.open(path)" in said
        assert "rank-0" not in said and "or open with read_only=True; this looks" in said
    torch.distributed.barrier()
    if held is not None:
        held.close()
    os.environ.update({name: value for name, value in before.items() if value is not None})
    for name, value in before.items():
        if value is None:
            del os.environ[name]


def run_all(rank: int, world: int, folder: Path) -> dict[str, str]:
    return outcomes_of(CHECKS, rank, world, folder)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return ranks.run(2, run_all, tmp_path_factory.mktemp("said"), limit=60)


@pytest.mark.parametrize("name", [*CHECKS])
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    assert_passed(name, outcomes)
