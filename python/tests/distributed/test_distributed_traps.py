"""Mistakes with tables divided among ranks, each a check that two ranks make together.

All checks are made in one start of the ranks; each is a test of its own here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import ranks
from embedrock.errors import (
    FullError,
    IoError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    UnsupportedError,
)
from rankchecks import (
    DIM,
    SEED,
    Check,
    all_ranks_raise,
    assert_passed,
    ones,
    outcomes_of,
    sharing,
    table_of,
    updates_of,
)

torch = pytest.importorskip("torch")

CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


@check
def trap_1_rows_are_divided_by_the_world_as_dense_gradients_are(
    rank: int, world: int, folder: Path
) -> None:
    for reduction, expected in (("mean", 1.0), ("sum", float(world))):
        with sharing(folder, f"one-{reduction}", rank, reduction=reduction) as shard:
            table = table_of(shard)
            table.update([7], ones(1), lr=1.0)
            np.testing.assert_array_equal(table.get([7]), -expected * ones(1))


@check
def trap_2_uneven_batches_have_the_mean_over_all_samples(
    rank: int, world: int, folder: Path
) -> None:
    own = [5, 5, 5] if rank == 0 else [5]  # a mean over means would count the last one thrice
    with sharing(folder, "two", rank) as shard:
        embedding = embedrock.nn.Embedding(
            None, DIM, store=shard, name="t", optimizer="sgd", initializer=0.0
        )
        dense = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(DIM, 1, bias=False))
        torch.nn.init.ones_(dense.module.weight)
        optimizer = embedrock.optim.SGD(embedding, lr=1.0)
        scale = torch.tensor([1.0, 2.0, 3.0] if rank == 0 else [10.0])
        loss = (dense(embedding(torch.tensor(own)) + 1).squeeze(1) * scale).mean()
        (loss * shard.loss_weight(len(own))).backward()
        optimizer.step()
        np.testing.assert_allclose(embedding.table.get([5]), -4.0 * ones(1))  # (1+2+3+10) / 4
        np.testing.assert_allclose(dense.module.weight.grad.numpy(), 4.0 * ones(1))
        assert shard.loss_weight(0) == 0.0


@check
def trap_3_a_rank_without_ids_takes_part(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "three-b", rank) as shard:
        bag = embedrock.nn.EmbeddingBag(
            None, DIM, mode="sum", store=shard, name="t", optimizer="sgd", initializer=0.0
        )
        optimizer = embedrock.optim.SGD(bag, lr=1.0)
        for turn in range(2):
            ids = torch.arange(4 if rank == turn else 0)
            out = bag(ids, torch.tensor([0]))
            out.sum().backward()
            optimizer.step()
        bag(torch.arange(4), torch.tensor([0]))  # no backward on either: a step of none
        optimizer.step()
        np.testing.assert_allclose(bag.table.get(np.arange(4)), -1.0 * ones(4))
        assert updates_of(shard) == {"t": 2}
        assert len(bag.table) == 4


@check
def trap_4_every_rank_counts_every_update_of_a_table_and_no_other(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "four", rank) as shard:
        given = {"store": shard, "optimizer": "adam", "initializer": 0.0}
        one = embedrock.nn.Embedding(2000, DIM, name="one", **given)
        # The wider one goes first on the way, and is the second here.
        other = embedrock.nn.Embedding(None, 2 * DIM, name="other", **given)
        model = torch.nn.ModuleList([one, other])
        optimizer = embedrock.optim.Adam(model, lr=0.1)
        for step in range(4):
            # Ids of rank 0's buckets alone, asked for by rank 1 alone.
            ids = torch.tensor([1, 2] if rank == 1 else [], dtype=torch.int64)
            loss = one(ids).sum()
            if step == 2 and rank == 0:
                loss = loss + other(torch.tensor([9])).sum()
            elif step == 2:
                other(torch.tensor([9]))
            loss.backward()
            optimizer.step()
        assert updates_of(shard) == {"one": 4, "other": 1}
        steps = [state["step"] for state in optimizer.state.values()]
        assert steps == [4, 1]
        # Adam's steps with one gradient are of the learning rate, if their count is right.
        np.testing.assert_allclose(one.table.get([1]), -0.4 * ones(1), rtol=1e-4)
        np.testing.assert_allclose(other.table.get([9])[:, :DIM], -0.1 * ones(1), rtol=1e-4)


@check
def trap_5_initial_rows_are_those_of_the_global_key(rank: int, world: int, folder: Path) -> None:
    keys = np.arange(0, 3000, 7)
    with (
        sharing(folder, "five", rank) as shard,
        embedrock.open(folder / f"five-alone-{rank}", "16MiB", seed=SEED) as alone,
    ):
        for name, size in (("dense", 3000), ("grows", None)):
            options = {"optimizer": "sgd", "initializer": embedrock.initializers.normal()}
            table = shard.table(name, DIM, size, expected_rows=3000, **options)
            spec = shard.store._core.table_info(table.local._handle)["spec"]
            assert 1400 < spec["expected_rows"] < 1700, "a half, and what chance may add to it"
            rows = table.get(keys)
            np.testing.assert_array_equal(rows, alone.table(name, DIM, size, **options).get(keys))
        own = [keys for keys, _ in shard.table("dense").items(unwritten=True)]
        everywhere: list[Any] = [None] * world
        torch.distributed.all_gather_object(everywhere, np.concatenate(own).tolist())
        assert sorted(np.concatenate(everywhere)) == list(range(3000)), "every id is of one rank"
        alone.commit(1)


@check
def trap_7_what_is_not_finite_on_one_rank_is_applied_on_none(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "seven", rank) as shard:
        embedding = embedrock.nn.Embedding(
            None, DIM, store=shard, name="t", optimizer="sgd", initializer=0.0
        )
        optimizer = embedrock.optim.SGD(embedding, lr=1.0)
        factor = float("nan") if rank == 1 else 1.0
        (embedding(torch.tensor([rank, 2 + rank])) * factor).sum().backward()
        said = "rank 1 of 2: gradients of 2 of 2 rows of table 't' are NaN"
        with all_ranks_raise(NonFiniteError, said, 1):
            optimizer.step()
        assert len(embedding.table) == 0
        assert updates_of(shard) == {"t": 0}
        optimizer.zero_grad()
        optimizer.non_finite = "skip"
        (embedding(torch.tensor([rank, 2 + rank])) * factor).sum().backward()
        optimizer.step()
        assert embedding.table.contains([0, 1, 2, 3]).tolist() == [True, False, True, False]
        # Finite on each rank, but not their sum, which only an owner sees: with a bound on the
        # norm it is known before anybody applies it.
        clipped = embedrock.Clip(norm=1.0)
        with all_ranks_raise(NonFiniteError, "are NaN or infinite"):
            embedding.table.update([50], 3e38 * world * ones(1), lr=1.0, clip=clipped)


@check
def trap_7_a_scaler_skips_the_step_on_all_ranks(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "seven-b", rank) as shard:
        embedding = embedrock.nn.Embedding(
            None, DIM, store=shard, name="t", optimizer="sgd", initializer=0.0
        )
        optimizer = embedrock.optim.SGD(embedding, lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        for step in range(3):
            # In step 0 an infinity on rank 1; in step 1 no gradient at all on rank 0.
            factor = float("inf") if (step, rank) == (0, 1) else 1.0
            ids = torch.tensor([7] if rank or step != 1 else [], dtype=torch.int64)
            if len(ids):
                scaler.scale((embedding(ids) * factor).sum()).backward()
            else:
                with torch.no_grad():
                    embedding(ids)
                scaler.scale(torch.zeros(1))
            shard.unscale_(scaler, optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            # Halved by the infinity, then doubled: on both.
            assert scaler.get_scale() == [2.0, 4.0, 8.0][step]
        assert updates_of(shard) == {"t": 2}
        np.testing.assert_allclose(embedding.table.get([7]), -1.5 * ones(1))


@check
def trap_7_a_scaler_skips_for_what_any_optimizer_found(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "seven-c", rank) as shard:
        options = {"store": shard, "optimizer": "sgd", "initializer": 0.0}
        both = [embedrock.nn.Embedding(None, DIM, name=name, **options) for name in ("a", "b")]
        optimizers = [embedrock.optim.SGD(one, lr=1.0) for one in both]
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        first, second = (one(torch.tensor([7])).sum() for one in both)
        scaler.scale(first * (float("inf") if rank == 1 else 1.0) + second).backward()
        shard.unscale_(scaler, *optimizers)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 0.5
        assert updates_of(shard) == {"a": 0, "b": 0}


@check
def trap_8_norms_are_of_the_gradients_of_all_ranks(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "eight", rank) as shard:
        embedding = embedrock.nn.Embedding(
            1024, DIM, store=shard, name="t", optimizer="sgd", initializer=0.0
        )
        dense = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(DIM, 1, bias=False))
        clip = embedrock.Clip(norm=1.0)
        optimizer = embedrock.optim.SGD(embedding, lr=1.0, clip=clip, dense=dense.parameters())
        rows = embedding(torch.tensor([0, 600 + rank]))  # row 0 is on rank 0, the others on 1
        (rows.sum() + dense(torch.full((1, DIM), 3.0)).sum()).backward()
        optimizer.step()
        # Row 0 has a gradient of 1 from both, rows 600 and 601 half of one each; dense ones have 3.
        norm = np.sqrt(DIM * (1.0 + 0.25 + 0.25 + 9.0))
        assert optimizer.norm == pytest.approx(norm, rel=1e-6)
        expected = -np.array([[1.0], [0.5], [0.5]]) / norm * np.ones((3, DIM))
        np.testing.assert_allclose(embedding.table.get([0, 600, 601]), expected, rtol=1e-5)
        np.testing.assert_allclose(
            dense.module.weight.grad.numpy(), 3.0 / norm * ones(1), rtol=1e-5
        )
        by_row = embedrock.Clip(row_norm=1.0, value=0.5)
        embedding.table.update([20], ones(1), lr=1.0, clip=by_row)
        np.testing.assert_allclose(embedding.table.get([20]), -0.5 * ones(1), rtol=1e-5)


@check
def trap_9_an_error_of_one_store_is_raised_on_all_ranks_in_that_call(
    rank: int, world: int, folder: Path
) -> None:
    # Room for tables of rank 0 alone.
    room = {"max_disk_bytes": 1 << 20} if rank == 1 else {}
    store = embedrock.open(folder / f"nine-{rank}", "16MiB", seed=SEED, **room)
    with embedrock.distributed.Shard(store) as shard:
        with all_ranks_raise(FullError, "table 'large'.*rank 1 of 2", 1):
            shard.table("large", 64, 1 << 20, optimizer="sgd")
        table = table_of(shard)
        with all_ranks_raise(KeyRangeError, "rank 0 of 2: keys.0. is 99.* expected 0 to 9", 0):
            shard.table("small", DIM, 10, optimizer="sgd").get([99 if rank == 0 else 1])
        with all_ranks_raise(KeyRangeError, "rank 0 of 2: keys.0. is 70,", 0):
            shard.table("small").get([70 + rank])  # of several that fail the first is told
        with all_ranks_raise(MisuseError, "put of table 't': rank 1 of 2: values are float64", 1):
            table.put([1], ones(1).astype("f8") if rank else ones(1))
        if rank == 1:
            failing = embedrock.Table.contains
            embedrock.Table.contains = lambda *_: (_ for _ in ()).throw(IoError("no disk"))
        with all_ranks_raise(IoError, "^contains of table 't': rank 1 of 2: no disk", 1):
            table.contains([1, 2, 3])
        if rank == 1:
            embedrock.Table.contains = failing
        if rank == 1:  # as a store does after its disk has failed
            failing = store.get
            store.get = lambda *_, **__: (_ for _ in ()).throw(IoError("the disk is gone"))
        with all_ranks_raise(IoError, "get of table 't': rank 1 of 2: the disk is gone", 1):
            table.get([1, 2, 3])
        if rank == 1:
            store.get = failing
            store._update = lambda *_: (_ for _ in ()).throw(FullError("no room for rows"))
        with all_ranks_raise(FullError, "rank 1 of 2: no room.*other ranks have made this", 1):
            table.update([1, 2, 3], ones(3), lr=0.1)
        assert table.get([1, 2, 3]).shape == (3, DIM)  # and they are still together
        store.commit(1)


@check
def trap_14_ids_stay_with_their_feature(rank: int, world: int, folder: Path) -> None:
    config = embedrock.nn.EmbeddingBagConfig
    options = {"optimizer": "sgd", "initializer": 0.0}
    with sharing(folder, "fourteen", rank) as shard:
        bags = embedrock.nn.EmbeddingBagCollection(
            [config("t", DIM, ["long", "short", "none"], **options)], store=shard
        )
        bags.tables[0].put(np.arange(200), np.arange(200, dtype=np.float32)[:, None] * ones(1))
        many, few = np.arange(rank, 200, 2), np.array([5 + rank])
        out = bags(
            {
                "long": (torch.from_numpy(many), torch.tensor([0, 1, 1])),
                "short": (torch.from_numpy(few), torch.tensor([0, 0, 0])),
                "none": (torch.empty(0, dtype=torch.int64), torch.tensor([0, 0, 0])),
            }
        )
        sums = [many[:1].sum(), 0, many[1:].sum()]
        np.testing.assert_allclose(out["long"].detach().numpy()[:, 0], sums)
        np.testing.assert_allclose(out["short"].detach().numpy()[:, 0], [0, 0, few[0]])
        np.testing.assert_allclose(out["none"].detach().numpy(), 0 * ones(3))


@check
def trap_15_nothing_that_was_returned_or_is_kept_lies_in_a_buffer(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "fifteen", rank) as shard:
        table = table_of(shard)
        table.put(np.arange(100), np.arange(100, dtype=np.float32)[:, None] * ones(1))
        asked = np.arange(80, 120)
        np.testing.assert_array_equal(table.contains(asked), asked < 100)
        first = [shard.window.announce({table: np.arange(step, step + 9)}) for step in (0, 40)]
        rows = table.get(np.arange(50))
        before = rows.copy()
        pending = shard.store.commit(2, wait=False)
        table.update(np.arange(100), ones(100), lr=1.0)
        table.get(np.arange(50, 100))
        np.testing.assert_array_equal(rows, before)
        for number, step in zip(first, (0, 40), strict=True):
            shard.window.begin(number)
            np.testing.assert_array_equal(
                table.get(np.arange(step, step + 9))[:, 0], np.arange(step, step + 9) - 1.0
            )
            shard.window.finish(number)
        assert shard.stats()["gets_ahead"] == 2
        pending.wait()
        path = folder / f"fifteen-{rank}"
        with embedrock.open(path, "16MiB", read_only=True, create=False) as reader:
            for keys, values in reader.table("t").items():  # the rows at its beginning
                np.testing.assert_array_equal(values[:, 0], keys.astype(np.float32))


@check
def calls_that_differ_are_an_error_that_names_both(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "differ", rank) as shard:
        table, other = table_of(shard), table_of(shard, "u")
        said = "rank 0 get of table 't', rank 1 update of table 't'"
        with pytest.raises(MisuseError, match=said):
            table.get([1]) if rank == 0 else table.update([1], ones(1), lr=0.1)
        said = "rank 0 get of table 't', rank 1 get of tables 't', 'u'"
        with pytest.raises(MisuseError, match=said):
            shard.get([(table, [1])] if rank == 0 else [(table, [1]), (other, [1])])
        with pytest.raises(MismatchError, match=r"rank 0 has lr=0.1.*rank 1 has lr=1.1"):
            table.update([1], ones(1), lr=0.1 + rank)
        for of_rank in (
            {"clip": embedrock.Clip(row_norm=1.0 + rank)},
            {"non_finite": ("refuse", "skip")[rank]},
        ):
            with pytest.raises(MismatchError, match="update of table 't': rank 0 has lr"):
                table.update([1], ones(1), lr=0.1, **of_rank)
        with pytest.raises(MismatchError, match="put of table 't': rank 0 has non_finite='refuse'"):
            table.put([1], ones(1), non_finite=("refuse", "apply")[rank])
        modules = [
            embedrock.nn.Embedding(None, DIM, store=shard, name=name, optimizer="sgd")
            for name in ("t", "u")
        ]
        groups = [{"params": module, "lr": 0.1 + i * rank} for i, module in enumerate(modules)]
        optimizer = embedrock.optim.SGD(groups, lr=0.1)
        sum(module(torch.tensor([1])).sum() for module in modules).backward()
        with pytest.raises(
            MismatchError, match=r"'t', 'u': rank 0 has lr=0.1,.* rank 1 has .* and lr=1.1"
        ):
            optimizer.step()
        with pytest.raises(
            MismatchError, match="rank 0 has embedding_dim=4, rank 1 has embedding_dim=5"
        ):
            shard.table("v", DIM + rank, optimizer="sgd")
        shard.store.table("w", DIM + rank, optimizer="sgd")
        with pytest.raises(
            MismatchError, match="opening of table 'w': rank 0 has embedding_dim=4, rank 1"
        ):
            shard.table("w")
        with pytest.raises(MismatchError, match=r"presum=True.*0-511: 0.*presum=False"):
            embedrock.distributed.Shard(shard.store, presum=rank == 0)
        for of_rank in (
            {"reduction": ("mean", "sum")[rank]},
            {"wire_dtype": ("float32", "bfloat16")[rank]},
        ):
            with pytest.raises(MismatchError, match=r"Shard: rank 0 has reduction='mean'"):
                embedrock.distributed.Shard(shard.store, **of_rank)
        with pytest.raises(MisuseError, match=r"announce of table .t.*announce of table .u"):
            shard.window.begin(shard.window.announce({("t", "u")[rank]: [1]}))
        assert len(table) == 0


@check
def more_tables_than_a_header_counts_are_one_exchange(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "many", rank) as shard:
        configs = [
            embedrock.nn.EmbeddingBagConfig(
                f"t{i}", 2 + 2 * (i % 3), optimizer="sgd", initializer=float(i)
            )
            for i in range(70)
        ]
        bags = embedrock.nn.EmbeddingBagCollection(configs, store=shard)
        optimizer = embedrock.optim.SGD(bags, lr=1.0)
        first = torch.tensor([0])
        batch = {f"t{i}": (torch.arange(i % 5 + rank), first) for i in range(70)}
        for turn in range(2):
            before = shard.stats()
            out = bags(batch)
            assert shard.stats()["gets"] == before["gets"] + 1
            for i in range(70):
                # Id k was in the batch of one rank, or of both: halves of a gradient of 1.
                count = i % 5 + rank
                steps = np.array([1.0 if k < i % 5 else 0.5 for k in range(count)])
                expected = (i - turn * steps).sum()
                np.testing.assert_allclose(out[f"t{i}"].detach().numpy(), expected, rtol=1e-6)
            sum(one.sum() for one in out.values()).backward()
            optimizer.step()
            assert shard.stats()["updates"] == turn + 1
        bags.eval()
        with torch.no_grad():
            bags(batch)
        assert all(len(table) == i % 5 + 1 for i, table in enumerate(bags.tables))


@check
def gradients_of_several_backwards_are_one_step(rank: int, world: int, folder: Path) -> None:
    for presum in (True, False):
        with sharing(folder, f"several-{presum}", rank, presum=presum, reduction="sum") as shard:
            options = {"store": shard, "name": "t", "optimizer": "sgd", "initializer": 0.0}
            one = embedrock.nn.Embedding(None, DIM, padding_idx=0, **options)
            two = embedrock.nn.EmbeddingBag(None, DIM, mode="max", padding_idx=0, **options)
            optimizer = embedrock.optim.SGD(one, lr=1.0)
            for ids in ([1, 1, 0, 2], [2, 0, 0, 3 + rank]):
                one(torch.tensor(ids)).sum().backward()
                two(torch.tensor([[0, 9]])).sum().backward()
            optimizer.step()
            steps = np.array([0, 2 * world, 2 * world, 1, 1, 2 * world])
            rows = one.table.get([0, 1, 2, 3, 4, 9])
            np.testing.assert_allclose(rows, -steps[:, None] * ones(1))
            assert updates_of(shard) == {"t": 1}


@check
def stores_of_another_seed_are_refused(rank: int, world: int, folder: Path) -> None:
    with (
        embedrock.open(folder / f"seed-{rank}", "16MiB", seed=rank) as store,
        embedrock.distributed.Shard(store) as shard,
        pytest.raises(MismatchError, match="one seed"),
    ):
        shard.table("t", DIM, optimizer="sgd")


@check
def what_needs_one_process_is_refused_and_says_what_to_do(
    rank: int, world: int, folder: Path
) -> None:
    with sharing(folder, "refused", rank) as shard:
        embedding = embedrock.nn.Embedding(None, DIM, store=shard, name="t", optimizer="sgd")
        for refused in (
            lambda: embedrock.LookaheadLoader([], embedding),
            lambda: embedrock.Pipeline(embedding, []),
            lambda: embedding.topk(torch.zeros(1, DIM), 1),
        ):
            with pytest.raises(UnsupportedError, match=r"shared by several ranks.*shard\.batches"):
                refused()
        with pytest.raises(AttributeError, match="of this rank alone"):
            shard.record()
        with pytest.raises(AttributeError, match="on another rank"):
            embedding.table.modify([1], None)
        with pytest.raises(MisuseError, match="expected a table of"):
            shard.get([(None, [1])])
        with sharing(folder, "refused-too", rank) as other:
            table = table_of(other)
            with pytest.raises(MisuseError, match="expected a table of"):
                shard.get([(table, [1])])


@check
def rows_cross_as_bfloat16_where_they_are_told_to(rank: int, world: int, folder: Path) -> None:
    count = 2000
    values = np.random.default_rng(5).standard_normal((count, DIM)).astype(np.float32)
    values[:2] *= [[1e15], [1e-15]]
    once = torch.from_numpy(values).bfloat16().float().numpy()  # rounded once, to the nearest
    sent = {}
    for wire in (None, "bfloat16"):
        with sharing(folder, f"wire-{wire}", rank, wire_dtype=wire) as shard:
            table = table_of(shard)
            table.put(np.arange(count), values)  # exact, whatever the wire
            for keys, rows in table.items():
                np.testing.assert_array_equal(rows, values[keys])
            before = shard.stats()["bytes_sent"]
            rows = table.get(np.arange(count))
            sent[wire] = shard.stats()["bytes_sent"] - before
            expected = values if wire is None else once
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_allclose(rows, values, rtol=2**-8)
            table.update(np.arange(count), values, lr=1.0)
            for keys, after in table.items():
                np.testing.assert_array_equal(after, values[keys] - expected[keys])
    assert sent["bfloat16"] < 0.8 * sent[None]


def run_all(rank: int, world: int, folder: Path) -> dict[str, str]:
    return outcomes_of(CHECKS, rank, world, folder)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return ranks.run(2, run_all, tmp_path_factory.mktemp("traps"))


@pytest.mark.parametrize("name", [*CHECKS])
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    assert_passed(name, outcomes)


def lost(rank: int, world: int, folder: Path) -> None:
    import time

    seen, until = folder / "seen", time.monotonic() + 60
    with sharing(folder, "late", rank, timeout=1.0) as shard:
        table = table_of(shard)
        while rank == 1 and not seen.exists():
            assert time.monotonic() < until, "rank 0 waits for ever"
            time.sleep(0.05)
        if rank == 1:
            return
        for _ in range(2):
            with pytest.raises(IoError, match=r"get of table 't' on rank 0 of 2.*open.timeout="):
                table.get([1])
        seen.touch()


def ended(rank: int, world: int, folder: Path) -> None:
    with sharing(folder, "ended", rank) as shard:
        table = table_of(shard)
        if rank == 0:
            with pytest.raises(IoError, match=r"get of table 't' on rank 0 of 2.*has ended"):
                table.get([1])


def test_a_rank_that_has_ended_or_does_not_come_is_an_error_and_no_hang(tmp_path: Path) -> None:
    ranks.run(2, ended, tmp_path)
    ranks.run(2, lost, tmp_path)
