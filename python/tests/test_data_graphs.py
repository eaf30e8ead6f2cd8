"""Graphs as files: edges, labels, features."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from embedrock.data import graphs
from embedrock.data.errors import DataError


def test_a_graph_is_read_with_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "edges.tsv").write_text("0\t2\n1\t2\n\n")
    graph = graphs.read(tmp_path)
    assert graph.edges.tolist() == [[0, 1], [2, 2]] and graph.num_nodes == 3
    assert graph.labels is None and graph.features is None
    assert graph.both_ways().tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]
    with gzip.open(tmp_path / "labels.tsv.gz", "wt") as file:
        file.write("0\t1\n4\t0\n")
    (tmp_path / "features.tsv").write_text("1\t0\t3\n2\n")
    graph = graphs.read(tmp_path)
    assert graph.num_nodes == 5
    assert graph.labels is not None and graph.labels.tolist() == [1, -1, -1, -1, 0]
    assert graph.features is not None and graph.features.shape == (5, 4)
    assert [*zip(*np.nonzero(graph.features), strict=True)] == [(1, 0), (1, 3)]


def test_the_public_split_is_twenty_of_each_class_500_and_1000() -> None:
    labels = np.arange(2000) % 4
    labels[1999] = -1
    graph = graphs.Graph(np.zeros((2, 1), np.int64), 2000, labels)
    train, valid, test = graphs.planetoid_split(graph)
    assert (train[0], train[-1]) == (0, 79) and (valid[0], valid[-1]) == (80, 579)
    assert (test[0], test[-1]) == (1000, 1998)


def test_what_is_no_graph_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no edges\.tsv"):
        graphs.read(tmp_path)
    (tmp_path / "edges.tsv").write_text("0\t1\n0\t-1\n")
    with pytest.raises(DataError, match=r"edges\.tsv, line 2: '0\\t-1', expected whole numbers"):
        graphs.read(tmp_path)
    (tmp_path / "edges.tsv").write_text("0\t1\n1\n")
    with pytest.raises(DataError, match="line 2: 1 ids, expected two"):
        graphs.read(tmp_path)
    (tmp_path / "edges.tsv").unlink()
    (tmp_path / "edges.tsv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"edges\.tsv\.gz: cannot be read"):
        graphs.read(tmp_path)
