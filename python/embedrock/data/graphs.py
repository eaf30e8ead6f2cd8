"""Graphs as files in a folder: edges, labels, features.

================  ==================================================================================
``edges``         two nodes a line, each undirected edge once or both ways; or an array (2, E)
``labels``        a node and its label a line; or an array (N,), -1: none
``features``      as ``.npy``, ``.npz`` (also SciPy's CSR) or ``.csv``: rows (N, D), one for each
                  node; as ``.tsv``: a node, and the places of its features that are one
================  ==================================================================================

Texts end in ``.tsv``, ``.csv`` or ``.txt``, also ``.gz`` and ``.zst``, or are Parquet; arrays in
``.npy``. Nodes are numbered from 0 on; an array or the ids in the files give their number. If nodes
have names, or ids of a platform, ``map_ids`` numbers them in their order of occurrence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock.data.bad_lines import BadLines
from embedrock.data.edges import undirected
from embedrock.data.errors import DataError
from embedrock.data.graph_files import (
    EDGE,
    beyond_text,
    find,
    load_array,
    read_dense,
    read_named,
    read_pairs,
    read_sparse,
)
from embedrock.data.names import Names

__all__ = ["Graph", "files_of", "planetoid_split", "read"]

Ids: TypeAlias = npt.NDArray[np.int64]
_LABEL = "a node and its label; of several labels keep one"
_NODES_SPARSE = 100_000_000
_SPARSE = 100
"""More nodes than that, of which so many have no edge for one that has: ids of a platform."""
_CLASSES_MAX = 1 << 20


@dataclass(frozen=True)
class Graph:
    """A graph in memory, features apart where their file is mapped."""

    edges: Ids
    """(2, E): where each begins and where it leads."""
    num_nodes: int
    labels: Ids | None = None
    """(N,); -1: none."""
    features: npt.NDArray[Any] | None = None
    """(N, D), of floats or whole numbers."""
    files: dict[str, Path] = field(default_factory=dict)
    """The files of ``edges``, ``labels`` and ``features``."""
    skipped: int = 0
    """Malformed lines that were left out."""
    first_skipped: DataError | None = None
    names: Names | None = None
    """Of nodes, where they were mapped to ids."""
    classes: Names | None = None
    """Of labels, where these were mapped to numbers."""

    def both_ways(self) -> Ids:
        """Edges (2, 2 E) in both directions."""
        return np.concatenate([self.edges, self.edges[::-1]], axis=1)

    def undirected(self) -> Ids:
        """Every edge once, (2, E): the smaller node first, without loops."""
        return undirected(self.edges, self.num_nodes)


def files_of(folder: Path, *, labels: bool = True) -> dict[str, Path]:
    """The files of a folder by what they have.

    Errors: DataError where there are no edges, or two files for one thing.
    """
    wanted = {"edges": (".npy",), "labels": (".npy",), "features": (".npy", ".npz")}
    if not labels:
        del wanted["labels"]
    found = {name: find(folder, name, arrays) for name, arrays in wanted.items()}
    if found["edges"] is None:
        raise DataError(
            "has no edges.tsv, .csv, .txt (also .gz, .zst), .parquet or .npy: two nodes a line, or "
            "an array (2, E)",
            path=folder,
        )
    return {name: path for name, path in found.items() if path is not None}


def read(
    folder: Path, *, labels: bool = True, skip_bad_lines: bool = False, map_ids: bool = False
) -> Graph:
    """The graph of a folder, with labels unless they are not asked for.

    With ``map_ids`` nodes and labels of texts are names of any letters but separators, without a
    header: they get numbers in the order in which they come first, nodes those of edges, then those
    of labels and features.

    Errors: DataError naming file and line, or row, for what is no number from 0 on, for a node that
    arrays of labels or features do not have, and where these two have other lengths.
    """
    files, bad = files_of(folder, labels=labels), BadLines(skip_bad_lines)
    if map_ids:
        return _named(files, bad)
    features, told = _features(files.get("features"))
    given, told = _labels(files.get("labels"), bad, told)
    edges = _edges(files["edges"], bad, told)
    if not edges.shape[1]:
        raise DataError("has no edges in it", path=files["edges"])
    sizes = [1 + int(edges.max())]
    for found in (features, given):
        if found is not None:
            sizes.append(len(found))
    nodes = max(sizes)
    if nodes > _NODES_SPARSE and features is None and (given is None or told is None):
        _refuse_sparse(edges, nodes, files["edges"])
    if given is not None and len(given) < nodes:
        given = np.concatenate([given, np.full(nodes - len(given), -1, np.int64)])
    if features is not None:
        features = _grown(features, nodes)
    return Graph(edges, nodes, given, features, files, bad.count, bad.first)


def planetoid_split(graph: Graph) -> tuple[Ids, Ids, Ids]:
    """Nodes to train on, to choose by, and to test on: the public split of Cora, Citeseer and
    Pubmed, whose ids are in its order.

    Twenty of each class, the next 500, and the last 1,000. Source: Yang et al., "Revisiting
    Semi-Supervised Learning with Graph Embeddings", 2016.
    """
    assert graph.labels is not None
    train = 20 * len(np.unique(graph.labels[graph.labels >= 0]))
    parts = np.arange(train), np.arange(train, train + 500), np.arange(graph.num_nodes)[-1000:]
    first, second, third = (part[graph.labels[part] >= 0] for part in parts)
    return first, second, third


def _refuse_sparse(edges: Ids, nodes: int, path: Path) -> None:
    """Errors: DataError where hardly a number below that of the largest node is one of a node."""
    named = len(np.unique(edges))
    if nodes > _SPARSE * named:
        raise DataError(
            f"names {named:,} nodes, and the largest is {nodes - 1}: nodes are numbered from 0 on, "
            f"and each number would have a row; ids of a platform are numbered with map_ids=True",
            path=path,
        )


def _named(files: dict[str, Path], bad: BadLines) -> Graph:
    """The graph of files with names."""
    for name, path in files.items():
        if path.suffix in (".npy", ".npz") or (name == "features" and ".csv" in path.suffixes):
            raise DataError(
                "has its values in the order of ids, which are made of names here; give "
                f"{name}.tsv, whose lines begin with the name of a node",
                path=path,
            )
    names, classes = Names(), Names()
    found = read_named(files["edges"], EDGE, bad)
    edges = np.array([names.add(words) for words in found], np.int64).reshape(-1, 2).T
    if not edges.shape[1]:
        raise DataError("has no edges in it", path=files["edges"])
    pairs, given = np.empty((0, 2), np.int64), None
    if "labels" in files:
        words = read_named(files["labels"], _LABEL, bad)
        nodes = names.add([node for node, _ in words])
        pairs = np.stack([nodes, classes.add([label for _, label in words])], axis=1)
    features = None
    if "features" in files:
        features = read_sparse(files["features"], names)
        features = _grown(features, len(names))
    if "labels" in files:
        given = np.full(len(names), -1, np.int64)
        given[pairs[:, 0]] = pairs[:, 1]
    return Graph(
        np.ascontiguousarray(edges),
        len(names),
        given,
        features,
        files,
        bad.count,
        bad.first,
        names,
        classes if "labels" in files else None,
    )


def _grown(rows: npt.NDArray[Any], nodes: int) -> npt.NDArray[Any]:
    """Rows of more nodes, those of others 0."""
    more = np.zeros((nodes - len(rows), rows.shape[1]), np.float32)
    return np.concatenate([rows, more]) if len(more) else rows


Told: TypeAlias = tuple[int, str] | None
"""Number of nodes, and the name of the file that it comes from."""


def _features(path: Path | None) -> tuple[npt.NDArray[Any] | None, Told]:
    """Rows of nodes. Text with the places of ones does not say how many there are."""
    if path is None:
        return None, None
    if path.suffix in (".npy", ".npz"):
        rows = load_array(path, ("features", "x"))
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            raise DataError(
                f"has shape {rows.shape} and dtype {rows.dtype}, expected numbers (N, D): a row "
                f"for each node",
                path=path,
            )
    elif ".csv" in path.suffixes or path.suffix == ".parquet":
        rows = read_dense(path)
    else:
        return read_sparse(path), None
    return rows, (len(rows), f"{path.name} has {len(rows)} rows, one for each node")


def _labels(path: Path | None, bad: BadLines, told: Told) -> tuple[Ids | None, Told]:
    if path is None:
        return None, told
    if path.suffix == ".npy":
        given = load_array(path)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise DataError(
                f"has shape {given.shape} and dtype {given.dtype}, expected whole numbers (N,): "
                f"the label of each node, -1 where there is none",
                path=path,
            )
        if told is not None and len(given) != told[0]:
            raise DataError(
                f"has {len(given)} labels, but {told[1]}; give every node one, -1 where it has "
                f"none",
                path=path,
            )
        said = f"{path.name} has {len(given)} labels, one for each node"
        if given.dtype.kind == "i" and (given < -1).any():
            row = int(np.flatnonzero(given < -1)[0])
            raise DataError(f"row {row} is {int(given[row])}, expected -1 or more", path=path)
        _check_classes(given, path)
        return given.astype(np.int64), told or (len(given), said)
    pairs = read_pairs(path, _LABEL, bad, told)
    nodes = told[0] if told is not None else 1 + int(pairs[0].max(initial=-1))
    labels = np.full(nodes, -1, np.int64)
    labels[pairs[0]] = pairs[1]
    _check_classes(labels, path)
    return labels, told


def _check_classes(labels: npt.NDArray[Any], path: Path) -> None:
    """Errors: DataError for a label that is no number of a class."""
    most = int(labels.max()) if len(labels) else -1
    if most >= _CLASSES_MAX:
        raise DataError(
            f"node {int(np.argmax(labels))} has label {most}, expected numbers of classes from 0 "
            f"on, below {_CLASSES_MAX}; map_ids=True numbers what stands there",
            path=path,
        )


def _edges(path: Path, bad: BadLines, told: Told) -> Ids:
    if path.suffix != ".npy":
        return read_pairs(path, EDGE, bad, told)
    given = load_array(path)
    if given.ndim == 2 and given.shape[0] != 2 and given.shape[1] == 2:
        given = given.T
    if given.ndim != 2 or given.shape[0] != 2 or given.dtype.kind not in "iu":
        raise DataError(
            f"has shape {given.shape} and dtype {given.dtype}, expected whole numbers (2, E): "
            f"where each edge begins and where it leads",
            path=path,
        )
    if given.dtype == np.uint64 and len(given[0]) and int(given.max()) > np.iinfo(np.int64).max:
        raise DataError(
            f"has node {int(given.max())}, expected ids below 2**63; number nodes from 0 on",
            path=path,
        )
    edges = np.ascontiguousarray(given, np.int64)
    limit, said = (np.iinfo(np.int64).max, "ids are from 0 on") if told is None else told
    wrong = ((edges < 0) | (edges >= limit)).any(axis=0)
    for place in np.flatnonzero(wrong).tolist():
        low, high = (int(each) for each in np.sort(edges[:, place]))
        node = low if low < 0 else high
        problem = f"edge {place} has {beyond_text(node, limit, said)}"
        if node < 0:
            problem = f"edge {place} has node {node}, expected ids from 0 on"
        bad.add(DataError(problem, path=path))
    return edges[:, ~wrong] if wrong.any() else edges
