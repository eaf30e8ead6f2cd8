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
from embedrock.adapters.pyg.attributes import (
    Attribute,
    Ids,
    Key,
    TensorAttr,
    as_asked,
    as_rows,
    ids_of,
    index_of,
    named,
)
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

_BLOCK_BYTES = 16 << 20
_IN_TABLES = (torch.float32, torch.float16, torch.bfloat16)


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
        directory: Folder of arrays and of the list of attributes; None: in memory.
        prefix: Prefix of the names of tables.
        tensor_attr_cls: As for PyTorch Geometric's class.

    Semantics: the first ``put_tensor`` of an attribute with an ``index`` names the ids of its rows.
    Each later one, and ``update_tensor``, changes the rows of its index alone, as an assignment to
    ``x[index]`` does; with None it replaces the whole attribute. ``get_tensor`` looks ids up, and
    keeps the shape of the index; None and ``[:]`` are all rows in the order in which they were put,
    and slices count in it. Reading a removed row is a ``KeyError``. A matrix may be a mapped array;
    it is written in blocks.

    Errors: ``KeyRangeError`` for ids that were not put; ``MisuseError`` for rows of another shape,
    and for a removal with an index; ``MismatchError`` for rows of a dtype that would lose their
    fraction; ``ForkedError`` in a worker process, which says how to make the loader; ``KeyError``
    for an unknown attribute; otherwise those of tables.

    Blocking: reading waits for the pages of rows not in memory.

    Durability: tables with the store's next commit, files at once: each change of some rows of an
    array with ``directory`` writes the array anew.

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
        super().__init__(tensor_attr_cls or TensorAttr)
        self._store: Store | None = instance("store", store, Store)
        self._prefix = text("prefix", prefix)
        self._attributes: dict[Key, Attribute] = {}
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
        self._keep((group_name, attr_name), Attribute.of_table(table))

    def keys_of(self, node: Any, group_name: Any = None) -> dict[Table, Ids]:
        """The keys that reading these nodes visits, by table, for look-ahead."""
        ids = ids_of(node)
        found = {key: self._find(key) for key in self._attributes if key[0] == group_name}
        return {
            each.table: each.places(ids, named(key))
            for key, each in found.items()
            if each.table is not None
        }

    def get_all_tensor_attrs(self) -> list[Any]:
        """All attributes, without an index."""
        found = []
        for group, name in self._attributes:
            attr = self._tensor_attr_cls()
            attr.group_name, attr.attr_name = group, name
            found.append(attr)
        return found

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """As ``put_tensor``, which changes the rows of an index alone."""
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        key = (attr.group_name, attr.attr_name)
        rows = tensor if isinstance(tensor, (Tensor, np.ndarray)) else as_host(tensor, "tensor")
        if attr.index is not None and key in self._attributes:
            return self._put_rows(rows, attr.index, key)
        if len(rows.shape) == 0:
            raise MisuseError(f"{named(key)} is a scalar, expected one row for each id")
        index = index_of(attr.index, int(rows.shape[0]), named(key))
        dtype = rows.dtype if isinstance(rows, Tensor) else _torch_dtype(rows, named(key))
        made = Attribute(tuple(int(n) for n in rows.shape), dtype, index=index)
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

    def _put_rows(self, rows: Any, index: Any, key: Key) -> bool:
        """Changes some rows of an attribute that there is, and no other."""
        found = self._find(key)
        if found.name is not None and found.table is None:
            _refuse_worker(None)
        try:
            places, shape = found.asked(index, named(key))
        except KeyRangeError as error:
            raise KeyRangeError(
                f"{error}; a write with an index changes rows that there are: for others put the "
                f"whole attribute anew (index=None, or remove_tensor first)"
            ) from error
        if places is None:
            found.refuse_order()
            places = np.arange(found.shape[0])
        given = as_rows(rows, found, places, shape, named(key))
        if found.table is None:
            self._change_array(found, places, given)
            return True
        fresh = found.owned  # of a feature's row nothing is known beside its values
        for start, stop in _blocks(found.table, len(places)):
            keys, block = places[start:stop], _float32(given[start:stop])
            found.table.put(keys, block, reset_state=fresh, non_finite="apply")
        return True

    def _change_array(self, found: Attribute, places: Ids, given: Tensor) -> None:
        array = cast(Tensor, found.array)
        directory = self._directory
        if directory is not None:  # a mapping that is written to is in memory alone
            array = directory.map(found.files["array"], found.dtype)
        elif not found.copied:
            array = array.detach().clone()
        array[torch.from_numpy(places).to(array.device)] = given.to(array.device)
        found.array, found.copied = array, True
        if directory is not None:
            found.files["array"] = directory.save(array)
            found.array = directory.map(found.files["array"], found.dtype)
            self._write_list()

    def _get_tensor(self, attr: Any) -> Any:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[Any]) -> list[Any]:
        answers: list[Any] = []
        batches: list[tuple[Table, Ids]] = []
        outs: list[Tensor] = []
        for attr in attrs:
            key = (attr.group_name, attr.attr_name)
            found = self._find(key)
            if found.name is not None and found.table is None:
                _refuse_worker(None)
            ids, shape = found.asked(attr.index, named(key))
            if found.table is None:
                array = cast(Tensor, found.array)
                answer = array if ids is None else array[torch.from_numpy(ids)]
            elif ids is None:
                answer = self._whole(found)
            else:
                answer = torch.empty(len(ids), found.shape[1], dtype=found.dtype)
                if len(ids):
                    batches.append((found.table, ids))
                    outs.append(answer)
            answers.append((answer, shape, attr.index))
        if batches:
            try:
                self.store.get(batches, outs)
            except ForkedError as error:
                _refuse_worker(error)
        return [as_asked(*each) for each in answers]

    def _remove_tensor(self, attr: Any) -> bool:
        key = (attr.group_name, attr.attr_name)
        if key not in self._attributes:
            return False
        index = attr.index
        if isinstance(index, (Tensor, np.ndarray, list, tuple, int)) or (
            isinstance(index, slice) and index != slice(None)
        ):
            raise MisuseError(
                f"{named(key)} is removed as a whole, and an index was given: {shown(index)}; "
                f"leave it out"
            )
        found = self._attributes.pop(key)
        self._write_list()
        _empty(found)
        return True

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        found = self._find((attr.group_name, attr.attr_name))
        if attr.index is None:
            return found.shape
        _, shape = found.asked(attr.index, named((attr.group_name, attr.attr_name)))
        return (*shape, *found.shape[1:])

    def __getstate__(self) -> dict[str, Any]:
        """Without the store: a worker process may sample, and reads no rows."""
        state = self.__dict__.copy()
        state["_store"] = None
        state["_attributes"] = {
            key: dataclasses.replace(each, table=None) for key, each in self._attributes.items()
        }
        return state

    def _find(self, key: Key) -> Attribute:
        if key not in self._attributes:
            there = ", ".join(map(named, self._attributes)) or "none"
            raise KeyError(f"there is no {named(key)}; there are: {there}")
        found = self._attributes[key]
        found.measure()
        return found

    def _table_for(self, key: Key, made: Attribute) -> Table:
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

    def _fits(self, name: str, made: Attribute, dtype: str) -> bool:
        if not self.store._has_table(name):
            return True
        table = self.store.table(name)
        shape = (table.num_embeddings, table.embedding_dim)
        return shape == made.shape and (table.dtype, table.optimizer["kind"]) == (dtype, "none")

    def _whole(self, found: Attribute) -> Tensor:
        """All rows, in the order in which they were put."""
        table = cast(Table, found.table)
        found.refuse_order()
        rows = torch.empty(found.shape, dtype=found.dtype)
        try:
            for start, stop in _blocks(table, found.shape[0]):
                table.get(np.arange(start, stop), out=rows[start:stop])
        except ForkedError as error:
            _refuse_worker(error)
        return rows

    def _keep(self, key: Key, made: Attribute) -> None:
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
        made = Attribute(shape, getattr(torch, entry["dtype"]), files=entry["files"])
        if entry["table"] is None:
            made.array = directory.map(made.files["array"], made.dtype)
        else:
            if not self.store._has_table(entry["table"]):
                raise NotFoundError(
                    f"{directory.path} lists {named(key)} in table {entry['table']!r}, which "
                    f"{self.store.path} does not have: it was never committed, or this is another "
                    f"store; take an empty directory and put the features again"
                )
            table = self.store.table(entry["table"])
            if entry["owned"] and (table.num_embeddings, table.embedding_dim) != shape:
                raise MismatchError(
                    f"{directory.path} lists {named(key)} with shape {shape}, and table "
                    f"{table.name!r} of {self.store.path} is {table!r}: another store's list"
                )
            made.table, made.name, made.owned = table, table.name, entry["owned"]
        if "index" in made.files:
            made.index = directory.map(made.files["index"], torch.int64)
        self._attributes[key] = made


def _empty(attribute: Attribute) -> None:
    """Gives the disk back that the rows of an attribute that is gone have taken."""
    if attribute.table is not None and attribute.owned:
        for start, stop in _blocks(attribute.table, attribute.shape[0]):
            attribute.table.delete(np.arange(start, stop))


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
