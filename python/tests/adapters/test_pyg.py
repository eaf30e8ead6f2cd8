"""PyTorch Geometric over a store: its contracts of stores and samplers, loaders, and the twins."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData, TensorAttr  # noqa: E402
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput  # noqa: E402

import embedrock  # noqa: E402
from embedrock import nn  # noqa: E402
from embedrock.adapters import pyg  # noqa: E402
from embedrock.adapters.pyg.files import Directory  # noqa: E402
from embedrock.errors import (  # noqa: E402
    ForkedError,
    KeyRangeError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)

NODES, EDGES, DIM = 300, 2_400, 8


def made(seed: int = 0) -> tuple[Any, Any, Any]:
    """Edges, features and labels."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, NODES, (2, EDGES), generator=generator)
    return edges, torch.randn(NODES, DIM, generator=generator), torch.arange(NODES) % 5


@pytest.fixture
def pair(store: embedrock.Store) -> tuple[pyg.FeatureStore, pyg.GraphStore]:
    edges, x, y = made()
    features, graph = pyg.FeatureStore(store), pyg.GraphStore()
    features[None, "x", None] = x
    features[None, "y", None] = y
    graph.put_edge_index(tuple(edges), edge_type=None, layout="coo", size=(NODES, NODES))
    return features, graph


# Features.


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64", "int64", "bool"])
def test_rows_come_back_by_id(
    store: embedrock.Store, tmp_path: Path, kind: str, directory: bool
) -> None:
    features = pyg.FeatureStore(store, tmp_path / "features" if directory else None)
    rows = torch.randn(6, 3).mul(9).to(getattr(torch, kind))
    ids = torch.tensor([9, 3, 7, 1, 0, 4])
    assert features.put_tensor(rows, group_name="a", attr_name="x", index=ids)
    assert (len(store.tables) == 1) is (kind in ("float32", "float16", "bfloat16"))
    found = features["a", "x", torch.tensor([7, 9, 7])]
    assert found.dtype == rows.dtype and torch.equal(found, rows[[2, 0, 2]])
    array = features._get_tensor(TensorAttr("a", "x", np.array([7, 9, 7])))
    assert torch.equal(torch.as_tensor(array), found)
    for everything in (None, slice(None)):
        assert torch.equal(features["a", "x", everything], rows)
    assert torch.equal(features["a", "x", 1], rows[3])
    assert features["a", "x", torch.tensor([], dtype=torch.long)].shape == (0, 3)
    assert features.get_tensor_size("a", "x") == (6, 3)
    for beyond in (2, 10):
        with pytest.raises(KeyRangeError, match=f"attribute 'x' of 'a' has no row of id {beyond}"):
            features["a", "x", torch.tensor([1, beyond])]


def test_ids_beyond_a_dense_attribute_are_named(pair: Any) -> None:
    features, _ = pair
    for beyond in (-1, NODES):
        with pytest.raises(KeyRangeError, match=f"no row of id {beyond}: it has 0 to {NODES - 1}"):
            features[None, "x", torch.tensor([0, beyond])]


def test_all_attributes_of_a_batch_are_read_in_one_call(store: embedrock.Store) -> None:
    features = pyg.FeatureStore(store)
    for name in ("x", "z"):
        features[None, name, None] = torch.randn(9, 4)
    features[None, "y", None] = torch.arange(9)
    attrs = features.get_all_tensor_attrs()
    for attr in attrs:
        attr.index = torch.tensor([3, 5])
    engine = mock.Mock(wraps=store._core)
    with mock.patch.object(store, "_core", engine):
        found = features.multi_get_tensor(attrs)
    assert engine.get.call_count == 1 and [len(each) for each in found] == [2, 2, 2]
    assert found[2].tolist() == [3, 5]


