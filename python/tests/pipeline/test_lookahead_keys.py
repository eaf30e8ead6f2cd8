"""``keys_of``: every shape of batch that trainers have, through ``LookaheadLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from windows import RecordingWindow

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import LookaheadLoader, nn  # noqa: E402
from embedrock.data import Batch, Feature, Position  # noqa: E402
from embedrock.errors import MisuseError, NotFoundError  # noqa: E402
from embedrock.models.dlrm import DLRM, DLRMConfig  # noqa: E402
from embedrock.training.embeddings import StoreEmbeddings  # noqa: E402

DIM = 2


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> RecordingWindow:
    window = RecordingWindow()
    monkeypatch.setattr(embedrock.Store, "window", window, raising=False)
    return window


def announced(window: RecordingWindow, batches: Any, model: Any, keys_of: Any = None) -> list[Any]:
    """Announced keys of each batch while a loader goes over them."""
    seen = []
    for number, _ in enumerate(LookaheadLoader(batches, model, keys_of=keys_of, announce=True), 1):
        seen.append(window.announced[window.last - len(window.announced) + 1])
        assert number in window.begun
    return seen


def embedding(store: embedrock.Store, name: str) -> Any:
    return nn.Embedding(None, DIM, store=store, name=name)


def bag(store: embedrock.Store, name: str) -> Any:
    return nn.EmbeddingBag(None, DIM, store=store, name=name, mode="sum")


class TwoTowers(torch.nn.Module):  # type: ignore[misc]
    """Users by id, items by bags of words, both found by name."""

    def __init__(self, store: embedrock.Store) -> None:
        super().__init__()
        self.user = embedding(store, "users")
        self.item = torch.nn.ModuleDict({"words": bag(store, "words")})
        self.dense = torch.nn.Linear(DIM, 1)


def test_a_module_of_tables_takes_its_batch_as_it_is(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    ids = torch.tensor([[4, 5], [5, -1]])
    assert announced(window, [ids], embedding(store, "ids")) == [{"ids": [4, 5, 5, 2**64 - 1]}]
    offsets = torch.tensor([0, 3])
    jagged = (ids.reshape(-1), offsets)
    assert announced(window, [jagged], bag(store, "bags")) == [{"bags": [4, 5, 5, 2**64 - 1]}]


def test_dict_batches_are_found_by_the_names_of_tables_and_modules(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    model = TwoTowers(store)
    words = (torch.tensor([7, 8, 7]), torch.tensor([0, 1]))
    batch = {"users": torch.tensor([1, 2]), "words": words, "label": torch.ones(2)}
    expected = [{"users": [1, 2], "words": [7, 8, 7]}]
    assert announced(window, [batch], model) == expected
    by_module = {"user": batch["users"], "item.words": words}
    assert announced(window, [by_module], model) == expected


def test_tuples_are_searched_for_dicts(store: embedrock.Store, window: RecordingWindow) -> None:
    features = {"users": torch.tensor([1]), "words": torch.tensor([[3, 4]])}
    batch = (torch.ones(1, 13), features, torch.ones(1))
    assert announced(window, [batch], TwoTowers(store)) == [{"users": [1], "words": [3, 4]}]
    with pytest.raises(MisuseError, match=r"no 'users' for module 'user' .* pass keys_of="):
        announced(window, [(torch.ones(1), {"word": 1})], TwoTowers(store))


def test_a_collection_finds_its_features_jagged_ones_too(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    configs = [
        nn.EmbeddingBagConfig("items", DIM, ["clicked", "bought"]),
        nn.EmbeddingBagConfig("country", DIM, num_embeddings=200),
    ]
    collection = nn.EmbeddingBagCollection(configs, store=store)
    batch = {
        "clicked": (torch.tensor([5, 6, 5]), torch.tensor([0, 2])),
        "bought": (torch.tensor([6]), torch.tensor([0, 0])),
        "country": torch.tensor([[12], [49]]),
    }
    expected = [{"items": [5, 6, 5, 6], "country": [12, 49]}]
    assert announced(window, [batch], collection) == expected
    model = torch.nn.Sequential(collection)
    assert announced(window, [{**batch, "label": torch.ones(2)}], model) == expected


def test_the_trainers_batches_of_click_logs(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    features = [Feature("a"), Feature("b")]
    model = DLRM(DLRMConfig(3, 2, DIM, (4,), (4,)), StoreEmbeddings(store, features, DIM))
    keys, offsets = np.array([9, 8, 7, 7, 6]), np.array([0, 1, 3, 4, 5])
    batch = Batch(np.ones((2, 3), np.float32), keys, offsets, np.ones(2, np.float32), Position())
    assert announced(window, [batch], model) == [{"a": [9, 8, 7], "b": [7, 6]}]


def test_a_model_that_knows_itself(store: embedrock.Store, window: RecordingWindow) -> None:
    class Own(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.user = embedding(store, "users")

        def keys_of(self, batch: Any) -> Any:
            return {self.user: batch.user}

    class Sample(NamedTuple):
        user: Any
        label: float

    batches = [Sample(torch.tensor([3]), 1.0), Sample(torch.tensor([4]), 0.0)]
    assert announced(window, batches, Own()) == [{"users": [3]}, {"users": [4]}]


def test_negative_samples_of_a_knowledge_graph(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    entities, relations = store.table("entities", DIM), store.table("relations", DIM)

    def keys_of(batch: Any) -> Any:
        heads, kinds, tails, negatives = batch
        return {entities: [heads, tails, negatives], relations: kinds}

    positive = np.array([1, 2]), np.array([0, 0]), np.array([3, 4])
    batch = (*positive, np.array([[5, 6], [1, 7]]))
    expected = {"entities": [1, 2, 3, 4, 5, 6, 1, 7], "relations": [0, 0]}
    assert announced(window, [batch], store, keys_of) == [expected]


def test_mini_batches_of_a_graph(store: embedrock.Store, window: RecordingWindow) -> None:
    class Block:  # as DGL and PyG have them: nodes to read, edges between them
        def __init__(self, nodes: list[int]) -> None:
            self.n_id, self.edge_index = torch.tensor(nodes), torch.tensor([[0], [1]])

    store.table("nodes", DIM)
    given = [Block([8, 2, 5]), Block([2, 9])]
    found = announced(window, given, store, lambda block: {"nodes": block.n_id})
    assert found == [{"nodes": [8, 2, 5]}, {"nodes": [2, 9]}]


def test_jagged_tensors_are_their_values(store: embedrock.Store, window: RecordingWindow) -> None:
    class JaggedTensor:  # TorchRec's
        def offsets(self) -> Any:
            return torch.tensor([0, 2, 3])

        def values(self) -> Any:
            return torch.tensor([6, 7, 6])

    store.table("words", DIM)
    nested = torch.nested.nested_tensor(
        [torch.tensor([6, 7]), torch.tensor([6])], layout=torch.jagged
    )
    for jagged in (JaggedTensor(), nested):
        found = announced(window, [jagged], store, lambda batch: {"words": batch})
        assert found == [{"words": [6, 7, 6]}]


class Squares(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """A map-style data set of dicts."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return {"users": index * index, "label": 1.0}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    """An iterable data set."""

    def __iter__(self) -> Iterator[Any]:
        yield from ({"users": i} for i in range(6))


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_data_sets_with_and_without_workers(
    store: embedrock.Store, window: RecordingWindow, workers: int
) -> None:
    model = embedding(store, "users")
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=workers)
    found = announced(window, loader, model, lambda batch: {model: batch["users"]})
    squares = [i * i for i in range(12)]
    assert found == [{"users": squares[i : i + 4]} for i in (0, 4, 8)]
    assert len(LookaheadLoader(loader, torch.nn.Sequential(model))) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_data_sets(store: embedrock.Store, window: RecordingWindow, workers: int) -> None:
    model = embedding(store, "users")
    loader = torch.utils.data.DataLoader(Stream(), batch_size=3, num_workers=workers)
    found = announced(window, loader, torch.nn.Sequential(model))
    assert found == [{"users": [0, 1, 2]}, {"users": [3, 4, 5]}]
    with pytest.raises(TypeError):
        len(LookaheadLoader(loader, torch.nn.Sequential(model)))


class DyingStream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    """An iterable data set whose worker dies."""

    def __iter__(self) -> Iterator[Any]:
        import os

        yield {"users": 1}
        yield {"users": 2}
        os._exit(3)


def test_the_death_of_a_worker_is_told_behind_the_batches_before_it(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    model = embedding(store, "users")
    # A worker that dies at once loses what it has not handed over, so each batch is awaited.
    loader = torch.utils.data.DataLoader(
        DyingStream(), batch_size=1, num_workers=1, prefetch_factor=1
    )
    seen = []

    def by_users(batch: Any) -> dict[Any, Any]:
        return {model: batch["users"]}

    with pytest.raises(RuntimeError, match="worker"):
        for batch in LookaheadLoader(loader, model, keys_of=by_users, announce=True):
            seen.append(batch)
    assert len(seen) <= 2
    assert window.open_numbers == []
    assert model.table.get([1, 2]).shape == (2, DIM)


def test_two_modules_on_one_table_are_announced_together(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    first, second = embedding(store, "shared"), embedding(store, "shared")
    table = store.table("shared")
    ids = torch.tensor([1, 2])
    found = announced(
        window,
        [ids],
        torch.nn.ModuleList([first, second]),
        lambda ids: {first: ids, second: ids + 1, table: [7]},
    )
    assert found == [{"shared": [1, 2, 2, 3, 7]}]


def test_tables_of_two_stores_go_to_their_own_windows(
    store: embedrock.Store, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: dict[Any, RecordingWindow] = {}
    monkeypatch.setattr(
        embedrock.Store,
        "window",
        property(lambda self: windows.setdefault(self.path, RecordingWindow())),
        raising=False,
    )
    with embedrock.open(tmp_path / "second", memory="64MiB") as other:
        model = torch.nn.ModuleDict({"a": embedding(store, "a"), "b": embedding(other, "b")})
        batch = {"a": torch.tensor([1]), "b": torch.tensor([2])}
        loader = iter(LookaheadLoader([batch], model, announce=True))
        next(loader)
        assert windows[store.path].announced == {1: {"a": [1]}}
        assert windows[other.path].announced == {1: {"b": [2]}}
        assert list(loader) == []
        with pytest.raises(MisuseError, match="in 2 stores"):
            next(iter(LookaheadLoader([batch], model, keys_of=lambda _: {"a": [1]}, announce=True)))


def test_a_model_without_tables_is_refused(store: embedrock.Store, window: RecordingWindow) -> None:
    with pytest.raises(MisuseError, match=r"Linear has no module of embedrock\.nn"):
        LookaheadLoader([], torch.nn.Linear(1, 1))
    with pytest.raises(NotFoundError, match="no table 'nobody'"):
        next(iter(LookaheadLoader([[1]], store, keys_of=lambda b: {"nobody": b}, announce=True)))
