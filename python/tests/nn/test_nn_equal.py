"""Outputs and gradients of embedrock's modules are those of torch's, bit for bit.

Each test gives both modules the same rows, the same batch and the same gradient of the output.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:gradients of table")  # none has an optimizer

import embedrock  # noqa: E402
from embedrock import nn, weights  # noqa: E402

N, DIM, SEED = 60, 6, 3


@pytest.fixture
def generator() -> Any:
    return torch.Generator().manual_seed(SEED)


def pair(store: embedrock.Store, theirs: Any, mine: Any) -> tuple[Any, Any]:
    """Torch's module and embedrock's with the same rows."""
    weights.load(mine.table, theirs)
    return theirs, mine


def row_gradients(mine: Any) -> Any:
    """The merged gradient as torch's module has it: one row for every id."""
    full = torch.zeros(N, DIM)
    keys, gradient = mine._pending["rows"].gradient()
    full[torch.from_numpy(keys)] = gradient
    return full


def rising(ids: Any) -> Any:
    """Renames ids so that each one occurs for the first time after all smaller ones."""
    _, inverse = embedrock.distinct(ids)
    return torch.from_numpy(inverse)


def assert_same(theirs: Any, mine: Any, *inputs: Any, of_ids: Any = None) -> None:
    """Same outputs and gradients. ``of_ids`` names the bag of each id where torch's bags add up in
    an order of their own: there it is the sum in the order of the ids, which torch's is close to.
    """
    expected, output = theirs(*inputs), mine(*inputs)
    assert torch.equal(output, expected)
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(SEED))
    expected.backward(gradient)
    output.backward(gradient)
    if of_ids is None:
        assert torch.equal(row_gradients(mine), theirs.weight.grad)
        return
    in_order = torch.zeros(N, DIM)
    for key, bag in zip(inputs[0].reshape(-1).tolist(), of_ids.tolist(), strict=True):
        in_order[key] += gradient[bag]
    assert torch.equal(row_gradients(mine), in_order)
    torch.testing.assert_close(in_order, theirs.weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(7,), (50, 4), (2, 3, 5), (), (0,), (3, 0)])
def test_embedding_of_any_shape(store: embedrock.Store, generator: Any, shape: Any) -> None:
    theirs, mine = pair(
        store, torch.nn.Embedding(N, DIM), nn.Embedding(N, DIM, store=store, name="t")
    )
    assert_same(theirs, mine, torch.randint(0, N, shape, generator=generator))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_embedding_of_either_id_type(store: embedrock.Store, generator: Any, dtype: str) -> None:
    theirs, mine = pair(
        store, torch.nn.Embedding(N, DIM), nn.Embedding(N, DIM, store=store, name="t")
    )
    ids = torch.randint(0, N, (40,), generator=generator).to(getattr(torch, dtype))
    assert_same(theirs, mine, ids)


@pytest.mark.parametrize("padding", [0, 5, -1])
def test_embedding_with_padding(store: embedrock.Store, generator: Any, padding: int) -> None:
    theirs, mine = pair(
        store,
        torch.nn.Embedding(N, DIM, padding),
        nn.Embedding(N, DIM, padding, store=store, name="t"),
    )
    assert mine.padding_idx == theirs.padding_idx
    ids = torch.randint(0, 8, (40,), generator=generator)
    ids[::5] = theirs.padding_idx
    assert_same(theirs, mine, ids)


def test_embedding_scaled_by_frequency(store: embedrock.Store, generator: Any) -> None:
    theirs, mine = pair(
        store,
        torch.nn.Embedding(N, DIM, scale_grad_by_freq=True),
        nn.Embedding(N, DIM, scale_grad_by_freq=True, store=store, name="t"),
    )
    assert_same(theirs, mine, torch.randint(0, 9, (40,), generator=generator))


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_with_offsets(
    store: embedrock.Store, generator: Any, mode: str, padding: int | None
) -> None:
    options = {"mode": mode, "padding_idx": padding}
    theirs, mine = pair(
        store,
        torch.nn.EmbeddingBag(N, DIM, **options),
        nn.EmbeddingBag(N, DIM, **options, store=store, name="t"),
    )
    ids = rising(torch.randint(0, 12, (80,), generator=generator))  # each id about seven times
    offsets = torch.tensor([0, 3, 3, 10, 40, 41, 80])  # empty bags in the middle and at the end
    lengths = torch.diff(offsets, append=torch.tensor([80]))
    in_order = mode == "sum" and padding is None
    of_ids = torch.arange(7).repeat_interleave(lengths) if in_order else None
    assert_same(theirs, mine, ids, offsets, of_ids=of_ids)


