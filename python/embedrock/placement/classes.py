"""Row classes: which tables of a trace share pages, and how many rows a page of theirs has.

Pages are those of the frozen store to come, of the bytes that the device of the source suits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedrock._arguments import named_path, whole
from embedrock._made_keys import SAID, kinds_of
from embedrock._warnings import warn
from embedrock.errors import KeyRangeError, KeysWarning, MisuseError
from embedrock.store.opening import open as open_store
from embedrock.store.store import Store
from embedrock.table import Table
from embedrock.trace.trace import Trace

__all__ = ["RowClass", "chosen", "of_all", "of_store"]

_MEMORY = "256MiB"
"""For a look at a store that the caller has not opened: its index must fit."""
_ROWS_PER_PAGE_MAX = 1 << 16
_LOOKED_FOR = 1000


@dataclass(frozen=True)
class RowClass:
    """Tables whose rows have equal bytes: they share pages."""

    tables: tuple[str, ...]
    rows_per_page: int
    limits: Mapping[str, int]
    """``num_embeddings`` of those tables that are dense."""

    def check(self, table: Any, key: Any) -> None:
        """Looks at the rows of a trace: their table, its place in ``tables``, and key, rising.

        Errors: ``KeyRangeError`` for keys that a dense table cannot have.
        """
        for number, name in enumerate(self.tables):
            keys = key[np.searchsorted(table, number) : np.searchsorted(table, number, "right")]
            limit = self.limits.get(name)
            if limit is not None and len(keys) and int(keys[-1]) >= limit:
                raise KeyRangeError(
                    f"the trace asks table {name!r} for key {keys[-1]}, expected keys below "
                    f"num_embeddings={limit}; it is a trace of another table, or of an older one"
                )


def chosen(
    tables: Sequence[str],
    store: Store | str | os.PathLike[str] | None,
    rows_per_page: int | None,
    memory: int | None = None,
) -> list[RowClass]:
    """The classes by a store, or one class by ``rows_per_page``.

    Errors: ``MisuseError`` unless one of the two is given; see :func:`of_store`.
    """
    if (store is None) is (rows_per_page is None):
        which = "neither" if store is None else "both"
        raise MisuseError(f"{which} of store and rows_per_page is given, expected one of the two")
    if store is not None:
        return of_store(tables, store, memory)
    found = whole("rows_per_page", rows_per_page, 1)
    if found > _ROWS_PER_PAGE_MAX:
        raise MisuseError(f"rows_per_page is {found}, expected {_ROWS_PER_PAGE_MAX} at most")
    return of_all(tables, found)


def of_all(tables: Sequence[str], rows_per_page: int) -> list[RowClass]:
    """All tables in one class."""
    return [RowClass(tuple(tables), rows_per_page, {})]


def of_store(
    tables: Sequence[str], store: Store | str | os.PathLike[str], memory: int | None
) -> list[RowClass]:
    """The classes that these tables of a store have once they are frozen, in the order of the
    tables.

    Errors: ``MisuseError`` for a table that the store has not; those of opening a store.
    """
    if isinstance(store, Store):
        return _of_open(tables, store, "the store")
    path = named_path("store", store)
    with open_store(path, memory or _MEMORY, create=False, read_only=True) as opened:
        return _of_open(tables, opened, str(path))


def warn_absent(
    trace: Trace, store: Store | str | os.PathLike[str], memory: int | None = None
) -> None:
    """Warns of a growing table that has none of the rows that the trace asks for: its keys were
    made in another way, and a plan of these would place nothing.

    Blocking: looks for a thousand keys of each table.
    """
    if not isinstance(store, Store):
        path = named_path("store", store)
        with open_store(path, memory or _MEMORY, create=False, read_only=True) as opened:
            warn_absent(trace, opened)
        return
    there, kinds = store.tables, kinds_of(store.meta)
    for name, queries in trace.tables.items():
        table = there.get(name)
        if table is None or table.num_embeddings is not None or not len(table):
            continue
        step = max(1, len(queries.values) // _LOOKED_FOR)
        keys = np.ascontiguousarray(queries.values[::step])
        if not len(keys) or table.contains(keys).any():
            continue
        said, way = SAID.get(kinds.get(name, ""), "made in another way"), ""
        if kinds.get(name) == "hash_keys":
            way = '; load the trace with keys="words"'
        warn(
            f"table {name!r} has none of {len(keys)} keys that the trace asks for, so the plan "
            f"places rows that are not there; its keys are {said}{way}",
            KeysWarning,
        )


def _of_open(tables: Sequence[str], store: Store, said: str) -> list[RowClass]:
    there = store.tables
    for name in tables:
        if name not in there:
            known = ", ".join(map(repr, there)) or "none"
            wrong = f"asks for table {name!r}" if name else "does not name its table"
            raise MisuseError(
                f"the trace {wrong}, and the tables of {said} are {known}; name the table where "
                f"the trace is loaded (table, --table)"
            )
    pages = {
        (one["row_bytes"], one["storage"]): one["page_bytes"] for one in store.stats()["classes"]
    }
    by_bytes: dict[int, list[Table]] = {}
    for name in tables:
        by_bytes.setdefault(_frozen_bytes(there[name]), []).append(there[name])
    return [
        RowClass(
            tuple(one.name for one in same),
            _rows_per_page(max(pages[one.row_bytes, one.storage] for one in same), row_bytes),
            {one.name: one.num_embeddings for one in same if one.num_embeddings is not None},
        )
        for row_bytes, same in by_bytes.items()
    ]


def _frozen_bytes(table: Table) -> int:
    """Bytes of a row once it is frozen: without the state of an optimizer, unless its pages are
    frozen already."""
    if table.storage == "pages":
        return table.row_bytes
    bits = {"float32": 32, "int8": 8, "int4": 4}.get(table.dtype, 16)
    scale_bytes = 4 if bits < 16 else 0
    return scale_bytes + -(-table.embedding_dim * bits // 32) * 4


def _rows_per_page(page_bytes: int, row_bytes: int) -> int:
    """As ``docs/formats/page.md`` has it."""
    return (page_bytes - 32) // (row_bytes + 10)
