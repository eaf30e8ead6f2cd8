"""A click log of the user's own in Parquet, of which labels and columns are named.

Rows are read by batches, and of them the columns that are named alone: what others hold, lists or
whole documents, does not matter. Texts are taken as the file has them, each distinct one once.
Rows are never left out by what the file says of them in statistics, which NaN can make wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedrock._optional import missing
from embedrock.data.arrow_columns import is_coded_list, is_text
from embedrock.data.arrow_log import ROWS, ArrowLog
from embedrock.data.csv import RULES, Columns
from embedrock.data.errors import DataError
from embedrock.data.parquet import is_installed

__all__ = ["ParquetLog", "reading"]


class ParquetLog(ArrowLog):
    """See `streamed.RowFormat`. The names of its columns are read when it is made."""

    name = "csv"

    def __init__(self, path: Path, columns: Columns, rules: int = RULES) -> None:
        """Errors: DataError when a column is not there, or holds what its role has no use for."""
        super().__init__(_File(path), columns, rules=rules)


class _File:
    """See `arrow_log.Source`."""

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        self._path = path
        with _opened(path) as file:
            self.schema = file.schema_arrow

    def batches(self, columns: Columns, first: int) -> Iterator[tuple[int, Any]]:
        """From the group of rows on in which the first of them is. Errors: DataError."""
        kinds = {name: self.schema.field(name).type for name in columns.names}
        texts = [name for name in columns.categorical if is_text(kinds[name])]
        with _opened(self._path, texts) as file:
            if first > file.metadata.num_rows:
                raise DataError(
                    f"has {file.metadata.num_rows} rows, reading was to go on at {first}",
                    path=self.path,
                )
            row, groups = _groups(file.metadata, first)
            # pyarrow reads lists of values with a dictionary within one group of rows alone.
            together = [groups]
            if any(is_coded_list(kind) for kind in kinds.values()):
                together = [[group] for group in groups]
            for some in together:
                batches = file.iter_batches(ROWS, some, list(columns.names))
                while True:
                    with _errors(self._path):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    begin = max(first - row, 0)
                    if begin < len(batch):
                        yield row + begin, batch.slice(begin)
                    row += len(batch)


def _groups(metadata: Any, first: int) -> tuple[int, list[int]]:
    """(first row, groups of rows) from that one on in which row number `first` is."""
    row = 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).num_rows
        if row + size > first:
            return row, list(range(group, metadata.num_row_groups))
        row += size
    return row, []


def reading(path: Path) -> Iterator[tuple[int, Any]]:
    """All columns of a file: the number of the first row of each batch, and the batch.

    Errors: DataError.
    """
    with _opened(path) as file:
        batches, row = file.iter_batches(ROWS), 0
        while True:
            with _errors(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield row, batch
            row += len(batch)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise DataError(f"cannot be read as Parquet: {error}", path=path) from error


@contextlib.contextmanager
def _opened(path: Path, coded: list[str] | None = None) -> Iterator[Any]:
    """The file, as pyarrow has it; the columns of texts `coded` come with a dictionary.

    Errors: DataError, also where pyarrow is not installed.
    """
    if not is_installed():
        raise DataError(
            missing("is a Parquet file, which", "pyarrow", "pyarrow")
            + ", or write it as text with a header",
            path=path,
        )
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path, read_dictionary=coded)
    except (ArrowException, OSError) as error:
        raise DataError(f"is no whole Parquet file: {error}", path=path) from error
    with file:
        yield file
