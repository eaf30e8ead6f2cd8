"""Rows that can be told apart: every one is a function of its key and version.

>>> float(values_of(np.array([7]), 2).sum()) == float(values_of(np.array([7]), 2, version=1).sum())
False
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import embedrock

__all__ = ["distinct_keys", "fill", "least_budget", "mismatches", "open_resident", "ranges"]
__all__ += ["resident_budget", "scattered", "values_of"]

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]

SLICE_ROWS = 4096
"""Rows that are compared at once, so that comparing takes little memory."""
LOAD_ROWS = 1 << 18
"""Rows of one put while a table is filled."""
CACHE_BYTES_PER_ROW = 40
"""Index and metadata of a resident row, rounded up: for budgets that keep every row."""


def values_of(keys: npt.NDArray[np.integer], dim: int, version: int = 0) -> Floats:
    """The row of each key: multiples of 2^-23 in [0, 1), so that every value is exact.

    Shapes: ``keys (N,) -> (N, dim) float32``.
    """
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64((version * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) % 2**64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    low = (mixed >> np.uint64(32)).astype(np.uint32)
    places = np.arange(dim, dtype=np.uint32) * np.uint32(0x9E3779B1)
    words: Floats = ((low[:, None] + places) >> np.uint32(9)).astype(np.float32)
    words *= np.float32(2.0**-23)
    return words


def mismatches(
    found: Floats, keys: npt.NDArray[np.integer], version: int = 0, dtype: str = "float32"
) -> int:
    """Number of rows that differ from those of their keys, rounded to the dtype."""
    dim, wrong = found.shape[-1], 0
    for begin in range(0, len(keys), SLICE_ROWS):
        part = slice(begin, begin + SLICE_ROWS)
        expected = values_of(keys[part], dim, version).astype(dtype)
        wrong += int((found[part] != expected).any(axis=1).sum())
    return wrong


def ranges(rows: int, step: int) -> Iterator[Keys]:
    """The ids 0 to ``rows`` in order, ``step`` at a time."""
    for begin in range(0, rows, step):
        yield np.arange(begin, min(begin + step, rows))


def fill(
    table: embedrock.Table,
    rows: int,
    *,
    state: bool = False,
    each: Callable[[], None] = lambda: None,
) -> None:
    """Writes the rows of ids 0 to ``rows``; calls ``each`` after every batch.

    With ``state`` the optimizer state is that of ``values_of`` for version 1, else the initial one.
    """
    for keys in ranges(rows, LOAD_ROWS):
        values = values_of(keys, table.embedding_dim)
        if state:
            table.put(keys, values, state=values_of(keys, table.state_words, version=1))
        else:
            table.put(keys, values, reset_state=True)
        each()


def distinct_keys(rng: np.random.Generator, rows: int, count: int) -> Keys:
    """``count`` different ids below ``rows``, uniform."""
    return rng.choice(rows, size=count, replace=False, shuffle=True).astype(np.int64)


def scattered(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Scattered 64-bit keys, a different one for each number."""
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x1234567)


def resident_budget(rows: int, row_bytes: int) -> int:
    """A memory budget in bytes that keeps every row of a dense table."""
    return rows * (row_bytes + CACHE_BYTES_PER_ROW) + (128 << 20)


def least_budget(error: embedrock.errors.BudgetError) -> int:
    """The smallest budget that works, in bytes, which the message names."""
    return int(str(error).rsplit("memory=", 1)[1].strip('"'))


def open_resident(
    place: Path, rows: int, dim: int, optimizer: embedrock.optimizers.OptimizerLike, **options: str
) -> tuple[embedrock.Store, embedrock.Table]:
    """A store with one filled and committed dense table whose rows are all in memory."""
    words = {"none": 0, "rowwise_adagrad": 1, "adam": 2 * dim}
    kind = embedrock.optimizers.resolve(optimizer)["kind"]
    budget = resident_budget(rows, 4 * (dim + words[kind]))
    store = embedrock.open(place, memory=budget, **options)  # type: ignore[arg-type]
    table = store.table("rows", dim, rows, optimizer=optimizer)
    fill(table, rows)
    store.commit(0)
    resident = store.stats()["classes"][0]["resident_rows"]
    if resident != rows:
        raise RuntimeError(f"{resident} of {rows} rows are in memory, expected all of them")
    return store, table
