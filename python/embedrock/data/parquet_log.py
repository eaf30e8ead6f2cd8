"""A click log of the user's own in Parquet, of which labels and columns are named.

Rows are read by batches, and of them the columns that are named alone: what others hold, lists or
whole documents, does not matter. A value means what it means in text with a header (`csv`): the
key of a categorical one is that of `embedrock.hash_keys` of its text, which is that of Python's
`str` for numbers (7.0 is "7.0"), "true" or "false" for Booleans, and nothing for a null. Rows are
never left out by what the file says of them in statistics, which NaN can make wrong.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedrock import _core
from embedrock._optional import missing
from embedrock.data.csv import LABELS, Columns, number_of
from embedrock.data.errors import DataError
from embedrock.data.lines import BadLine, Block
from embedrock.data.parquet import is_installed

__all__ = ["ParquetLog"]

_ROWS = 1 << 16
_SHOWN = 40


class ParquetLog:
    """See `streamed.RowFormat`. The names of its columns are read when it is made."""

    name = "csv"

    def __init__(self, path: Path, columns: Columns) -> None:
        """Errors: DataError when a column is not there, or holds no single values."""
        columns.check()
        self.columns = columns
        with _opened(path) as file:
            self.kinds = _kinds(file.schema_arrow, path, columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The categorical columns."""
        return self.columns.categorical

    @property
    def num_dense(self) -> int:
        """The columns of numbers; without any, a constant stands for them."""
        return max(1, len(self.columns.dense))

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of labels."""
        return self.columns.labels

    def blocks(self, path: Path, first: int) -> Iterator[tuple[int, Block]]:
        """Rows from number `first` on, from 0: the number of the first of each block, and the
        block.

        Errors: DataError.
        """
        with _opened(path) as file:
            groups: list[int] = []
            row = 0
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if row + size > first or groups:
                    groups.append(group)
                else:
                    row += size
            if first > file.metadata.num_rows:
                raise DataError(
                    f"has {file.metadata.num_rows} rows, reading was to go on at {first}", path=path
                )
            batches = file.iter_batches(
                _ROWS, row_groups=groups, columns=list(self.columns.names), use_threads=False
            )
            while True:
                with _errors(path):
                    batch = next(batches, None)
                if batch is None:
                    return
                begin = max(first - row, 0)
                if begin < len(batch):
                    yield row + begin, self._block(batch.slice(begin), path)
                row += len(batch)

    def _block(self, batch: Any, path: Path) -> Block:
        columns, rows = self.columns, len(batch)
        wrong = np.zeros((rows, len(columns.labels) + len(columns.dense)), np.bool_)
        labels = np.empty((rows, len(columns.labels)), np.float32)
        dense = np.ones((rows, self.num_dense), np.float32)
        keys = np.empty((rows, len(columns.categorical)), np.int64)
        with _errors(path):
            for place, name in enumerate(columns.labels):
                labels[:, place], wrong[:, place] = _labels(_column(batch, name))
            for place, name in enumerate(columns.categorical):
                keys[:, place] = _keys(_column(batch, name))
            for place, name in enumerate(columns.dense):
                values = _numbers(_column(batch, name))
                bad = ~np.isfinite(values)
                wrong[:, len(columns.labels) + place] = bad
                values = np.where(bad, 0.0, values)
                dense[:, place] = np.sign(values) * np.log1p(np.abs(values))
        good = ~wrong.any(axis=1)
        lines = np.flatnonzero(good)
        return Block(
            labels=labels[good] if labels.shape[1] > 1 else labels[good, 0],
            dense=dense[good],
            keys=keys[good],
            lines=lines,
            ends=lines + 1,
            bad=[self._bad(batch, row, wrong[row]) for row in np.flatnonzero(~good).tolist()],
            num_lines=rows,
        )

    def _bad(self, batch: Any, row: int, wrong: NDArray[np.bool_]) -> BadLine:
        place, labels = int(np.argmax(wrong)), self.columns.labels
        name = [*labels, *self.columns.dense][place]
        value = _column(batch, name)[row].as_py()
        shown = "a null" if value is None else repr(value)[:_SHOWN]
        expected = "0 or 1" if place < len(labels) else "a finite number"
        return BadLine(row, name, f"{shown} is not {expected}")


def _kinds(schema: Any, path: Path, columns: Columns) -> dict[str, str]:
    """The kinds of the columns. Errors: DataError."""
    from pyarrow import types

    found = {}
    for name in columns.names:
        kinds = [field.type for field in schema if field.name == name]
        if len(kinds) != 1:
            problem = "twice" if kinds else "not"
            raise DataError(
                f"column {name!r} is {problem} there; the columns are {', '.join(schema.names)}",
                path=path,
            )
        kind = kinds[0].value_type if types.is_dictionary(kinds[0]) else kinds[0]
        if types.is_nested(kind):
            raise DataError(
                f"column {name!r} is {kind}, expected one value in a row: a number, a Boolean or a "
                f"text; write a row or a column for each value",
                path=path,
            )
        found[name] = str(kind)
    return found


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise DataError(f"cannot be read as Parquet: {error}", path=path) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not is_installed():
        raise DataError(
            missing("is a Parquet file, which", "pyarrow", "pyarrow")
            + ", or write it as text with a header",
            path=path,
        )
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise DataError(f"is no whole Parquet file: {error}", path=path) from error
    with file:
        yield file


def _column(batch: Any, name: str) -> Any:
    found = batch.column(batch.schema.get_field_index(name))
    return found.dictionary_decode() if hasattr(found, "dictionary_decode") else found


def _labels(column: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """(labels, which are neither 0 nor 1)."""
    from pyarrow import types

    if _is_text(column.type):
        found = [LABELS.get(str(value).encode(), math.nan) for value in column.to_pylist()]
        values = np.array(found, np.float64)
    elif types.is_boolean(column.type) or _is_number(column.type):
        values = _floats(column, math.nan)
    else:
        values = np.full(len(column), math.nan)
    wrong = (values != 0) & (values != 1)
    return np.where(wrong, 0, values).astype(np.float32), wrong


def _numbers(column: Any) -> NDArray[np.float64]:
    """Numbers, NaN for what is none, 0 for a null."""
    from pyarrow import types

    if types.is_boolean(column.type) or _is_number(column.type):
        return _floats(column, 0.0)
    if not _is_text(column.type):
        return np.full(len(column), math.nan)
    texts = [b"" if value is None else value for value in _bytes(column).to_pylist()]
    return np.array([number_of(text) if text else 0.0 for text in texts], np.float64)


def _floats(column: Any, of_null: float) -> NDArray[np.float64]:
    import pyarrow
    from pyarrow import compute, types

    if types.is_boolean(column.type) or types.is_float16(column.type):
        column = column.cast(
            pyarrow.uint8() if types.is_boolean(column.type) else pyarrow.float32()
        )
    values = compute.fill_null(column.cast(pyarrow.float64(), safe=False), of_null)
    found: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
    return found


def _keys(column: Any) -> NDArray[np.int64]:
    """`embedrock.hash_keys` of the text of each value."""
    import pyarrow
    from pyarrow import compute

    texts = compute.fill_null(_bytes(column).cast(pyarrow.large_binary()), b"")
    if isinstance(texts, pyarrow.ChunkedArray):
        texts = texts.combine_chunks()
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    whole = b"" if data is None else data.to_pybytes()
    starts = np.ascontiguousarray(ends[:-1])
    return _core.hash_pieces(whole, starts, np.diff(ends)).view(np.int64)


def _bytes(column: Any) -> Any:
    """The texts of a column, nulls among them."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if types.is_floating(kind):
        values = column.to_numpy(zero_copy_only=False)
        distinct, places = np.unique(values, return_inverse=True)
        texts = pyarrow.array([str(value) for value in distinct], pyarrow.large_string())
        taken = texts.take(pyarrow.array(places.reshape(-1)))
        nulls = column.is_null()
        return pyarrow.compute.if_else(nulls, None, taken).cast(pyarrow.large_binary())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column.cast(pyarrow.large_binary())
    return column.cast(pyarrow.large_string()).cast(pyarrow.large_binary())


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    view = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or view(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
