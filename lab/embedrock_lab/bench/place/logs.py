"""The eleven logs that ``place`` learns from: who offers which rows together, read from a folder.

Two are click logs, whose query is the categorical fields of a line; four are lists that users have
made; four are sessions; one is lists of search results. A log is numbered by its ids, of click logs
by field and token, which is the order called identity.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock.errors import MisuseError
from embedrock.trace import Trace

__all__ = ["LOGS", "Hyperedges", "Log", "of_trace"]

Rows = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hyperedges:
    """Queries in their order: query ``q`` asks for ``rows[offsets[q]:offsets[q + 1]]``."""

    rows: Rows
    offsets: Offsets
    num_rows: int

    @property
    def queries(self) -> int:
        """Number of queries."""
        return len(self.offsets) - 1

    def first(self, queries: int) -> Hyperedges:
        """The first queries, over the same rows."""
        at = min(queries, self.queries)
        return Hyperedges(self.rows[: self.offsets[at]], self.offsets[: at + 1], self.num_rows)


@dataclass(frozen=True)
class Log:
    """One log: its files below the folder, which are joined in this order."""

    name: str
    kind: str
    files: tuple[str, ...]
    fields: tuple[str, ...] = ()
    """Of a click log: columns that are no field."""

    def missing(self, folder: Path) -> list[Path]:
        """Files that are not there."""
        return [folder / one for one in self.files if not (folder / one).is_file()]

    def read(self, folder: Path, queries: int) -> Hyperedges:
        """The first queries; rows are numbered from those alone.

        Errors: ``MisuseError`` for files that are no such log.
        """
        paths = [folder / one for one in self.files]
        if self.kind == "clicks":
            return _clicks(paths[0], self.fields, queries)
        return _lists(paths, queries)


LOGS = (
    Log("criteo", "clicks", ("criteo-kaggle/train_80k_hashed.tsv.gz",), ("label", "I")),
    Log("avazu", "clicks", ("avazu/train_10k.csv.gz",), ("id", "click", "hour")),
    Log("trivago", "results", ("trivago-100k/queries.txt.gz",)),
    Log("amazon-book", "lists", ("amazon-book-kgin/train_queries.txt.gz",)),
    Log("amazon-cds", "lists", ("amazon-cds/train_queries.txt.gz",)),
    Log("gowalla", "lists", ("gowalla/train_queries.txt.gz",)),
    Log("ifashion", "lists", ("alibaba-ifashion/queries_20pct.txt.gz",)),
    *(
        Log(name, "sessions", (f"{folder}/train_sessions.txt.gz", f"{folder}/test_sessions.txt.gz"))
        for name, folder in (
            ("diginetica", "diginetica"),
            ("retailrocket", "retailrocket"),
            ("tmall", "tmall"),
            ("yoochoose", "yoochoose-1-64"),
        )
    ),
)
"""Every log, click logs first."""


def of_trace(trace: Trace, queries: int) -> Hyperedges:
    """The first queries of a trace, whose rows are numbered by table and key."""
    tables = [one.between(0, min(queries, len(one))) for one in trace.tables.values()]
    _, keys, rows, offsets = _core.number_rows([(one.values, one.offsets) for one in tables])
    return Hyperedges(rows, offsets, len(keys))


def _lists(paths: Sequence[Path], queries: int) -> Hyperedges:
    """Lines ``<name><TAB><id> <id> ...``."""
    ids: list[bytes] = []
    lengths: list[int] = []
    for path in paths:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                if len(lengths) == queries:
                    break
                _, tab, text = line.partition(b"\t")
                if not tab:
                    raise MisuseError(f"{path}: line {number} has no tab, expected a name and ids")
                found = text.split()
                ids += found
                lengths.append(len(found))
    try:
        values = np.array(ids, np.uint64)
    except ValueError as error:
        raise MisuseError(f"{paths[0]}: an id is no whole number: {error}") from error
    return _numbered(values, lengths)


def _clicks(path: Path, others: tuple[str, ...], queries: int) -> Hyperedges:
    """A table with a header; every column is a field that is not named in ``others``, of which one
    letter alone stands for all columns that begin with it."""
    separator = b"," if ".csv" in path.suffixes else b"\t"
    with gzip.open(path) as file:
        header = file.readline().rstrip(b"\r\n").split(separator)
        lines = [line.rstrip(b"\r\n").split(separator) for line in islice(file, queries)]
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise MisuseError(
                f"{path}: line {number} has {len(line)} columns, expected {len(header)}"
            )
    columns = []
    rows = 0
    for at, name in enumerate(header):
        text = name.decode()
        if text in others or (text[0] in others and text[1:].isdigit()):
            continue
        tokens = np.array([line[at] for line in lines])
        known, numbers = np.unique(tokens, return_inverse=True)
        there = tokens != b""
        # The empty token comes first, and is no row.
        missing = int(known[0] == b"")
        columns.append(np.where(there, numbers - missing + rows, -1))
        rows += len(known) - missing
    together = np.stack(columns, axis=1)
    lengths = (together >= 0).sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Hyperedges(together[together >= 0].astype(np.uint32), offsets, rows)


def _numbered(values: npt.NDArray[np.uint64], lengths: list[int]) -> Hyperedges:
    known, rows = np.unique(values, return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Hyperedges(rows.astype(np.uint32), offsets, len(known))
