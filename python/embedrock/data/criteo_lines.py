"""Parses Criteo lines, a block of whole lines at a time, with NumPy and without a loop per value.

A line is `label`, 13 integers, 26 hexadecimal tokens, separated by tabs; an integer or a token may
be missing. Integers become log(1 + x) (0 when missing or negative), tokens 64-bit keys of their
field; a missing token is a key, too. A line that is anything else is malformed and is reported with
its place and what is wrong with it, never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedrock.data.hashing import mix

INTEGERS = 13
TOKENS = 26
FIELDS = 1 + INTEGERS + TOKENS
#: More digits than any published field has; what is longer is damage, not data.
_INTEGER_DIGITS = 15
_TOKEN_DIGITS = 16
_TAB, _NEWLINE, _RETURN, _MINUS = b"\t\n\r-"

_DIGIT = np.full(256, 255, np.uint8)
for _value, _character in enumerate(b"0123456789"):
    _DIGIT[_character] = _value
_HEX = _DIGIT.copy()
for _value, _character in enumerate(b"abcdef", start=10):
    _HEX[_character] = _value
for _value, _character in enumerate(b"ABCDEF", start=10):
    _HEX[_character] = _value


@dataclass(frozen=True)
class BadLine:
    """A malformed line: its index in the block, the field (None: the line as such), the problem."""

    index: int
    column: str | None
    problem: str


@dataclass(frozen=True)
class Block:
    """The good lines of a block: `lines` are their indices among all, `ends` the offsets behind.

    Shapes: labels (L,) float32, dense (L, 13) float32, keys (L, 26) int64, lines, ends (L,) int64.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: NDArray[np.int64]
    lines: NDArray[np.int64]
    ends: NDArray[np.int64]
    bad: list[BadLine]
    num_lines: int


def column_name(field: int) -> str:
    """`label`, `I1` to `I13`, `C1` to `C26`."""
    if field == 0:
        return "label"
    return f"I{field}" if field <= INTEGERS else f"C{field - INTEGERS}"


def parse(block: bytes) -> Block:
    """Parses whole lines: `block` ends with a newline or with the text."""
    text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    line_ends = np.flatnonzero(text == _NEWLINE)
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    tabs = np.flatnonzero(text == _TAB)
    first_tab = np.searchsorted(tabs, line_starts)
    num_fields = np.searchsorted(tabs, line_ends) - first_tab + 1
    whole = np.flatnonzero(num_fields == FIELDS)
    bad = [
        BadLine(int(i), None, _wrong_width(block, line_starts[i], line_ends[i], int(num_fields[i])))
        for i in np.flatnonzero(num_fields != FIELDS)
    ]

    separators = tabs[first_tab[whole, None] + np.arange(FIELDS - 1)]
    content_ends = line_ends[whole] - (text[line_ends[whole] - 1] == _RETURN)
    starts = np.concatenate([line_starts[whole, None], separators + 1], axis=1)
    ends = np.concatenate([separators, content_ends[:, None]], axis=1)
    lengths = ends - starts

    labels = text[starts[:, 0]] - np.uint8(ord("0"))
    wrong = np.zeros(starts.shape, bool)
    wrong[:, 0] = (lengths[:, 0] != 1) | (labels > 1)
    integers, wrong[:, 1 : 1 + INTEGERS] = _integers(
        text, starts[:, 1 : 1 + INTEGERS], lengths[:, 1 : 1 + INTEGERS]
    )
    keys, wrong[:, 1 + INTEGERS :] = _tokens(
        text, starts[:, 1 + INTEGERS :], lengths[:, 1 + INTEGERS :]
    )
    good = ~wrong.any(axis=1)
    for row in np.flatnonzero(~good):
        field = int(np.argmax(wrong[row]))
        value = block[starts[row, field] : ends[row, field]]
        bad.append(BadLine(int(whole[row]), column_name(field), _wrong_value(field, value)))
    bad.sort(key=lambda line: line.index)
    return Block(
        labels=labels[good].astype(np.float32),
        dense=np.log1p(np.maximum(integers[good], 0)).astype(np.float32),
        keys=keys[good],
        lines=whole[good],
        ends=np.minimum(line_ends[whole[good]] + 1, len(block)),
        bad=bad,
        num_lines=len(line_ends),
    )


def _integers(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(values, which fields are not integers); a missing one is 0."""
    negative = (lengths > 0) & (text[np.minimum(starts, len(text) - 1)] == _MINUS)
    digits = lengths - negative
    values, wrong = _number(text, starts + negative, digits, _DIGIT, 10, _INTEGER_DIGITS)
    wrong |= negative & (digits == 0)
    signed = values.view(np.int64)
    return np.where(negative, -signed, signed), wrong


def _tokens(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(keys, which fields are not tokens). Digits are counted, too: `0a` is not `a`."""
    values, wrong = _number(text, starts, lengths, _HEX, 16, _TOKEN_DIGITS)
    salt = mix(np.arange(1, TOKENS + 1, dtype=np.uint64))
    keys = mix((values ^ (lengths.astype(np.uint64) << np.uint64(58))) + salt)
    return keys.view(np.int64), wrong


def _number(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    digit_values: NDArray[np.uint8],
    base: int,
    most_digits: int,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Reads digits of all fields, the first of each, then the second: as many passes as digits."""
    values = np.zeros(starts.shape, np.uint64)
    wrong = lengths > most_digits
    for place in range(min(int(lengths.max(initial=0)), most_digits)):
        inside = lengths > place
        digit = digit_values[text.take(starts + place, mode="clip")]
        wrong |= inside & (digit == 255)
        values = np.where(inside, values * np.uint64(base) + digit, values)
    return values, wrong


def _wrong_width(block: bytes, start: int, end: int, num_fields: int) -> str:
    if block[start:end].strip() == b"":
        return "line is empty"
    return f"{num_fields} tab-separated fields, expected {FIELDS} (label, I1 to I13, C1 to C26)"


def _wrong_value(field: int, value: bytes) -> str:
    shown = repr(value[:40].decode("utf-8", "replace")) + ("..." if len(value) > 40 else "")
    if field == 0:
        return f"{shown} is not 0 or 1"
    if field <= INTEGERS:
        return f"{shown} is not an integer of at most {_INTEGER_DIGITS} digits"
    return f"{shown} is not a hexadecimal token of at most {_TOKEN_DIGITS} digits"
