"""Invalid offsets are refused before torch sees them, and ids in no bag are left out.

torch checks the first offset and the last, but none between. Its results for invalid ones depended
on the mode: sums of other bags, means of too many ids, gradients of uninitialized memory, and
crashes of the process. These tests give it only valid input.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:gradients of table")  # some have no optimizer

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402
from embedrock.errors import MisuseError  # noqa: E402

ROWS, DIM = 20, 3
MODES = ["sum", "mean", "max"]
IDS = [3, 1, 3, 7, 9, 9]

MEANINGLESS = [
    ([1, 2], "begin with 1"),
    ([-1, 2], "begin with -1"),
    ([0, 4, 2, 5], r"offsets\[1\] = 4 before offsets\[2\] = 2"),
    ([0, 7, 3], r"offsets\[1\] = 7 before offsets\[2\] = 3"),
    ([0, -3, 2], r"offsets\[0\] = 0 before offsets\[1\] = -3"),
    ([0, 2, 7], "end with 7"),
    ([0, 2**31 - 1], "end with 2147483647"),
]


def bag(store: embedrock.Store, mode: str, **options: Any) -> Any:
    return nn.EmbeddingBag(
        ROWS, DIM, mode=mode, store=store, name="bag", optimizer="sgd", **options
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(("offsets", "message"), MEANINGLESS)
def test_offsets_that_mean_nothing_are_refused_before_anything_is_read(
    store: embedrock.Store, mode: str, last: bool, dtype: Any, offsets: list[int], message: str
) -> None:
    module = bag(store, mode, include_last_offset=last)
    given = torch.tensor(IDS, dtype=dtype), torch.tensor(offsets, dtype=dtype)
    with mock.patch.object(store, "get", side_effect=AssertionError):
        for asked in (module, module.keys_of):
            with pytest.raises(MisuseError, match=f"^input has .*{message}.*number of its ids"):
                asked(*given)
    assert list(module.parameters()) == []


def test_bags_without_any_offset(store: embedrock.Store) -> None:
    none = torch.tensor([], dtype=torch.int64)
    plain, last = bag(store, "sum"), bag(store, "sum", include_last_offset=True)
    assert plain(none, none).shape == (0, DIM)
    with pytest.raises(MisuseError, match="2 ids and no offsets"):
        plain(torch.tensor([1, 2]), none)
    with pytest.raises(MisuseError, match="no offsets, expected the end of the last bag"):
        last(none, none)
    for mode in MODES:
        module = bag(store, mode, include_last_offset=True)
        assert module(torch.tensor([1, 2]), torch.tensor([0])).shape == (0, DIM)
        assert module(torch.tensor([1, 2]), torch.tensor([0, 0])).tolist() == [[0.0] * DIM]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offsets", [[0, 2, 4], [0, 1, 2, 3], [0, 0, 4, 4], [0, 0], [0, 3, 6]])
def test_ids_behind_the_last_bag_are_left_out(
    store: embedrock.Store, mode: str, padding: Any, weighted: bool, offsets: list[int]
) -> None:
    if weighted and mode != "sum":
        return
    module = bag(store, mode, include_last_offset=True, padding_idx=padding)
    theirs = torch.nn.EmbeddingBag(
        ROWS, DIM, mode=mode, include_last_offset=True, padding_idx=padding
    )
    weights.load(module.table, theirs)
    optimizer = optim.SGD(module, lr=1.0)
    ids, end = torch.tensor(IDS), offsets[-1]
    scale = torch.arange(1.0, 1.0 + len(IDS), requires_grad=True)
    twin = scale.detach().clone().requires_grad_()
    mine = module(ids, torch.tensor(offsets), scale if weighted else None)
    # Of torch the same bags, as its documentation leaves no doubt about them.
    expected = theirs(ids[:end], torch.tensor(offsets), twin[:end] if weighted else None)
    torch.testing.assert_close(mine, expected)
    (keys,) = module.keys_of(ids, torch.tensor(offsets)).values()
    assert keys.tolist() == IDS[:end]
    mine.square().sum().backward()
    expected.square().sum().backward()
    before = theirs.weight.detach()
    optimizer.step()
    rows = torch.from_numpy(module.table.get(np.arange(ROWS)))
    torch.testing.assert_close(rows, before - theirs.weight.grad)
    if weighted:
        torch.testing.assert_close(scale.grad, twin.grad)


def collection(store: embedrock.Store, mode: str, last: bool = False, **options: Any) -> Any:
    config = nn.EmbeddingBagConfig
    return nn.EmbeddingBagCollection(
        [
            config("a", DIM, ["one", "two"], num_embeddings=ROWS, mode=mode, optimizer="sgd"),
            config("b", DIM, ["three"], num_embeddings=ROWS, mode=mode, optimizer="sgd"),
            config("c", DIM, ["four"], num_embeddings=ROWS, mode=mode, optimizer="sgd"),
        ],
        store=store,
        include_last_offset=last,
        **options,
    )


def features(offsets: list[int], place: str) -> dict[str, Any]:
    bags = torch.tensor([min(i, 5) for i in range(len(offsets))])
    found = {name: (torch.tensor(IDS), bags) for name in ("one", "two", "three", "four")}
    return {**found, place: (torch.tensor(IDS), torch.tensor(offsets))}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("place", ["two", "three"])
@pytest.mark.parametrize(("offsets", "message"), MEANINGLESS)
def test_collections_name_the_feature_whose_offsets_mean_nothing(
    store: embedrock.Store, mode: str, last: bool, place: str, offsets: list[int], message: str
) -> None:
    bags = collection(store, mode, last)
    for asked in (bags, bags.keys_of):
        with pytest.raises(MisuseError, match=f"^feature '{place}' has .*{message}"):
            asked(features(offsets, place))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("joined", [False, True])
def test_a_collection_trains_no_id_behind_the_last_bag(
    store: embedrock.Store, mode: str, joined: bool
) -> None:
    # They were trained with whatever gradient lay in memory, another feature's among them.
    bags = collection(store, mode, last=True, concatenate=joined)
    optimizer = optim.SGD(bags, lr=1.0)
    before = [table.get(np.arange(ROWS)) for table in bags.tables]
    ids, offsets = torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([0, 2, 4])
    batch = {name: (ids, offsets) for name in bags.feature_names}
    assert all(keys.max() == 4 for keys in bags.keys_of(batch).values())
    short = {name: (ids[:4], offsets) for name in bags.feature_names}
    with torch.no_grad():
        expected = bags(short)
    output = bags(batch)
    if joined:
        assert torch.equal(output, expected)
        output.sum().backward()
    else:
        assert all(torch.equal(output[name], expected[name]) for name in expected)
        sum(rows.sum() for rows in output.values()).backward()
    optimizer.step()
    for table, rows in zip(bags.tables, before, strict=True):
        changed = (table.get(np.arange(ROWS)) != rows).any(axis=1)
        found = np.flatnonzero(changed).tolist()
        assert found and set(found) <= {1, 2, 3, 4}
        assert mode == "max" or len(found) == 4  # a maximum may be of few rows


@pytest.mark.parametrize("way", ["pipeline", "lookahead"])
def test_announced_batches_are_those_that_forwards_read(store: embedrock.Store, way: str) -> None:
    module = bag(store, "sum", include_last_offset=True)
    optimizer = optim.SGD(module, lr=0.5)
    ids = [torch.tensor([i, i + 1, i + 2, i + 9]) for i in range(8)]
    batches: Any = [(one, torch.tensor([0, 1, 3])) for one in ids]
    options: Any = {"keys_of": lambda batch: {module: batch}}
    if way == "pipeline":
        batches = embedrock.Pipeline(module, batches, overlap=True, **options)
    else:
        batches = embedrock.LookaheadLoader(batches, module, announce=True, **options)
    for one, offsets in batches:
        module(one, offsets).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if way == "pipeline":
        assert batches.stats()["forwards_ahead"] == len(ids)
    bad = [(ids[0], torch.tensor([0, 3, 1]))]
    with pytest.raises(MisuseError, match="input has offsets"):
        for batch in embedrock.LookaheadLoader(bad, module, announce=True, **options):
            module(*batch)
    store.commit(1)


@pytest.mark.parametrize("given", [[1, 2], np.array([[1, 2]])])
def test_arrays_are_told_how_to_become_tensors(store: embedrock.Store, given: Any) -> None:
    embedding = nn.Embedding(ROWS, DIM, store=store, name="bag", optimizer="sgd")
    for module in (embedding, bag(store, "sum")):
        with pytest.raises(MisuseError, match=r"expected .*tensor.*torch.as_tensor\(input\)"):
            module(given)


@pytest.mark.parametrize("padding", [2**63, 2**64 - 1, -1, -(2**63), 2**63 - 1, 5])
def test_padding_may_be_any_key_of_64_bits(store: embedrock.Store, padding: int) -> None:
    # From 2**63 on it was taken, and then each forward raised OverflowError.
    same = padding - 2**64 if padding >= 2**63 else padding
    given = torch.tensor([[8, same], [same, 9]])
    options: Any = {"store": store, "optimizer": "sgd", "padding_idx": padding}
    embedding = nn.Embedding(None, DIM, name="one", **options)
    assert embedding(given)[0, 1].tolist() == embedding(given)[1, 0].tolist() == [0.0] * DIM
    config = nn.EmbeddingBagConfig("c", DIM, padding_idx=padding, optimizer="sgd")
    tables = nn.EmbeddingBagCollection([config], store=store)
    bags = [nn.EmbeddingBag(None, DIM, mode=mode, name=mode, **options) for mode in MODES]
    optimizer = optim.SGD([embedding, tables, *bags], lr=1.0)
    for training in (True, False):
        with torch.set_grad_enabled(training):
            outputs = [bag(given) for bag in bags] + [tables({"c": given})["c"]]
        for module, output in zip([*bags, tables], outputs, strict=True):
            (table,) = module.tables
            torch.testing.assert_close(output.detach(), torch.from_numpy(table.get([8, 9])))
        if training:
            sum(output.sum() for output in [*outputs, embedding(given)]).backward()
            optimizer.step()
            optimizer.zero_grad()
    for table in (embedding.table, *(one.table for one in bags), *tables.tables):
        assert table.get(np.array([same])).tolist() == [[0.0] * DIM]
        assert len(table) == 3
    ranked = embedding.topk(torch.ones(1, DIM), 5)
    assert same not in ranked.ids[0, :2] and ranked.ids[0, 2:].tolist() == [-1] * 3
    store.commit(1)


@pytest.mark.parametrize("padding", [2**64, -(2**63) - 1, 1.5, True, "no"])
def test_padding_that_is_no_key_is_refused(store: embedrock.Store, padding: Any) -> None:
    with pytest.raises(MisuseError, match=r"padding_idx is .*, expected an id of 64 bits"):
        nn.Embedding(None, DIM, padding_idx=padding, store=store, name="t")
