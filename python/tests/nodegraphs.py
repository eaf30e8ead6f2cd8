"""Small graphs whose edges mostly join nodes of one kind, as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NODES, KINDS, DIM = 300, 3, 8


def write_graph(folder: Path, nodes: int = NODES, dim: int = DIM, seed: int = 0) -> Path:
    """Edges, labels and noisy features of a graph."""
    if folder.exists():
        return folder
    folder.mkdir()
    random = np.random.default_rng(seed)
    kinds = random.integers(0, KINDS, nodes)
    edges = random.integers(0, nodes, (2, 12 * nodes))
    alike = kinds[edges[0]] == kinds[edges[1]]
    edges = edges[:, alike | (random.random(len(alike)) < 0.1)]
    lines = [f"{first},{second}\n" for first, second in edges.T]
    (folder / "edges.csv").write_text("source,target\n" + "".join(lines))
    np.save(folder / "labels.npy", kinds)
    features = random.standard_normal((nodes, dim)).astype(np.float32)
    features[np.arange(nodes), kinds] += 1.0
    np.save(folder / "features.npy", features)
    return folder
