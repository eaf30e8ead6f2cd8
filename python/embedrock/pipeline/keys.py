"""The rows that a batch will read: ``keys_of(batch) -> {table: keys}``.

A callable, not a class to inherit from. It gets a batch as the loader gives it, and names the keys
of that batch by

* a :class:`~embedrock.table.Table` or a table's name: an array or tensor of any shape, or a list
  or tuple of them, all of whose numbers are keys; of jagged pairs (values, offsets) pass the
  values;
* a module of :mod:`embedrock.nn`: what its ``forward`` will be called with, one argument or a
  tuple of them. The module knows which of them are keys.

Keys named twice count twice. For a model, :func:`for_model` makes a ``keys_of`` if none is given.
This module owns the conversion of such a mapping to flat keys of tables. It never imports PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from embedrock._arguments import shown
from embedrock._arrays import as_keys
from embedrock._rows import RowStore, here
from embedrock.errors import MisuseError
from embedrock.store import Store
from embedrock.table import Table

__all__ = [
    "FlatKeys",
    "KeyFinder",
    "KeysOf",
    "TableKeys",
    "for_model",
    "stores_here",
    "stores_of",
]

FlatKeys: TypeAlias = npt.NDArray[np.uint64]
KeysOf: TypeAlias = Callable[[Any], Mapping[Any, Any]]
"""From a batch to keys by table, table name or module."""


@dataclass(frozen=True)
class TableKeys:
    """Keys of one table."""

    table: Table
    keys: FlatKeys
    """(N,) uint64, in the order in which they were named, equal ones included."""


class KeyFinder:
    """Flat keys of batches, by a ``keys_of`` over given stores."""

    def __init__(self, keys_of: KeysOf, stores: Sequence[RowStore]) -> None:
        """Takes the callable, and the stores whose tables it may name."""
        if not callable(keys_of):
            raise MisuseError(f"keys_of is {shown(keys_of)}, expected a callable of a batch")
        self._keys_of = keys_of
        self._stores = list(stores)
        self._known: dict[str, Table] = {}

    def __call__(self, batch: Any) -> list[TableKeys]:
        """The keys of a batch: each table once, in the order in which they were first named.

        Errors: ``MisuseError`` for anything that is no mapping from tables, names or modules, for
        tables of other stores, and for keys that are no integers, with the table's name;
        ``NotFoundError`` for a name without table.
        """
        named = self._keys_of(batch)
        if not isinstance(named, Mapping):
            raise MisuseError(
                f"keys_of returned {type(named).__name__}, expected a dict from tables, their "
                f"names or modules of embedrock.nn to keys"
            )
        found: dict[tuple[int, str], tuple[Table, list[FlatKeys]]] = {}
        for name, value in named.items():
            for table, given in self._of_entry(name, value):
                place = (id(table.store), table.name)
                found.setdefault(place, (table, []))[1].extend(_flat(table, given))
        return [TableKeys(table, _joined(parts)) for table, parts in found.values()]

    def by_store(self, batch: Any) -> list[tuple[Store, list[TableKeys]]]:
        """The keys of a batch for each store that it reads from. Errors: as above."""
        found: dict[int, tuple[Store, list[TableKeys]]] = {}
        for part in self(batch):
            store = part.table.store
            found.setdefault(id(store), (store, []))[1].append(part)
        return list(found.values())

    def _of_entry(self, name: Any, value: Any) -> Iterable[tuple[Table, Any]]:
        if isinstance(name, str):
            return [(self._table(name), value)]
        if _is_rows_module(name):
            inputs = value if isinstance(value, tuple) else (value,)
            by_table: Mapping[Table, Any] = name.keys_of(*inputs)
            return by_table.items()
        if not isinstance(name, Table):
            raise MisuseError(
                f"keys_of named {shown(name)}, expected a Table, its name or a module of "
                f"embedrock.nn"
            )
        if not any(store is name.store for store in self._stores):
            raise MisuseError(f"keys_of named table {name.name!r} of another store, {name.store!r}")
        return [(name, value)]

    def _table(self, name: str) -> Table:
        if len(self._stores) != 1:
            raise MisuseError(
                f"keys_of named table {name!r}, but the model's tables are in "
                f"{len(self._stores)} stores; name it by the Table itself"
            )
        if name not in self._known:
            self._known[name] = self._stores[0].table(name)
        return self._known[name]


def for_model(model: Any) -> KeysOf:
    """The ``keys_of`` of a model for which none was given.

    A model that has a method ``keys_of(batch)`` knows itself. A module of :mod:`embedrock.nn`
    takes its batch as it is: what ``forward`` is called with, one argument or a tuple of them. Of a
    model with such modules inside, each one looks into the batch for what it reads, by name: in
    the batch, if it is a mapping, or in the mappings within it, if it is a tuple or list. An
    ``EmbeddingBagCollection`` looks for its features, or for a ``KeyedJaggedTensor`` that has them,
    the others for the name of their table, else for the name that they have in the model
    (``"user.embedding"``).

    Errors: ``MisuseError`` for what is no model with tables, and, when it is called, for a batch
    in which a name is missing, with what there was.
    """
    if _is_rows_module(model):
        return lambda batch: {model: batch}
    own = getattr(model, "keys_of", None)
    if callable(own):
        return cast(KeysOf, own)
    modules = _named_rows_modules(model)
    if not modules:
        raise MisuseError(
            f"{type(model).__name__} has no module of embedrock.nn whose keys could be announced; "
            f"pass a model that has, or a store together with keys_of="
        )
    return lambda batch: {module: _find(name, module, batch) for name, module in modules}


def stores_of(model: Any) -> list[RowStore]:
    """The stores of a model's tables, each once; of a store itself."""
    if isinstance(model, RowStore):
        return [model]
    found: dict[int, RowStore] = {}
    for _, module in _named_rows_modules(model):
        found.setdefault(id(module.store), module.store)
    return list(found.values())


