"""The load of ``recdb``: samples with 26 categorical fields, a table for each.

Rows of all tables are numbered consecutively, table after table: other stores have these *numbers*
as keys, and a row's values follow from its number. A table's own ids are these less its first
number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedrock.data.criteo_shape import scaled
from embedrock.errors import MisuseError
from embedrock.observe.trace import Trace
from embedrock_lab.bench.prefetch.loads import log_columns

__all__ = ["Load", "criteo_log", "criteo_shaped"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """Batches of row numbers."""

    trace: Trace
    """Distinct numbers of each batch, in order."""
    lookups: Trace
    """The same with every lookup."""
    sizes: list[int]
    """Rows of each table."""

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(self.sizes)


def criteo_shaped(rows: int, batch: int, batches: int, seed: int) -> Load:
    """Samples with the sizes and the skew of Criteo's Kaggle log, scaled down to ``rows`` rows.

    Errors: ``MisuseError`` for too few or too many rows.
    """
    random = np.random.default_rng(seed)
    fields = scaled(rows)
    columns = [field.ids(field.ranks(random.random(batch * batches))) for field in fields]
    return _load(columns, [field.rows for field in fields], batch)


def criteo_log(file: Path, batch: int, batches: int) -> Load:
    """The first batches of a Criteo log, in its order; tables have the tokens of the whole log.

    Errors: ``DataError`` for a file of another form, ``MisuseError`` for one that is too short.
    """
    columns, sizes = log_columns(file)
    samples = len(columns[0])
    if samples < batch * batches:
        raise MisuseError(
            f"{file} has {samples} samples, expected {batch * batches} for {batches} batches of "
            f"{batch}; ask for fewer with --windows, or shorter ones with --window"
        )
    return _load([column[: batch * batches] for column in columns], sizes, batch)


def _load(columns: list[Numbers], sizes: list[int], batch: int) -> Load:
    firsts = np.cumsum([0, *sizes[:-1]])
    numbers = np.stack([c + first for c, first in zip(columns, firsts, strict=True)], axis=1)
    by_batch = np.sort(numbers.reshape(-1, batch * len(sizes)), axis=1)
    offsets = np.arange(len(by_batch) + 1) * by_batch.shape[1]
    is_first = np.ones(by_batch.shape, bool)
    is_first[:, 1:] = by_batch[:, 1:] != by_batch[:, :-1]
    lookups = Trace(by_batch.reshape(-1).astype(np.uint64), offsets)
    ends = np.cumsum(is_first.sum(axis=1))
    distinct = Trace(lookups.values[is_first.reshape(-1)], np.concatenate([[0], ends]))
    return Load(distinct, lookups, sizes)
