"""A click log of the user's own: text with a header, of which labels and columns are named.

Lines are fields separated by commas, tabs or semicolons, as the header has it. A label is 0 or 1,
also as 0.0, 1.0, false and true. A categorical value is whatever its text is: integers, names,
nothing; its key is that of `embedrock.hash_keys`. A number x becomes sign(x) log(1 + |x|), a
missing one 0. Columns that nobody named are not looked at. Between commas and semicolons fields may
be quoted where they hold no line break; between tabs a quotation mark is text like any other.

Runs of older versions go on by the rules that they began with: with `rules` 1 quotation marks are
none between tabs either, and a label is a digit.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedrock import _core
from embedrock.data.errors import DataError
from embedrock.data.lines import Block, Fields
from embedrock.data.text import TextStream
from embedrock.errors import MisuseError

_HEADER_BYTES_MAX = 1 << 20
_SEPARATORS = (",", "\t", ";")
_JOINED = "\x1f"
"""Stands between fields of which some were quoted: ASCII's unit separator, which no text has."""
_NUMBER_BYTES = 32
RULES = 3
"""Of the texts of values; a run remembers those that it began with."""
LABELS = {
    **dict.fromkeys((b"0", b"0.0", b"false", b"False", b"FALSE"), 0.0),
    **dict.fromkeys((b"1", b"1.0", b"true", b"True", b"TRUE"), 1.0),
}
"""The accepted spellings of a label."""
_UNQUOTABLE = (
    "has a quotation mark that is not closed in its line, or has text behind it; a field with "
    "marks is quoted, and each of its marks doubled"
)


@dataclass(frozen=True)
class Columns:
    """The user's choice of columns of a file, by their names in its header."""

    #: The column of clicks, or several of them for a model with as many targets.
    label: str | tuple[str, ...]
    categorical: tuple[str, ...]
    dense: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns that are predicted."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are named."""
        return (*self.labels, *self.categorical, *self.dense)

    def check(self) -> None:
        """Errors: MisuseError for a name that is there twice, and where nothing is categorical."""
        names = self.names
        if not self.categorical:
            raise MisuseError("categorical names no column: each that is named becomes a table")
        for name in names:
            if names.count(name) > 1:
                raise MisuseError(
                    f"column {name!r} is named twice among label, categorical and dense"
                )


class Csv:
    """See `streamed.Format`. The header is read at construction."""

    name = "csv"

    def __init__(self, path: Path, columns: Columns, rules: int = RULES) -> None:
        """Reads the header.

        Errors: DataError when a column is not there.
        """
        columns.check()
        self.columns = columns
        with TextStream(path) as stream:
            text = stream.read(_HEADER_BYTES_MAX)
        self._header_bytes = text.find(b"\n") + 1 or len(text)
        try:
            header = text[: self._header_bytes].decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"header is no UTF-8: {error}", path=path, line=1) from error
        self._rules = rules
        self._separator, self._names = _split_header(header, path, columns, rules)
        self._labels = [self._names.index(name) for name in columns.labels]
        self._tokens = [self._names.index(name) for name in columns.categorical]
        self._numbers = [self._names.index(name) for name in columns.dense]

    @property
    def features(self) -> tuple[str, ...]:
        """The categorical columns."""
        return self.columns.categorical

    @property
    def num_dense(self) -> int:
        """The columns of numbers; without any, a constant stands for them."""
        return max(1, len(self._numbers))

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of labels."""
        return self.columns.labels

    def header_bytes(self, text: bytes, path: Path) -> int:
        """The first line."""
        return min(self._header_bytes, len(text))

    def parse(self, block: bytes) -> Block:
        """Parses whole lines: `block` ends with a newline or with the text."""
        if b'"' not in block or (self._separator == "\t" and self._rules > 1):
            return self._parse(block, self._separator)
        ends = np.flatnonzero(np.frombuffer(block + b"\n", np.uint8) == ord("\n"))
        lines = [_unquoted(line, self._separator) for line in block.split(b"\n")]
        found = self._parse(b"\n".join(lines), _JOINED)
        bad = [
            replace(one, problem=_UNQUOTABLE) if b'"' in lines[one.index] else one
            for one in found.bad
        ]
        return replace(found, bad=bad, ends=np.minimum(ends[found.lines] + 1, len(block)))

    def _parse(self, block: bytes, separator: str) -> Block:
        fields = Fields.split(block, separator, self._names)
        wrong = np.zeros(fields.starts.shape, bool)
        clicks = np.empty((len(fields.starts), len(self._labels)), np.float32)
        for place, column in enumerate(self._labels):
            clicks[:, place], wrong[:, column] = self._label(fields, column)
        labels = clicks if clicks.shape[1] > 1 else clicks[:, 0]
        shape = (len(fields.starts), len(self._tokens))
        keys = _core.hash_pieces(
            fields.block,
            np.ascontiguousarray(fields.starts[:, self._tokens]).reshape(-1),
            np.ascontiguousarray(fields.lengths[:, self._tokens]).reshape(-1),
        )
        dense = np.ones((len(fields.starts), self.num_dense), np.float32)
        for place, column in enumerate(self._numbers):
            dense[:, place], wrong[:, column] = _numbers(fields, column)
        return fields.gather(
            labels, dense, keys.view(np.int64).reshape(shape), wrong, self._explain
        )

    def _label(self, fields: Fields, column: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(labels, which are neither 0 nor 1)."""
        labels, wrong = fields.labels(column)
        for row in np.flatnonzero(wrong).tolist() if self._rules > 1 else ():
            start = int(fields.starts[row, column])
            value = LABELS.get(fields.block[start : start + int(fields.lengths[row, column])])
            if value is not None:
                labels[row], wrong[row] = value, False
        return labels, wrong

    def _explain(self, field: int, shown: str) -> tuple[str, str]:
        problem = f"{shown} is not {'0 or 1' if field in self._labels else 'a finite number'}"
        return self._names[field], problem


