"""Guards a ``state_dict`` against rows of another step, which the dict does not have.

Trainers save a ``state_dict``, go on and load the best one back at the end. Dense parameters would
then be of one step and rows of another, and nobody would notice. So a module records the identity
of its rows, and refuses to load beside others. It is a tensor, because some trainers write state
dicts with formats that hold tensors alone.

Rows are identified by their tables' counts of updates, which commits keep, their number of keys,
and the commit that they followed. Rows overwritten by ``put`` or ``modify`` are not detected, nor
are those of tables on persistent memory after a crash. Rows of a server are not checked: other
clients change them meanwhile.

Of a store that ranks share, numbers are those that all ranks have in common, because one rank often
saves a state dict for all: its id is that of the run or of all stores, a step is a commit's number,
and written keys, of which each rank has its own, are not counted.

Layout of the tensor, int64:

========== =======================================================================
place      content
========== =======================================================================
0          version of this layout: 1
1, 2       the store's id, upper and lower half; 0, 0 of a server
3, 4, 5    the last commit's number, step and time; 0, -1, 0 where there was none
6          batches that had changed rows since; of ranks 1 where there were any
7          the branch: a number by chance for each opening and going back
8, 9       of the first table: updates so far, keys that are written
10, 11 …   of the others, in the order of ``module.tables``
========== =======================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from embedrock._arguments import shown
from embedrock._loading import is_dense_only, loading_dense_only
from embedrock._rows import CollectiveStore, RowStore, RowTable
from embedrock.errors import MismatchError
from embedrock.store import Store
from embedrock.table import Table

__all__ = ["KEY", "check", "commit_of", "loading_dense_only", "rows_now"]

KEY = "_extra_state"
"""The name that torch gives what modules add to a state dict."""

_VERSION = 1
_TABLES_FROM = 8
_SIGN = 1 << 63
_AT_A_SERVER = (0, 0, 0, -1, 0, 0, 0)
_DENSE_ONLY = "embedrock.nn.loading_dense_only() loads the dense part and leaves rows as they are"


def rows_now(store: RowStore, tables: Sequence[RowTable]) -> Tensor:
    """The identity of the current rows of these tables, as opposed to those of other steps."""
    store._listeners.before()  # steps that a pipeline has made are applied first
    if store._collective:
        numbers = _numbers_of_ranks(cast(CollectiveStore, store), tables)
    elif store._elsewhere is not None:
        numbers = [_VERSION, *_AT_A_SERVER, *([0, 0] * len(tables))]
    else:
        numbers = _numbers(cast(Store, store), cast("Sequence[Table]", tables))
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def check(state: Any, store: RowStore, tables: Sequence[RowTable], named: str) -> None:
    """Refuses what ``rows_now`` has told of other rows than those that are there now.

    Errors: ``MismatchError``.
    """
    if is_dense_only():
        return
    size = _TABLES_FROM + 2 * len(tables)
    fits = isinstance(state, Tensor) and state.dtype == torch.int64 and state.shape == (size,)
    if not fits or int(state[0]) != _VERSION:
        raise MismatchError(
            f"{named}: {KEY} of the state dict is {shown(state)}, expected an int64 tensor of "
            f"{size} numbers, as state_dict() of a module with {len(tables)} tables writes; "
            f"{_DENSE_ONLY}"
        )
    if store._collective:
        _check_ranks(state.tolist(), cast(CollectiveStore, store), tables, named)
        return
    if store._elsewhere is not None:
        return  # all its trainers change the rows, between any two steps of this one
    _check_here(state.tolist(), cast(Store, store), cast("Sequence[Table]", tables), named)


def commit_of(state: Any, store: Store) -> tuple[int, int] | None:
    """Number and step of the commit whose rows a state was saved beside, where it is one of this
    store and nothing had changed since."""
    if not isinstance(state, Tensor) or state.dtype != torch.int64 or state.numel() < _TABLES_FROM:
        return None
    saved = state.tolist()
    if saved[0] != _VERSION or _id_of(saved) != store.id or saved[6] != 0 or saved[4] < 0:
        return None
    return saved[3], saved[4]


def _check_here(saved: list[int], store: Store, tables: Sequence[Table], named: str) -> None:
    store._listeners.before()
    now = _numbers(store, tables)
    if saved[1:3] != now[1:3]:
        saved_at = f"store {_id_of(saved)}" if any(saved[1:3]) else "a server"
        raise MismatchError(
            f"{named}: the state dict was saved beside the rows of {saved_at}, and "
            f"these are in {store.path}, which is store {store.id}; {_DENSE_ONLY}, if its rows are "
            f"known to fit, as those of a copy do"
        )
    if saved[_TABLES_FROM:] == now[_TABLES_FROM:] and not _has_parted(saved, now, store):
        return
    raise MismatchError(
        f"{named}: the state dict was saved {_when(saved)}, and the rows in {store.path} are those "
        f"{_when(now)}: dense parameters and rows would be of different steps; "
        f"{_way_back(saved, store)}; {_DENSE_ONLY}"
    )


def _check_ranks(
    saved: list[int], store: CollectiveStore, tables: Sequence[RowTable], named: str
) -> None:
    store._listeners.before()
    now = _numbers_of_ranks(store, tables)
    if saved[1:3] != now[1:3]:
        raise MismatchError(
            f"{named}: the state dict was not saved beside rows of the stores that these ranks "
            f"have; {_DENSE_ONLY}, if its rows are known to fit, as those of a copy do"
        )
    is_other = saved[6] > 0 and now[6] > 0 and saved[7] != now[7]
    if saved[_TABLES_FROM:] == now[_TABLES_FROM:] and saved[3] <= now[3] and not is_other:
        return
    raise MismatchError(
        f"{named}: the state dict was saved {_when_of_ranks(saved)}, and the rows of the ranks are "
        f"those {_when_of_ranks(now)}: dense parameters and rows would be of different steps; call "
        f"shard.go_back(step) on all ranks first, if its rows were committed then; {_DENSE_ONLY}"
    )


def _numbers_of_ranks(store: CollectiveStore, tables: Sequence[RowTable]) -> list[int]:
    found = [_VERSION, *store._history()]
    for table in tables:
        own = cast(Any, table).local
        found += [own.store._core.table_info(own._handle)["updates"], 0]
    return found


def _when_of_ranks(numbers: Sequence[int]) -> str:
    updates = ", ".join(f"{n:,}" for n in numbers[_TABLES_FROM::2])
    at = "before the first commit" if numbers[4] < 0 else f"at the commit of step {numbers[4]}"
    return f"{at}{' and later batches' if numbers[6] else ''} ({updates} updates)"


def _numbers(store: Store, tables: Sequence[Table]) -> list[int]:
    whole = int(store.id, 16)
    halves = [whole >> 64, whole & (2 * _SIGN - 1)]
    last = store._core.last_commit()
    at = (0, -1, 0) if last is None else (last["sequence"], last["step"], last["unix_time"])
    found = [_VERSION, *(half - 2 * _SIGN if half >= _SIGN else half for half in halves), *at]
    found += [store._core.uncommitted()[0], store._branch]
    for table in tables:
        info = store._core.table_info(table._handle)
        found += [info["updates"], info["rows"]]
    return found


def _id_of(numbers: Sequence[int]) -> str:
    return "".join(f"{half % (2 * _SIGN):016x}" for half in numbers[1:3])


def _commit_of(numbers: Sequence[int], store: Store) -> tuple[bool, bool]:
    """Whether the store keeps, or has pinned, a commit of the number that the rows followed, and
    whether that is the same commit."""
    for commit in store.commits():
        if commit.sequence == numbers[3]:
            return True, [commit.step, commit.unix_time] == list(numbers[4:6])
    for pin in store._core.pins():
        if pin["sequence"] == numbers[3]:
            return True, [pin["step"], pin["committed"]] == list(numbers[4:6])
    return False, False


def _has_parted(saved: Sequence[int], now: Sequence[int], store: Store) -> bool:
    """Whether the store has gone back since, and on by another way to as many updates."""
    there, same = _commit_of(saved, store)
    went_back = saved[3] > now[3]
    # Changes without a commit belong to one opening of the store.
    is_other = saved[6] > 0 and now[6] > 0 and saved[7] != now[7]
    return went_back or is_other or (there and not same)


def _when(numbers: Sequence[int]) -> str:
    batches, updates = numbers[6], numbers[_TABLES_FROM::2]
    at = "before the first commit" if numbers[3] == 0 else f"at the commit of step {numbers[4]}"
    since = f" and {batches} batches" if batches else ""
    return f"{at}{since} ({', '.join(f'{n:,}' for n in updates)} updates)"


def _way_back(saved: Sequence[int], store: Store) -> str:
    kept = ", ".join(str(commit.step) for commit in store.commits()) or "none"
    there, same = _commit_of(saved, store)
    if saved[6] == 0 and there and same:
        return f"call store.go_back({saved[4]}) first"
    if saved[6]:
        return (
            f"call store.go_back(step) first, if its rows were committed then (kept are the "
            f"steps: {kept})"
        )
    return f"its commit is not kept (kept are the steps: {kept}; store.pin keeps one)"
