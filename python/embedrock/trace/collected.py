"""Queries as they come from files, in parts, thinned out on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embedrock.data.query_logs import Part
from embedrock.errors import MisuseError
from embedrock.trace.queries import Queries, offsets_of
from embedrock.trace.sampling import limit, marked

__all__ = ["Collected", "Part"]


class Collected:
    """Parts of a trace that follow each other.

    It takes the memory of what is kept, and while :meth:`tables` joins it that of a part more.
    """

    def __init__(self, share: float, seed: int) -> None:
        """Keeps a share of the queries, by the hash of their number in all parts together."""
        self._below, self._seed = limit(share), seed
        self._parts: dict[str, list[Part]] = {}
        self.seen = 0
        """Queries that have come."""
        self.kept = 0
        """Those of them that are kept."""

    def add(self, tables: Mapping[str, Part]) -> None:
        """Takes a part of each table, with equal numbers of queries; its arrays must not change
        later.

        Tables without requests may be left out. Errors: ``MisuseError`` if only one of two parts
        has a table without a name.
        """
        if self._parts and ("" in tables) != ("" in self._parts):
            raise MisuseError(
                f"has {_named(tables)}, and what came before has {_named(self._parts)}: name the "
                f"table of files that do not say it (table, --table)"
            )
        count = len(next(iter(tables.values()))[1])
        numbers = np.arange(self.seen, self.seen + count, dtype=np.uint64)
        chosen = marked(numbers, self._seed, self._below)
        for name in tables:
            if name not in self._parts:
                self._parts[name] = [_nothing(self.kept)] if self.kept else []
        self.seen += count
        self.kept += int(np.count_nonzero(chosen))
        for name, parts in self._parts.items():
            keys, lengths = tables[name] if name in tables else _nothing(count)
            if not chosen.all():
                keys, lengths = keys[np.repeat(chosen, lengths)], lengths[chosen]
            parts.append((keys, lengths))

    def tables(self) -> dict[str, Queries]:
        """All parts as one; nothing is left here."""
        parts, self._parts = self._parts, {}
        return {name: _joined(some) for name, some in parts.items()}


def _nothing(queries: int) -> Part:
    """So many queries that ask nothing of a table."""
    return np.empty(0, np.uint64), np.zeros(queries, np.int64)


def _named(tables: Mapping[str, object]) -> str:
    names = ", ".join(repr(name) for name in tables if name)
    return f"tables {names}" if names else "a table without a name"


def _joined(parts: list[Part]) -> Queries:
    if len(parts) == 1:
        keys, lengths = parts[0]
        return Queries(keys, offsets_of(lengths))
    values = np.empty(sum(len(keys) for keys, _ in parts), np.uint64)
    offsets = offsets_of(np.concatenate([lengths for _, lengths in parts]))
    parts.reverse()
    place = 0
    while parts:  # each part is given back once it is copied
        keys, _ = parts.pop()
        values[place : place + len(keys)] = keys
        place += len(keys)
    return Queries(values, offsets)
