"""Cuts blocks of delimited text into fields with NumPy, for readers of click logs.

Readers interpret the fields (`criteo_lines`, `avazu_lines`, `csv`); this module has the block that
they return, the division of lines into fields, and the report of a malformed line: its index in the
block, the column, and the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embedrock.data.memory import Column

_NEWLINE, _RETURN = b"\n\r"
_SHOWN_BYTES = 40

#: The value of each character as a decimal digit; 255 for others.
DECIMAL = np.full(256, 255, np.uint8)
for _value, _character in enumerate(b"0123456789"):
    DECIMAL[_character] = _value


@dataclass(frozen=True)
class BadLine:
    """A malformed line: its index in the block, the field (None: the line as such), the problem."""

    index: int
    column: str | None
    problem: str


@dataclass(frozen=True)
class Block:
    """The good lines of a block: `lines` are their indices among all, `ends` the offsets behind.

    Shapes: labels (L,) or (L, T) float32, dense (L, num_dense) float32, keys (L, F) int64, lines,
    ends (L,) int64. `bags` has those features, by their number, whose samples have any number of
    keys; `keys` says nothing of them.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: NDArray[np.int64]
    lines: NDArray[np.int64]
    ends: NDArray[np.int64]
    bad: list[BadLine]
    num_lines: int
    bags: Mapping[int, Column] = field(default_factory=dict)

    def column(self, feature: int) -> Column:
        """The keys of a feature."""
        return self.bags.get(feature) or Column(self.keys[:, feature])


@dataclass(frozen=True)
class Fields:
    """The fields of those lines of a block that have the right number of them.

    Shapes: starts, lengths (W, F) int64; whole (W,) int64, the index of each among all lines.
    """

    block: bytes
    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    whole: NDArray[np.int64]
    line_ends: NDArray[np.int64]
    bad: list[BadLine]

    @classmethod
    def split(cls, block: bytes, separator: str, columns: list[str]) -> Fields:
        """Cuts whole lines: `block` ends with a newline or with the text."""
        text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
        width = len(columns)
        line_ends = np.flatnonzero(text == _NEWLINE)
        line_starts = np.concatenate([[0], line_ends[:-1] + 1])
        separators = np.flatnonzero(text == ord(separator))
        first = np.searchsorted(separators, line_starts)
        num_fields = np.searchsorted(separators, line_ends) - first + 1
        whole = np.flatnonzero(num_fields == width)
        bad = []
        for line in np.flatnonzero(num_fields != width):
            problem = f"{num_fields[line]} {_SEPARATED[separator]} fields, expected {width}"
            if block[line_starts[line] : line_ends[line]].strip() == b"":
                problem = "line is empty"
            else:
                problem += f" ({columns[0]} to {columns[-1]})"
            bad.append(BadLine(int(line), None, problem))
        cuts = separators[first[whole, None] + np.arange(width - 1)]
        content_ends = line_ends[whole] - (text[line_ends[whole] - 1] == _RETURN)
        starts = np.concatenate([line_starts[whole, None], cuts + 1], axis=1)
        ends = np.concatenate([cuts, content_ends[:, None]], axis=1)
        return cls(block, text, starts, ends - starts, whole, line_ends, bad)

    def labels(self, column: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(labels, which are neither 0 nor 1)."""
        labels = self.text[self.starts[:, column]] - np.uint8(ord("0"))
        return labels.astype(np.float32), (self.lengths[:, column] != 1) | (labels > 1)

    def gather(
        self,
        labels: NDArray[np.float32],
        dense: NDArray[np.float32],
        keys: NDArray[np.int64],
        wrong: NDArray[np.bool_],
        explain: Callable[[int, str], tuple[str, str]],
    ) -> Block:
        """The block of all lines without a wrong field. `wrong` is (W, F); `explain` makes of a
        field and its value, shortened and quoted, the column and the problem."""
        good = ~wrong.any(axis=1)
        bad = list(self.bad)
        for row in np.flatnonzero(~good):
            field = int(np.argmax(wrong[row]))
            start = self.starts[row, field]
            value = self.block[start : start + self.lengths[row, field]]
            shown = repr(value[:_SHOWN_BYTES].decode("utf-8", "replace"))
            shown += "..." if len(value) > _SHOWN_BYTES else ""
            bad.append(BadLine(int(self.whole[row]), *explain(field, shown)))
        bad.sort(key=lambda line: line.index)
        return Block(
            labels=labels[good],
            dense=dense[good],
            keys=keys[good],
            lines=self.whole[good],
            ends=np.minimum(self.line_ends[self.whole[good]] + 1, len(self.block)),
            bad=bad,
            num_lines=len(self.line_ends),
        )


_SEPARATED = {
    "\t": "tab-separated",
    ",": "comma-separated",
    ";": "semicolon-separated",
    "\x1f": "separated",
}


def number(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    digit_values: NDArray[np.uint8],
    base: int,
    most_digits: int,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(values, which are no numbers): the first digit of all fields, then the second, and so on."""
    values = np.zeros(starts.shape, np.uint64)
    wrong = lengths > most_digits
    for place in range(min(int(lengths.max(initial=0)), most_digits)):
        inside = lengths > place
        digit = digit_values[text.take(starts + place, mode="clip")]
        wrong |= inside & (digit == 255)
        values = np.where(inside, values * np.uint64(base) + digit, values)
    return values, wrong
