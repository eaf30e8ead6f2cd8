"""Files of plans: writing one, reading one and checking all of it. See `docs/formats/plan.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from embedrock._arguments import file_errors
from embedrock.data.errors import DataError
from embedrock.errors import UnsupportedError
from embedrock.placement.groups import PlanGroup
from embedrock.trace.files import DAMAGED, replaced

__all__ = ["read", "write"]

VERSION = 1
_OF_ALL = ("version", "tables", "groups", "replicate")
_OF_GROUP = ("rows_per_page", "table", "key", "replica_starts", "replica_rows")
_DTYPES = {
    "version": np.int64,
    "groups": np.int64,
    "replicate": np.float64,
    "rows_per_page": np.int64,
    "table": np.uint16,
    "key": np.uint64,
    "replica_starts": np.int64,
    "replica_rows": np.uint32,
}
_NUMBERS = ("version", "replicate", "rows_per_page")

Contents = tuple[tuple[str, ...], tuple[int, ...], tuple[PlanGroup, ...], float]


def write(
    path: Path,
    tables: Sequence[str],
    table_groups: Sequence[int],
    groups: Sequence[PlanGroup],
    replicate: float,
) -> None:
    """Writes a plan. Errors: ``IoError``."""
    arrays: dict[str, Any] = {
        "version": np.int64(VERSION),
        "tables": np.array(tables, np.str_),
        "groups": np.array(table_groups, np.int64),
        "replicate": np.float64(replicate),
    }
    for number, group in enumerate(groups):
        arrays |= {
            f"{number}/rows_per_page": np.int64(group.rows_per_page),
            f"{number}/table": group.table,
            f"{number}/key": group.key,
            f"{number}/replica_starts": group.replica_starts,
            f"{number}/replica_rows": group.replica_rows,
        }
    with file_errors(f"writing {path}"), replaced(path) as new, new.open("wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> Contents:
    """The contents of a plan. Errors: ``DataError``, ``UnsupportedError``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.ndarray):
                raise _wrong(path, "is a single NumPy array, expected a plan: an .npz file")
            arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError("cannot be opened: there is no such file", path=path) from error
    except DAMAGED as error:
        raise DataError(f"cannot be read as an .npz file: {error}", path=path) from error
    return _Checked(path, arrays).contents()


def _wrong(path: Path, problem: str) -> DataError:
    return DataError(problem, path=path)


