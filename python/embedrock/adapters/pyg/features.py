"""``FeatureStore``: features of nodes in tables, one call of the engine for a mini-batch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.data
from torch import Tensor

from embedrock._arguments import instance, shown, text
from embedrock._arrays import as_host
from embedrock.adapters.pyg.files import Directory
from embedrock.errors import (
    ForkedError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NotFoundError,
)
from embedrock.store import Store
from embedrock.table import Table

__all__ = ["FeatureStore"]

Ids = npt.NDArray[np.int64]
Key = tuple[Any, Any]
"""(group_name, attr_name) of an attribute."""

_BLOCK_BYTES = 16 << 20
_IN_TABLES = (torch.float32, torch.float16, torch.bfloat16)


@dataclasses.dataclass
class _Attribute:
    """One attribute: in a table, or as an array."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str | None = None
    """The name of its table; None: it is an array."""
    table: Table | None = None
    """That table; None in other processes than the one that has the store open."""
    array: Tensor | None = None
    index: Tensor | None = None
    """The ids of its rows, in the order in which they were put; None: 0 to N - 1."""
    owned: bool = True
    """Whether its table was made here, and holds rows by their place in ``index``."""
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    _sorted: tuple[Ids, Ids] | None = None

    def places(self, ids: Ids, named: str) -> Ids:
        """Where the rows of these ids are. Errors: ``KeyRangeError``."""
        if self.index is None:
            size = self.shape[0] if self.owned else None
            if size is not None and len(ids) and not 0 <= ids.min() <= ids.max() < size:
                wrong = int(ids[(ids < 0) | (ids >= size)][0])
                raise KeyRangeError(f"{named} has no row of id {wrong}: it has 0 to {size - 1}")
            return ids
        if self._sorted is None:
            known = self.index.numpy()
            order = np.argsort(known, kind="stable")
            self._sorted = known[order], order
        known, order = self._sorted
        found = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
        missing = np.ones(len(ids), np.bool_) if len(known) == 0 else known[found] != ids
        if missing.any():
            wrong = int(ids[missing][0])
            raise KeyRangeError(f"{named} has no row of id {wrong}: it was put with other ids")
        return order[found]