def stores_here(model: Any, what: str) -> list[Store]:
    """The same, of which none may be a server's: ``what`` reads ahead and updates beside the loop.

    Errors: ``UnsupportedError``.
    """
    stores = stores_of(model)
    for store in stores:
        here(store, what)
    return cast("list[Store]", stores)


def _flat(table: Table, given: Any) -> list[FlatKeys]:
    several = isinstance(given, (list, tuple)) and any(hasattr(one, "dtype") for one in given)
    name = f"keys of table {table.name!r}"
    return [as_keys(_plain(one), name).flat for one in (given if several else [given])]


def _plain(given: Any) -> Any:
    """The values of a jagged tensor, PyTorch's or TorchRec's; anything else as it is."""
    jagged = hasattr(given, "offsets") and callable(getattr(given, "values", None))
    return given.values() if jagged else given


def _joined(parts: list[FlatKeys]) -> FlatKeys:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint64), *parts])


def _is_rows_module(value: Any) -> bool:
    module = sys.modules.get("embedrock.nn.module")  # imported if such a module exists
    return module is not None and isinstance(value, module.RowsModule)


def _named_rows_modules(model: Any) -> list[tuple[str, Any]]:
    if not hasattr(model, "named_modules"):
        raise MisuseError(
            f"model is {type(model).__name__}, expected a torch.nn.Module or an embedrock.Store"
        )
    return [(name, module) for name, module in model.named_modules() if _is_rows_module(module)]


def _find(name: str, module: Any, batch: Any) -> Any:
    """The arguments of a call of a model's module, looked up in a batch by name."""
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    mappings = [part for part in parts if isinstance(part, Mapping)]
    features = getattr(module, "feature_names", None)
    wanted = [*(features or [table.name for table in module.tables])]
    for part in parts:  # a KeyedJaggedTensor of TorchRec has features, and is no mapping
        if features and hasattr(part, "stride_per_key") and {*wanted} <= {*part.keys()}:
            return part
    for mapping in mappings:
        if all(one in mapping for one in wanted):
            return {one: mapping[one] for one in wanted} if features else mapping[wanted[0]]
        if name in mapping:
            return mapping[name]
    there = sorted({str(key) for mapping in mappings for key in mapping})
    raise MisuseError(
        f"the batch has no {', '.join(map(repr, wanted))} for module {name!r} (it is "
        f"{type(batch).__name__} with {', '.join(there) or 'no names'}); pass keys_of=, a function "
        f"from a batch to {{table or module: keys}}"
    )
