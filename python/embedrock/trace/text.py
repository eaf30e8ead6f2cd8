"""Traces as text: a query per line, ids with spaces between them.

Plain, gzip or zstd, told apart by their first bytes when they are read and by their name when they
are written. A line without ids is a query that asks for nothing.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from embedrock.data.errors import DataError
from embedrock.data.lines import DECIMAL, number
from embedrock.data.text import TextStream, zstd_module
from embedrock.trace.collected import Part
from embedrock.trace.queries import Queries

__all__ = ["parts", "write"]

_BLOCK_BYTES = 4 << 20
"""What is parsed at once: some ten times as much memory while it is."""
_LINE_BYTES_MAX = 256 << 20
"""A longer line is no query: the file has no line breaks."""
_SHOWN_BYTES = 40
_MARK = b"\xef\xbb\xbf"
"""What some programs begin a UTF-8 text with; no part of the first id."""
_LINES = 1 << 16
_DIGITS_MAX = 20
_SHORT = 19
"""Digits with which no number is 2^64."""
_PLAIN = b"0123456789 \t\r\n"
_NEWLINE, _MINUS, _ONE = b"\n-1"
_TEN_TO_19 = np.uint64(10**19)
_MOST_NEGATIVE = np.uint64(1 << 63)
_BETWEEN = np.zeros(256, np.bool_)
_BETWEEN[list(b" \t\r\n")] = True
_EXPECTED = "expected ids as whole numbers from -2^63 to 2^64 - 1 with spaces between them"


def parts(path: Path, progress: Callable[[int], object]) -> Iterator[Part]:
    """(keys, lengths of the queries) of some lines after another.

    ``progress`` gets the bytes of the file that were read. Errors: ``DataError`` naming the line.
    """
    line, rest = 1, b""
    with TextStream(path) as stream:
        while True:
            block = stream.read(_BLOCK_BYTES)
            if line == 1 and not rest:
                block = block.removeprefix(_MARK)
            text, whole = rest + block, len(block) < _BLOCK_BYTES
            end = len(text) if whole else text.rfind(b"\n") + 1
            text, rest = text[:end], text[end:]
            if len(rest) > _LINE_BYTES_MAX:
                raise DataError(
                    f"has more than {_LINE_BYTES_MAX:,} bytes and no end, expected a query",
                    path=path,
                    line=line + text.count(b"\n"),
                )
            if text:
                keys, lengths = _parsed(text, path, line)
                line += len(lengths)
                yield keys, lengths
            progress(stream.packed_offset)
            if whole:
                return


def _parsed(block: bytes, path: Path, first_line: int) -> Part:
    """The keys of whole lines, and how many each line has."""
    text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    between = _BETWEEN.take(text)
    # The text ends with a line break, so every id that begins also ends in it.
    edges = np.flatnonzero(between[1:] != between[:-1]) + 1
    if not between[0]:
        edges = np.concatenate([[0], edges])
    starts, lengths = edges[0::2], np.diff(edges)[0::2]
    line_ends = np.flatnonzero(text == _NEWLINE)
    line_lengths = np.diff(np.searchsorted(starts, line_ends), prepend=0)
    # Of a text without numbers, NumPy makes one.
    if 0 < lengths.max(initial=0) <= _SHORT and not block.translate(None, _PLAIN):
        return np.fromstring(block, np.uint64, sep=" "), line_lengths
    negative = text[starts] == _MINUS
    digits, counts = starts + negative, lengths - negative
    values, wrong = number(text, digits, counts, DECIMAL, 10, _DIGITS_MAX)
    wrong |= counts == 0
    beyond = _beyond_uint64(text, digits, counts, values) | (negative & (values > _MOST_NEGATIVE))
    bad = np.flatnonzero(wrong | beyond)
    if len(bad):
        at = int(bad[0])
        token = block[starts[at] : starts[at] + lengths[at]]
        line = first_line + int(np.searchsorted(line_ends, starts[at]))
        raise DataError(_problem(token, bool(wrong[at])), path=path, line=line)
    keys = np.where(negative, np.uint64(0) - values, values)
    return keys, line_lengths


def _beyond_uint64(
    text: npt.NDArray[np.uint8],
    digits: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    values: npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    """Which numbers of 20 digits have overflown. Those from 10^19 to 2^64 begin with a one, and of
    what begins with a one and is more, less than 10^19 is left."""
    beyond: npt.NDArray[np.bool_] = counts == _DIGITS_MAX
    if beyond.any():
        leading = text.take(digits, mode="clip")
        beyond &= (leading > _ONE) | ((leading == _ONE) & (values < _TEN_TO_19))
    return beyond


def _problem(token: bytes, wrong: bool) -> str:
    said = repr(token[:_SHOWN_BYTES].decode("utf-8", "replace"))
    said += "..." if len(token) > _SHOWN_BYTES else ""
    plain = token.removeprefix(b"-")
    if not wrong or (plain.isdigit() and len(plain) > _DIGITS_MAX):
        return f"{said} lies outside of 64 bits, {_EXPECTED}"
    if plain.strip(b"0123456789.eE+-") == b"":
        return f"{said} is no whole number, {_EXPECTED}"
    if plain.strip(b"0123456789,;|") == b"":
        return f"{said} is no id, {_EXPECTED}"
    return f"{said} is no id, {_EXPECTED}; embedrock.hash_keys makes keys of words"


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
