"""Writes of a part of an attribute, beside what ``Data`` of PyTorch Geometric does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import ImbalancedSampler, NodeLoader  # noqa: E402

import embedrock  # noqa: E402
from embedrock.adapters import pyg  # noqa: E402
from embedrock.errors import KeyRangeError, MismatchError, MisuseError  # noqa: E402

N, DIM = 12, 4
INDICES: dict[str, Any] = {
    "ids": torch.tensor([7, 2]),
    "one": 3,
    "a scalar tensor": torch.tensor(5),
    "a slice": slice(1, 9, 3),
    "all": slice(None),
    "a mask": torch.arange(N) % 5 == 0,
    "an array": np.array([4, 0, 11]),
    "a list": [1, 10],
    "ids in two dimensions": torch.tensor([[3, 1], [0, 8]]),
    "none": torch.tensor([], dtype=torch.long),
}


def whole(kind: str) -> Any:
    rows = torch.arange(N * DIM).reshape(N, DIM)
    return rows % 2 == 0 if kind == "bool" else rows.to(getattr(torch, kind))


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64", "int64", "bool"])
def test_a_write_with_an_index_changes_its_rows_alone(
    store: embedrock.Store, tmp_path: Path, kind: str, directory: bool
) -> None:
    """It put the rows in the place of the attribute, and emptied the table of all others."""
    place = tmp_path / "features" if directory else None
    features, x = pyg.FeatureStore(store, place), whole(kind)
    data = Data(x=x.clone())
    features["paper", "x", None] = x.clone()
    for number, index in enumerate(INDICES.values()):
        shape = data.x[index].shape
        new = (torch.ones(shape) * (number + 50)).to(x.dtype)
        in_torch = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        data.put_tensor(new, attr_name="x", index=in_torch)
        write = features.put_tensor if number % 2 else features.update_tensor
        assert write(new, group_name="paper", attr_name="x", index=index)
        assert torch.equal(features["paper", "x", None], data.x)
        found = features["paper", "x", index]
        assert torch.equal(torch.as_tensor(found), data.x[index]) and found.shape == shape
        assert features.get_tensor_size("paper", "x", index) == tuple(shape)
    assert features.get_tensor_size("paper", "x") == (N, DIM)
    if place is not None:
        store.commit(step=1)
        assert torch.equal(pyg.FeatureStore(store, place)["paper", "x", None], data.x)


def test_what_was_given_stays_as_it_is(store: embedrock.Store) -> None:
    features, given = pyg.FeatureStore(store), torch.arange(5)
    features[None, "y", None] = given
    before = features[None, "y", None]
    features[None, "y", 1] = torch.tensor(9)
    features[None, "y", torch.tensor([2, 3])] = torch.tensor([7, 7])
    assert features[None, "y", None].tolist() == [0, 9, 7, 7, 4]
    assert given.tolist() == before.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_ids_of_an_attribute_that_was_put_with_ids_stay(store: embedrock.Store, kind: str) -> None:
    features, ids = pyg.FeatureStore(store), torch.tensor([90, 30, 70])
    features[None, "x", ids] = torch.zeros(3, DIM, dtype=getattr(torch, kind))
    features[None, "x", torch.tensor([70, 90])] = torch.ones(2, DIM)[:, :1].to(torch.uint8)
    assert features[None, "x", torch.tensor([[30, 70]])][..., 0].tolist() == [[0, 1]]
    assert features[None, "x", None][:, 0].tolist() == [1, 0, 1]
    features[None, "x", torch.tensor([False, True, False])] = torch.full((1, DIM), 5).to(torch.int8)
    assert features[None, "x", 30].tolist() == [5] * DIM
    with pytest.raises(KeyRangeError, match=r"no row of id 31.*put the whole attribute anew"):
        features[None, "x", torch.tensor([31])] = torch.ones(1, DIM)
    assert features.get_tensor_size(None, "x") == (3, DIM)


@pytest.mark.parametrize("size", [N, None])
def test_rows_of_an_attached_table_are_changed_in_it(
    store: embedrock.Store, size: int | None
) -> None:
    features, nodes = pyg.FeatureStore(store), store.table("nodes", DIM, num_embeddings=size)
    nodes.put(np.arange(N), np.zeros((N, DIM), np.float32))
    features.attach(nodes, "x")
    features[None, "x", torch.tensor([1, 4])] = torch.ones(2, DIM)
    assert nodes.get(np.arange(N)).sum(axis=1).tolist() == [0, 4, 0, 0, 4, *[0] * 7]
    assert [*store.tables] == ["nodes"] and features.tables == [nodes]
    if size is None:  # it has what it has by now, and places of no order
        features[None, "x", torch.tensor([500])] = torch.ones(1, DIM)
        assert features.get_tensor_size(None, "x") == (N + 1, DIM)
        for part in (slice(2, 5), slice(None)):
            with pytest.raises(MisuseError, match="grows: its rows have no order"):
                features[None, "x", part] = torch.ones(1, DIM)
    else:
        with pytest.raises(KeyRangeError, match=f"no row of id {N}"):
            features[None, "x", torch.tensor([N])] = torch.ones(1, DIM)


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_what_cannot_be_written_changes_nothing(store: embedrock.Store, kind: str) -> None:
    features, x = pyg.FeatureStore(store), whole(kind)
    features[None, "x", None] = x
    for index, rows, error, message in (
        ([0, 1], torch.ones(2, DIM + 1), MisuseError, r"shape \(2, 5\), expected \(2, 4\)"),
        ([0, 1], torch.ones(3, DIM), MisuseError, "expected"),
        ([0, 0], torch.ones(2, DIM, dtype=torch.int32), MisuseError, "has an id twice"),
        ([0, N], torch.ones(2, DIM), KeyRangeError, f"no row of id {N}"),
        ([-1], torch.ones(1, DIM), KeyRangeError, "no row of id -1"),
        (torch.ones(N - 1, dtype=torch.bool), torch.ones(DIM), MisuseError, "mask is of 11"),
        (torch.ones(N, DIM, dtype=torch.bool), torch.ones(DIM), MisuseError, "is a mask of shape"),
        ([0], torch.ones(1, DIM, dtype=torch.complex64), MismatchError, "which that cannot hold"),
    ):
        rows = rows if rows.dtype == torch.complex64 else rows.to(x.dtype)
        with pytest.raises(error, match=message):
            features.update_tensor(rows, group_name=None, attr_name="x", index=index)
    with pytest.raises(MisuseError, match="removed as a whole"):
        features.remove_tensor(None, "x", torch.tensor([1]))
    assert torch.equal(features[None, "x", None], x)


def test_seeds_come_from_a_sampler_of_torch(store: embedrock.Store) -> None:
    """As PyTorch Geometric documents it; it was taken for one of neighbours, and refused."""
    y = torch.tensor([0] * (N - 1) + [1])
    edges = torch.stack([torch.arange(N), (torch.arange(N) + 1) % N])
    graph = Data(edge_index=edges, y=y, num_nodes=N)

    def seeds(make: Any, *given: Any, **options: Any) -> list[list[int]]:
        sampler = ImbalancedSampler(y, num_samples=40)
        torch.manual_seed(3)
        loader = make(graph, *given, batch_size=8, sampler=sampler, **options)
        return [batch.input_id.tolist() for batch in loader]

    wanted = seeds(NodeLoader, pyg.NeighborSampler(graph, [0]), input_nodes=torch.arange(N))
    nodes = embedrock.nn.Embedding(N, DIM, store=store, name="nodes")
    found = seeds(pyg.NeighborLoader, [0], input_nodes=torch.arange(N), embeddings=nodes)
    assert found == wanted and sum(each.count(N - 1) for each in found) > 5
    neighbours = pyg.NeighborSampler(graph, [0])
    options = {"input_nodes": torch.arange(N), "neighbor_sampler": neighbours}
    assert seeds(pyg.NeighborLoader, **options) == wanted
    with pytest.raises(
        MisuseError, match=r"sampler is 3, expected a sampler of torch\.utils\.data"
    ):
        pyg.NeighborLoader(graph, [1], sampler=3)
