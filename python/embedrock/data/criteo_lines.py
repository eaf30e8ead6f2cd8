"""Parses Criteo lines, a block of whole lines at a time, with NumPy and without a loop per value.

A line is `label`, 13 integers, 26 hexadecimal tokens, separated by tabs; an integer or a token may
be missing. Integers become log(1 + x) (0 when missing or negative), tokens 64-bit keys of their
field; a missing token is a key, too. A line that is anything else is malformed and is reported with
its place and what is wrong with it, never guessed at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedrock.data.hashing import mix
from embedrock.data.lines import DECIMAL, Block, Fields, number

INTEGERS = 13
TOKENS = 26
#: More digits than any published field has; what is longer is damage, not data.
_INTEGER_DIGITS = 15
_TOKEN_DIGITS = 16
_MINUS = ord("-")

_HEX = DECIMAL.copy()
for _value, _character in enumerate(b"abcdef", start=10):
    _HEX[_character] = _value
for _value, _character in enumerate(b"ABCDEF", start=10):
    _HEX[_character] = _value


def column_name(field: int) -> str:
    """`label`, `I1` to `I13`, `C1` to `C26`."""
    if field == 0:
        return "label"
    return f"I{field}" if field <= INTEGERS else f"C{field - INTEGERS}"


COLUMNS = [column_name(field) for field in range(1 + INTEGERS + TOKENS)]


def parse(block: bytes) -> Block:
    """Parses whole lines: `block` ends with a newline or with the text."""
    fields = Fields.split(block, "\t", COLUMNS)
    first_token = 1 + INTEGERS
    starts, lengths = fields.starts, fields.lengths
    wrong = np.zeros(starts.shape, bool)
    labels, wrong[:, 0] = fields.labels(0)
    integers, wrong[:, 1:first_token] = _integers(
        fields.text, starts[:, 1:first_token], lengths[:, 1:first_token]
    )
    keys, wrong[:, first_token:] = _tokens(
        fields.text, starts[:, first_token:], lengths[:, first_token:]
    )
    dense = np.log1p(np.maximum(integers, 0)).astype(np.float32)
    return fields.gather(labels, dense, keys, wrong, _explain)


def _integers(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(values, which fields are not integers); a missing one is 0."""
    negative = (lengths > 0) & (text[np.minimum(starts, len(text) - 1)] == _MINUS)
    digits = lengths - negative
    values, wrong = number(text, starts + negative, digits, DECIMAL, 10, _INTEGER_DIGITS)
    wrong |= negative & (digits == 0)
    signed = values.view(np.int64)
    return np.where(negative, -signed, signed), wrong


def _tokens(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(keys, which fields are not tokens). Digits are counted, too: `0a` is not `a`."""
    values, wrong = number(text, starts, lengths, _HEX, 16, _TOKEN_DIGITS)
    salt = mix(np.arange(1, TOKENS + 1, dtype=np.uint64))
    keys = mix((values ^ (lengths.astype(np.uint64) << np.uint64(58))) + salt)
    return keys.view(np.int64), wrong


def _explain(field: int, shown: str) -> tuple[str, str]:
    if field == 0:
        problem = f"{shown} is not 0 or 1"
    elif field <= INTEGERS:
        problem = f"{shown} is not an integer of at most {_INTEGER_DIGITS} digits"
    else:
        problem = f"{shown} is not a hexadecimal token of at most {_TOKEN_DIGITS} digits"
    return column_name(field), problem
