"""One attribute of nodes, and the rows that an index selects.

An index is ids in any shape, a mask, a slice of places, one id, or None for all rows. Its meaning
in reads and writes is defined here once, for tables and for arrays.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.data
from torch import Tensor

from embedrock._arguments import shown
from embedrock.errors import KeyRangeError, MismatchError, MisuseError
from embedrock.table import Table

__all__ = [
    "Attribute",
    "Ids",
    "Key",
    "TensorAttr",
    "as_asked",
    "as_rows",
    "ids_of",
    "index_of",
    "named",
]

Ids = npt.NDArray[np.int64]
Key = tuple[Any, Any]
"""(group_name, attr_name) of an attribute."""


class TensorAttr(torch_geometric.data.TensorAttr):  # type: ignore[misc]
    """That of PyTorch Geometric, which takes NumPy arrays as the index, too.

    It compares each field with "unset"; an array does so by element, and has no truth value.
    """

    def is_set(self, key: str) -> bool:
        """Whether a field has a value."""
        return getattr(self, key) is not self.__dataclass_fields__[key].default


@dataclasses.dataclass
class Attribute:
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
    copied: bool = False
    """Whether its array is this attribute's own, and not the tensor that was given."""
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    _sorted: tuple[Ids, Ids] | None = None

    @classmethod
    def of_table(cls, table: Table) -> Attribute:
        """That of a table whose keys are the ids, and which others write, too."""
        dtype = getattr(torch, table._crossing_dtype)
        made = cls((0, table.embedding_dim), dtype, table.name, table, owned=False)
        made.measure()
        return made

    def measure(self) -> None:
        """Takes the size of a table that others write, too, as it is now."""
        if self.table is not None and not self.owned:
            size = self.table.num_embeddings
            self.shape = (len(self.table) if size is None else size, self.table.embedding_dim)

    @property
    def grows(self) -> bool:
        """Whether its ids are any keys, in no order."""
        return not self.owned and self.table is not None and self.table.num_embeddings is None

    def refuse_order(self) -> None:
        """Errors: ``MisuseError`` where rows have no order that a slice could mean."""
        if self.grows:
            assert self.table is not None, "one that grows has a table"
            raise MisuseError(
                f"table {self.table.name!r} grows: its rows have no order; ask for ids"
            )

    def places(self, ids: Ids, named: str) -> Ids:
        """The places of the rows of these ids. Errors: ``KeyRangeError``."""
        if self.index is None:
            size = None if self.grows else self.shape[0]
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

    def asked(self, index: Any, named: str) -> tuple[Ids | None, tuple[int, ...]]:
        """Places of the rows that an index means, None for all, and the shape that it has.

        Errors: ``KeyRangeError``; ``MisuseError`` for what is no index of this attribute.
        """
        if index is None or (isinstance(index, slice) and index == slice(None)):
            return None, self.shape[:1]
        if isinstance(index, slice):
            self.refuse_order()
            places = np.arange(*index.indices(self.shape[0]))
            return places, places.shape
        array, is_mask = _array_of(index)
        if is_mask:
            if not self.grows and len(array) != self.shape[0]:
                raise MisuseError(
                    f"{named} has {self.shape[0]} rows, and the mask is of {len(array)}"
                )
            if self.index is not None:
                places = np.flatnonzero(array)
                return places, places.shape
            array = np.flatnonzero(array)
        return self.places(array.reshape(-1), named), array.shape


def _array_of(index: Any) -> tuple[npt.NDArray[Any], bool]:
    """An index as int64 ids, or as a mask. Errors: ``MisuseError``."""
    if isinstance(index, Tensor):
        index = index.detach().cpu().numpy()
    try:
        array = np.asarray(index)
    except ValueError:
        array = np.empty(1, np.object_)  # lists of several lengths
    if array.dtype == np.bool_:
        if array.ndim != 1:
            raise MisuseError(
                f"index is a mask of shape {array.shape}, expected one value for each row"
            )
        return array, True
    if array.size == 0:
        return np.empty(array.shape, np.int64), False
    if array.dtype.kind not in "iu":
        raise MisuseError(f"index is {shown(index)}, expected ids, a slice or None")
    return array.astype(np.int64, copy=False), False


def ids_of(index: Any) -> Ids:
    """The ids that an index names, one after the other; of a mask, the places of what is set."""
    array, is_mask = _array_of(index)
    return np.flatnonzero(array) if is_mask else array.reshape(-1)


def index_of(index: Any, rows: int, named: str) -> Tensor | None:
    """The ids of rows of a new attribute, None where they are 0 to N - 1.

    Errors: ``MisuseError``.
    """
    if index is None:
        return None
    ids = np.arange(rows)[index] if isinstance(index, slice) else ids_of(index)
    if len(ids) != rows:
        raise MisuseError(f"{named} has {rows} rows and {len(ids)} ids, expected one each")
    if np.array_equal(ids, np.arange(rows)):
        return None
    _refuse_twice(ids, named)
    return torch.from_numpy(ids.copy())


def as_rows(rows: Any, found: Attribute, places: Ids, shape: tuple[int, ...], named: str) -> Tensor:
    """The values to write to some rows of an attribute, in its dtype and with one row for each
    place.

    As where PyTorch assigns to ``x[index]``, what is smaller is repeated.

    Errors: ``MisuseError`` for places that come twice, and for rows of another shape;
    ``MismatchError`` for numbers that would lose their fraction or more.
    """
    _refuse_twice(places, named)
    given = torch.from_numpy(np.array(rows)) if isinstance(rows, np.ndarray) else rows.detach()
    if not torch.can_cast(given.dtype, found.dtype):
        raise MismatchError(
            f"{named} is {found.dtype}, and the rows are {given.dtype}, which that cannot hold; "
            f"convert them, or put the whole attribute anew (index=None)"
        )
    wanted = (*shape, *found.shape[1:])
    try:
        spread = given.broadcast_to(wanted)
    except RuntimeError as error:
        raise MisuseError(
            f"rows for {named} have the shape {tuple(given.shape)}, expected {wanted}: it has "
            f"the shape {found.shape}; to give it another one, put it whole (index=None)"
        ) from error
    return spread.reshape(len(places), *found.shape[1:]).to(found.dtype)


def _refuse_twice(ids: Ids, named: str) -> None:
    if len(np.unique(ids)) != len(ids):
        raise MisuseError(f"{named} has an id twice, expected one row for each id")


def as_asked(rows: Tensor, shape: tuple[int, ...], index: Any) -> Any:
    """Rows in the shape, and of the kind, of the index that asked for them."""
    answer = rows if len(shape) == 1 else rows.reshape((*shape, *rows.shape[1:]))
    if isinstance(index, np.ndarray) and answer.dtype != torch.bfloat16:
        return answer.numpy()
    return answer


def named(key: Key) -> str:
    """An attribute, for people."""
    group, name = key
    return f"attribute {name!r}" if group is None else f"attribute {name!r} of {group!r}"
