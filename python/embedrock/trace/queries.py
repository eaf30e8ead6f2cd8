"""The queries of one table as two flat arrays, and what is checked of arrays that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock._arguments import shown
from embedrock.errors import MisuseError

__all__ = ["Offsets", "Queries", "Values", "checked", "flat_keys", "offsets_of", "total_keys"]

Values = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of one table: query ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: Values
    """The keys of all queries, one after another: (keys,) uint64."""
    offsets: Offsets
    """The begin of each query, and the end of the last: (queries + 1,) int64."""

    def __len__(self) -> int:
        """Number of queries; a query without keys does not use the table."""
        return len(self.offsets) - 1

    def between(self, begin: int, end: int) -> Queries:
        """Queries ``begin`` to ``end``, which is not among them. The keys are not copied."""
        offsets = self.offsets[begin : end + 1]
        return Queries(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def kept(self, marked: npt.NDArray[np.bool_]) -> Queries:
        """The queries that ``marked (queries,)`` has, in their order."""
        lengths = np.diff(self.offsets)
        values = self.values[np.repeat(marked, lengths)]
        return Queries(values, offsets_of(lengths[marked]))


def offsets_of(lengths: npt.NDArray[np.integer]) -> Offsets:
    """Offsets of queries of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def total_keys(tables: Mapping[str, Queries]) -> int:
    """Keys of all tables, equal ones counted as often as they come."""
    return sum(len(one.values) for one in tables.values())


def checked(values: Any, offsets: Any, name: str = "") -> Queries:
    """Queries of arrays that somebody made; ``name`` is the table's, for messages.

    Signed keys become unsigned ones of the same 64 bits, as everywhere: -1 is 2^64 - 1.

    Errors: ``MisuseError`` with the place in the arrays, what is there and what was expected.
    """
    of = f" of table {name!r}" if name else ""
    keys = _integers(values, f"values{of}", "keys: int64 or uint64")
    ends = _integers(offsets, f"offsets{of}", "where each query begins, and the end: int64")
    if len(ends) < 2:
        raise MisuseError(
            f"offsets{of} has {len(ends)} entries, so there are no queries; expected where each "
            f"query begins, and the end of the last"
        )
    if ends[0] != 0:
        raise MisuseError(f"offsets{of} begins with {ends[0]}, expected 0")
    falls = np.flatnonzero(ends[1:] < ends[:-1])
    if len(falls):
        at = int(falls[0])
        raise MisuseError(
            f"offsets{of}: entry {at} is {ends[at]} and entry {at + 1} is {ends[at + 1]}, expected "
            f"offsets that never decrease"
        )
    if ends[-1] != len(keys):
        raise MisuseError(
            f"offsets{of} ends at {ends[-1]}, expected {len(keys)}: as many as there are values"
        )
    if keys.dtype.kind == "i":
        keys = keys.astype(np.int64, copy=False).view(np.uint64)
    flat = np.ascontiguousarray(keys.astype(np.uint64, copy=False))
    return Queries(flat, np.ascontiguousarray(ends.astype(np.int64, copy=False)))


def flat_keys(given: Any, name: str) -> Values:
    """A copy of the keys of one query, whatever their shape. Errors: ``MisuseError``."""
    expected = "keys: int64 or uint64"
    try:
        found = np.asarray(given)
    except Exception:  # of the object's own, too
        raise MisuseError(f"{name} is {shown(given)}, expected {expected}") from None
    if not found.ndim:
        raise MisuseError(f"{name} is {shown(given)}, expected several {expected}")
    found = found.reshape(-1)
    if not len(found):
        return np.empty(0, np.uint64)
    keys = _integers(found, name, expected)
    if keys.dtype.kind == "i":
        keys = keys.astype(np.int64, copy=False).view(np.uint64)
    return keys.astype(np.uint64)


def _integers(given: Any, name: str, expected: str) -> npt.NDArray[Any]:
    try:
        found = np.asarray(given)
    except Exception:  # of the object's own, too
        raise MisuseError(f"{name} is {shown(given)}, expected {expected}") from None
    if found.ndim != 1 or found.dtype.kind not in "iu":
        what = f"{found.dtype} of shape {found.shape}"
        raise MisuseError(f"{name} is {what}, expected a flat array of {expected}")
    return found
