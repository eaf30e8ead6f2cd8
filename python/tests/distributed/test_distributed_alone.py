"""Events on one rank in the middle of a call: the other rank is told, or not misled.

All checks are made in one start of two ranks; each is a test of its own here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import embedrock
import ranks
from embedrock.errors import (
    FullError,
    IoError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    RankError,
    rank_error,
)
from rankchecks import DIM, Check, assert_passed, ones, outcomes_of, sharing, table_of

torch = pytest.importorskip("torch")

CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


@check
def going_back_within_a_loop_keeps_the_ids_and_reads_rows_anew(
    rank: int, world: int, folder: Path
) -> None:
    loader = [{"t": np.arange(i, i + 5)} for i in range(6)]
    with embedrock.distributed.open(folder / "back", "4MiB", reduction="sum") as shard:
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
def a_rank_that_reads_what_it_has_not_announced_does_not_mislead_the_other(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "kept", rank) as shard:
        table = table_of(shard)
        table.put(np.arange(20), np.arange(20, dtype=np.float32)[:, None] * ones(1))
        number = shard.window.announce({table: [1, 2, 3]})
        shard.window.begin(number)
        for keys in ([1, 2, 3], [1, 2, 3] if rank == 0 else [11, 12, 15], [1, 2, 3]):
            np.testing.assert_array_equal(table.get(keys)[:, 0], keys)
        shard.window.finish(number)
        assert shard.stats()["gets_ahead"] == 2
        with shard.exchange, pytest.raises(MisuseError, match="another thread is within a verb"):
            table.get([1])


@contextmanager
def raised_by_rank_1(rank: int, kind: type[Exception], said: str) -> Iterator[None]:
    """An error of another kind than ours is that of the package on the ranks that hear of it."""
    with pytest.raises(kind if rank == 1 else RankError, match=said):
        yield


@check
def what_a_rank_refuses_before_it_asks_is_raised_on_all(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "refuses", rank) as shard:
        with pytest.raises(MisuseError, match=r"loss_weight.* rank 1 of 2: count is -1"):
            shard.loss_weight(-1 if rank else 3)
        assert shard.loss_weight(1 + 2 * rank) == (1.5 if rank else 0.5)
        loader = [{"t": [step]} for step in range(3)]
        for other in ({}, {"keys_of": lambda batch: batch, "ahead": 2}):
            own = {"keys_of": lambda batch: batch, "ahead": 1} if rank == 0 else other
            with pytest.raises(MismatchError, match="batches: rank 0 has 1 batches ahead, rank 1"):
                next(iter(shard.batches(loader, **own)))
        embedding = embedrock.nn.Embedding(
            None, DIM, store=shard, name="t", optimizer="sgd", initializer=0.0
        )
        dense = torch.nn.Parameter(torch.ones(1))
        optimizer = embedrock.optim.SGD(
            embedding, lr=1.0, clip=embedrock.Clip(norm=1e9), dense=[dense]
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        scaler.scale(embedding(torch.tensor([7])).sum()).backward()
        if rank == 1:
            scaler.unscale_(optimizer)
        with raised_by_rank_1(rank, RuntimeError, "has already been called"):
            shard.unscale_(scaler, optimizer)
        optimizer.param_groups[0]["lr"] = "fast" if rank else 1.0
        with raised_by_rank_1(rank, ValueError, "could not convert"):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 1.0
        dense.grad = torch.full((1,), float("nan") if rank else 0.0)
        with pytest.raises(NonFiniteError, match="rank 1 of 2: the norm of the dense gradients"):
            optimizer.step()
        dense.grad.zero_()
        optimizer.step()
        np.testing.assert_array_equal(embedding.table.get([7]), -1.0 * ones(1))


@check
def a_state_dict_is_refused_beside_rows_of_another_step(
    rank: int, world: int, folder: Path
) -> None:
    options = {"name": "t", "optimizer": "sgd", "initializer": 0.0}
    with embedrock.distributed.open(folder / "bond", "4MiB") as shard:
        embedding = embedrock.nn.Embedding(None, DIM, store=shard, **options)
        optimizer = embedrock.optim.SGD(embedding, lr=1.0)

        def steps(count: int) -> None:
            for _ in range(count):
                embedding(torch.tensor([1, 2])).sum().backward()
                optimizer.step()

        before = embedding.state_dict()
        steps(3)
        with pytest.raises(MismatchError, match=r"\(0 updates\).*\(3 updates\).*go_back"):
            embedding.load_state_dict(before)
        shard.commit(1)
        told = [embedding.state_dict()]
        torch.distributed.broadcast_object_list(told)  # that of one rank is for all
        embedding.load_state_dict(told[0])
        steps(1)
        with pytest.raises(MismatchError, match=r"step 1 .3 updates.*later batches .4 updates"):
            embedding.load_state_dict(told[0])
        later = embedding.state_dict()
        shard.go_back(1)
        embedding.load_state_dict(told[0])
        steps(1)
        with pytest.raises(MismatchError, match="and later batches"):  # as many, of another way
            embedding.load_state_dict(later)
        shard.commit(2)
    with embedrock.distributed.open(folder / "bond", "4MiB", step=1) as shard:
        embedding = embedrock.nn.Embedding(None, DIM, store=shard, **options)
        embedding.load_state_dict(told[0])
        other = embedrock.distributed.open(folder / "another", "4MiB")
        with other, pytest.raises(MismatchError, match="of the stores that these ranks have"):
            embedrock.nn.Embedding(None, DIM, store=other, **options).load_state_dict(told[0])


@check
def an_error_of_any_kind_ends_a_pass_on_all_ranks(rank: int, world: int, folder: Path) -> None:
    loader = [{"t": [step]} for step in range(6)]
    with sharing(folder, "pass", rank, timeout=5.0) as shard:
        table = table_of(shard)
        if rank == 1:
            once = shard.window._once

            def failing(keys: object) -> object:
                shard.window._once = once
                raise ValueError("a table that is none")

            shard.window._once = failing
        with raised_by_rank_1(rank, ValueError, "a table that is none"):
            list(shard.batches(loader, keys_of=lambda batch: batch, ahead=4))
        assert len(list(shard.batches(loader, keys_of=lambda batch: batch, ahead=4))) == 6
        table.get([1])


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


def test_errors_of_ranks_cross_between_processes() -> None:
    for kind in ("FullError", "IoError", "RankError", "ValueError"):
        error = rank_error(kind, "no room", 1)
        crossed = pickle.loads(pickle.dumps(error))
        assert type(crossed) is type(error)
        assert (str(crossed), crossed.rank) == (str(error), 1)
    assert isinstance(pickle.loads(pickle.dumps(rank_error("FullError", "x", 1))), FullError)


def run_all(rank: int, world: int, folder: Path) -> dict[str, str]:
    return outcomes_of(CHECKS, rank, world, folder)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return ranks.run(2, run_all, tmp_path_factory.mktemp("alone"), limit=20)


@pytest.mark.parametrize("name", [*CHECKS])
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    assert_passed(name, outcomes)
