"""Training on a store, as a trace has it: which pages its batches read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.initializers import constant
from embedrock.table import Table
from embedrock_lab.bench.arrival.model import Rows

__all__ = ["Trained", "Training", "train"]


@dataclass(frozen=True)
class Training:
    """A training: its data and its settings."""

    tables: npt.NDArray[np.uint16]
    """The table of each row, rising: (rows,)."""
    rows: Rows
    """Of one query after another: (keys,)."""
    offsets: Rows
    """Offsets of queries, with the end: (queries + 1,)."""
    batch: int
    """Queries of a batch."""
    dim: int
    page_bytes: int
    memory: int
    """Bytes."""
    commits: int
    """Number of commits, evenly spread."""
    measured: float
    """The share of the batches before the first one that counts."""
    ordered: bool = False
    """Whether the keys of a batch are sorted, which loses the order of its queries."""


@dataclass(frozen=True)
class Trained:
    """Reads of the batches that count, per batch, and writes, per row that they changed."""

    pages: float
    rows: float
    written: float
    rows_per_page: int
    mismatches: int


def train(directory: Path, training: Training) -> Trained:
    """Reads and updates the rows of each batch, all tables in one call.

    Rows begin at 0, and each occurrence takes 1: what is read is compared with how often its key
    came before.
    """
    tables = training.tables
    first = np.searchsorted(tables, np.arange(int(tables[-1]) + 2))
    offsets, queries = training.offsets, len(training.offsets) - 1
    count = -(-queries // training.batch)
    measured = int(training.measured * count)
    every = max(count // max(training.commits, 1), 1)
    occurred = np.zeros(len(tables), np.int64)
    mismatches = 0
    before: dict[str, Any] = {}
    with embedrock.open(directory, training.memory, page_bytes=training.page_bytes) as store:
        opened = [
            store.table(
                f"table{number}",
                training.dim,
                max(int(first[number + 1] - first[number]), 1),
                optimizer="sgd",
                initializer=constant(0.0),
            )
            for number in range(len(first) - 1)
        ]
        for number in range(count):
            if number == measured:
                before = store.stats()
            begin = number * training.batch
            asked = training.rows[offsets[begin] : offsets[min(begin + training.batch, queries)]]
            parts = _parts(asked, opened, tables, first, training.ordered)
            mismatches += _step(store, parts, occurred, training.dim)
            if (number + 1) % every == 0:
                store.commit(number)
        after = store.stats()
        store.commit(count)

    def since(name: str) -> int:
        return int(after[name] - before[name])

    batches = count - measured
    return Trained(
        since("pages_read") / batches,
        since("rows_loaded") / batches,
        after["rows_written"] / max(int((occurred > 0).sum()), 1),
        after["classes"][0]["rows_per_page"],
        mismatches,
    )


Part = tuple[Table, npt.NDArray[np.uint64], Rows]


def _parts(
    asked: Rows,
    opened: list[Table],
    tables: npt.NDArray[np.uint16],
    first: npt.NDArray[np.int64],
    ordered: bool,
) -> list[Part]:
    """The keys of each table, and the rows that they are."""
    of_row, parts = tables[asked], []
    for number, table in enumerate(opened):
        rows = asked[of_row == number]
        if ordered:
            rows = np.sort(rows)
        if len(rows):
            parts.append((table, (rows - first[number]).astype(np.uint64), rows))
    return parts


def _step(store: Any, parts: list[Part], occurred: Rows, dim: int) -> int:
    """One batch. Returns how many rows were not what they should be."""
    wrong = 0
    read = store.get([(table, keys) for table, keys, _ in parts])
    for (_, _, rows), values in zip(parts, read, strict=True):
        wrong += int((values != -occurred[rows][:, None]).any(axis=1).sum())
    changes = [(table, keys, np.ones((len(keys), dim), np.float32)) for table, keys, _ in parts]
    store.update(changes, lr=1.0)
    for _, _, rows in parts:
        np.add.at(occurred, rows, 1)
    return wrong
