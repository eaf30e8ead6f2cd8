"""The training, validation and test parts of a graph: from a file, or by shares and a seed.

``split.npz`` has arrays ``train``, ``valid`` and ``test``: ids, or masks with one value for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock.data.errors import DataError
from embedrock.data.graphs import Graph, planetoid_split
from embedrock.errors import MisuseError

__all__ = ["PARTS", "file_of", "of_edges", "of_nodes", "shares_of"]

Ids: TypeAlias = npt.NDArray[np.int64]
Parts: TypeAlias = dict[str, Ids]

PARTS = ("train", "valid", "test")
FILE, PUBLIC = "file", "planetoid"
_NAMES = {"train_mask": "train", "val": "valid", "val_mask": "valid", "valid_mask": "valid"}
_NAMES |= {"test_mask": "test"}


def shares_of(split: str) -> tuple[float, float, float] | None:
    """ "60-20-20" as shares of 1; None for a split that is of a file or planetoid's.

    Errors: MisuseError.
    """
    if split in (FILE, PUBLIC):
        return None
    try:
        values = [float(part) for part in split.split("-")]
    except ValueError:
        values = []
    fits = len(values) == 3 and min(values) >= 0 and values[0] > 0
    if not (fits and abs(sum(values) - 100) < 1e-6):
        raise MisuseError(
            f"split is {split!r}, expected file, planetoid, or per cent for train, valid and test, "
            f"as 60-20-20"
        )
    return values[0] / 100, values[1] / 100, values[2] / 100


def file_of(folder: Path) -> Path | None:
    """The file with a split, if there is one."""
    path = folder / "split.npz"
    return path if path.is_file() else None


def of_nodes(graph: Graph, split: str, seed: int, path: Path | None) -> Parts:
    """Nodes of each part. Shares are of those that have a label.

    Errors: DataError naming the part and its first node without label; MisuseError.
    """
    if graph.labels is None:
        raise MisuseError("the graph has no labels")
    if split == PUBLIC:
        parts = dict(zip(PARTS, planetoid_split(graph), strict=True))
    elif split == FILE:
        parts = _read(path, graph.num_nodes, "node")
        for part, nodes in parts.items():
            bare = nodes[graph.labels[nodes] < 0]
            if len(bare):
                raise DataError(
                    f"node {int(bare[0])} of {part} has no label in "
                    f"{graph.files['labels'].name}; give it one, or leave it out of {part}",
                    path=path,
                )
    else:
        parts = _drawn(np.flatnonzero(graph.labels >= 0), split, seed)
    if not len(parts["train"]):
        raise DataError("has no labelled node to train with", path=graph.files.get("labels", path))
    return parts


def of_edges(edges: Ids, split: str, seed: int, path: Path | None) -> Parts:
    """The edges (2, E) of each part. Errors: DataError, MisuseError."""
    if split == PUBLIC:
        raise MisuseError("split is planetoid, which is one of nodes; give file or shares of edges")
    count = edges.shape[1]
    is_file = split == FILE
    parts = _read(path, count, "edge") if is_file else _drawn(np.arange(count), split, seed)
    if not len(parts["train"]):
        raise MisuseError(f"split is {split} of {count} edges, which leaves none to train with")
    return parts


def _drawn(items: Ids, split: str, seed: int) -> Parts:
    shares = shares_of(split)
    assert shares is not None
    order = items[np.random.default_rng([seed, 4]).permutation(len(items))]
    ends = [round(len(order) * share) for share in np.cumsum(shares)]
    found = np.split(order, ends[:2])
    return dict(zip(PARTS, found, strict=True))


def _read(path: Path | None, count: int, what: str) -> Parts:
    if path is None:
        raise MisuseError(
            "split is file, and the folder has no split.npz with train, valid and test; write one, "
            "or give shares, as 60-20-20"
        )
    try:
        with np.load(path) as found:
            arrays = {_NAMES.get(name, name): found[name] for name in found.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"is no .npz file that can be read: {error}", path=path) from error
    if "train" not in arrays:
        raise DataError(f"has {', '.join(arrays) or 'nothing'}, expected train", path=path)
    parts = {part: _ids(path, part, arrays.get(part), count, what) for part in PARTS}
    used = np.zeros(count, np.int8)
    for part, ids in parts.items():
        again = ids[used[ids] > 0]
        if len(again):
            raise DataError(f"{part} has {what} {int(again[0])} of another part, too", path=path)
        used[ids] = 1
    return parts


def _ids(path: Path, part: str, given: Any, count: int, what: str) -> Ids:
    if given is None:
        return np.empty(0, np.int64)
    if given.dtype == np.bool_ and given.ndim == 1:
        if len(given) != count:
            raise DataError(
                f"mask {part} has {len(given)} values, expected {count}, one for each {what}",
                path=path,
            )
        return np.flatnonzero(given)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise DataError(
            f"{part} has shape {given.shape} and dtype {given.dtype}, expected ids, or a mask",
            path=path,
        )
    ids: Ids = given.astype(np.int64)
    wrong = np.flatnonzero((ids < 0) | (ids >= count))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"row {row} of {part} is {what} {int(ids[row])}, expected 0 to {count - 1}", path=path
        )
    twice = len(ids) - len(np.unique(ids))
    if twice:
        raise DataError(f"{part} has {twice} ids twice; keep each once", path=path)
    return ids
