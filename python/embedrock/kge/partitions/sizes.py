"""Number of partitions, and number of those in memory."""

from __future__ import annotations

from collections.abc import Sequence

from embedrock._arguments import shown, whole
from embedrock.errors import BudgetError, MisuseError
from embedrock.table import Table

__all__ = ["checked_sizes", "chosen_sizes"]

PARTITIONS_MAX = 1024
"""More buckets than their square would have few edges each."""
_ROWS_MIN = 1024
"""A partition of fewer is read in requests that are hardly long."""
_BUFFERS = (16, 8, 4, 2)
"""Partitions in memory, the most first: swaps of less each."""
_GROUPS = 8
"""Logical partitions that COMET has in memory at most."""
_RESIDENT = 0.75
"""Of the rows that a cache holds: a window and other rows take some of it."""

Sizes = tuple[int, int, int]
"""Partitions, those in the buffer, and those that go together in COMET."""


def checked_sizes(partitions: int | str, buffer: int | None, rows: int, order: str) -> Sizes:
    """Sizes that the caller has given.

    Errors: ``MisuseError``.
    """
    if isinstance(partitions, str):
        raise MisuseError(f"partitions is {shown(partitions)}, expected 'auto' or a number")
    count = whole("partitions", partitions, 1)
    if count > min(PARTITIONS_MAX, rows):
        raise MisuseError(
            f"partitions is {count}, expected {min(PARTITIONS_MAX, rows)} at most, for {rows} rows"
        )
    least = min(2, count)
    held = max(count // 4, least) if buffer is None else whole("buffer", buffer, least)
    return _sizes(count, held)


def chosen_sizes(tables: Sequence[Table], rows: int, order: str, resident: float) -> Sizes:
    """Sizes by what the store has memory for.

    Errors: ``BudgetError`` where that is too little for any.
    """
    if order == "random":
        return 1, 1, 1
    fit = sum(_cached(table) for table in tables)
    if fit >= rows:
        return 1, 1, 1
    room = int(_RESIDENT * fit) - int(resident * rows)
    for buffer in _BUFFERS:
        # One more has a place while it is read, before another leaves.
        size = room // (buffer + 1)
        if size < 1:
            continue
        count = -(-rows // size)
        if count <= PARTITIONS_MAX and (size >= _ROWS_MIN or buffer == _BUFFERS[-1]):
            return _sizes(count, buffer)
    raise BudgetError(
        f"the store has memory for {fit} of {rows} rows, of which {int(resident * rows)} are to "
        f"stay: too few for partitions; open it with more memory, or make fewer rows resident"
    )


def _sizes(count: int, buffer: int) -> Sizes:
    held = min(buffer, count)
    return count, held, max(held // _GROUPS, 1)


def _cached(table: Table) -> int:
    """Rows of a table that its share of memory holds."""
    stats = table.store.stats()
    found = next(each for each in stats["tables"] if each["spec"]["name"] == table.name)
    row = found["row_bytes"]
    alike = [each for each in stats["tables"] if each["row_bytes"] == row]
    capacity = sum(each["cache_capacity"] for each in stats["classes"] if each["row_bytes"] == row)
    of_all = sum(each["spec"]["num_embeddings"] or 0 for each in alike)
    own = found["spec"]["num_embeddings"]
    return int(capacity * own / max(of_all, 1))
