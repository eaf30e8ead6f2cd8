"""Traces in Parquet: a list column of integers, a query per row.

pyarrow, which reads and writes it, is optional.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._optional import missing
from embedrock.data.errors import DataError
from embedrock.data.query_logs import Part
from embedrock.trace.queries import Queries

__all__ = ["parts", "write"]

_KEYS = 1 << 22
"""Keys that are read at once, about: rows are read by so many as have them."""
_ROWS = 1 << 16
_EXPECTED = "expected a list of whole numbers from -2^63 to 2^64 - 1 in each row"


def parts(
    path: Path,
    column: str | None,
    progress: Callable[[int, int], object],
    *,
    words: bool = False,
) -> Iterator[Part]:
    """(keys, lengths of the queries) of some rows after another. With ``words`` keys are those of
    ``embedrock.hash_keys``, of whole numbers as they are written.

    ``column`` names the list column; None takes the only one that there is. ``progress`` gets rows
    that were read, and rows in all. Errors: ``DataError`` naming the column and the row, of which
    the first is 1; also where pyarrow is not installed.
    """
    _pyarrow(path, "is a Parquet file, which")
    from pyarrow import parquet

    with _errors(path):
        opened = parquet.ParquetFile(path)
    with opened as file:
        name = _column(path, file.schema_arrow, column)
        _check_kind(path, file, name, words)
        row, rows = 0, file.metadata.num_rows
        for lists in _read(path, file, name):
            yield _queries(lists, path, name, row, words)
            row += len(lists)
            progress(row, rows)


def write(path: Path, queries: Queries, column: str) -> None:
    """Writes a row per query, as ``list<uint64>``.

    Errors: ``OSError``; ``DataError`` where pyarrow is not installed.
    """
    pyarrow = _pyarrow(path, "is to be a Parquet file, which")
    from pyarrow import parquet

    schema = pyarrow.schema([(column, pyarrow.list_(pyarrow.uint64()))])
    with parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, len(queries), _ROWS):
            some = queries.between(begin, min(begin + _ROWS, len(queries)))
            lists = pyarrow.LargeListArray.from_arrays(some.offsets, some.values)
            writer.write_batch(pyarrow.record_batch([lists.cast(schema.types[0])], schema=schema))


def _pyarrow(path: Path, what: str) -> ModuleType:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(
            missing(what, "pyarrow", "pyarrow") + ", or write it as text, a query per line",
            path=path,
        )
    return importlib.import_module("pyarrow")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise DataError(f"cannot be read as Parquet: {error}", path=path) from error


def _read(path: Path, file: Any, name: str) -> Iterator[Any]:
    """The column in arrays of some rows. Errors: ``DataError`` where the file is damaged."""
    batches = file.iter_batches(_rows_at_once(file.metadata, name), columns=[name])
    while True:
        with _errors(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch.column(0)


def _column(path: Path, schema: Any, wanted: str | None) -> str:
    """The column of that name, or the only one of lists. Errors: ``DataError``."""
    from pyarrow import types

    lists = [field.name for field in schema if _is_list(types, field.type)]
    there = ", ".join(f"{field.name!r} {field.type}" for field in schema) or "none"
    if wanted is not None:
        found = [field.type for field in schema if field.name == wanted]
        if len(found) != 1:
            problem = "no column" if not found else f"{len(found)} columns"
            raise DataError(f"has {problem} {wanted!r}; its columns are {there}", path=path)
        if not _is_list(types, found[0]):
            raise DataError(
                f"column {wanted!r} is {found[0]}, {_EXPECTED}: gather the ids of a query in one "
                f"row first",
                path=path,
            )
        return wanted
    if len(lists) != 1:
        problem = "no column of lists" if not lists else f"the list columns {', '.join(lists)}"
        way = "expected one" if not lists else "name the one to read (column, --column)"
        raise DataError(f"has {problem}, {way}; its columns are {there}", path=path)
    return str(lists[0])


def _is_list(types: ModuleType, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _check_kind(path: Path, file: Any, name: str, words: bool) -> None:
    """Errors: ``DataError`` where the lists hold no integers, nor words where these may be."""
    from pyarrow import types

    kind = file.schema_arrow.field(name).type.value_type
    if types.is_integer(kind):
        return
    problem = f"column {name!r} holds lists of {kind}, {_EXPECTED}"
    if types.is_floating(kind):
        raise DataError(
            f"{problem}: drop NaN, and cast to int64 where ids are made, as floating point "
            f"numbers lose digits of large ids{_first_nan(path, file, name)}",
            path=path,
        )
    if _is_text(types, kind):
        if words:
            return
        problem += '; keys="words" makes keys of words'
    raise DataError(problem, path=path)


def _is_text(types: ModuleType, kind: Any) -> bool:
    views = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or views(kind))


def _first_nan(path: Path, file: Any, name: str) -> str:
    """The place of the first NaN, for a message."""
    row = 0
    for lists in _read(path, file, name):
        nan = np.isnan(lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64))
        if nan.any():
            return f"; the first NaN is in row {row + _row_of(lists, int(np.argmax(nan))) + 1}"
        row += len(lists)
    return ""


def _queries(lists: Any, path: Path, name: str, before: int, words: bool) -> Part:
    """The keys and lengths of some rows, behind ``before`` others. Errors: ``DataError``."""
    if lists.null_count:
        row = before + int(np.argmax(lists.is_null().to_numpy(zero_copy_only=False)))
        problem = f"null in place of a list, {_EXPECTED}; a query without ids is an empty list"
        raise DataError(f"column {name!r}, row {row + 1} has {problem}", path=path)
    keys = lists.flatten()
    if keys.null_count:
        place = int(np.argmax(keys.is_null().to_numpy(zero_copy_only=False)))
        row = before + _row_of(lists, place)
        problem = f"null among its ids, {_EXPECTED}; drop nulls first"
        raise DataError(f"column {name!r}, row {row + 1} has {problem}", path=path)
    values = keys.to_numpy(zero_copy_only=False)
    if words:
        texts = [str(value) for value in values.tolist()]
        return _core.hash_texts(texts), _lengths(lists)
    if values.dtype.kind == "i":
        values = values.astype(np.int64, copy=False).view(np.uint64)
    return values.astype(np.uint64, copy=False), _lengths(lists)


def _lengths(lists: Any) -> npt.NDArray[np.int64]:
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64)


def _row_of(lists: Any, place: int) -> int:
    """The row, from 0, of an id among all of the lists."""
    return int(np.searchsorted(np.cumsum(_lengths(lists)), place, side="right"))


def _rows_at_once(metadata: Any, name: str) -> int:
    """Rows that have about ``_KEYS`` keys, as the file says how many there are."""
    keys: int = 0
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        for place in range(found.num_columns):
            chunk = found.column(place)
            if chunk.path_in_schema.split(".")[0] == name.split(".")[0]:
                keys += chunk.num_values
    rows = int(metadata.num_rows)
    return min(_ROWS, max(1, _KEYS * rows // max(keys, 1)))
