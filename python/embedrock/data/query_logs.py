"""The grammar of query logs: text that says, line by line, which ids were wanted together.

There are two formats. In *ids* a line is ids, with spaces or tabs between them. In *sessions* it
is the name of a session, one tab, and ids with spaces between them; the name is no id. A line that
fits both is never guessed at: the reader is told which it is, or refuses it. An id is a whole
number of 64 bits that is the key itself, or any word, of which `embedrock.hash_keys` makes the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock.data.bad_lines import BadLines
from embedrock.data.errors import DataError
from embedrock.data.lines import DECIMAL, number
from embedrock.data.text import TextStream

__all__ = ["FORMATS", "KEYS", "Part", "parts"]

FORMATS = ("ids", "sessions")
KEYS = ("numbers", "words")

Part: TypeAlias = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Keys of some queries of a table, one query after another, and how many each of them has."""
Places: TypeAlias = npt.NDArray[np.int64]

_BLOCK_BYTES = 4 << 20
"""The size of a block that is parsed at once; parsing takes some ten times as much memory."""
_LINE_BYTES_MAX = 256 << 20
"""A longer line is no query: the file has no line breaks."""
_SHOWN_BYTES = 40
_SHOWN_IDS = 3
_DIGITS_MAX = 20
_SHORT = 19
"""Digits with which no number is 2^64."""
_PLAIN = b"0123456789 \t\r\n"
_NEWLINE, _TAB, _SPACE, _MINUS, _ONE = b"\n\t -1"
_TEN_TO_19 = np.uint64(10**19)
_MOST_NEGATIVE = np.uint64(1 << 63)
_BETWEEN = np.zeros(256, np.bool_)
_BETWEEN[list(b" \t\r\n")] = True
_EXPECTED = "expected ids as whole numbers from -2^63 to 2^64 - 1 with spaces between them"


