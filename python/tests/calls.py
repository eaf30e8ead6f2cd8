"""Every public call of a store, its tables, its window and its permits, found by looking.

A new method or property is called too; one that needs arguments fails here until it has some.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import embedrock
from embedrock.ahead.permits import Permits
from embedrock.ahead.window import Window

DUNDERS = {"__repr__", "__len__", "__contains__", "__enter__", "__exit__"}

HARMLESS = {
    "Store.path",
    "Store.id",
    "Store.window",
    "Store.memory",
    "Store.read_only",
    "Store.closed",
    "Store.permits",
    "Store.__repr__",
    "Store.__enter__",
    "Table.store",
    "Table.name",
    "Table.embedding_dim",
    "Table.num_embeddings",
    "Table.expected_rows",
    "Table.row_bytes",
    "Table.state_words",
    "Table.dtype",
    "Table.rounding",
    "Table.storage",
    "Table.capacity",
    "Table.optimizer",
    "Table.initializer",
    "Table.__repr__",
    "Permits.staleness_bound",
    "Permits.__repr__",
}
"""Calls that ask the engine for nothing, or never raise."""

HARMLESS_INSIDE = HARMLESS | {"Permits.stats"}
"""Those that a thread inside a modify may call: a forked child may not look at permits."""


def calls(
    store: embedrock.Store, table: embedrock.Table, permits: Permits
) -> dict[str, Callable[[], Any]]:
    """The calls by name, ``Class.method``; each with arguments that work."""
    keys, rows = np.array([1, 2]), np.zeros((2, table.embedding_dim), np.float32)
    arguments: dict[str, tuple[Any, ...]] = {
        "Store.table": (table.name, table.embedding_dim),
        "Store.__contains__": (table.name,),
        "Store.drop": ("spare",),
        "Store.rename": ("spare", "other"),
        "Store.get": ([(table, keys)],),
        "Store.lookahead": ([(table, keys)], [np.empty_like(rows)]),
        "Store.put": ([(table, keys, rows)],),
        "Store.update": ([(table, keys, rows)],),
        "Store.gradient_norm": ([(table, keys, rows)],),
        "Store.commit": (9,),
        "Store.changes": (None,),
        "Store.go_back": (9,),
        "Store.pin": (9, "p"),
        "Store.unpin": ("p",),
        "Store.__exit__": (None, None, None),
        "Table.grow": (9,),
        "Table.get": (keys,),
        "Table.put": (keys, rows),
        "Table.update": (keys, rows),
        "Table.modify": (keys, lambda values, state: None),
        "Table.delete": (keys,),
        "Table.contains": (keys,),
        "Table.lookahead": (keys,),
        "Table.promote": (keys,),
        "Table.__contains__": (1,),
        "Window.announce": ({table: keys},),
        "Window.announce_range": (table, np.array([1]), np.array([2])),
        "Window.begin": (1,),
        "Window.finish": (1,),
        "Permits.acquire": ({table: keys},),
    }
    named = {"Store.update": {"lr": 0.1}, "Table.update": {"lr": 0.1}}
    found: dict[str, Callable[[], Any]] = {}
    for kind, one in ((embedrock.Store, store), (embedrock.Table, table)):
        found |= _calls_of(kind, one, arguments, named)
    found |= _calls_of(Window, store.window, arguments, named)
    found |= _calls_of(Permits, permits, arguments, named)
    assert not set(arguments) - set(found), "arguments of calls that are not there"
    return found


def _calls_of(
    kind: type, one: Any, arguments: dict[str, tuple[Any, ...]], named: dict[str, dict[str, Any]]
) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") and (name not in DUNDERS or getattr(object, name, None) is member):
            continue
        full = f"{kind.__name__}.{name}"
        if isinstance(member, property):
            found[full] = lambda name=name: getattr(one, name)
        else:
            given, more = arguments.get(full, ()), named.get(full, {})
            inspect.signature(member).bind(one, *given, **more)
            found[full] = lambda name=name, given=given, more=more: getattr(one, name)(
                *given, **more
            )
    return found
