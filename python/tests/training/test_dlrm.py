from __future__ import annotations

import numpy as np
import pytest
import torch

import embedrock
from clicklogs import movielens_folder
from embedrock import initializers
from embedrock.data import Batch, Feature, Position, crosses, movielens
from embedrock.models.dlrm import DLRM, DLRMConfig
from embedrock.training.embeddings import MemoryEmbeddings, StoreEmbeddings
from embedrock.training.trainer import Trainer

torch.set_num_threads(1)


def config(features: int, dim: int = 8, dense: int = 3) -> DLRMConfig:
    return DLRMConfig(dense, features, dim, bottom=(16,), top=(12, 5))


def naive(model: DLRM, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """DLRM one sample and one pair at a time, as the paper draws it."""
    logits = []
    for x, e in zip(dense, embedded, strict=True):
        bottom = model.bottom(x)
        vectors = [bottom, *e]
        products = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        logits.append(model.top(torch.cat([bottom, torch.stack(products)])))
    return torch.cat(logits)


def test_logits_are_those_of_the_paper():
    torch.manual_seed(0)
    model = DLRM(config(features=4), torch.nn.Identity())
    dense, embedded = torch.rand(6, 3), torch.randn(6, 4, 8)
    torch.testing.assert_close(model.head(dense, embedded), naive(model, dense, embedded))


def test_dense_modules_are_everything_but_the_embeddings():
    embeddings = MemoryEmbeddings([torch.rand(5, 8)])
    model = DLRM(config(features=1), embeddings)
    mine = {id(p) for p in model.dense_modules().parameters()}
    others = {id(p) for p in embeddings.parameters()}
    assert mine | others == {id(p) for p in model.parameters()}
    assert not mine & others


def test_embeddings_in_memory_sum_bags_and_give_zeros_for_empty_ones():
    weights = [torch.randn(4, 3), torch.randn(5, 3)]
    module = MemoryEmbeddings(weights)
    # Two features of two samples: [0], [1, 2] and [], [4].
    keys, offsets = torch.tensor([0, 1, 2, 4]), torch.tensor([0, 1, 3, 3, 4])
    expected = torch.stack(
        [
            torch.stack([weights[0][0], torch.zeros(3)]),
            torch.stack([weights[0][1] + weights[0][2], weights[1][4]]),
        ]
    )
    torch.testing.assert_close(module(keys, offsets), expected)


@pytest.fixture
def clicks(tmp_path):
    return crosses.click_dataset(movielens.read(movielens_folder(tmp_path / "ml")), holdout=0.2)


def test_tables_on_storage_and_in_memory_give_the_same_embeddings(clicks, tmp_path):
    dense_ids, keys = clicks.densified()
    with embedrock.open(tmp_path / "store", "64MiB") as store:
        stored = StoreEmbeddings(
            store, clicks.features, 8, initializer=initializers.uniform(-0.1, 0.1)
        )
        weights = [
            torch.from_numpy(store.table(f.name).get(k))
            for f, k in zip(clicks.features, keys, strict=True)
        ]
        plain = MemoryEmbeddings(weights)
        pairs = zip(
            clicks.train_batches(64, Position()),
            dense_ids.train_batches(64, Position()),
            strict=True,
        )
        for one, other in pairs:
            got = stored(torch.from_numpy(one.keys), torch.from_numpy(one.offsets))
            expected = plain(torch.from_numpy(other.keys), torch.from_numpy(other.offsets))
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
        store.commit(0)


@pytest.mark.long
def test_training_on_storage_follows_training_in_memory(clicks, tmp_path):
    dense_ids, keys = clicks.densified()
    losses: dict[str, list[float]] = {}
    with embedrock.open(tmp_path / "store", "64MiB") as store:
        stored = StoreEmbeddings(
            store, clicks.features, 8, initializer=initializers.uniform(-0.1, 0.1)
        )
        weights = [
            torch.from_numpy(store.table(f.name).get(k))
            for f, k in zip(clicks.features, keys, strict=True)
        ]
        for name, data, embeddings in (
            ("stored", clicks, stored),
            ("plain", dense_ids, MemoryEmbeddings(weights)),
        ):
            torch.manual_seed(1)
            sizes = DLRMConfig(data.num_dense, len(data.features), 8, (16,), (12, 5))
            model = DLRM(sizes, embeddings)
            tables = (
                embedrock.optim.Adagrad(model, lr=0.05, eps=1e-2)
                if name == "stored"
                else torch.optim.Adagrad(model.embeddings.parameters(), lr=0.05, eps=1e-2)
            )
            dense = torch.optim.Adagrad(model.dense_modules().parameters(), lr=0.01)
            trainer = Trainer(model, [tables, dense])
            losses[name] = [
                trainer.step(batch)
                for epoch in range(2)
                for batch in data.train_batches(64, Position(epoch))
            ]
            if name == "stored":
                scored = trainer.evaluate(data.test_batches(100))
        store.commit(1)
        np.testing.assert_allclose(losses["stored"], losses["plain"], rtol=1e-5)
        assert np.mean(losses["stored"][-10:]) < np.mean(losses["stored"][:10])
        assert scored.samples == 400
        assert scored.auc > 0.55


def test_prediction_leaves_no_rows_behind(clicks, tmp_path):
    with embedrock.open(tmp_path / "store", "64MiB") as store:
        embeddings = StoreEmbeddings(store, clicks.features, 8)
        sizes = DLRMConfig(clicks.num_dense, len(clicks.features), 8, (16,), (12, 5))
        trainer = Trainer(DLRM(sizes, embeddings), [])
        trainer.evaluate(clicks.test_batches(64))
        assert sum(len(table) for table in store.tables.values()) == 0
        assert store.uncommitted == (0, 0)


def test_learning_rates_are_scaled_from_where_they_started():
    model = DLRM(config(features=1), MemoryEmbeddings([torch.rand(5, 8)]))
    optimizer = torch.optim.Adagrad(model.dense_modules().parameters(), lr=0.04)
    trainer = Trainer(model, [optimizer])
    trainer.scale_learning_rates(0.5)
    trainer.scale_learning_rates(0.25)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_an_evaluation_of_nothing_is_not_a_number():
    model = DLRM(config(features=1), MemoryEmbeddings([torch.rand(5, 8)]))
    found = Trainer(model, []).evaluate(iter(()))
    assert found.samples == 0
    assert np.isnan(found.auc)


def test_a_batch_knows_its_features():
    batch = Batch(
        np.zeros((2, 1), np.float32),
        np.array([5, 6, 7]),
        np.array([0, 1, 1, 2, 3]),
        np.zeros(2, np.float32),
        Position(),
    )
    assert batch.num_features == 2
    assert batch.feature_keys(0).tolist() == [5]
    assert batch.feature_keys(1).tolist() == [6, 7]
    assert Feature("a").num_embeddings is None