class _Checked:
    """The arrays of a file; each method checks what it returns. Errors: ``DataError``."""

    def __init__(self, path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._path, self._arrays = path, arrays

    def contents(self) -> Contents:
        """All of it."""
        version = int(self._array("version"))
        if version != VERSION:
            raise UnsupportedError(
                f"{self._path}: version {version} of plans, this build reads {VERSION}; use a "
                f"newer embedrock, or place again"
            )
        tables = self._tables()
        groups = self._array("groups")
        if len(groups) != len(tables):
            self._refuse(f"groups has {len(groups)} numbers, expected {len(tables)}: one a table")
        count = int(groups.max()) + 1
        if sorted(set(groups.tolist())) != list(range(count)):
            self._refuse(f"groups is {groups.tolist()}, expected numbers from 0 without gaps")
        replicate = float(self._array("replicate")) if "replicate" in self._arrays else 1.0
        if not 0 <= replicate <= 1:
            self._refuse(f"replicate is {replicate}, expected a share from 0 to 1")
        wanted = [*_OF_ALL, *(f"{g}/{name}" for g in range(count) for name in _OF_GROUP)]
        strange = [name for name in self._arrays if name not in wanted]
        if strange:
            self._refuse(f"has the array {strange[0]!r}, expected {', '.join(wanted)}")
        found = tuple(self._group(number, groups, tables) for number in range(count))
        return tables, tuple(groups.tolist()), found, replicate

    def _tables(self) -> tuple[str, ...]:
        given = self._named("tables")
        if given.dtype.kind != "U" or given.ndim != 1 or not len(given):
            self._refuse(f"tables is {_said(given)}, expected the names of tables")
        names = tuple(str(name) for name in given)
        for name in names:
            if names.count(name) > 1:
                self._refuse(f"tables has {name!r} twice, expected it once")
        return names

    def _group(
        self, number: int, groups: npt.NDArray[np.int64], tables: Sequence[str]
    ) -> PlanGroup:
        per_page = int(self._array(f"{number}/rows_per_page"))
        if not 1 <= per_page < 2**31:
            self._refuse(f"{number}/rows_per_page is {per_page}, expected 1 or more, below 2**31")
        table, key = self._array(f"{number}/table"), self._array(f"{number}/key")
        if len(table) != len(key):
            self._refuse(f"{number}/table has {len(table)} rows, {number}/key has {len(key)}")
        if len(key) >= 2**32:
            self._refuse(f"{number}/key has {len(key)} rows, expected fewer than 2**32")
        mine = groups == number
        strangers = np.flatnonzero((table >= len(mine)) | ~mine[np.minimum(table, len(mine) - 1)])
        if len(strangers):
            at = int(strangers[0])
            self._refuse(
                f"{number}/table[{at}] is {table[at]}, expected a table of group {number}: "
                f"{', '.join(map(str, np.flatnonzero(mine)))}"
            )
        self._refuse_twice(number, table, key, tables)
        starts, rows = self._replicas(number, per_page, len(key))
        return PlanGroup(per_page, table, key, starts, rows)

    def _refuse_twice(
        self,
        number: int,
        table: npt.NDArray[np.uint16],
        key: npt.NDArray[np.uint64],
        tables: Sequence[str],
    ) -> None:
        order = np.lexsort((key, table))
        same = (key[order[1:]] == key[order[:-1]]) & (table[order[1:]] == table[order[:-1]])
        twice = np.flatnonzero(same)
        if len(twice):
            one, other = order[twice[0]], order[twice[0] + 1]
            self._refuse(
                f"{number}/key has key {key[one]} of table {tables[table[one]]!r} at {one} and at "
                f"{other}, expected it once"
            )

    def _replicas(
        self, number: int, per_page: int, num_rows: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        name = f"{number}/replica_starts"
        starts, rows = self._array(name), self._array(f"{number}/replica_rows")
        if not len(starts) or starts[0] != 0 or starts[-1] != len(rows):
            ends = f"goes from {starts[0]} to {starts[-1]}" if len(starts) else "is empty"
            self._refuse(f"{name} {ends}, expected from 0 to {len(rows)}, the replica rows")
        lengths = np.diff(starts)
        bad = np.flatnonzero((lengths < 1) | (lengths > per_page))
        if len(bad):
            page = int(bad[0])
            self._refuse(
                f"{name}: replica page {page} has {lengths[page]} rows, expected 1 to {per_page}"
            )
        beyond = np.flatnonzero(rows >= num_rows)
        if len(beyond):
            at = int(beyond[0])
            self._refuse(
                f"{number}/replica_rows[{at}] is {rows[at]}, expected a row below {num_rows}"
            )
        pages = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
        pairs = np.sort(pages << np.uint64(32) | rows)
        twice = np.flatnonzero(pairs[1:] == pairs[:-1])
        if len(twice):
            page, row = divmod(int(pairs[twice[0]]), 2**32)
            self._refuse(f"replica page {page} of group {number} has row {row} twice")
        return starts, rows

    def _array(self, name: str) -> npt.NDArray[Any]:
        """An array of the type and shape that its name says."""
        found, kind = self._named(name), name.rpartition("/")[2]
        ndim = 0 if kind in _NUMBERS else 1
        if found.dtype != _DTYPES[kind] or found.ndim != ndim:
            shape = "a single number" if ndim == 0 else "a flat array"
            expected = f"{shape} of {np.dtype(_DTYPES[kind])}"
            self._refuse(f"{name} is {_said(found)}, expected {expected}")
        return np.ascontiguousarray(found) if ndim else found

    def _named(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            self._refuse(f"has no array {name!r}, expected a plan (docs/formats/plan.md)")
        return self._arrays[name]

    def _refuse(self, problem: str) -> NoReturn:
        raise _wrong(self._path, problem)


def _said(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