def test_what_is_removed_is_gone_and_its_table_is_used_again(store: embedrock.Store) -> None:
    features = pyg.FeatureStore(store)
    features["a", "x", None] = torch.ones(5, 4)
    assert features.remove_tensor("a", "x", None) and not features.remove_tensor("a", "x", None)
    assert len(store.table("features.a.x")) == 0
    with pytest.raises(KeyError, match="there is no attribute 'x' of 'a'; there are: none"):
        features["a", "x", None]
    features["a", "x", None] = torch.full((5, 4), 2.0)
    features["a", "x", None] = torch.full((5, 4), 3.0)  # instead of it
    assert [*store.tables] == ["features.a.x"] and features["a", "x", 4].tolist() == [3.0] * 4
    features["a", "x", None] = torch.ones(6, 3)  # another shape: tables keep theirs
    assert [*store.tables] == ["features.a.x", "features.a.x~2"]
    assert features["a", "x", None].tolist() == [[1.0] * 3] * 6
    assert len(store.table("features.a.x")) == 0


def test_numbers_that_are_none_are_kept(store: embedrock.Store) -> None:
    features = pyg.FeatureStore(store)
    rows = torch.tensor([[1.0, float("nan")], [float("inf"), 0.0]])
    features[None, "x", None] = rows
    torch.testing.assert_close(features[None, "x", None], rows, equal_nan=True)


def test_a_later_run_has_the_attributes_that_a_directory_lists(tmp_path: Path) -> None:
    edges, x, y = made()
    np.save(tmp_path / "x.npy", x.numpy())
    with embedrock.open(tmp_path / "store", memory="4MiB") as store:
        features = pyg.FeatureStore(store, tmp_path / "graph")
        features[None, "x", None] = np.load(tmp_path / "x.npy", mmap_mode="r")
        features[("a", "to", "b"), "y", torch.arange(NODES).flip(0)] = y
        graph = pyg.GraphStore(tmp_path / "graph")
        graph.put_edge_index(tuple(edges), edge_type=None, layout="coo", size=(NODES, NODES))
        store.commit(1)
    with embedrock.open(tmp_path / "store", memory="4MiB") as store:
        features = pyg.FeatureStore(store, tmp_path / "graph")
        assert torch.equal(features[None, "x", None], x)
        assert features[("a", "to", "b"), "y", 0] == y[-1]
        graph = pyg.GraphStore(tmp_path / "graph")
        (attr,) = graph.get_all_edge_attrs()
        assert torch.equal(torch.stack(graph.get_edge_index(attr)), edges)
        assert attr.size == (NODES, NODES)
        del features[("a", "to", "b"), "y", None]
        left = sorted(path.name for path in (tmp_path / "graph").iterdir())
        assert left == ["edges-0.npy", "edges-1.npy", "edges.json", "features.json"]
    with (
        embedrock.open(tmp_path / "other", memory="4MiB") as store,
        pytest.raises(NotFoundError, match=r"in table 'features\.x', which .* does not have"),
    ):
        pyg.FeatureStore(store, tmp_path / "graph")