def parts(
    path: Path,
    *,
    form: str | None = None,
    keys: str = "numbers",
    bad: BadLines | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[Part]:
    """(keys, lengths of the queries) of some lines after another.

    ``form`` is one of ``FORMATS``; None: ids, unless a line may be a session as well. ``keys`` is
    one of ``KEYS``. ``bad`` takes malformed lines, which are then left out; without it the first
    is an error. ``progress`` gets the bytes of the file that were read.

    Errors: ``DataError`` naming the line.
    """
    reader = _Reader(path, form, keys == "words", BadLines(skip=False) if bad is None else bad)
    line, rest = 1, b""
    with TextStream(path) as stream:
        while True:
            block = stream.read(_BLOCK_BYTES)
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
                yield reader.read(text, line)
                line += text.count(b"\n")
            if progress is not None:
                progress(stream.packed_offset)
            if whole:
                return


@dataclass(frozen=True)
class _Lines:
    """Whole lines with the tokens in them: (T,) where each begins and its bytes, (L,) where lines
    begin and end."""

    block: bytes
    text: npt.NDArray[np.uint8]
    starts: Places
    lengths: Places
    line_starts: Places
    line_ends: Places

    @classmethod
    def of(cls, block: bytes, text: npt.NDArray[np.uint8]) -> _Lines:
        """``text`` is that of the block; what is no token may be blank there."""
        between = _BETWEEN.take(text)
        # The text ends with a line break, so every token that begins also ends in it.
        edges = np.flatnonzero(between[1:] != between[:-1]) + 1
        if not between[0]:
            edges = np.concatenate([[0], edges])
        starts, lengths = edges[0::2], np.diff(edges)[0::2]
        ends = np.flatnonzero(text == _NEWLINE)
        return cls(block, text, starts, lengths, np.concatenate([[0], ends[:-1] + 1]), ends)

    def counts(self) -> Places:
        """Tokens of each line."""
        found: Places = np.diff(np.searchsorted(self.starts, self.line_ends), prepend=0)
        return found

    def line_of(self, token: int) -> int:
        """The line of a token, from 0 on."""
        return int(np.searchsorted(self.line_ends, self.starts[token]))

    def word(self, token: int) -> bytes:
        """A token."""
        begin = int(self.starts[token])
        return self.block[begin : begin + int(self.lengths[token])]


class _Reader:
    """Reads blocks of whole lines of one file."""

    def __init__(self, path: Path, form: str | None, words: bool, bad: BadLines) -> None:
        self._path, self._form, self._words, self._bad = path, form, words, bad
        #: Empty lines with nothing behind them so far.
        self._empty: list[int] = []

    def read(self, block: bytes, first_line: int) -> Part:
        """The keys of whole lines, and how many each has that is not malformed."""
        block = block if block.endswith(b"\n") else block + b"\n"
        text = np.frombuffer(block, np.uint8)
        good: npt.NDArray[np.bool_] | None = None
        if self._form == "sessions":
            lines, good = self._sessions(block, text, first_line)
        else:
            lines = _Lines.of(block, text)
            if self._form is None and b"\t" in block:
                self._refuse_ambiguous(lines, first_line)
        counts = lines.counts()
        good = np.ones(len(counts), np.bool_) if good is None else good
        keys = self._keys(lines, good, first_line)
        if good.all():
            return keys, counts
        return keys[np.repeat(good, counts)], counts[good]

    def _sessions(
        self, block: bytes, text: npt.NDArray[np.uint8], first_line: int
    ) -> tuple[_Lines, npt.NDArray[np.bool_]]:
        """The lines without the names of sessions, and which of them are sessions."""
        ends = np.flatnonzero(text == _NEWLINE)
        starts = np.concatenate([[0], ends[:-1] + 1])
        tabs = np.flatnonzero(text == _TAB)
        first = np.searchsorted(tabs, starts)
        count = np.searchsorted(tabs, ends) - first
        named = np.flatnonzero(count == 1)
        # A name is as blank as what stands between ids: from the beginning of its line to its tab.
        change = np.zeros(len(text) + 1, np.int8)
        change[starts[named]] += 1
        change[tabs[first[named]] + 1] -= 1
        lines = _Lines.of(block, np.where(np.cumsum(change)[:-1] > 0, np.uint8(_SPACE), text))
        good = (count == 1) & (lines.counts() > 0)
        for place in np.flatnonzero(~good).tolist():
            if not block[starts[place] : ends[place]].strip(b"\r"):
                self._empty.append(first_line + place)
                continue
            problem = "session has no items"
            if count[place] != 1:
                problem = f"{count[place] + 1} tab-separated fields, expected 2: session, its items"
            self._tell_empty(before=first_line + place)
            self._bad.add(DataError(problem, path=self._path, line=first_line + place))
        if good.any():
            self._tell_empty(before=first_line + int(np.flatnonzero(good)[-1]))
        return lines, good

    def _tell_empty(self, before: int) -> None:
        """Empty lines before this one: those at the end of the text are none."""
        for line in self._empty:
            if line < before:
                problem = "line is empty, expected session, tab, its items"
                self._bad.add(DataError(problem, path=self._path, line=line))
        self._empty = [line for line in self._empty if line >= before]

    def _refuse_ambiguous(self, lines: _Lines, first_line: int) -> None:
        """Errors: ``DataError`` for a line that may be ids as well as a session."""
        tabs = np.flatnonzero(lines.text == _TAB)
        first = np.searchsorted(tabs, lines.line_starts)
        one = np.flatnonzero(np.searchsorted(tabs, lines.line_ends) - first == 1)
        begin = np.searchsorted(lines.starts, lines.line_starts[one])
        before = np.searchsorted(lines.starts, tabs[first[one]]) - begin
        behind = np.searchsorted(lines.starts, lines.line_ends[one]) - begin - before
        both = np.flatnonzero((before == 1) & (behind > 0))
        if not len(both):
            return
        token, count = int(begin[both[0]]), int(behind[both[0]])
        name, *ids = (
            lines.word(token + place).decode("utf-8", "replace")[:_SHOWN_BYTES]
            for place in range(min(count, _SHOWN_IDS) + 1)
        )
        more = ", ..." if count > _SHOWN_IDS else ""
        raise DataError(
            f"may be ids with a tab between them ({name}, {', '.join(ids)}{more}), or the ids of a "
            f"session that is called {name} ({', '.join(ids)}{more}): say which, "
            f'format="ids" or format="sessions"',
            path=self._path,
            line=first_line + int(one[both[0]]),
        )

    def _keys(
        self, lines: _Lines, good: npt.NDArray[np.bool_], first_line: int
    ) -> npt.NDArray[np.uint64]:
        """The keys of all tokens; lines of which one is no id are not `good` any more."""
        if self._words:
            starts, lengths = map(np.ascontiguousarray, (lines.starts, lines.lengths))
            return _core.hash_pieces(lines.block, starts, lengths)
        text, starts, lengths = lines.text, lines.starts, lines.lengths
        # Of a text without numbers, NumPy makes one.
        if 0 < lengths.max(initial=0) <= _SHORT:
            plain = text.tobytes() if self._form == "sessions" else lines.block
            if not plain.translate(None, _PLAIN):
                return np.fromstring(plain, np.uint64, sep=" ")
        negative = text[starts] == _MINUS
        digits, counts = starts + negative, lengths - negative
        values, wrong = number(text, digits, counts, DECIMAL, 10, _DIGITS_MAX)
        wrong |= counts == 0
        beyond = _beyond_uint64(text, digits, counts, values)
        beyond |= negative & (values > _MOST_NEGATIVE)
        for token in np.flatnonzero(wrong | beyond).tolist():
            line = lines.line_of(token)
            if good[line]:
                good[line] = False
                problem = _problem(lines.word(token), bool(wrong[token]))
                self._bad.add(DataError(problem, path=self._path, line=first_line + line))
        return np.where(negative, np.uint64(0) - values, values)


def _beyond_uint64(
    text: npt.NDArray[np.uint8],
    digits: Places,
    counts: Places,
    values: npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    """Finds numbers of 20 digits that have overflowed. Numbers from 10^19 to 2^64 begin with a one;
    larger numbers that begin with a one wrap to less than 10^19."""
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
    return (
        f'{said} is no id, {_EXPECTED}; keys="words" makes keys of words, and format="sessions" '
        f"leaves out what stands before a tab"
    )
