"""Graphs as files: edges, labels and features, one line each, plain or packed by gzip.

A folder has ``edges.tsv``: two node ids a line, each undirected edge once; and, if there are,
``labels.tsv``: node and label; ``features.tsv``: node, and the places of its features that are one.
Each may end in ``.gz``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedrock.data.errors import DataError

__all__ = ["Graph", "planetoid_split", "read"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """An undirected graph in memory."""

    edges: Ids
    """(2, E), each edge once."""
    num_nodes: int
    labels: Ids | None = None
    """(N,); -1: none."""
    features: npt.NDArray[np.float32] | None = None
    """(N, D)."""

    def both_ways(self) -> Ids:
        """Edges (2, 2 E) in both directions."""
        return np.concatenate([self.edges, self.edges[::-1]], axis=1)


def read(folder: Path) -> Graph:
    """The graph of a folder.

    Errors: ``DataError`` naming file and line for a line that is not whole numbers from 0 on.
    """
    edges = [(line, row) for line, row in _lines(folder, "edges")]
    if not edges:
        raise DataError("has no edges.tsv or edges.tsv.gz with edges in it", path=folder)
    for line, row in edges:
        if len(row) != 2:
            raise DataError(f"{len(row)} ids, expected two", path=folder / "edges", line=line)
    pairs = np.array([row for _, row in edges], np.int64).T
    labelled = [row for _, row in _lines(folder, "labels")]
    described = [row for _, row in _lines(folder, "features")]
    named = [row[0] for row in (*labelled, *described)]
    nodes = 1 + max(int(pairs.max()), max(named, default=0))
    labels = features = None
    if labelled:
        labels = np.full(nodes, -1, np.int64)
        for node, *rest in labelled:
            labels[node] = rest[0] if rest else -1
    if described:
        width = 1 + max(max(row[1:], default=0) for row in described)
        features = np.zeros((nodes, width), np.float32)
        for node, *places in described:
            features[node, places] = 1.0
    return Graph(pairs, nodes, labels, features)


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


def _lines(folder: Path, name: str) -> Iterator[tuple[int, list[int]]]:
    """Numbers of each line of a file that may not be there."""
    for path in (folder / f"{name}.tsv", folder / f"{name}.tsv.gz"):
        if not path.exists():
            continue
        try:
            with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
                for number, line in enumerate(lines, 1):
                    words = line.split()
                    if not words:
                        continue
                    if not all(word.isdecimal() for word in words):
                        raise DataError(
                            f"{line.strip()[:60]!r}, expected whole numbers from 0 on",
                            path=path,
                            line=number,
                        )
                    yield number, [int(word) for word in words]
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read: {error}", path=path) from error
        return
