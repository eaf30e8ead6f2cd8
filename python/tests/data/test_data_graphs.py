"""Graphs as files: edges, labels, features."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from embedrock.data import graph_splits, graphs, text
from embedrock.data.errors import DataError
from embedrock.errors import MisuseError


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
    with pytest.raises(DataError, match=r"edges\.tsv, line 2: '0 -1', expected whole numbers"):
        graphs.read(tmp_path)
    (tmp_path / "edges.tsv").write_text("0\t1\n1\n")
    with pytest.raises(DataError, match="line 2: 1 numbers, expected two nodes"):
        graphs.read(tmp_path)
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(DataError, match=r"has edges\.tsv and edges\.csv; keep one"):
        graphs.read(tmp_path)
    (tmp_path / "edges.csv").unlink()
    (tmp_path / "edges.tsv").unlink()
    (tmp_path / "edges.tsv.gz").write_bytes(gzip.compress(b"0\t1\n" * 99)[:-9])
    with pytest.raises(DataError, match=r"edges\.tsv\.gz: compressed data ends or breaks"):
        graphs.read(tmp_path)


def write(folder: Path, **files: object) -> Path:
    """Files by name, ``edges_tsv`` for ``edges.tsv``: texts, or arrays."""
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        path = folder / name.replace("_", ".")
        if isinstance(value, str):
            path.write_text(value)
        elif isinstance(value, dict):
            np.savez(path, **value)
        else:
            np.save(path, np.asarray(value))
    return folder


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("edges_csv", "source,target\n0,2\n# of SNAP\n\n1,2\r\n"),
        ("edges_txt", "0  2\n 1 2"),
        ("edges_tsv", "0\t2\n1\t2\n"),
        ("edges_npy", [[0, 1], [2, 2]]),
        ("edges_npy", np.array([[0, 2], [1, 2], [1, 1]], np.int32)),
    ],
)
def test_edges_come_in_several_forms(tmp_path: Path, name: str, edges: object) -> None:
    graph = graphs.read(write(tmp_path, **{name: edges}))
    assert graph.edges[:, :2].tolist() == [[0, 1], [2, 2]] and graph.edges.dtype == np.int64
    assert graph.undirected().tolist() == [[0, 1], [2, 2]]  # without the loop


@pytest.mark.parametrize("kind", ["int64", "uint8", "float64"])
def test_a_graph_of_parquet_is_read(tmp_path: Path, kind: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    pairs = {"a": np.array([0, 1, 1], kind), "b": np.array([2, 2, 1], kind)}
    for name in ("edges", "labels"):
        parquet.write_table(pyarrow.table(pairs), tmp_path / f"{name}.parquet", row_group_size=2)
    rows = {"x": [1.5, -2.0, 0.0], "y": [3, 4, 5]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "features.parquet")
    graph = graphs.read(tmp_path)
    assert graph.edges.tolist() == [[0, 1, 1], [2, 2, 1]]
    assert graph.labels is not None and graph.labels.tolist() == [2, 1, -1]
    assert graph.features is not None
    assert graph.features.tolist() == [[1.5, 3], [-2, 4], [0, 5]]


# Names had the quotation marks that text of csv has around them, and those with spaces were words.
def test_names_of_parquet_are_their_texts(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    edges = {"a": ["Q2", "New York", "#7"], "b": pyarrow.array(["Q5", "Q2", 'say "x"'])}
    edges["b"] = edges["b"].dictionary_encode()
    parquet.write_table(pyarrow.table(edges), tmp_path / "edges.parquet")
    labels = {"node": ["Q5", "Q2"], "label": [30, 10]}
    parquet.write_table(pyarrow.table(labels), tmp_path / "labels.parquet")
    graph = graphs.read(tmp_path, map_ids=True)
    assert list(graph.names or ()) == ["Q2", "Q5", "New York", "#7", 'say "x"']
    assert list(graph.classes or ()) == ["30", "10"]
    assert graph.edges.tolist() == [[0, 2, 3], [1, 0, 4]]
    assert graph.labels is not None and graph.labels.tolist() == [1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    ("name", "columns", "said"),
    [
        ("edges", {"a": [0, -1], "b": [1, 1]}, r"row 2: -1, expected whole numbers from 0 on$"),
        ("edges", {"a": [0, 1], "b": [1, None]}, r"row 2: a null, expected whole numbers from 0"),
        ("edges", {"a": [0, 1], "b": [1.0, 0.5]}, r"row 2: 0.5, expected whole numbers from 0 on$"),
        ("edges", {"a": ["x", "y"], "b": [0, 1]}, r"row 1: 'x', expected .*; map_ids=True numbers"),
        (
            "edges",
            {"a": [0], "b": [1], "c": [2]},
            r"has the columns a, b, c, expected two nodes in",
        ),
        ("edges", {"a": [0, 9], "b": [1, 1]}, r"row 2: node 9, expected 0 to 1, as features.parq"),
        ("features", {"x": [1.0, None]}, r"row 2, x: a null, expected numbers"),
        (
            "features",
            {"x": [1.0, 2.0], "y": [[1], [2]]},
            r"column 'y' is list<.*, expected one val",
        ),
    ],
)
def test_what_is_wrong_in_parquet_is_told_by_its_row(
    tmp_path: Path, name: str, columns: dict[str, list[object]], said: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    files = {"edges": {"a": [0], "b": [1]}, "features": {"x": [1.0, 2.0]}, name: columns}
    for part, made in files.items():
        parquet.write_table(pyarrow.table(made), tmp_path / f"{part}.parquet")
    with pytest.raises(DataError, match=said):
        graphs.read(tmp_path)
    if name == "edges" and len(columns) == 2 and columns["a"] != ["x", "y"]:
        graph = graphs.read(tmp_path, skip_bad_lines=True)
        assert graph.edges.tolist() == [[0], [1]] and graph.skipped == 1


def test_blocks_of_many_lines_are_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", 11)
    lines = [f"{i}\t{(i * 7) % 100}" for i in range(100)]
    graph = graphs.read(write(tmp_path, edges_tsv="\n".join(lines)))
    assert graph.edges.T.tolist() == [[i, (i * 7) % 100] for i in range(100)]
    lines[60] = "60\tx"
    with pytest.raises(DataError, match="line 61: '60 x'"):
        graphs.read(write(tmp_path, edges_tsv="\n".join(lines)))
    graph = graphs.read(tmp_path, skip_bad_lines=True)
    assert graph.edges.shape == (2, 99) and graph.skipped == 1
    assert "line 61" in str(graph.first_skipped)


@pytest.mark.parametrize(
    "files",
    [
        {"features_npy": [[1, 2], [3, 4.5], [0, 0]]},
        {"features_npz": {"x": [[1, 2], [3, 4.5], [0, 0]], "other": [1]}},
        {"features_csv": "1,2\n3,4.5\n0,0\n"},
        {
            "features_npz": {
                "indptr": [0, 2, 4, 4],
                "indices": [0, 1, 1, 0],
                "data": [1, 2, 4.5, 3],
                "shape": [3, 2],
                "format": b"csr",
            }
        },
    ],
)
def test_features_come_in_several_forms(tmp_path: Path, files: dict[str, object]) -> None:
    graph = graphs.read(write(tmp_path, edges_tsv="0\t1\n", **files))
    assert graph.features is not None and graph.num_nodes == 3
    assert graph.features.tolist() == [[1, 2], [3, 4.5], [0, 0]]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            {"features_npy": np.ones((3, 2)), "edges_tsv": "0\t1\n1\t3\n"},
            r"edges\.tsv, line 2: node 3, expected 0 to 2, as features\.npy has 3 rows",
        ),
        (
            {"features_npy": np.ones((3, 2)), "edges_npy": [[0, 1, 2], [1, 3, 0]]},
            r"edges\.npy: edge 1 has node 3, expected 0 to 2, as features\.npy has 3 rows",
        ),
        (
            {"labels_npy": [0, 1], "edges_csv": "a,b\n0,2\n"},
            r"edges\.csv, line 2: node 2, expected 0 to 1, as labels\.npy has 2 labels",
        ),
        (
            {"features_npy": np.ones((3, 2)), "labels_npy": [0, 1]},
            r"labels\.npy: has 2 labels, but features\.npy has 3 rows, one for each node; give",
        ),
        (
            {"features_npy": np.ones((3, 2)), "labels_tsv": "0\t1\n3\t1\n"},
            r"labels\.tsv, line 2: node 3, expected 0 to 2, as features\.npy has 3 rows",
        ),
        ({"labels_tsv": "0\t1 2\n"}, r"labels\.tsv, line 1: 3 numbers, .* keep one"),
        (
            {"features_csv": "1,2\n1,2,3\n"},
            r"features\.csv, line 2: 3 features, expected 2, as in the lines before",
        ),
        ({"features_csv": "1,2\n1,a\n"}, r"features\.csv, line 2: '1 a', expected numbers"),
        ({"features_npy": np.ones(3)}, r"features\.npy: has shape \(3,\)"),
        ({"features_npz": {"a": [1], "b": [1]}}, r"features\.npz: has the arrays a, b, expected"),
        ({"labels_npy": [[1]]}, r"labels\.npy: has shape \(1, 1\) and dtype int64"),
        ({"labels_npy": [0, -2]}, r"labels\.npy: row 1 is -2"),
        ({"edges_npy": [0, 1, 2]}, r"edges\.npy: has shape \(3,\)"),
        ({"edges_npy": [[0, -1], [1, 1]]}, r"edges\.npy: edge 1 has node -1, expected ids from 0"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, files: dict[str, object], problem: str) -> None:
    if not any(name.startswith("edges") for name in files):
        files = {"edges_tsv": "0\t1\n", **files}
    with pytest.raises(DataError, match=problem):
        graphs.read(write(tmp_path, **files))


LABELLED = graphs.Graph(
    np.array([[0, 1], [1, 2]]),
    4,
    np.array([0, 1, 0, -1]),
    files={"labels": Path("labels.tsv")},
)


def test_parts_are_disjoint_and_those_of_their_seed() -> None:
    labels = np.arange(100) % 3
    graph = graphs.Graph(np.zeros((2, 1), np.int64), 100, labels)
    first = graph_splits.of_nodes(graph, "60-20-20", 1, None)
    assert [len(ids) for ids in first.values()] == [60, 20, 20]
    assert sorted(np.concatenate([*first.values()])) == [*range(100)]
    again, other = (graph_splits.of_nodes(graph, "60-20-20", seed, None) for seed in (1, 2))
    assert again["train"].tolist() == first["train"].tolist() != other["train"].tolist()


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        (
            {"train": [0, 3]},
            r"split\.npz: node 3 of train has no label in labels\.tsv; give it one",
        ),
        ({"train": [True, False]}, "mask train has 2 values, expected 4, one for each node"),
        ({"train": [0, 9]}, "row 1 of train is node 9, expected 0 to 3"),
        ({"train": [0], "test": [1, 0]}, "test has node 0 of another part, too"),
        ({"train": [0, 0]}, "train has 1 ids twice"),
        ({"test": [0]}, "has test, expected train"),
        ({"train": [0.5]}, "train has shape"),
    ],
)
def test_a_split_that_does_not_fit_is_named(
    tmp_path: Path, arrays: dict[str, object], problem: str
) -> None:
    write(tmp_path, split_npz=arrays)
    with pytest.raises(DataError, match=problem):
        graph_splits.of_nodes(LABELLED, "file", 0, graph_splits.file_of(tmp_path))


def test_masks_and_ids_are_the_same_split(tmp_path: Path) -> None:
    write(tmp_path, split_npz={"train_mask": [True, False, False, False], "val": [2]})
    parts = graph_splits.of_nodes(LABELLED, "file", 0, tmp_path / "split.npz")
    assert {part: ids.tolist() for part, ids in parts.items()} == {
        "train": [0],
        "valid": [2],
        "test": [],
    }


@pytest.mark.parametrize("split", ["60-20", "a", "60-20-21", "0-50-50", "-1-51-50"])
def test_shares_that_are_none_are_refused(split: str) -> None:
    with pytest.raises(MisuseError, match=r"split is .*, expected file, planetoid, or per cent"):
        graph_splits.shares_of(split)