def _split_header(header: str, path: Path, columns: Columns, rules: int) -> tuple[str, list[str]]:
    """(separator, names): the separator with which the header has most columns."""
    split = {
        separator: next(csv.reader([header], delimiter=separator)) for separator in _SEPARATORS
    }
    if rules > 1:
        split["\t"] = header.split("\t")
    separator = max(_SEPARATORS, key=lambda one: len(split[one]))
    names = split[separator]
    for name in columns.names:
        if names.count(name) != 1:
            problem = "twice" if name in names else "not"
            raise DataError(
                f"column {name!r} is {problem} in the header, which has {', '.join(names)}",
                path=path,
                line=1,
            )
    return separator, names


def _unquoted(line: bytes, separator: str) -> bytes:
    """A line with another separator, and without quotes. One that cannot be read as such stays a
    single field, which is malformed."""
    if b'"' not in line:
        return line.replace(separator.encode(), _JOINED.encode())
    text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
    try:
        fields = next(csv.reader([text], delimiter=separator, strict=True))
    except csv.Error:
        return line
    return _JOINED.join(fields).encode("utf-8", "surrogateescape")


def _numbers(fields: Fields, column: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(sign(x) log(1 + |x|) of each, which are no finite numbers); a missing one is 0."""
    starts, lengths = fields.starts[:, column], fields.lengths[:, column]
    values, is_long = numbers_of_pieces(fields.text, starts, lengths)
    values[is_long] = math.nan
    return scaled(values)


def numbers_of_pieces(
    text: bytes | NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(the number that each piece of a text is, which are too long to be looked at). Of a piece
    without length it is 0, of one that is no number NaN."""
    width = max(1, min(int(lengths.max(initial=0)), _NUMBER_BYTES))
    if not len(text):
        return np.zeros(len(starts)), np.zeros(len(starts), np.bool_)
    letters = np.frombuffer(text, np.uint8) if isinstance(text, bytes) else text
    place = np.arange(width)
    letters = letters.take(starts[:, None] + place, mode="clip")
    letters = np.where(place < lengths[:, None], letters, np.uint8(0))
    letters[lengths == 0, 0] = ord("0")
    texts = np.ascontiguousarray(letters).view(f"S{width}").reshape(-1)
    try:
        values = texts.astype(np.float64)
    except ValueError:
        values = np.array([number_of(text) for text in texts.tolist()], np.float64)
    return values, lengths > _NUMBER_BYTES


def scaled(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(sign(x) log(1 + |x|) of each, which are not finite and become 0), in place."""
    wrong = ~np.isfinite(values)
    if wrong.any():
        values[wrong] = 0.0
    sizes = np.abs(values)
    np.copysign(np.log1p(sizes, out=sizes), values, out=values)
    values += 0.0  # of -0.0, too, it is 0
    return values, wrong


def number_of(text: bytes) -> float:
    """The number that a text is, 1 and 0 of true and false; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return {b"true": 1.0, b"false": 0.0}.get(text.lower(), math.nan)
