"""Ranks train as one: the same losses and rows, whatever number of them there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import ranks
from embedrock.errors import UnsupportedError

torch = pytest.importorskip("torch")

DIM, ITEMS, STEPS, BATCH = 8, 3000, 6, 12
SEED = 7
OPTIMIZERS = {
    "sgd": lambda model: embedrock.optim.SGD(model, lr=0.02),
    "rowwise_adagrad": lambda model: embedrock.optim.RowWiseAdagrad(model, lr=0.1),
    "adam": lambda model: embedrock.optim.Adam(model, lr=0.01),
}


class Model(torch.nn.Module):
    """Tables of every kind of module, dense and growing, of two widths, and a dense part."""

    def __init__(self, store: Any, kind: str, dtype: Any = None) -> None:
        super().__init__()
        torch.manual_seed(5)
        nn = embedrock.nn
        common = {"store": store, "optimizer": kind, "dtype": dtype}
        self.item = nn.EmbeddingBag(ITEMS, DIM, mode="sum", name="item", padding_idx=3, **common)
        self.user = nn.Embedding(None, DIM, name="user", initializer=0.25, **common)
        config = nn.EmbeddingBagConfig
        configs = [
            config("words", 4, ["title", "text"], optimizer=kind),
            config("place", DIM, num_embeddings=50, mode="mean", optimizer=kind),
        ]
        self.bags = nn.EmbeddingBagCollection(configs, store=store)
        self.top = torch.nn.Linear(3 * DIM + 8, 1)

    def forward(self, batch: dict[str, Any]) -> Any:
        bags = self.bags({name: batch[name] for name in ("title", "text", "place")})
        both = [self.item(batch["item"]), self.user(batch["user"]), *bags.values()]
        return self.top(torch.cat(both, dim=1)).squeeze(1)


def jagged(random: Any, count: int, most: int) -> list[Any]:
    """Ids of each sample, of very different numbers of them."""
    return [random.integers(-40, 40, random.integers(0, most)) for _ in range(count)]


def batch_of(samples: Sequence[Any]) -> dict[str, Any]:
    """One batch of samples: (item ids, user, title, text, place, label)."""
    items, users, titles, texts, places, labels = (
        list(part) for part in zip(*samples, strict=True)
    )

    def bags(lists: list[Any]) -> tuple[Any, Any]:
        offsets = np.cumsum([0, *map(len, lists)])[:-1]
        flat = np.concatenate([np.empty(0, np.int64), *lists])
        return torch.from_numpy(flat), torch.from_numpy(offsets)

    return {
        "item": torch.from_numpy(np.stack(items)),
        "user": torch.from_numpy(np.array(users)),
        "title": bags(titles),
        "text": bags(texts),
        "place": torch.from_numpy(np.stack(places)),
        "label": torch.from_numpy(np.array(labels, np.float32)),
    }


def steps_of(world: int, count: int = STEPS, size: int = BATCH) -> list[list[Any]]:
    """For each step the samples of the global batch, those of rank 0 first."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(count):
        total = world * size
        found.append(
            list(
                zip(
                    random.integers(0, ITEMS, (total, 5)),
                    random.integers(-(2**62), 2**62, total) // 2**57,
                    jagged(random, total, 16),
                    jagged(random, total, 3),
                    random.integers(0, 50, (total, 1)),
                    random.random(total),
                    strict=True,
                )
            )
        )
    return found


def rows_of(tables: dict[str, Any]) -> dict[str, dict[int, Any]]:
    """All rows by table and key; of a shard those of this rank."""
    return {
        name: {
            int(key): row.copy()
            for keys, rows in table.items()
            for key, row in zip(keys, rows, strict=True)
        }
        for name, table in tables.items()
    }


def train(model: Any, tables: Any, batches: Sequence[Any]) -> list[float]:
    dense = torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.01)
    losses = []
    for batch in batches:
        loss = (model(batch) - batch["label"]).square().mean()
        dense.zero_grad()
        loss.backward()
        tables.step()
        dense.step()
        losses.append(loss.item())
    return losses


def one_rank(folder: Path, kind: str, steps: Sequence[Any]) -> tuple[list[float], Any]:
    """Losses and rows of a store of one process, trained on the global batches."""
    with embedrock.open(folder / f"one-{kind}", "64MiB", seed=SEED) as store:
        model = Model(store, kind)
        losses = train(model, OPTIMIZERS[kind](model), [batch_of(samples) for samples in steps])
        found = rows_of(store.tables)
        store.commit(1)
    return losses, found


