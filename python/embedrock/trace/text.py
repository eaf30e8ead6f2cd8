"""Traces as text: a query per line, ids with spaces between them (`embedrock.data.query_logs`).

Plain, gzip or zstd, told apart by their first bytes when they are read and by their name when they
are written. A line without ids is a query that asks for nothing.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from embedrock.data.errors import DataError
from embedrock.data.query_logs import parts
from embedrock.data.text import zstd_module
from embedrock.trace.queries import Queries

__all__ = ["parts", "write"]

_LINES = 1 << 16


def write(path: Path, queries: Queries, packing: str) -> None:
    """Writes a line per query; ``packing`` is "", ".gz" or ".zst".

    Errors: ``OSError``; ``DataError`` where zstd is not installed.
    """
    with _opened(path, packing) as file:
        for begin in range(0, len(queries), _LINES):
            some = queries.between(begin, min(begin + _LINES, len(queries)))
            words, ends = list(map(str, some.values.tolist())), some.offsets.tolist()
            lines = [" ".join(words[a:b]) for a, b in pairwise(ends)]
            file.write(("\n".join(lines) + "\n").encode())


@contextmanager
def _opened(path: Path, packing: str) -> Iterator[IO[bytes]]:
    if packing == ".zst":
        module = zstd_module()
        if module is None:
            raise DataError(
                "is to be compressed with zstd, which needs Python 3.14 or the package "
                "zstandard: run pip install zstandard, or name the file .txt or .txt.gz",
                path=path,
            )
        opened: Any = module.open
        with opened(path, "wb") as file:
            yield file
        return
    with path.open("wb") as plain:
        if packing == ".gz":  # without name and time: equal traces are equal files
            with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as file:
                yield file  # type: ignore[misc]
        else:
            yield plain