class FeatureStore(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """Attributes of nodes for PyTorch Geometric, whose float matrices are tables of a store.

    A matrix ``(N, D)`` of float32, float16 or bfloat16 becomes a table of the store, named by
    ``prefix``, group and attribute. Its rows are frozen: they have no optimizer state. Everything
    else (labels, masks, times, integers, float64) stays an array: in memory, or with ``directory``
    in files there that are mapped. All attributes of a mini-batch are read with one call of the
    engine.

    Tables of trained embeddings can be in the same store; :meth:`attach` makes one an attribute
    whose ids are its keys.

    With ``directory``, a list of the attributes is there, too, and a later run has them at once.
    Without, it puts or attaches them again.

    Args:
        store: The open store.
        directory: Where arrays and the list of attributes are; None: in memory.
        prefix: What the names of tables begin with.
        tensor_attr_cls: As for PyTorch Geometric's class.

    Semantics: ``put_tensor`` with an ``index`` names the ids of the rows, and ``get_tensor`` looks
    ids up; None and ``[:]`` give all rows in the order in which they were put. What was removed is
    a ``KeyError``. A matrix may be a mapped array; it is written in blocks.

    Errors: ``KeyRangeError`` for ids that were not put; ``ForkedError`` in a worker process, which
    says how to make the loader; ``KeyError`` for an unknown attribute; otherwise those of tables.

    Blocking: reading waits for the pages of rows not in memory.

    Durability: tables with the store's next commit, files at once.

    >>> import torch
    >>> from embedrock.adapters import pyg
    >>> features = pyg.FeatureStore(store)
    >>> features["paper", "x", None] = torch.ones(3, 8)
    >>> features["paper", "y", None] = torch.tensor([0, 1, 0])
    >>> features["paper", "x", torch.tensor([2, 0])].shape
    torch.Size([2, 8])
    >>> store.tables["features.paper.x"].num_embeddings
    3
    """

    def __init__(
        self,
        store: Store,
        directory: str | os.PathLike[str] | None = None,
        *,
        prefix: str = "features.",
        tensor_attr_cls: Any = None,
    ) -> None:
        """Finds the attributes that the directory lists."""
        super().__init__(tensor_attr_cls)
        self._store: Store | None = instance("store", store, Store)
        self._prefix = text("prefix", prefix)
        self._attributes: dict[Key, _Attribute] = {}
        self._directory = None if directory is None else Directory(directory, "features.json")
        if self._directory is not None:
            for entry in self._directory.read():
                self._open(entry, self._directory)

    @property
    def store(self) -> Store:
        """The store that the tables are in. Errors: ``ForkedError`` in a worker process."""
        if self._store is None:
            _refuse_worker(None)
        return self._store

    @property
    def tables(self) -> list[Table]:
        """The tables of the attributes that have one."""
        return [each.table for each in self._attributes.values() if each.table is not None]

    def attach(self, table: Table, attr_name: str, group_name: Any = None) -> None:
        """Makes a table of the store an attribute: its keys are the ids.

        That is for embeddings that are trained, whose rows are then read without gradients, and for
        features that are in a table already. The table stays when the attribute is removed.

        >>> from embedrock.adapters import pyg
        >>> features = pyg.FeatureStore(store)
        >>> features.attach(store.table("nodes", 8, num_embeddings=100), "x")
        >>> features.get_tensor_size(attr_name="x", group_name=None)
        (100, 8)
        """
        if instance("table", table, Table).store is not self.store:
            raise MisuseError(
                f"table {table.name!r} is in {table.store.path}, expected one of "
                f"{self.store.path}, which has the features"
            )
        self._keep((group_name, attr_name), _of_table(table))

    def keys_of(self, node: Any, group_name: Any = None) -> dict[Table, Ids]:
        """The keys that reading these nodes visits, by table, for look-ahead."""
        ids = _ids(node)
        return {
            each.table: each.places(ids, _named(key))
            for key, each in self._attributes.items()
            if each.table is not None and key[0] == group_name
        }

    def get_all_tensor_attrs(self) -> list[Any]:
        """All attributes, without an index."""
        found = []
        for group, name in self._attributes:
            attr = self._tensor_attr_cls()
            attr.group_name, attr.attr_name = group, name
            found.append(attr)
        return found

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        key = (attr.group_name, attr.attr_name)
        rows = tensor if isinstance(tensor, (Tensor, np.ndarray)) else as_host(tensor, "tensor")
        if len(rows.shape) == 0:
            raise MisuseError(f"{_named(key)} is a scalar, expected one row for each id")
        index = _index_of(attr.index, int(rows.shape[0]), _named(key))
        dtype = rows.dtype if isinstance(rows, Tensor) else _torch_dtype(rows, _named(key))
        made = _Attribute(tuple(int(n) for n in rows.shape), dtype, index=index)
        if len(rows.shape) == 2 and dtype in _IN_TABLES and min(rows.shape) > 0:
            made.table = self._table_for(key, made)
            made.name = made.table.name
            for start, stop in _blocks(made.table, made.shape[0]):
                block = _float32(rows[start:stop])
                made.table.put(np.arange(start, stop), block, reset_state=True, non_finite="apply")
        else:
            made.array = torch.from_numpy(np.array(rows)) if isinstance(rows, np.ndarray) else rows
        before = self._attributes.get(key)
        self._keep(key, made)
        if before is not None and before.name != made.name:
            _empty(before)
        return True

    def _get_tensor(self, attr: Any) -> Any:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[Any]) -> list[Any]:
        answers: list[Any] = []
        batches: list[tuple[Table, Ids]] = []
        outs: list[Tensor] = []
        for attr in attrs:
            key = (attr.group_name, attr.attr_name)
            found = self._find(key)
            ids, single = _asked(attr.index, found, _named(key))
            if found.name is None:
                array = cast(Tensor, found.array)
                answer = array if ids is None else array[torch.from_numpy(ids)]
            elif found.table is None:
                _refuse_worker(None)
            elif ids is None:
                answer = self._whole(found)
            else:
                answer = torch.empty(len(ids), found.shape[1], dtype=found.dtype)
                if len(ids):
                    batches.append((found.table, ids))
                    outs.append(answer)
            answers.append((answer, single, attr.index))
        if batches:
            try:
                self.store.get(batches, outs)
            except ForkedError as error:
                _refuse_worker(error)
        return [_as_asked(*each) for each in answers]

    def _remove_tensor(self, attr: Any) -> bool:
        found = self._attributes.pop((attr.group_name, attr.attr_name), None)
        if found is None:
            return False
        self._write_list()
        _empty(found)
        return True

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        found = self._find((attr.group_name, attr.attr_name))
        if attr.index is None:
            return found.shape
        ids, single = _asked(attr.index, found, _named((attr.group_name, attr.attr_name)))
        count = found.shape[:1] if ids is None else (len(ids),)
        return found.shape[1:] if single else (*count, *found.shape[1:])

    def __getstate__(self) -> dict[str, Any]:
        """Without the store: a worker process may sample, and reads no rows."""
        state = self.__dict__.copy()
        state["_store"] = None
        state["_attributes"] = {
            key: dataclasses.replace(each, table=None) for key, each in self._attributes.items()
        }
        return state

    def _find(self, key: Key) -> _Attribute:
        if key not in self._attributes:
            there = ", ".join(map(_named, self._attributes)) or "none"
            raise KeyError(f"there is no {_named(key)}; there are: {there}")
        return self._attributes[key]

    def _table_for(self, key: Key, made: _Attribute) -> Table:
        """A table of the attribute's shape that no attribute has, made where there is none."""
        group = "__".join(key[0]) if isinstance(key[0], tuple) else key[0]
        base = self._prefix + ".".join(str(each) for each in (group, key[1]) if each is not None)
        dtype = str(made.dtype).removeprefix("torch.")
        used = {each.name for other, each in self._attributes.items() if other != key}
        number, name = 1, base
        while name in used or not self._fits(name, made, dtype):
            number += 1
            name = f"{base}~{number}"
        return self.store.table(
            name, made.shape[1], made.shape[0], optimizer="none", initializer=0.0, dtype=dtype
        )

    def _fits(self, name: str, made: _Attribute, dtype: str) -> bool:
        if not self.store._has_table(name):
            return True
        table = self.store.table(name)
        shape = (table.num_embeddings, table.embedding_dim)
        return shape == made.shape and (table.dtype, table.optimizer["kind"]) == (dtype, "none")

    def _whole(self, found: _Attribute) -> Tensor:
        """All rows, in the order in which they were put."""
        table = cast(Table, found.table)
        if not found.owned and table.num_embeddings is None:
            raise MisuseError(f"table {table.name!r} grows: its rows have no order; ask for ids")
        rows = torch.empty(found.shape, dtype=found.dtype)
        try:
            for start, stop in _blocks(table, found.shape[0]):
                table.get(np.arange(start, stop), out=rows[start:stop])
        except ForkedError as error:
            _refuse_worker(error)
        return rows

    def _keep(self, key: Key, made: _Attribute) -> None:
        directory = self._directory
        if directory is not None:
            if made.array is not None:
                made.files["array"] = directory.save(made.array)
                made.array = directory.map(made.files["array"], made.dtype)
            if made.index is not None:
                made.files["index"] = directory.save(made.index)
                made.index = directory.map(made.files["index"], torch.int64)
        self._attributes[key] = made
        self._write_list()

    def _write_list(self) -> None:
        if self._directory is None:
            return
        entries = []
        for (group, name), each in self._attributes.items():
            entry = {"group": group, "attr": name, "shape": list(each.shape)}
            entry |= {"dtype": str(each.dtype).removeprefix("torch."), "table": each.name}
            entries.append({**entry, "owned": each.owned, "files": each.files})
        self._directory.write_list(entries)

    def _open(self, entry: dict[str, Any], directory: Directory) -> None:
        """Takes an attribute that is listed. Errors: ``NotFoundError``, ``MismatchError``."""
        group = tuple(entry["group"]) if isinstance(entry["group"], list) else entry["group"]
        key, shape = (group, entry["attr"]), tuple(entry["shape"])
        made = _Attribute(shape, getattr(torch, entry["dtype"]), files=entry["files"])
        if entry["table"] is None:
            made.array = directory.map(made.files["array"], made.dtype)
        else:
            if not self.store._has_table(entry["table"]):
                raise NotFoundError(
                    f"{directory.path} lists {_named(key)} in table {entry['table']!r}, which "
                    f"{self.store.path} does not have: it was never committed, or this is another "
                    f"store; take an empty directory and put the features again"
                )
            table = self.store.table(entry["table"])
            if entry["owned"] and (table.num_embeddings, table.embedding_dim) != shape:
                raise MismatchError(
                    f"{directory.path} lists {_named(key)} with shape {shape}, and table "
                    f"{table.name!r} of {self.store.path} is {table!r}: another store's list"
                )
            made.table, made.name, made.owned = table, table.name, entry["owned"]
        if "index" in made.files:
            made.index = directory.map(made.files["index"], torch.int64)
        self._attributes[key] = made


