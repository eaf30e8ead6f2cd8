"""``Trace``: queries in order, each the keys of one or several tables that were asked together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from embedrock._arguments import (
    Progress,
    choice,
    function,
    iterated,
    named_path,
    shown,
    text,
    whole,
)
from embedrock.data.query_logs import FORMATS, KEYS
from embedrock.errors import MisuseError
from embedrock.trace import files
from embedrock.trace.queries import (
    Offsets,
    Queries,
    Values,
    checked,
    flat_keys,
    offsets_of,
    total_keys,
)
from embedrock.trace.sampling import limit, marked, share_of

__all__ = ["Trace"]

_TOP = 0.01


class Trace:
    """Queries in the order in which they were made.

    A query is the keys that are wanted together: a session, a basket, the rows of a request, a
    batch of a training. It may have keys of several tables. A trace is in memory, 8 bytes for each
    key and for each query of a table.

    >>> values, offsets = np.array([5, 7, 5, 9], np.uint64), np.array([0, 3, 3, 4])
    >>> trace = embedrock.trace.Trace({"items": (values, offsets)})
    >>> trace
    <embedrock.trace.Trace of 3 queries and 4 keys, tables 'items'>
    >>> trace.save("trace.npz")
    >>> again = embedrock.trace.Trace.load("trace.npz")
    >>> again.values.tolist(), again.offsets.tolist()
    ([5, 7, 5, 9], [0, 3, 3, 4])
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        """Takes ``(values, offsets)`` of each table, by its name; ``""`` where it has none.

        Shapes: ``values (keys,) uint64 or int64, offsets (queries + 1,) int64``. Query ``i`` asks
        a table for ``values[offsets[i]:offsets[i + 1]]``, which may be nothing; every table has as
        many queries. Arrays are not copied where they have these types: do not change them later.

        Errors: ``MisuseError`` for arrays that are no trace, and where there is no query or key.
        """
        if not isinstance(tables, Mapping):
            raise MisuseError(f"tables is {shown(tables)}, expected a dict of (values, offsets)")
        self._tables: dict[str, Queries] = {}
        for name, given in tables.items():
            label = text("the name of a table", name)
            if isinstance(given, Queries):
                given = (given.values, given.offsets)
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise MisuseError(
                    f"table {label!r} is {shown(given)}, expected a pair (values, offsets)"
                )
            self._tables[label] = checked(given[0], given[1], label)
        counts = {len(one) for one in self._tables.values()}
        if len(counts) > 1:
            said = ", ".join(f"{len(one):,} of {name!r}" for name, one in self._tables.items())
            raise MisuseError(f"there are queries {said}, expected as many of each table")
        if not self._tables or total_keys(self._tables) == 0:
            none = max(counts, default=0)
            raise MisuseError(f"{none:,} queries have no key together, expected one at least")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        table: str | None = None,
        column: str | None = None,
        format: Literal["ids", "sessions"] | None = None,
        keys: Literal["numbers", "words"] = "numbers",
        sample: float = 1.0,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Trace:
        """The trace of a file, or of several one after another.

        The first bytes of the file give its kind: ``.npz``; text with a query per line, ids with
        spaces between them, plain, gzip or zstd; Parquet with a query per row, in the list
        ``column``, which may be left out if there is only one. Ids are whole numbers of 64 bits,
        signed or not: -1 is 2^64 - 1.

        ``format`` is of text: ``"ids"``, lines of ids; ``"sessions"``, lines of the name of a
        session, a tab, and ids with spaces between them. None reads ids, and refuses a line that
        may be either. ``keys="words"`` makes keys of the ids by :func:`embedrock.hash_keys`, as
        ``embedrock train`` does of csv and sessions.

        ``table`` names the table of a file that names none; of several tables it takes one.
        ``sample`` below 1 keeps that share while reading, as :meth:`sample` would of the whole: of
        text and Parquet the rest is never in memory at once. ``progress`` is called with bytes that
        were read, and all.

        Errors: ``DataError``, a ``ValueError``, naming file, line or row, what is there and what
        was expected; also where zstd or pyarrow is not installed.

        Blocking: reads and parses.

        >>> with open("baskets.txt", "w") as file:
        ...     count = file.write("7 8\\n8 9 10\\n")
        >>> embedrock.trace.Trace.load("baskets.txt", table="items").tables["items"].values
        array([ 7,  8,  8,  9, 10], dtype=uint64)
        """
        if isinstance(path, (str, bytes, os.PathLike)):
            paths = [named_path("path", path)]
        else:
            several = iterated("path", path, "a path or several")
            paths = [named_path("path", one) for one in several]
        if not paths:
            raise MisuseError("path is an empty list, expected a path or several")
        return cls(
            files.read(
                paths,
                table=None if table is None else text("table", table),
                column=None if column is None else text("column", column),
                form=None if format is None else choice("format", format, FORMATS),
                keys=choice("keys", keys, KEYS),
                share=share_of("sample", sample, whole=True),
                seed=whole("seed", seed, 0),
                progress=function("progress", progress, "(done, total)"),
            )
        )

    @classmethod
    def of(cls, queries: Iterable[Any], *, table: str = "") -> Trace:
        """The trace of queries that are there one by one, such as mini-batches sampled ahead.

        Each is the keys of ``table``: an array or tensor on the CPU of any shape, int64 or uint64,
        or a list. The queries may come from a generator; what is kept is their keys.

        Errors: ``MisuseError`` naming the query that is none, and where there is no key.

        >>> trace = embedrock.trace.Trace.of([[5, 7, 5], [9]], table="items")
        >>> trace.values.tolist(), trace.offsets.tolist()
        ([5, 7, 5, 9], [0, 3, 4])
        """
        name = text("table", table)
        try:
            each = iter(queries)
        except TypeError:
            expected = "expected the keys of each query"
            raise MisuseError(f"queries is {shown(queries)}, {expected}") from None
        found = [flat_keys(keys, f"query {number}") for number, keys in enumerate(each)]
        if not found:
            raise MisuseError("queries is empty, expected the keys of one at least")
        return cls({name: (np.concatenate(found), offsets_of(np.array([len(k) for k in found])))})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace in the format that the name says.

        ``.npz`` holds all tables. ``.txt``, ``.txt.gz``, ``.txt.zst`` and ``.parquet`` hold one,
        and text does not hold its name. A file of that name is replaced when the new one is whole.

        Errors: ``MisuseError`` for another name and for several tables; ``IoError``; ``DataError``
        where zstd or pyarrow is not installed.

        Durability: none; the operating system writes it back when it likes.
        """
        files.write(named_path("path", path), self._tables)

    @property
    def tables(self) -> dict[str, Queries]:
        """The queries of each table; the name is ``""`` if a file did not give it."""
        return dict(self._tables)

    @property
    def values(self) -> Values:
        """Keys of a trace of one table: (keys,) uint64. Errors: ``MisuseError`` for several."""
        return self._single("values").values

    @property
    def offsets(self) -> Offsets:
        """The begin of each query, and the end, in a trace of one table: (queries + 1,) int64.

        Errors: ``MisuseError`` for several.
        """
        return self._single("offsets").offsets

    @property
    def queries(self) -> int:
        """Number of queries."""
        return len(next(iter(self._tables.values())))

    @property
    def keys(self) -> int:
        """Number of keys in all queries, equal ones included."""
        return total_keys(self._tables)

    def only(self, table: str) -> Trace:
        """The trace of one table, with queries that ask nothing of it.

        Errors: ``MisuseError`` where it has no such table, or no key of it.
        """
        if text("table", table) not in self._tables:
            known = ", ".join(map(repr, self._tables))
            raise MisuseError(f"the trace has no table {shown(table)}; it has {known}")
        return Trace({table: self._tables[table]})

    def split(self, share: float) -> tuple[Trace, Trace]:
        """The first queries and the others, in their order, at least one each.

        Learn from the first part and test with the second one, which comes later, as in use.

        Errors: ``MisuseError`` for a share that is not between 0 and 1, and where one of the two
        has no key.

        >>> trace = embedrock.trace.Trace({"": ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])})
        >>> [part.values.tolist() for part in trace.split(0.8)]
        [[1, 2, 3, 4], [5]]
        """
        share, queries = share_of("share", share, whole=False), self.queries
        if queries < 2:
            raise MisuseError("the trace has one query, expected two at least to split it")
        at = min(max(round(share * queries), 1), queries - 1)
        return self._of(lambda one: one.between(0, at)), self._of(
            lambda one: one.between(at, queries)
        )

    def sample(self, share: float, seed: int = 0) -> Trace:
        """About that share of the queries, whole and in their order.

        A query is in it when the hash of its number and the seed is small: the same call gives the
        same queries, and a smaller share a part of them.

        Errors: ``MisuseError`` for a share that is 0 or below, or more than 1, and where no key is
        left.

        >>> trace = embedrock.trace.Trace({"": (range(1000), range(1001))})
        >>> trace.sample(0.1).queries
        86
        """
        below = limit(share_of("share", share, whole=True))
        numbers = np.arange(self.queries, dtype=np.uint64)
        chosen = marked(numbers, whole("seed", seed, 0), below)
        if not chosen.any():
            raise MisuseError(
                f"a sample of {share:g} has none of the {self.queries:,} queries; take a larger one"
            )
        return self._of(lambda one: one.kept(chosen))

    def stats(self) -> dict[str, Any]:
        """Statistics over all tables, and in ``tables`` for each of several.

        ``queries``, ``keys``, ``distinct_keys``; ``length_mean`` and ``length_max``, keys of a
        query; ``top_1_percent_share``, how much of the keys are of the hundredth of the distinct
        ones that is asked for most (one at least).

        Blocking: sorts the keys, a second per ten million.

        >>> trace = embedrock.trace.Trace({"": ([1, 1, 1, 2], [0, 2, 3, 4])})
        >>> trace.stats()["length_max"], trace.stats()["top_1_percent_share"]
        (2, 0.75)
        """
        counts = {
            name: np.unique(one.values, return_counts=True)[1] for name, one in self._tables.items()
        }
        lengths = {name: np.diff(one.offsets) for name, one in self._tables.items()}
        found = _stats(np.concatenate(list(counts.values())), sum(lengths.values()))
        if len(self._tables) > 1:
            found["tables"] = {name: _stats(counts[name], lengths[name]) for name in counts}
        return found

    def __repr__(self) -> str:
        names = ", ".join(map(repr, filter(None, self._tables)))
        of = f", tables {names}" if names else ""
        return f"<embedrock.trace.Trace of {self.queries:,} queries and {self.keys:,} keys{of}>"

    def _of(self, part: Any) -> Trace:
        return Trace({name: part(one) for name, one in self._tables.items()})

    def _single(self, what: str) -> Queries:
        if len(self._tables) > 1:
            known = ", ".join(map(repr, self._tables))
            raise MisuseError(f"{what} are of one table, and the trace has {known}: see tables")
        return next(iter(self._tables.values()))


def _stats(counts: Any, lengths: Any) -> dict[str, Any]:
    """Of how often each distinct key comes, and of the keys of each query."""
    keys, top = int(counts.sum()), max(1, round(_TOP * len(counts)))
    most = np.partition(counts, len(counts) - top)[len(counts) - top :] if keys else counts
    return {
        "queries": len(lengths),
        "keys": keys,
        "distinct_keys": len(counts),
        "length_mean": keys / len(lengths),
        "length_max": int(lengths.max()),
        "top_1_percent_share": int(most.sum()) / keys if keys else None,
    }
