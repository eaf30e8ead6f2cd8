"""Pairs of nodes, whatever their ids: no number overflows and stands for another pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedrock.data import DataError, graph_files, graphs
from embedrock.data.edges import COUNT_MAX, Pairs
from embedrock.data.graphs import Graph


# Ids beyond three billion named other nodes, which were there.
@pytest.mark.parametrize("nodes", [10, COUNT_MAX, COUNT_MAX + 1, 5_000_000_001, 2**63 - 1])
def test_edges_are_those_that_were_given(nodes: int) -> None:
    random = np.random.default_rng(0)
    ids = np.unique(np.concatenate([[0, nodes - 1], random.integers(0, nodes, 40)]))
    edges = random.choice(ids, (2, 300)).astype(np.int64)
    expected = sorted({(min(pair), max(pair)) for pair in edges.T.tolist() if pair[0] != pair[1]})
    found = Graph(edges, nodes).undirected()
    assert found.T.tolist() == [list(pair) for pair in expected]
    places, there = Pairs(found, nodes).find(found[:, ::-1])
    assert there.all() and places.tolist() == list(range(found.shape[1]))[::-1]
    drawn = random.choice(ids, (2, 500)).astype(np.int64)
    _, there = Pairs(found, nodes).find(drawn)
    assert there.tolist() == [tuple(pair) in expected for pair in drawn.T.tolist()]


def test_no_pairs_are_none() -> None:
    none = np.empty((2, 0), np.int64)
    for nodes in (5, COUNT_MAX + 1):
        places, there = Pairs(none, nodes).find(np.array([[1], [2]]))
        assert there.tolist() == [False] and len(places) == 1
    assert Graph(np.array([[3], [3]]), 2**40).undirected().shape == (2, 0)


def test_ids_of_a_platform_are_refused_or_numbered(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(10**10, 10**11, 50).tolist()
    lines = [f"{ids[k]},{ids[(k * 7 + 1) % 50]}\n" for k in range(50)]
    (tmp_path / "edges.csv").write_text("".join(lines))
    with pytest.raises(DataError, match=r"names 50 nodes, and the largest is \d+: .*map_ids=True"):
        graphs.read(tmp_path)
    (tmp_path / "labels.csv").write_text(f"{ids[3]},cat\n{ids[1]},dog\nlone,cat\n")
    (tmp_path / "features.tsv").write_text(f"{ids[7]} 0 2\nlone 1\n")
    found = graphs.read(tmp_path, map_ids=True)
    assert found.names is not None and found.classes is not None
    assert found.num_nodes == 51 and list(found.classes) == ["cat", "dog"]
    names = list(found.names)
    assert [f"{names[a]},{names[b]}\n" for a, b in found.edges.T.tolist()] == lines
    assert found.labels is not None and found.features is not None
    labelled = {names[node]: found.labels[node] for node in np.flatnonzero(found.labels >= 0)}
    assert labelled == {str(ids[3]): 0, str(ids[1]): 1, "lone": 0}
    assert found.features[found.names.id_of(str(ids[7]))].tolist() == [1, 0, 1]
    assert found.features[found.names.id_of("lone")].tolist() == [0, 1, 0]
    (tmp_path / "features.tsv").unlink()
    np.save(tmp_path / "features.npy", np.ones((51, 2), np.float32))
    with pytest.raises(DataError, match=r"has its values in the order of ids"):
        graphs.read(tmp_path, map_ids=True)


def test_unsigned_ids_and_labels_do_not_become_negative(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 2**63 + 5], [1, 2]], np.uint64))
    with pytest.raises(DataError, match=r"has node 9223372036854775813, expected ids below 2"):
        graphs.read(tmp_path)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    np.save(tmp_path / "labels.npy", np.array([0, 2**64 - 1, 1], np.uint64))
    with pytest.raises(DataError, match=r"node 1 has label 18446744073709551615, expected numbers"):
        graphs.read(tmp_path)
    (tmp_path / "labels.npy").unlink()
    (tmp_path / "labels.tsv").write_text("0\tcat\n")
    with pytest.raises(DataError, match=r"labels.tsv, line 1: .*map_ids=True numbers names"):
        graphs.read(tmp_path)


def test_features_that_become_much_larger_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_files, "_DENSE_BYTES", 1000)
    (tmp_path / "edges.tsv").write_text("0\t99\n")
    (tmp_path / "features.tsv").write_text("0\t1\n99\t49\n")
    dense = r"features\.tsv becomes a dense table of 100 x 50 float32, 20,000 bytes in memory and"
    with pytest.warns(UserWarning, match=rf"{dense} .*features\.npy \(Trunc.*--rows embeddings"):
        graphs.read(tmp_path)
    (tmp_path / "features.tsv").write_text("".join(f"n{i}\t{i}\n" for i in range(40)))
    with pytest.warns(UserWarning, match=r"of 42 x 40 .* keep the places that say most"):
        graphs.read(tmp_path, map_ids=True)  # no features.npy would be taken there
    # It is said before memory is asked for.
    (tmp_path / "features.tsv").write_text("0\t1\n99\t" + str(1 << 39) + "\n")
    with pytest.warns(UserWarning, match="219,902,325,555,600 bytes"), pytest.raises(MemoryError):
        graphs.read(tmp_path)
