"""Batches with the interface of TorchRec's: ``KeyedJaggedTensor`` in, ``KeyedTensor`` out."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402
from embedrock.errors import MisuseError, UnsupportedError  # noqa: E402

Config = nn.EmbeddingBagConfig


class JaggedTensor:
    """One feature: values, ``(B + 1,)`` offsets, and weights."""

    def __init__(self, values: Any, lengths: Any, weights: Any) -> None:
        self._values, self._lengths, self._weights = values, lengths, weights

    def values(self) -> Any:
        return self._values

    def offsets(self) -> Any:
        return torch.cat([torch.zeros(1, dtype=torch.long), self._lengths.cumsum(0)])

    def weights_or_none(self) -> Any:
        return self._weights


class KeyedJaggedTensor:
    """The used part of TorchRec's class of this name."""

    def __init__(self, features: dict[str, JaggedTensor], **odd: Any) -> None:
        self._features, self._odd = features, odd

    def keys(self) -> list[str]:
        return [*self._features]

    def stride_per_key(self) -> list[int]:
        return [len(each._lengths) for each in self._features.values()]

    def variable_stride_per_key(self) -> bool:
        return len({*self.stride_per_key()}) > 1

    def inverse_indices_or_none(self) -> Any:
        return self._odd.get("inverse")

    def to_dict(self) -> dict[str, JaggedTensor]:
        return self._features


class KeyedTensor:
    def __init__(self, keys: list[str], length_per_key: list[int], values: Any) -> None:
        assert values.shape[1] == sum(length_per_key) and len(keys) == len(length_per_key)
        self._keys, self._values = keys, values
        self._parts = dict(zip(keys, values.split(length_per_key, 1), strict=True))

    def keys(self) -> list[str]:
        return self._keys

    def __getitem__(self, key: str) -> Any:
        return self._parts[key]


def batch(weighted: bool = False, **odd: Any) -> KeyedJaggedTensor:
    """Three samples of the features a, b and c."""
    generator, other = (torch.Generator().manual_seed(seed) for seed in (3, 4))
    features = {}
    for name, lengths in (("a", [2, 0, 3]), ("b", [1, 1, 1]), ("c", [0, 0, 4])):
        values = torch.randint(0, 9, (sum(lengths),), generator=generator)
        some = torch.rand(len(values), generator=other) if weighted else None
        features[name] = JaggedTensor(values, torch.tensor(lengths), some)
    return KeyedJaggedTensor(features, **odd)


TABLES = [
    Config("items", 4, ["a", "b"], num_embeddings=9, optimizer="sgd"),
    Config("shops", 2, ["b"], num_embeddings=9, optimizer="sgd"),
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_and_updates_are_those_of_torchs_bags(
    store: embedrock.Store, weighted: bool, last: bool
) -> None:
    bags = nn.EmbeddingBagCollection(
        TABLES, store=store, is_weighted=weighted, include_last_offset=last
    )
    theirs = [torch.nn.EmbeddingBag(9, c.embedding_dim, mode="sum") for c in TABLES]
    for table, each in zip(bags.tables, theirs, strict=True):
        weights.load(table, each)
    mine = optim.SGD(bags, lr=0.5)
    features = batch(weighted)
    output = bags(features)
    assert isinstance(output, KeyedTensor) and output.keys() == ["a", "b@items", "b@shops"]
    expected = {}
    for name, feature, table in (("a", "a", 0), ("b@items", "b", 0), ("b@shops", "b", 1)):
        one = features.to_dict()[feature]
        begins = one.offsets()[:-1]
        rows = theirs[table](one.values(), begins, per_sample_weights=one.weights_or_none())
        expected[name] = rows
        torch.testing.assert_close(output[name], rows)
    output._values.square().sum().backward()
    mine.step()
    sum(rows.square().sum() for rows in expected.values()).backward()
    torch.optim.SGD([each.weight for each in theirs], lr=0.5).step()
    for table, each in zip(bags.tables, theirs, strict=True):
        rows = torch.from_numpy(table.get(torch.arange(9)))
        torch.testing.assert_close(rows, each.weight.detach())


def test_weights_of_a_batch_count_where_the_collection_is_weighted(store: embedrock.Store) -> None:
    plain, weighted = batch(), batch(weighted=True)
    bags = nn.EmbeddingBagCollection(TABLES, store=store)
    torch.testing.assert_close(bags(weighted)._values, bags(plain)._values)
    bags = nn.EmbeddingBagCollection(TABLES, store=store, is_weighted=True)
    assert bags.is_weighted()
    with pytest.raises(MisuseError, match="feature 'a' of KeyedJaggedTensor has no weights"):
        bags(plain)


def test_a_dict_of_features_that_several_tables_read(store: embedrock.Store) -> None:
    bags = nn.EmbeddingBagCollection(TABLES, store=store)
    assert bags.feature_names == ["a", "b"]
    assert bags.output_names == ["a", "b@items", "b@shops"]
    keyed = batch()
    features = {name: (f.values(), f.offsets()[:-1]) for name, f in keyed.to_dict().items()}
    del features["c"]
    output = bags(features)
    assert [*output] == bags.output_names
    torch.testing.assert_close(torch.cat([*output.values()], 1), bags(keyed)._values)
    keys = {table.name: len(ids) for table, ids in bags.keys_of(keyed).items()}
    assert keys == {"items": 8, "shops": 3}


def test_a_model_finds_its_features_in_a_batch_for_look_ahead(store: embedrock.Store) -> None:
    model = torch.nn.ModuleDict({"bags": nn.EmbeddingBagCollection(TABLES, store=store)})
    steps = [(torch.rand(3, 2), batch()) for _ in range(3)]
    loader = embedrock.LookaheadLoader(steps, model, announce=True)
    # The number of batches in a window depends on the speed of its reads: some pass announces them
    # all.
    for _ in range(100):
        for _, keyed in loader:
            model["bags"](keyed)
        if loader.stats()["announced"] == 3:
            break
    assert loader.stats()["announced"] == 3


def test_what_models_ask_a_collection_for(store: embedrock.Store) -> None:
    bags = nn.EmbeddingBagCollection([Config("words", 4)], store=store)
    (config,) = bags.embedding_bag_configs()
    assert (config.name, config.embedding_dim, config.num_embeddings) == ("words", 4, None)
    assert config.feature_names == ["words"] and bags.is_weighted() is False
    assert bags.device == torch.device("cpu")


def test_what_cannot_be_read_is_refused(store: embedrock.Store) -> None:
    bags = nn.EmbeddingBagCollection(TABLES, store=store)
    features = batch().to_dict()
    features["b"] = JaggedTensor(torch.tensor([1]), torch.tensor([1]), None)
    with pytest.raises(UnsupportedError, match=r"has a variable stride, \[3, 1, 3\]"):
        bags(KeyedJaggedTensor(features))
    with pytest.raises(UnsupportedError, match="has inverse indices"):
        bags(batch(inverse=(["a"], torch.tensor([[0, 0]]))))
    del features["b"]
    with pytest.raises(MisuseError, match=r"features \['b'\] are missing in KeyedJaggedTensor"):
        bags(KeyedJaggedTensor(features))


def test_a_batch_without_the_class_of_an_answer_is_refused(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = nn.EmbeddingBagCollection(TABLES, store=store)
    monkeypatch.delitem(globals(), "KeyedTensor")
    with pytest.raises(UnsupportedError, match="no module of its class has a KeyedTensor"):
        bags(batch())
