"""Recognition of Parquet files, and the text that older versions read them as.

`parquet_log` and `graph_parquet` read columns. Older versions converted a file to text with a
header, and runs that began with them go on so: their positions are offsets in that text, which is
made anew from the start, as for a compressed file. pyarrow, which reads the file, is optional.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from embedrock._optional import missing
from embedrock.data.errors import DataError

MAGIC = b"PAR1"
_ROWS = 1 << 16
"""Rows that become text at once: the same text whatever their number."""


def is_installed() -> bool:
    """Whether pyarrow is there."""
    return importlib.util.find_spec("pyarrow") is not None


def is_parquet(path: Path) -> bool:
    """Whether a file begins as one of Parquet. Errors: DataError where it cannot be opened."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror or error}", path=path) from error


class ParquetText:
    """Reads the text from its beginning, for runs of older versions."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Errors: DataError, also where pyarrow is not installed."""
        if not is_installed():
            raise DataError(
                missing("is a Parquet file, which", "pyarrow", "pyarrow")
                + ", or write it as text with a header",
                path=path,
            )
        from pyarrow import ArrowException, csv, parquet

        self._errors: type[Exception] = ArrowException
        self._path, self._text, self._offset = path, memoryview(b""), 0
        try:
            self._file = parquet.ParquetFile(path)
        except (ArrowException, OSError) as error:
            raise DataError(f"is no whole Parquet file: {error}", path=path) from error
        self._batches = self._file.iter_batches(batch_size=_ROWS)
        self._write: Any = csv.write_csv
        self._options = [csv.WriteOptions(include_header=header) for header in (True, False)]
        self._begun = False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end. Errors: DataError where the file is damaged."""
        while not self._text:
            try:
                batch = next(self._batches, None)
                if batch is None and self._begun:
                    return b""
                made = io.BytesIO()
                what = self._file.schema_arrow.empty_table() if batch is None else batch
                self._write(what, made, self._options[self._begun])
            except (self._errors, OSError) as error:
                raise DataError(f"cannot be read: {error}", path=self._path) from error
            self._text, self._begun = made.getbuffer(), True
        text, self._text = bytes(self._text[:size]), self._text[size:]
        return text

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