@pytest.mark.parametrize("each", [1, 5])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_equal_length(store: embedrock.Store, generator: Any, mode: str, each: int) -> None:
    theirs, mine = pair(
        store,
        torch.nn.EmbeddingBag(N, DIM, mode=mode),
        nn.EmbeddingBag(N, DIM, mode=mode, store=store, name="t"),
    )
    ids = rising(torch.randint(0, N, (80 // each, each), generator=generator))
    in_order = mode == "sum" or (mode, each) == ("mean", 1)
    of_ids = torch.arange(80 // each).repeat_interleave(each) if in_order else None
    assert_same(theirs, mine, ids, of_ids=of_ids)


def test_bags_with_last_offset(store: embedrock.Store, generator: Any) -> None:
    options = {"mode": "sum", "include_last_offset": True}
    theirs, mine = pair(
        store,
        torch.nn.EmbeddingBag(N, DIM, **options),
        nn.EmbeddingBag(N, DIM, **options, store=store, name="t"),
    )
    ids = rising(torch.randint(0, N, (30,), generator=generator))
    assert_same(theirs, mine, ids, torch.tensor([0, 4, 4, 30]))


def test_bags_with_per_sample_weights_and_their_gradient(
    store: embedrock.Store, generator: Any
) -> None:
    theirs, mine = pair(
        store,
        torch.nn.EmbeddingBag(N, DIM, mode="sum"),
        nn.EmbeddingBag(N, DIM, mode="sum", store=store, name="t"),
    )
    ids = rising(torch.randint(0, N, (30,), generator=generator))
    offsets = torch.tensor([0, 4, 4, 20])
    scales = torch.randn(30, generator=generator)
    outputs = []
    for module in (theirs, mine):
        scale = scales.clone().requires_grad_()
        output = module(ids, offsets, per_sample_weights=scale)
        output.square().sum().backward()
        outputs.append((output.detach(), scale.grad))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])
    assert torch.equal(row_gradients(mine), theirs.weight.grad)


def test_bags_without_any_id_are_zero(store: embedrock.Store) -> None:
    theirs, mine = pair(
        store, torch.nn.EmbeddingBag(N, DIM), nn.EmbeddingBag(N, DIM, store=store, name="t")
    )
    assert_same(theirs, mine, torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))


def test_frequent_ids_of_bags_differ_from_torch_by_the_order_of_a_sum_only(
    store: embedrock.Store, generator: Any
) -> None:
    # Torch sums the gradients of an id in the order of an unstable sort of the ids' values.
    theirs, mine = pair(
        store,
        torch.nn.EmbeddingBag(N, DIM, mode="sum"),
        nn.EmbeddingBag(N, DIM, mode="sum", store=store, name="t"),
    )
    ids, offsets = torch.randint(0, N, (900,), generator=generator), torch.arange(0, 900, 9)
    expected, output = theirs(ids, offsets), mine(ids, offsets)
    assert torch.equal(output, expected)
    expected.square().sum().backward()
    output.square().sum().backward()
    torch.testing.assert_close(row_gradients(mine), theirs.weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_gradients_accumulate_over_backward_passes(
    store: embedrock.Store, generator: Any, accumulate: int
) -> None:
    theirs, mine = pair(
        store, torch.nn.Embedding(N, DIM), nn.Embedding(N, DIM, store=store, name="t")
    )
    for _ in range(accumulate):
        assert_same(theirs, mine, torch.randint(0, N, (30,), generator=generator))


def test_gradients_of_two_uses_in_one_graph_are_summed(
    store: embedrock.Store, generator: Any
) -> None:
    theirs, mine = pair(
        store, torch.nn.Embedding(N, DIM), nn.Embedding(N, DIM, store=store, name="t")
    )
    left, right = (torch.randint(0, N, (30,), generator=generator) for _ in range(2))
    for module in (theirs, mine):
        (module(left) * module(right)).sum().backward()
    assert torch.equal(row_gradients(mine), theirs.weight.grad)


def test_growing_table_takes_any_64_bit_id(store: embedrock.Store) -> None:
    mine = nn.Embedding(None, DIM, store=store, name="t")
    ids = torch.tensor([-1, 2**63 - 1, -(2**63), 0, -1])
    output = mine(ids)
    assert torch.equal(output.detach(), torch.from_numpy(mine.table.get(ids)))
    output.sum().backward()
    (rows,) = mine.parameters()
    assert torch.equal(rows.grad, torch.tensor([2.0, 1, 1, 1])[:, None].expand(-1, DIM))
