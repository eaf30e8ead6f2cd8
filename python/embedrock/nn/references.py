"""``by_reference``: modules that pickle as the store and the table where their rows are, and whose
copies share the rows.

Owns the way from a pickle back to a store. A pickle has no rows: it says which they were, as a
state dict does, and what is unpickled beside others is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from embedrock._references import referring
from embedrock._rows import RowStore, here
from embedrock.errors import EmbedrockError, MismatchError, NotFoundError
from embedrock.store import Store
from embedrock.store.opening import open as open_store
from embedrock.store.registry import open_of

if TYPE_CHECKING:
    from embedrock.nn.module import RowsModule

__all__ = ["by_reference", "reduced"]


@contextlib.contextmanager
def by_reference() -> Iterator[None]:
    """Lets models with tables be pickled and copied, with a reference to each store.

    Within the block, ``torch.save(model, path)`` and ``pickle.dumps(model)`` keep of a module the
    path and the id of its store, the table's name and the module's arguments; rows stay in the
    store. Unpickling needs no such block. It takes the store that this process has open, or opens
    the one at that path to read only, with the memory that it had, and fails where its rows are
    others than those that the model was pickled beside. So commit before another process unpickles.
    It holds for the calling thread.

    Within it ``copy.deepcopy`` gives a model the same modules of tables, and stores, and copies of
    all else. That is for averages of weights (``AveragedModel``, exponential ones, SWA): those of
    the dense parameters are averaged, beside rows as they are. A copy that is trained, too, trains
    the same rows.

    Errors: of pickling, ``UnsupportedError`` for a store at a server; of unpickling,
    ``NotFoundError`` where there is no such store or table, ``MismatchError`` where it is another
    store, or its rows are of another step, unless within :func:`loading_dense_only`.

    >>> import pickle, torch
    >>> bag = embedrock.nn.EmbeddingBag(None, 4, store=store, name="words")
    >>> with embedrock.nn.by_reference():
    ...     pickled = pickle.dumps(bag)
    >>> again = pickle.loads(pickled)
    >>> again.store is store, again.table.name
    (True, 'words')
    >>> with embedrock.nn.by_reference():
    ...     averaged = torch.optim.swa_utils.AveragedModel(torch.nn.Sequential(bag))
    >>> averaged.module[0] is bag
    True
    """
    with referring():
        yield


def reduced(
    module: RowsModule, arguments: dict[str, Any], attributes: dict[str, Any], named: str
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Reduction of a module for pickling: its class and ``arguments`` beside the store, and its
    ``attributes``."""
    here(module.store, f"pickling {named} by reference")
    store = cast(Store, module.store)
    where = (str(store.path), store.id, store.memory)
    tables = [table.name for table in module.tables]
    rows = module.get_extra_state().tolist()
    return _again, (type(module), where, tables, arguments, rows), attributes


def _again(
    kind: type[RowsModule],
    where: tuple[str, str, str],
    tables: list[str],
    arguments: dict[str, Any],
    rows: list[int],
) -> RowsModule:
    """The module over the store that is open, or over a reader of it."""
    import torch

    store = _store_of(*where, tables)
    absent = [name for name in tables if not store._has_table(name)]
    if absent:
        raise NotFoundError(
            f"a pickled {kind.__name__} refers to table {absent[0]!r} of {store.path}, which its "
            f"last commit does not have; commit before you pickle, where another process unpickles"
        )
    module = kind(**arguments, store=cast(RowStore, store))
    module.set_extra_state(torch.tensor(rows, dtype=torch.int64, device="cpu"))
    return module


def _store_of(path: str, store_id: str, memory: str, tables: list[str]) -> Store:
    found = open_of(store_id)
    if found is not None:
        return found
    told = f"a pickled model refers to table {tables[0]!r} of store {store_id}"
    try:
        store = open_store(path, memory, create=False, read_only=True)
    except NotFoundError as error:
        raise NotFoundError(
            f"{told}, and there is none at {path}; open it where it lies now before you unpickle"
        ) from error
    if store.id != store_id:
        other = store.id
        with contextlib.suppress(EmbedrockError):
            store.close()
        raise MismatchError(
            f"{told}, and the store at {path} is {other}; open the one that is meant before you "
            f"unpickle"
        )
    return store
