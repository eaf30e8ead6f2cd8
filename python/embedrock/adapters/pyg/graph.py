"""``GraphStore``: edges in memory, or in mapped files."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data.graph_store import EdgeLayout

from embedrock._arguments import shown
from embedrock.adapters.pyg.files import Directory
from embedrock.errors import KeyRangeError, MisuseError

__all__ = ["GraphStore"]

Key = tuple[Any, str, bool, tuple[int, int] | None]
"""(edge_type, layout, is_sorted, size) of edges."""
Edges = tuple[Tensor, Tensor]


@dataclasses.dataclass
class _Stored:
    """Edges in one layout."""

    edges: Edges
    size: tuple[int, int]
    """Source and destination nodes, as told or as the edges need."""
    files: dict[str, str] = dataclasses.field(default_factory=dict)


class GraphStore(torch_geometric.data.GraphStore):  # type: ignore[misc]
    """Edges for PyTorch Geometric, in its three layouts.

    They are checked when they are put. With ``directory`` they are written to files there, which
    are mapped: worker processes share their pages, and a later run has them at once. Edges in
    layout ``"csc"``, or ``"coo"`` with ``is_sorted``, are sampled as they lie; others are sorted in
    memory first.

    Args:
        directory: Folder of the edges; None: in memory.
        edge_attr_cls: As for PyTorch Geometric's class.

    Shapes: ``"coo"``: ``row (E,), col (E,)``; ``"csc"``: ``row (E,), colptr (N + 1,)``; ``"csr"``:
    ``rowptr (N + 1,), col (E,)``; int64.

    Errors: ``KeyRangeError`` for an edge beyond ``size``; ``MisuseError`` for pointers that are not
    ascending or do not end at the number of edges.

    Durability: files at once.

    >>> import torch
    >>> from embedrock.adapters import pyg
    >>> graph = pyg.GraphStore()
    >>> edges = torch.tensor([0, 1]), torch.tensor([1, 7])
    >>> graph.put_edge_index(edges, edge_type=None, layout="coo", size=(4, 4))
    Traceback (most recent call last):
        ...
    embedrock.errors.KeyRangeError: edge 1 leads to node 7, and size has 4 nodes there
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, edge_attr_cls: Any = None
    ) -> None:
        """Finds the edges that the directory lists."""
        super().__init__(edge_attr_cls)
        self._stored: dict[Key, _Stored] = {}
        self._directory = None if directory is None else Directory(directory, "edges.json")
        if self._directory is not None:
            for entry in self._directory.read():
                self._open(entry, self._directory)

    @property
    def num_nodes(self) -> int:
        """Number of nodes that the edges of all types need."""
        return max((max(each.size) for each in self._stored.values()), default=0)

    def get_all_edge_attrs(self) -> list[Any]:
        """Of all edges that there are, each with its layout and its size."""
        return [
            self._edge_attr_cls(kind, EdgeLayout(layout), is_sorted, size or stored.size)
            for (kind, layout, is_sorted, size), stored in self._stored.items()
        ]

    def _put_edge_index(self, edge_index: Any, edge_attr: Any) -> bool:
        layout = edge_attr.layout.value
        first, second = (_ids(each, name) for each, name in zip(edge_index, "01", strict=True))
        size = _checked(layout, first, second, edge_attr.size)
        stored = _Stored((first, second), size)
        key = _key(edge_attr)
        if self._directory is not None:
            stored.files = {
                name: self._directory.save(each)
                for name, each in zip(("first", "second"), stored.edges, strict=True)
            }
            stored.edges = self._mapped(stored.files, self._directory)
        self._stored[key] = stored
        self._write_list()
        return True

    def _get_edge_index(self, edge_attr: Any) -> Edges | None:
        key = _key(edge_attr)
        found = self._stored.get(key)
        if found is None:  # asked for with the size that we have told
            found = self._stored.get((*key[:3], None))
        return None if found is None else found.edges

    def _remove_edge_index(self, edge_attr: Any) -> bool:
        key = _key(edge_attr)
        found = self._stored.pop(key, None) or self._stored.pop((*key[:3], None), None)
        self._write_list()
        return found is not None

    def _write_list(self) -> None:
        if self._directory is None:
            return
        self._directory.write_list(
            [
                {"key": list(key), "size": list(each.size), "files": each.files}
                for key, each in self._stored.items()
            ]
        )

    def _open(self, entry: dict[str, Any], directory: Directory) -> None:
        kind, layout, is_sorted, size = entry["key"]
        key = (
            tuple(kind) if isinstance(kind, list) else kind,
            layout,
            is_sorted,
            None if size is None else tuple(size),
        )
        files, told = entry["files"], tuple(entry["size"])
        self._stored[key] = _Stored(self._mapped(files, directory), told, files)

    def _mapped(self, files: dict[str, str], directory: Directory) -> Edges:
        return (
            directory.map(files["first"], torch.int64),
            directory.map(files["second"], torch.int64),
        )


def _key(attr: Any) -> Key:
    size = None if attr.size is None else (int(attr.size[0]), int(attr.size[1]))
    return (attr.edge_type, attr.layout.value, bool(attr.is_sorted), size)


def _ids(array: Any, name: str) -> Tensor:
    given = torch.as_tensor(array).detach().cpu()
    if given.dim() != 1 or given.dtype.is_floating_point or given.dtype == torch.bool:
        raise MisuseError(f"edge_index[{name}] is {shown(array)}, expected node ids (E,) int64")
    return given.to(torch.int64).contiguous()


def _checked(layout: str, first: Tensor, second: Tensor, size: Any) -> tuple[int, int]:
    """Number of nodes on both ends. Errors: ``KeyRangeError``, ``MisuseError``."""
    if layout == "coo" and len(first) != len(second):
        raise MisuseError(
            f"edges have {len(first)} sources and {len(second)} destinations, expected one each"
        )
    ends = []
    for place, (ids, others) in enumerate(((first, second), (second, first))):
        told = None if size is None else int(size[place])
        if layout != ("csr", "csc")[place]:
            ends.append(_largest(ids, told, place))
            continue
        name = ("rowptr", "colptr")[place]
        _check_pointers(ids, len(others), name)
        if told is not None and told != len(ids) - 1:
            raise MisuseError(f"{name} is of {len(ids) - 1} nodes, and size has {told} there")
        ends.append(len(ids) - 1)
    return ends[0], ends[1]


def _largest(ids: Tensor, told: int | None, place: int) -> int:
    if len(ids) == 0:
        return told or 0
    lowest, highest = (int(each) for each in torch.aminmax(ids))
    if lowest >= 0 and (told is None or highest < told):
        return highest + 1 if told is None else told
    wrong = ids < 0 if lowest < 0 else ids >= (told or 0)
    edge = int(wrong.nonzero()[0])
    way = ("begins at", "leads to")[place]
    limit = "expected 0 and more" if told is None else f"and size has {told} nodes there"
    raise KeyRangeError(f"edge {edge} {way} node {int(ids[edge])}, {limit}")


def _check_pointers(pointers: Tensor, edges: int, name: str) -> None:
    if len(pointers) == 0 or int(pointers[0]) != 0 or int(pointers[-1]) != edges:
        raise MisuseError(f"{name} does not go from 0 to the number of edges, {edges}")
    if bool((pointers[1:] < pointers[:-1]).any()):
        raise MisuseError(f"{name} descends, expected where the edges of each node begin")