def twins(rank: int, world: int, folder: Path) -> Any:
    found = {}
    steps = steps_of(world)
    for kind in OPTIMIZERS:
        for again in range(3):
            store = embedrock.open(folder / f"{kind}-{again}-{rank}", "64MiB", seed=SEED)
            with embedrock.distributed.Shard(store) as shard:
                model = Model(shard, kind)
                if again:  # round the dense part of the model, or all of it
                    model.top = torch.nn.parallel.DistributedDataParallel(model.top)
                else:
                    model = torch.nn.parallel.DistributedDataParallel(model)
                own = [batch_of(samples[rank * BATCH : (rank + 1) * BATCH]) for samples in steps]
                gets = 3 * STEPS  # one for each module
                if again == 1:
                    own = shard.batches(own, model, ahead=4)
                if again == 2:
                    gets = STEPS
                    embedrock.nn.read_together(model)
                before = shard.stats()
                losses = train(model, OPTIMIZERS[kind](model), own)
                stats = {name: now - before[name] for name, now in shard.stats().items()}
                assert stats["gets"] == gets
                assert stats["gets_ahead"] == (gets if again == 1 else 0)
                assert stats["updates"] == STEPS
                found[kind, again] = losses, rows_of(shard.tables)
                store.commit(1)
    return found


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_are_twins_of_one_rank_with_the_global_batch(world: int, tmp_path: Path) -> None:
    found = ranks.run(world, twins, tmp_path)
    for kind in OPTIMIZERS:
        losses, rows = one_rank(tmp_path, kind, steps_of(world))
        for again in range(3):
            of_ranks = [one[kind, again] for one in found]
            mean = np.mean([own for own, _ in of_ranks], axis=0)
            np.testing.assert_allclose(mean, losses, rtol=2e-5)
            for name, expected in rows.items():
                together: dict[int, Any] = {}
                for _, own in of_ranks:
                    assert own[name] or name == "place", f"rank without rows of {name!r}"
                    assert not together.keys() & own[name].keys()
                    together.update(own[name])
                assert together.keys() == expected.keys()
                keys = sorted(expected)
                np.testing.assert_allclose(
                    np.stack([together[key] for key in keys]),
                    np.stack([expected[key] for key in keys]),
                    rtol=1e-4,
                    # Of gradients near 0, Adam's first steps have the sign alone.
                    atol=2e-4 if kind == "adam" else 2e-6,
                    err_msg=f"{kind} {name}",
                )
        for one in found:  # equal bits of equal runs, with look-ahead and reads together too
            assert_equal_rows(one[kind, 0][1], one[kind, 1][1])
            assert_equal_rows(one[kind, 0][1], one[kind, 2][1])


def assert_equal_rows(first: Any, second: Any) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].keys() == second[name].keys()
        assert all((first[name][key] == second[name][key]).all() for key in first[name])


def rounded(rank: int, world: int, folder: Path) -> Any:
    """Rows of two bytes, rounded by chance, of the same global batches for any number of ranks."""
    random = np.random.default_rng(2)
    store = embedrock.open(folder / f"{world}-{rank}", "64MiB", seed=SEED)
    with embedrock.distributed.Shard(store, presum=False, reduction="sum") as shard:
        common = {"store": shard, "dtype": torch.float16, "optimizer": "rowwise_adagrad"}
        bag = embedrock.nn.EmbeddingBag(
            ITEMS, DIM, mode="sum", name="item", padding_idx=3, **common
        )
        user = embedrock.nn.Embedding(None, DIM, name="user", padding_idx=5, **common)
        again = embedrock.nn.Embedding(None, DIM, name="user", padding_idx=5, **common)
        whole = {**common, "dtype": torch.float32}
        exact = embedrock.nn.EmbeddingBag(ITEMS, DIM, mode="sum", name="exact", **whole)
        keys = np.arange(50)
        initial = [module.table.get(keys) for module in (bag, user)]
        optimizer = embedrock.optim.RowWiseAdagrad(torch.nn.ModuleList([bag, user, exact]), lr=0.05)
        for _ in range(STEPS):
            ids = torch.from_numpy(random.integers(0, 50, (12, 6)))
            own = ids[rank * 12 // world : (rank + 1) * 12 // world]
            out = bag(own) + user(own[:, 0]) * again(own[:, 1])
            (out.float().square().sum() + exact(own).square().sum()).backward()
            optimizer.step()
        with pytest.raises(UnsupportedError, match="presum=False"):
            embedrock.nn.Embedding(None, DIM, name="user", scale_grad_by_freq=True, **common)
        found = initial, rows_of(shard.tables)
        store.commit(1)
    return found


def test_every_occurrence_gives_the_same_bits_for_any_number_of_ranks(tmp_path: Path) -> None:
    together = []
    for world in (1, 2, 3):
        found = ranks.run(world, rounded, tmp_path)
        rows: dict[str, dict[int, Any]] = {"item": {}, "user": {}, "exact": {}}
        for initial, own in found:
            for one, other in zip(initial, found[0][0], strict=True):
                np.testing.assert_array_equal(one, other)
            for name in rows:
                rows[name].update(own[name])
        together.append((found[0][0], rows))
    for initial, rows in together[1:]:
        for one, other in zip(initial, together[0][0], strict=True):
            np.testing.assert_array_equal(one, other)
        assert_equal_rows(rows, together[0][1])
