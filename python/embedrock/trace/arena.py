"""Queries in a fixed piece of memory: keys from its front, what they belong to from its back.

When both meet it is full, and can be thinned out where it is. No object is made per query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Arena"]

Words = npt.NDArray[np.uint64]

_ENTRY = 2
"""Words of an entry, the keys of a query in one table: the query; the table and how many keys."""
_TABLE_BITS = 48
"""The position of the table in a word: tables are below 2^16, and keys of a query below 2^48."""
_LENGTH_MASK = np.uint64((1 << _TABLE_BITS) - 1)
_WORD_BYTES = 8
_BLOCK = 1 << 16
"""Entries that are looked at together while all are thinned out."""
_BLOCK_KEYS = 1 << 20
"""Keys that are moved together then, or those of one entry."""


class Arena:
    """Queries in the order in which they came, each with its number and the keys of some tables."""

    def __init__(self, size: int) -> None:
        """Takes so many bytes, which the system gives as they are filled."""
        self._words = np.empty(size // _WORD_BYTES, np.uint64)
        self._entries = 0
        self.queries = 0
        """Number of queries."""
        self.keys = 0
        """Number of keys of all queries."""

    @property
    def nbytes(self) -> int:
        """Bytes that are filled."""
        return _WORD_BYTES * (self.keys + _ENTRY * self._entries)

    def holds(self, parts: Sequence[tuple[int, Words]], *, empty: bool = False) -> bool:
        """Whether a query fits in, or with ``empty`` whether it would if there were no other."""
        used = 0 if empty else self.keys + _ENTRY * self._entries
        return used + sum(len(keys) + _ENTRY for _, keys in parts) <= len(self._words)

    def add(self, query: int, parts: Sequence[tuple[int, Words]]) -> None:
        """Takes a query, for which there is room: keys by the number of their table."""
        for table, keys in parts:
            self._words[self.keys : self.keys + len(keys)] = keys
            self.keys += len(keys)
            self._entries += 1
            place = len(self._words) - _ENTRY * self._entries
            self._words[place] = query
            self._words[place + 1] = table << _TABLE_BITS | len(keys)
        self.queries += 1

    def thin(self, marked: Callable[[Words], npt.NDArray[np.bool_]]) -> None:
        """Keeps the queries whose numbers ``marked`` accepts.

        Its additional memory is that of a block, whatever the number of queries.
        """
        entries = self._all()
        count, keys = 0, 0
        self.queries, last = 0, -1
        begin, first = 0, 0
        while begin < len(entries):
            some = entries[begin : begin + _BLOCK].copy()
            ends = np.cumsum((some[:, 1] & _LENGTH_MASK).astype(np.int64))
            fitting = max(int(np.searchsorted(ends, _BLOCK_KEYS, side="right")), 1)
            some, ends = some[:fitting], ends[:fitting]
            chosen = marked(some[:, 0])
            moved = self._words[first : first + int(ends[-1])]
            moved = moved[np.repeat(chosen, np.diff(ends, prepend=0))]
            self._words[keys : keys + len(moved)] = moved
            begin, first, keys = begin + len(some), first + int(ends[-1]), keys + len(moved)
            some = some[chosen]
            entries[count : count + len(some)] = some
            count += len(some)
            if len(some):
                numbers = some[:, 0]
                self.queries += int(np.count_nonzero(np.diff(numbers))) + (int(numbers[0]) != last)
                last = int(numbers[-1])
        # The first entry lies at the end of the memory: the first ones are those that stay.
        self._entries, self.keys = count, keys

    def contents(self) -> tuple[Words, Words, npt.NDArray[np.int64], Words]:
        """(query, table, number of keys) of each entry, and all keys; copies, in order of the
        queries' numbers."""
        entries, keys = self._all().copy(), self._words[: self.keys].copy()
        lengths = (entries[:, 1] & _LENGTH_MASK).astype(np.int64)
        order = np.argsort(entries[:, 0], kind="stable")
        if (np.diff(order) != 1).any():  # verbs of several threads have overtaken each other
            starts = (np.cumsum(lengths) - lengths)[order]
            entries, lengths = entries[order], lengths[order]
            before = np.cumsum(lengths) - lengths
            keys = keys[np.arange(len(keys)) + np.repeat(starts - before, lengths)]
        return entries[:, 0], entries[:, 1] >> np.uint64(_TABLE_BITS), lengths, keys

    def _all(self) -> Words:
        """(entries, 2) in the order in which they came: a view."""
        words = self._words[len(self._words) - _ENTRY * self._entries :]
        return words.reshape(self._entries, _ENTRY)[::-1]
