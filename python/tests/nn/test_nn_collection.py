"""``EmbeddingBagCollection``: the outputs of single bags, with one call of the engine."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402
from embedrock.errors import MisuseError  # noqa: E402

Config = nn.EmbeddingBagConfig
TABLES = [
    Config("items", 4, ["clicked", "bought"], optimizer="sgd"),
    Config("country", 2, num_embeddings=30, mode="mean", padding_idx=0, optimizer="sgd"),
]


def features(seed: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "clicked": (
            torch.randint(0, 9, (10,), generator=generator),
            torch.tensor([0, 4, 4]),
        ),
        "bought": (
            torch.randint(0, 9, (5,), generator=generator),
            torch.tensor([0, 1, 3]),
            torch.randn(5, generator=generator),
        ),
        "country": torch.randint(0, 30, (3, 2), generator=generator),
    }


def test_outputs_and_updates_are_those_of_torchs_bags_with_a_shared_weight(
    store: embedrock.Store,
) -> None:
    bags = nn.EmbeddingBagCollection(TABLES, store=store)
    items = torch.nn.EmbeddingBag(9, 4, mode="sum")
    country = torch.nn.EmbeddingBag(30, 2, mode="mean", padding_idx=0)
    weights.load(bags.tables[0], items.weight, keys=torch.arange(9))
    weights.load(bags.tables[1], country)
    mine = optim.SGD(bags, lr=0.125)
    theirs = torch.optim.SGD([items.weight, country.weight], lr=0.125)
    for seed in range(4):
        batch = features(seed)
        output = bags(batch)
        clicked, bought = batch["clicked"], batch["bought"]
        expected = {
            "clicked": items(*clicked),
            "bought": items(*bought[:2], per_sample_weights=bought[2]),
            "country": country(batch["country"]),
        }
        assert list(output) == list(expected) == bags.feature_names
        for name, rows in expected.items():
            torch.testing.assert_close(output[name], rows, rtol=1e-6, atol=1e-6)
        for result, optimizer in ((output, mine), (expected, theirs)):
            sum(rows.square().sum() for rows in result.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = torch.from_numpy(bags.tables[0].get(torch.arange(9)))
    torch.testing.assert_close(rows, items.weight.detach(), rtol=1e-5, atol=1e-6)


def test_all_features_are_read_in_one_call_and_updated_in_one(store: embedrock.Store) -> None:
    bags = nn.EmbeddingBagCollection(TABLES, store=store, concatenate=True)
    optimizer = optim.SGD(bags, lr=0.1)
    engine = mock.Mock(wraps=store._core)
    with mock.patch.object(store, "_core", engine):
        for table in bags.tables:
            assert table._store._core is engine
        output = bags(features())
        assert engine.get.call_count == 1
        assert len(engine.get.call_args.args[0]) == 2  # tables, not features
        output.sum().backward()
        optimizer.step()
        assert engine.update.call_count == 1
        assert len(engine.update.call_args.args[0]) == 2


def test_concatenated_output_follows_feature_names(store: embedrock.Store) -> None:
    apart = nn.EmbeddingBagCollection(TABLES, store=store)
    joined = nn.EmbeddingBagCollection(TABLES, store=store, concatenate=True)
    assert joined.feature_names == ["clicked", "bought", "country"]
    expected = torch.cat([apart(features())[name] for name in joined.feature_names], dim=1)
    assert torch.equal(joined(features()), expected)
    assert expected.shape == (3, 4 + 4 + 2)


def test_offsets_may_carry_the_number_of_values_at_the_end(store: embedrock.Store) -> None:
    plain = nn.EmbeddingBagCollection(TABLES, store=store)
    last = nn.EmbeddingBagCollection(TABLES, store=store, include_last_offset=True)
    batch = features()
    longer = {
        name: given
        if isinstance(given, torch.Tensor)
        else (given[0], torch.cat([given[1], torch.tensor([len(given[0])])]), *given[2:])
        for name, given in batch.items()
    }
    for name, rows in plain(batch).items():
        assert torch.equal(last(longer)[name], rows)


def test_table_without_feature_names_serves_the_feature_of_its_name(store: embedrock.Store) -> None:
    bags = nn.EmbeddingBagCollection([Config("words", 4)], store=store)
    assert bags.feature_names == ["words"]
    assert bags({"words": torch.tensor([[1], [2]])})["words"].shape == (2, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.pop("country"), r"\['country'\] are missing"),
        (lambda batch: batch.update(age=torch.zeros(3, 1).long()), r"\['age'\] are unknown"),
        (lambda batch: batch.update(country=torch.zeros(3).long()), "'country' has 1 dimensions"),
        (lambda batch: batch.update(country=torch.zeros(3, 1)), "'country' is torch.float32"),
        (lambda batch: batch.update(clicked=(1,)), "'clicked' has 1 parts"),
    ],
)
def test_malformed_batches_are_named(store: embedrock.Store, change: Any, message: str) -> None:
    bags = nn.EmbeddingBagCollection(TABLES, store=store)
    batch = features()
    change(batch)
    with pytest.raises(MisuseError, match=message):
        bags(batch)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([Config("a", 2), Config("a", 2)], "table 'a' occurs twice"),
        ([Config("a", 2, ["x", "x"])], "table 'a': feature 'x' occurs twice"),
        ([Config("a", 2, "xyz")], "expected a list of names"),
        ([Config("a", 2, mode="median")], "mode is 'median'"),
        (["a"], "tables hold 'a'"),
    ],
)
def test_malformed_tables_are_named(store: embedrock.Store, tables: Any, message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        nn.EmbeddingBagCollection(tables, store=store)
    assert not store.tables