def _of_table(table: Table) -> _Attribute:
    size = len(table) if table.num_embeddings is None else table.num_embeddings
    dtype = table._crossing_dtype
    made = _Attribute((size, table.embedding_dim), getattr(torch, dtype), name=table.name)
    made.table, made.owned = table, False
    return made


def _empty(attribute: _Attribute) -> None:
    """Gives the disk back that the rows of an attribute that is gone have taken."""
    if attribute.table is not None and attribute.owned:
        for start, stop in _blocks(attribute.table, attribute.shape[0]):
            attribute.table.delete(np.arange(start, stop))


def _named(key: Key) -> str:
    group, name = key
    return f"attribute {name!r}" if group is None else f"attribute {name!r} of {group!r}"


def _refuse_worker(error: Exception | None) -> NoReturn:
    raise ForkedError(
        "features were asked for in a worker process of a loader, which cannot read the store; "
        "make the loader with filter_per_worker=False, as embedrock.adapters.pyg.NeighborLoader "
        "does: its workers sample, and the main process reads"
    ) from error


def _blocks(table: Table, rows: int) -> Iterator[tuple[int, int]]:
    each = max(1, _BLOCK_BYTES // (4 * table.embedding_dim))
    return ((start, min(start + each, rows)) for start in range(0, rows, each))


def _float32(block: Any) -> npt.NDArray[np.float32]:
    if isinstance(block, Tensor):
        block = block.detach().cpu().float().numpy()
    return np.ascontiguousarray(block, np.float32)


def _torch_dtype(array: npt.NDArray[Any], named: str) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, array.dtype)).dtype
    except TypeError as error:
        raise MisuseError(f"{named} is {array.dtype}, which PyTorch does not have") from error


