"""Files of a graph in Parquet: two columns of nodes, or of nodes and labels; columns of features.

Values are taken as they are: names may have any letters, and no header is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock.data import arrow_columns
from embedrock.data.bad_lines import BadLines
from embedrock.data.errors import DataError
from embedrock.data.parquet_log import reading

__all__ = ["read_features", "read_names", "read_numbers"]

_LARGEST = np.iinfo(np.int64).max


def read_numbers(
    path: Path, expected: str, bad: BadLines
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """(pairs (L, 2), their rows from 1 on) of two columns of whole numbers from 0 on.

    Errors: DataError, with the row unless ``bad`` counts it; for other columns.
    """
    for first, batch in _pairs(path, expected):
        values = [_whole(column) for column in batch.columns]
        wrong = [one < 0 for one in values]
        for row in np.flatnonzero(wrong[0] | wrong[1]).tolist():
            column = batch.column(int(not wrong[0][row]))
            problem = f"{_shown(column[row])}, expected whole numbers from 0 on"
            if arrow_columns.is_text(arrow_columns.kind_of(column.type)):
                problem += "; map_ids=True numbers names and words"
            bad.add(DataError(problem, path=path, row=first + row + 1))
        rows = np.flatnonzero(~(wrong[0] | wrong[1]))
        yield np.stack(values, axis=1)[rows], rows + first + 1


def read_names(path: Path, expected: str, bad: BadLines) -> list[tuple[bytes, bytes]]:
    """The texts of two columns.

    Errors: DataError, with the row of a null unless ``bad`` counts it; for other columns.
    """
    found = []
    for first, batch in _pairs(path, expected):
        texts = [arrow_columns.texts(column) for column in batch.columns]
        for row, (one, other) in enumerate(zip(*texts, strict=True), first + 1):
            if one is None or other is None:
                bad.add(DataError(f"a null, expected {expected}", path=path, row=row))
            else:
                found.append((one, other))
    return found


def read_features(path: Path) -> npt.NDArray[np.float32]:
    """Columns of numbers as rows ``(N, D)``, one for each node.

    Errors: DataError with row and column of what is no number.
    """
    blocks = []
    for first, batch in reading(path):
        rows = np.empty((len(batch), batch.num_columns), np.float32)
        for place, name in enumerate(batch.schema.names):
            column = batch.column(place)
            expected = arrow_columns.expected_of(column.type, "dense", 0)
            if expected is not None:
                raise DataError(f"column {name!r} is {column.type}, expected {expected}", path=path)
            values = arrow_columns.numbers(column)
            wrong = column.is_null().to_numpy(zero_copy_only=False)
            if arrow_columns.is_text(arrow_columns.kind_of(column.type)):
                wrong |= np.isnan(values)
            if wrong.any():
                row = int(np.argmax(wrong))
                problem = f"{_shown(column[row])}, expected numbers"
                raise DataError(problem, path=path, row=first + row + 1, column=name)
            rows[:, place] = values
        blocks.append(rows)
    if not blocks:
        raise DataError("has no rows of numbers", path=path)
    return np.concatenate(blocks)


def _pairs(path: Path, expected: str) -> Iterator[tuple[int, Any]]:
    for first, batch in reading(path):
        if batch.num_columns != 2:
            raise DataError(
                f"has the columns {', '.join(batch.schema.names)}, expected {expected} in two",
                path=path,
            )
        yield first, batch


def _whole(column: Any) -> npt.NDArray[np.int64]:
    """Whole numbers; -1 for what is none."""
    kind = arrow_columns.kind_of(column.type)
    if arrow_columns.is_integer(kind):
        values = arrow_columns.ids(column)
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        return np.where(nulls | (values < 0) | (values >= _LARGEST), -1, values)
    if arrow_columns.expected_of(kind, "dense", 0) is not None or arrow_columns.is_text(kind):
        return np.full(len(column), -1)
    numbers = arrow_columns.numbers(column)
    is_whole = (numbers >= 0) & (numbers < 2.0**53) & (numbers == np.floor(numbers))
    is_whole &= ~column.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_whole, numbers, -1).astype(np.int64)


def _shown(value: Any) -> str:
    found = value.as_py()
    return "a null" if found is None else repr(found)[:60]