def test_names_are_durable_before_others_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was not synced: behind a loss of power a list could name files without names."""
    done, syncs, replaces = [], os.fsync, os.replace

    def sync(file: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        syncs(file)

    def replace(draft: Path, path: Path) -> None:
        done.append(path.suffix)
        replaces(draft, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    directory = Directory(tmp_path / "graph", "features.json")
    directory.write_list([{"files": {"x": directory.save(torch.ones(3))}}])
    assert done == ["file", ".npy", "folder", "file", ".json", "folder"]


@pytest.mark.parametrize(
    ("rows", "index", "message"),
    [
        (torch.ones(3, 2), torch.tensor([0, 1]), "has 3 rows and 2 ids"),
        (torch.ones(3, 2), torch.tensor([0, 1, 1]), "has an id twice"),
        (torch.ones(3, 2), torch.tensor([0.0, 1.0, 2.0]), "expected ids, a slice or None"),
        (torch.tensor(1.0), None, "is a scalar"),
        (np.array(["a", "b"]), None, "which PyTorch does not have"),
    ],
)
def test_malformed_features_are_named(
    store: embedrock.Store, rows: Any, index: Any, message: str
) -> None:
    features = pyg.FeatureStore(store)
    with pytest.raises(MisuseError, match=message):
        features.put_tensor(rows, group_name=None, attr_name="x", index=index)
    assert features.get_all_tensor_attrs() == [] and not store.tables


# Edges.


def test_edges_come_back_in_their_layout(tmp_path: Path) -> None:
    graph = pyg.GraphStore(tmp_path)
    kind = ("a", "to", "b")
    row, colptr = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 1, 3])
    graph.put_edge_index((row, colptr), edge_type=kind, layout="csc")
    graph.put_edge_index((colptr, row), edge_type=kind, layout="csr", size=(3, 9))
    again = pyg.GraphStore(tmp_path)
    sizes = {attr.layout.value: attr.size for attr in again.get_all_edge_attrs()}
    assert sizes == {"csc": (3, 3), "csr": (3, 9)}
    found = again.get_edge_index(edge_type=kind, layout="csc")
    assert [each.tolist() for each in found] == [row.tolist(), colptr.tolist()]
    assert again.num_nodes == 9
    assert again.remove_edge_index(edge_type=kind, layout="csc")
    with pytest.raises(KeyError):
        again.get_edge_index(edge_type=kind, layout="csc")


@pytest.mark.parametrize(
    ("layout", "edges", "size", "error", "message"),
    [
        ("coo", ([0, 5], [1, 1]), (5, 5), KeyRangeError, "edge 1 begins at node 5, and size has 5"),
        ("coo", ([0, 1], [-2, 1]), None, KeyRangeError, "edge 0 leads to node -2, expected 0"),
        ("coo", ([0, 1], [1]), None, MisuseError, "2 sources and 1 destinations"),
        (
            "csc",
            ([0, 1], [0, 1, 3]),
            None,
            MisuseError,
            "does not go from 0 to the number of edges",
        ),
        ("csc", ([0, 1], [0, 2, 1, 2]), None, MisuseError, "colptr descends"),
        ("csr", ([0, 2], [1, 1]), (3, 3), MisuseError, "rowptr is of 1 nodes, and size has 3"),
        ("coo", ([0.5], [1]), None, MisuseError, r"expected node ids \(E,\)"),
    ],
)
def test_malformed_edges_are_named(
    layout: str, edges: Any, size: Any, error: type[Exception], message: str
) -> None:
    graph = pyg.GraphStore()
    given = tuple(torch.tensor(each) for each in edges)
    with pytest.raises(error, match=message):
        graph.put_edge_index(given, edge_type=None, layout=layout, size=size)
    assert graph.get_all_edge_attrs() == []


# Sampling.


def check(batch: Any, edges: Any, wanted: list[int]) -> None:
    """A batch is a subgraph of these edges, with so many of them by node and hop."""
    row, column = batch.edge_index
    assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])
    assert len(batch.n_id.unique()) == len(batch.n_id) == sum(batch.num_sampled_nodes)
    degrees = torch.bincount(edges[1], minlength=NODES)
    begin = edge = 0
    for hop, most in enumerate(wanted):
        nodes, count = batch.num_sampled_nodes[hop], batch.num_sampled_edges[hop]
        of = column[edge : edge + count]
        assert of.numel() == 0 or begin <= of.min() <= of.max() < begin + nodes
        drawn = torch.bincount(of - begin, minlength=nodes)
        there = degrees[batch.n_id[begin : begin + nodes]]
        assert torch.equal(drawn, there if most < 0 else there.clamp(max=most))
        begin, edge = begin + nodes, edge + count
    assert edge == len(row) and len(batch.e_id.unique()) == len(row)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_subgraphs_with_their_features(pair: Any, workers: int) -> None:
    edges, x, y = made()
    loader = pyg.NeighborLoader(
        pair, [4, -1, 2], input_nodes=torch.arange(70), batch_size=30, num_workers=workers
    )
    seen = []
    for batch in loader:
        check(batch, edges, [4, -1, 2])
        assert torch.equal(batch.x, x[batch.n_id]) and torch.equal(batch.y, y[batch.n_id])
        seen += batch.n_id[: batch.batch_size].tolist()
    assert seen == [*range(70)] and len(loader) == 3


def test_every_set_of_neighbours_is_as_likely() -> None:
    edges = torch.stack([torch.arange(1, 5), torch.zeros(4, dtype=torch.long)])
    sampler = pyg.NeighborSampler(Data(edge_index=edges, num_nodes=5), [2])
    torch.manual_seed(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(1200):
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0])))
        drawn = tuple(sorted(out.node[1:].tolist()))
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 6 and all(150 < count < 250 for count in counts.values())


def test_equal_seeds_of_the_generator_give_equal_batches() -> None:
    edges, _, _ = made()
    loader = pyg.NeighborLoader(Data(edge_index=edges, num_nodes=NODES), [3, 3], batch_size=100)
    passes = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        passes.append([batch.n_id.tolist() for batch in loader])
    assert passes[0] == passes[1] != passes[2]


def test_neighbours_are_drawn_again_with_replace() -> None:
    edges = torch.tensor([[1, 2], [0, 0]])
    sampler = pyg.NeighborSampler(Data(edge_index=edges, num_nodes=4), [9], replace=True)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 3])))
    assert out.num_sampled_edges == [9] and set(out.edge.tolist()) <= {0, 1}


def test_seeds_that_come_twice_have_edges_each() -> None:
    edges = torch.tensor([[1, 0, 2], [0, 1, 1]])
    sampler = pyg.NeighborSampler(Data(edge_index=edges, num_nodes=3), [-1, -1])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1, 0, 1])))
    assert out.node.tolist() == [1, 0, 1, 2] and out.num_sampled_nodes == [3, 1, 0]
    assert out.col.tolist() == [0, 0, 1, 2, 2] and out.row.tolist() == [1, 3, 0, 1, 3]


@pytest.mark.parametrize("layout", ["csc", "csr", "coo"])
def test_layouts_give_the_same_neighbours(tmp_path: Path, layout: str) -> None:
    edges, _, _ = made()
    graph = pyg.GraphStore(tmp_path)
    plain = pyg.GraphStore()
    size = (NODES, NODES)
    plain.put_edge_index(tuple(edges), edge_type=None, layout="coo", size=size)
    row, column, _ = plain._edge_to_layout(
        plain.get_all_edge_attrs()[0], torch_geometric_layout(layout)
    )
    graph.put_edge_index((row, column), edge_type=None, layout=layout, size=size)
    sampler = pyg.NeighborSampler((None, graph), [-1])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(50)))
    found = {*zip(out.node[out.row].tolist(), out.node[out.col].tolist(), strict=True)}
    expected = {(s, t) for s, t in edges.t().tolist() if t < 50}
    assert found == expected


def torch_geometric_layout(layout: str) -> Any:
    from torch_geometric.data import EdgeLayout

    return EdgeLayout(layout)


@pytest.mark.parametrize("kind", ["binary", "triplet"])
def test_links_come_with_negative_ones(pair: Any, kind: str) -> None:
    edges, x, _ = made()
    loader = pyg.LinkNeighborLoader(
        pair, [3], edge_label_index=edges[:, :90], neg_sampling=kind, batch_size=30
    )
    for i, batch in enumerate(loader):
        positive = edges[:, 30 * i : 30 * (i + 1)]
        assert torch.equal(batch.x, x[batch.n_id])
        if kind == "binary":
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :30]], positive)
            assert batch.edge_label.tolist() == [1.0] * 30 + [0.0] * 30
            assert batch.edge_label_index.shape == (2, 60)
        else:
            assert torch.equal(batch.n_id[batch.src_index], positive[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], positive[1])
            assert batch.dst_neg_index.shape == (30,)
        assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])


# Look-ahead, and learnable embeddings beside frozen features.


def test_nodes_of_sampled_batches_are_announced(pair: Any, store: embedrock.Store) -> None:
    nodes = nn.Embedding(NODES, 4, store=store, name="nodes", optimizer="sgd")
    optimizer = embedrock.optim.SGD(nodes, lr=0.1)
    loader = pyg.NeighborLoader(
        pair,
        [3],
        input_nodes=torch.arange(NODES),
        batch_size=10,
        embeddings=nodes,
        announce=True,
        depth=4,
    )
    for batch in loader:
        assert batch.x.shape[0] == len(batch.n_id)
        nodes(batch.n_id).sum().backward()
        optimizer.step()
    stats = loader.stats()
    assert stats["handed_out"] == 30 and stats["announced"] > 0
    # A window whose thread has no core meanwhile has no room.
    assert stats["announced"] + stats["refused"] >= 25
    assert {table.name for table in loader.data[0].tables} == {"features.x"}


# Trained rows are an attribute, too.
def test_a_table_of_embeddings_can_be_attached(store: embedrock.Store) -> None:
    nodes = nn.Embedding(9, 4, store=store, name="nodes")
    features = pyg.FeatureStore(store)
    features.attach(nodes.table, "x")
    assert torch.equal(features[None, "x", torch.tensor([3, 1])], nodes(torch.tensor([3, 1])))
    assert torch.equal(features[None, "x", None], nodes(torch.arange(9)))
    features.remove_tensor(None, "x", None)
    assert "nodes" in store.tables


def test_an_edge_beyond_the_table_is_refused(store: embedrock.Store) -> None:
    nodes = nn.Embedding(NODES - 1, 4, store=store, name="nodes")
    edges = torch.tensor([[0, NODES - 1], [1, 1]])
    graph = Data(edge_index=edges, num_nodes=NODES)
    with pytest.raises(KeyRangeError, match="300 nodes, and table 'nodes' rows for 299"):
        pyg.NeighborLoader(graph, [2], embeddings=nodes)
    with pytest.raises(KeyRangeError, match="edge 1 begins at node 299, and size has 200"):
        pyg.NeighborSampler(Data(edge_index=edges, num_nodes=200), [2])
    pointers = (torch.tensor([0, 9]), torch.tensor([0, 0, 2]))
    sampler = pyg.NeighborSampler(pointers, [2], num_nodes=5)
    with pytest.raises(KeyRangeError, match="edge 1 begins at node 9, expected 0 to 4"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1])))
    with pytest.raises(KeyRangeError, match="seed 1 is node 5"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 5])))
    with pytest.raises(KeyRangeError, match="seed 0 is node 7"):
        sampler.sample_from_edges(EdgeSamplerInput(None, torch.tensor([7]), torch.tensor([0])))


# A worker would hang, or read pages that the main process is writing.
def test_features_that_a_forked_worker_asks_for_are_refused(pair: Any) -> None:
    from torch_geometric.loader import NodeLoader

    sampler = pyg.NeighborSampler(pair, [2])
    loader = NodeLoader(pair, sampler, torch.arange(9), num_workers=1, batch_size=3)
    with pytest.raises(ForkedError, match="filter_per_worker=False"):
        next(iter(loader))
    with pytest.raises(MisuseError, match="worker processes cannot read the store"):
        pyg.NeighborLoader(pair, [2], torch.arange(9), filter_per_worker=True)
    there = pickle.loads(pickle.dumps(pair[0]))  # as a worker that is spawned has it
    assert torch.equal(there[None, "y", None], pair[0][None, "y", None])
    with pytest.raises(ForkedError, match="filter_per_worker=False"):
        there[None, "x", torch.tensor([1])]


def test_what_is_not_sampled_is_refused(pair: Any, store: embedrock.Store) -> None:
    edges, _, _ = made()
    graph = Data(edge_index=edges, num_nodes=NODES)
    sampler = pyg.NeighborSampler(graph, [2])
    seeds = torch.tensor([0])
    with pytest.raises(UnsupportedError, match="does not sample by time"):
        sampler.sample_from_nodes(NodeSamplerInput(None, seeds, time=seeds))
    with pytest.raises(UnsupportedError, match="one kind of nodes"):
        pyg.NeighborSampler(HeteroData(), [2])
    hetero = pyg.GraphStore()
    hetero.put_edge_index(tuple(edges), edge_type=("a", "to", "b"), layout="coo")
    with pytest.raises(UnsupportedError, match="edges of type"):
        pyg.NeighborSampler((pair[0], hetero), [2])
    for wrong in ({"a": 1}, 3, "ab"):
        with pytest.raises(MisuseError, match="num_neighbors is"):
            pyg.NeighborSampler(graph, wrong)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="expected either num_neighbors, or a sampler"):
        pyg.NeighborLoader(graph)
    with pytest.raises(MisuseError, match="sampler is"):
        pyg.NeighborLoader(graph, sampler=3)
    with pytest.raises(MisuseError, match="the graph store has no edges"):
        pyg.NeighborSampler((pair[0], pyg.GraphStore()), [2])
    with pytest.raises(MisuseError, match=r"expected modules of embedrock\.nn, or tables"):
        pyg.NeighborLoader(graph, [2], embeddings=torch.nn.Linear(2, 2))