def _ids(index: Any) -> Ids:
    if isinstance(index, Tensor):
        index = index.detach().cpu().numpy()
    array = np.asarray(index)
    if array.dtype == np.bool_:
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise MisuseError(f"index is {shown(index)}, expected ids, a slice or None")
    return array.astype(np.int64, copy=False).reshape(-1)


def _index_of(index: Any, rows: int, named: str) -> Tensor | None:
    """The ids of rows that are put, None where they are 0 to N - 1. Errors: ``MisuseError``."""
    if index is None:
        return None
    ids = np.arange(rows)[index] if isinstance(index, slice) else _ids(index)
    if len(ids) != rows:
        raise MisuseError(f"{named} has {rows} rows and {len(ids)} ids, expected one each")
    if np.array_equal(ids, np.arange(rows)):
        return None
    if len(np.unique(ids)) != rows:
        raise MisuseError(f"{named} has an id twice, expected one row for each id")
    return torch.from_numpy(ids.copy())


def _asked(index: Any, found: _Attribute, named: str) -> tuple[Ids | None, bool]:
    """Places of the rows that are asked for, None for all, and whether it is a single one."""
    if index is None or (isinstance(index, slice) and index == slice(None)):
        return None, False
    if isinstance(index, slice):
        return np.arange(*index.indices(found.shape[0])), False
    single = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
    return found.places(_ids(index), named), single


def _as_asked(rows: Tensor, single: bool, index: Any) -> Any:
    answer = rows[0] if single else rows
    if isinstance(index, np.ndarray) and answer.dtype != torch.bfloat16:
        return answer.numpy()
    return answer
