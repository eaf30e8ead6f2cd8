"""The stores that this process has open, and the one handle of each that is open to write.

A store that is open to write is locked, against this process too. Opening it again here with the
same arguments returns the existing handle: a notebook cell may run again, or only a traceback may
still refer to its handle.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedrock._memory import same_memory
from embedrock.errors import EmbedrockError, LockedError

if TYPE_CHECKING:
    from embedrock.store import Store

__all__ = ["close_all", "open_of", "open_once", "register"]

Place = tuple[int, int, int, int]
_LOCK_FILE = "lock"
"""The file that a writer locks and keeps open (``docs/formats``): while it is, no other file has
its number, and a directory that was removed and made again has another."""

_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_noting = threading.Lock()
"""Guards the set of stores."""
_opening = threading.RLock()
"""Held while a store is opened to write, so that of two threads the second gets the first's; taken
before the other."""


def _begin_anew() -> None:
    """A forked child has no store open, and locks of its own."""
    global _noting, _opening, _stores
    _noting, _opening, _stores = threading.Lock(), threading.RLock(), weakref.WeakSet()


os.register_at_fork(after_in_child=_begin_anew)


def register(store: Store) -> Store:
    """Notes a store that was opened; it is forgotten with its last reference."""
    with _noting:
        _stores.add(store)
    return store


def _all() -> list[Store]:
    with _noting:
        return list(_stores)


def open_once(
    directory: Path, arguments: Mapping[str, Any], make: Callable[[], Store]
) -> tuple[Store, bool]:
    """The handle that is open to write here, or what ``make`` opens; and whether it was there.

    Errors: ``LockedError`` where a handle is open with other arguments, has left the step that was
    asked for, or refuses changes after an error.
    """
    with _opening:
        found = _open_here(directory)
        if found is None:
            store = register(make())
            store._opened(dict(arguments), _place_of(directory))
            return store, False
        _refuse_other(found, directory, arguments)
        return found, True


def close_all() -> None:
    """Closes every store that this process has open, whoever holds its handle.

    For a notebook in which a handle cannot be reached any more, because its name was given to
    something else, or only the traceback of an exception refers to it. Modules and tables of these
    stores raise ``ClosedError`` from then on. In a forked child, the stores of its parent stay
    open.

    Warns with ``UncommittedWarning`` for each store with changes since its last commit.

    Errors: what closing a store has raised, the first of them, after all others were closed.

    >>> lost = embedrock.open("lost.store", memory="1MiB")
    >>> embedrock.close_all()
    >>> lost.closed
    True
    """
    first: EmbedrockError | None = None
    for store in _all():
        try:
            store._close()
        except EmbedrockError as error:
            first = first or error
    if first is not None:
        raise first


def open_of(store_id: str) -> Store | None:
    """The store of this id that is open here: to write, or else the reader of the newest commit."""
    there = [store for store in _all() if not store.closed and store.id == store_id]

    def order(store: Store) -> tuple[bool, int]:
        last = store._core.last_commit()
        return not store.read_only, 0 if last is None else int(last["sequence"])

    return max(there, key=order, default=None)


def _open_here(directory: Path) -> Store | None:
    place = _place_of(directory)
    if place is None:
        return None
    same = (store for store in _all() if store._place == place and not store.closed)
    return next(same, None)


def _place_of(directory: Path) -> Place | None:
    """Identity of the lock file of a store, by whatever path it was reached. It includes the
    folder, because a backup of hard links has the same file."""
    try:
        status, folder = os.stat(directory / _LOCK_FILE), os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino, folder.st_dev, folder.st_ino


def _refuse_other(store: Store, directory: Path, arguments: Mapping[str, Any]) -> None:
    way_out = (
        "use that handle or close it first; embedrock.close_all() closes what nothing refers to "
        "any more"
    )
    already = f"store {directory} is open in this process already"
    if store._core.is_poisoned():
        raise LockedError(f"{already}, and refuses changes after an error; {way_out}")
    given = store._arguments
    others = [
        f"{name}={given[name]!r} (asked for: {value!r})"
        for name, value in arguments.items()
        if name not in ("step", "pin") and not _same(name, given[name], value)
    ]
    if others:
        raise LockedError(f"{already}, with {', '.join(others)}; {way_out}")
    opened, asked = ((named["step"], named["pin"]) for named in (given, arguments))
    is_last = asked == (None, None)
    if asked != opened or not (is_last or (_is_at(store, *asked) and not store.uncommitted[0])):
        raise LockedError(
            f"{already}, opened at {_spelled('its', *opened)} and used since; to go to "
            f"{_spelled('the', *asked)}, close it first, or all with embedrock.close_all()"
        )


def _spelled(article: str, step: int | None, pin: str | None) -> str:
    if pin is not None:
        return f"pin {pin!r}"
    return f"{article} last commit" if step is None else f"step {step}"


def _is_at(store: Store, step: int | None, pin: str | None) -> bool:
    """Whether a store is at the commit of a step, or the one that is pinned under a name."""
    if pin is None:
        return store.step == step
    last = store._core.last_commit()
    at = [one["sequence"] for one in store._core.pins() if one["name"] == pin]
    return last is not None and at == [last["sequence"]]


def _same(name: str, given: Any, asked: Any) -> bool:
    return same_memory(given, asked) if name == "memory" else bool(given == asked)
