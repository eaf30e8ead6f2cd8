"""A table's rows in blocks: what every way in and out goes through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock.errors import EmbedrockError
from embedrock.table import Table

__all__ = ["blocks", "contents", "ids_of"]

BLOCK_BYTES = 16 << 20
"""Long enough for full device speed, small beside any budget."""


def blocks(table: Table, total: int, state: bool = False) -> Iterator[tuple[int, int]]:
    """Begin and end of each block of so many rows."""
    rows = _rows(table, state)
    return ((start, min(start + rows, total)) for start in range(0, total, rows))


def ids_of(table: Table) -> int | None:
    """Ids of a table that is stored by id, all of which an export gives."""
    return table.num_embeddings if table._by_id else None


def contents(
    table: Table, total: int, state: bool = False
) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    """Keys and values, and state if asked for, in blocks: ``total`` rows.

    A table that is stored by id gives all its ids, others what is written, in the engine's order.

    Errors: ``EmbedrockError`` where the table has changed meanwhile.
    """
    done = 0
    for block in _contents(table, total, state):
        if done + len(block[0]) > total:
            break
        done += len(block[0])
        yield block
    if done != total:
        raise EmbedrockError(
            f"table {table.name!r} had {total} rows when its export began and then changed; "
            f"nothing was written, export it again while nothing writes to it"
        )


def _contents(table: Table, total: int, state: bool) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    if ids_of(table) is None:
        if state:
            yield from table.items(_rows(table, True), state=True)
        else:
            yield from table.items(_rows(table, False))
        return
    for start, stop in blocks(table, total, state):
        keys = np.arange(start, stop)
        yield (keys, *table.get(keys, state=True)) if state else (keys, table.get(keys))


def _rows(table: Table, state: bool) -> int:
    words = table.embedding_dim + (table.state_words if state else 0)
    return max(1, BLOCK_BYTES // (4 * words))
