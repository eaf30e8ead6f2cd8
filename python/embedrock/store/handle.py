"""The handle of an open store: what it was opened with, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from embedrock import _core
from embedrock._listeners import Listeners
from embedrock._references import is_by_reference
from embedrock._warnings import warn
from embedrock.ahead.prefetch import Prefetcher
from embedrock.commits import PendingCommit
from embedrock.errors import (
    EmbedrockError,
    ForkedError,
    MisuseError,
    NotFoundError,
    UncommittedWarning,
)

if TYPE_CHECKING:
    from embedrock.table import Table

__all__ = ["Handle", "Opener"]

H = TypeVar("H", bound="Handle")


class Opener(Protocol):
    """Opens the engine's store: as ``embedrock.open`` was asked to, or at a step or a pin."""

    def __call__(
        self, back_to: int | str | None, /, *, later_pins_stay: bool = False
    ) -> _core.Store:
        """``later_pins_stay``: a commit before pinned ones is opened, and refuses changes."""
        ...


class Handle:
    """The part of a store other than its tables and commits."""

    def __init__(self, opener: Opener, path: Path, memory: str, read_only: bool = False) -> None:
        """Not for callers: stores come from ``embedrock.open``."""
        self._opener = opener
        self._core = core = opener(None)
        self._path = path
        self._memory = memory
        self._read_only = read_only
        self._closed = False
        self._pid = os.getpid()
        self._prefetcher = Prefetcher(core, path)
        self._listeners = Listeners()
        self._tables: weakref.WeakSet[Table] = weakref.WeakSet()
        """Handles of tables that somebody has."""
        self._tables_lock = threading.RLock()
        """Guards that set, to which other threads add while one goes through it."""
        self._doubted: set[_core.TableId] = set()
        """Tables of which a ``KeysWarning`` was said."""
        self._kinds: tuple[str | None, dict[str, str]] = (None, {})
        """The meta of a commit, and how it says that keys of tables were made."""
        self._unnamed: dict[_core.TableId, int] = {}
        """Tables for which nobody has named an optimizer, and the last commit before each."""
        self._later: list[dict[str, Any]] = []
        """The commit that the store went back to, and those behind it."""
        self._branch = secrets.randbits(62)
        """Random number for each opening and going back: changes without a commit belong to one of
        them."""
        self._returns = 0
        """Number of times that the store went back: rows read before are no longer valid."""
        self._state_taken = False
        """Whether a caller took over the commit's state beside rows, or this handle made it."""
        self._pending: PendingCommit | None = None
        """The last commit that was not waited for."""
        self._pending_step: int | None = None
        """Step of the last commit that was not waited for."""
        self._pending_pin = False
        """Whether that commit is to be pinned, which closing waits for."""
        self._of_ranks: str | None = None
        """The byte string that every commit has, where ranks commit together."""
        self._arguments: dict[str, Any] = {}
        """Arguments that a store open to write was opened with (``registry.py``)."""
        self._place: tuple[int, int, int, int] | None = None
        self._given_again = 0
        """Number of times that ``open`` returned this handle again, less the ``with`` blocks that
        have ended since."""

    @property
    def path(self) -> Path:
        """The store's directory: absolute, as it was when the store was opened.

        Links are left as they were given. A later ``os.chdir`` does not move the store.
        """
        return self._path

    @property
    def id(self) -> str:
        """The identity of this store: 32 hexadecimal digits.

        A copy by :func:`embedrock.copy` is another store; a folder that was copied by other means
        is the same one.

        >>> len(store.id)
        32
        """
        return self._core.id()

    @property
    def memory(self) -> str:
        """The memory budget as it was given to ``open``."""
        return self._memory

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only."""
        return self._read_only

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def step(self) -> int | None:
        """Step of the commit that the store was opened at or that became durable last.

        None before the first.
        """
        last = self._core.last_commit()
        return None if last is None else int(last["step"])

    def close(self) -> None:
        """Closes the store and releases its lock or its hold; a second call does nothing.

        If ``open`` returned the same handle several times, it is closed for all users.

        Warns with ``UncommittedWarning`` when changes since the last commit are discarded.
        """
        self._close()

    def __enter__(self: H) -> H:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the store, unless it was open already when this block opened it."""
        if self._given_again:
            self._given_again -= 1
            return
        self._close()

    def __del__(self) -> None:
        """Closes a store that was left open, so that the lock does not outlive its last user."""
        # In a forked child there is nothing to close, and at its end nothing to raise errors with.
        if not getattr(self, "_closed", True) and self._pid == os.getpid():
            with contextlib.suppress(EmbedrockError):
                self._close()

    def __reduce__(self) -> Any:
        """Refuses to be pickled."""
        raise TypeError(
            f"a store cannot be pickled or copied: open {self._path} in the process that uses it; "
            f"to keep it out of Lightning's hyperparameters, save_hyperparameters(ignore=['store'])"
        )

    def __deepcopy__(self: H, memo: object) -> H:
        """Itself by reference, or refused."""
        return self if is_by_reference() else self.__reduce__()

    def __repr__(self) -> str:
        if self._closed:
            return f"<embedrock.Store {str(self._path)!r} closed>"
        try:
            tables, (batches, _) = len(self._core.tables()), self._core.uncommitted()
            facts = f"step={self.step} tables={tables} uncommitted_batches={batches}"
        except ForkedError:
            facts = "(opened before this process was forked)"
        except MisuseError:
            facts = "(inside modify)"
        except EmbedrockError as error:
            facts = f"({error})"
        return f"<embedrock.Store {str(self._path)!r} memory={self._memory!r} {facts}>"

    def _close(self) -> None:
        if self._closed:
            return
        self._core.check_call()  # the next calls wait for other threads
        try:
            self._listeners.closing()
            if self._pending_pin and self._pending is not None:
                with contextlib.suppress(EmbedrockError):  # the handle tells
                    self._pending.wait()
        finally:
            self._prefetcher.stop()
            self._listeners.ended()
            batches, rows = self._core.close()
            self._closed = True
        if batches:
            warn(
                f"{self._path}: closed without a commit: {batches} batches that touched {rows} "
                f"rows since the last commit are discarded; call commit(step) before close()",
                UncommittedWarning,
            )

    def _later_commits(self) -> list[dict[str, Any]]:
        """The commits that the store went back from, while nothing has changed since."""
        if self._later and self._core.uncommitted()[0] == 0:
            last = self._core.last_commit()
            if last is not None and last["sequence"] == self._later[0]["sequence"]:
                return self._later[1:]
        return []

    def _numbers_of(self, step: int | str) -> list[int]:
        """The numbers of the commits of a step that can be gone back to, or of that of a pin."""
        pins = self._core.pins()
        if isinstance(step, str):
            return [pin["sequence"] for pin in pins if pin["name"] == step]
        kept = [*self._core.commits(), *self._later_commits()]
        of_step = [info["sequence"] for info in kept if info["step"] == step]
        return of_step or [pin["sequence"] for pin in pins if pin["step"] == step]

    def _go_back(self, step: int | str, later_pins_stay: bool) -> None:
        """Opens the engine's store anew, at a commit that is there, for every handle of a table."""
        commits = [*self._core.commits(), *self._later_commits()]
        tables = self._held_tables()
        held = self._specs_of(tables)
        for listener in self._listeners:
            listener.returning()
        # Obstacles to opening again are looked for before anything is closed. There can be only one
        # writer at a time.
        if self._read_only:
            moved = self._moved_reader(step, held)
        else:
            moved = None
            number = max(self._numbers_of(step), default=0)
            self._core.check_may_go_back(number, later_pins_stay)
        self._prefetcher.stop()
        self._core.close()
        try:
            self._core = moved or self._opener(step, later_pins_stay=later_pins_stay)
            handles, has_new = self._handles_again(held)
            for table in tables:
                handle = handles.get(table._handle)
                if handle is None:
                    table._gone()
                else:
                    table._moved(handle)
            if has_new:
                commits = []  # a new table is a change
        except BaseException:
            self._core.close()
            self._closed = True
            self._listeners.ended()
            raise
        self._unnamed.clear()
        self._doubted.clear()
        self._returns += 1
        self._branch = secrets.randbits(62)
        at = self._core.last_commit()
        number = 0 if at is None else at["sequence"]
        later = [info for info in commits if info["sequence"] > number]
        self._later = [] if at is None or not commits else [at, *later]
        self._pending = self._pending_step = None
        self._state_taken = True  # the caller of go_back knows the commit
        self._prefetcher = Prefetcher(self._core, self._path)

    def _held_tables(self) -> list[Table]:
        with self._tables_lock:
            return list(self._tables)

    def _specs_of(self, tables: list[Table]) -> dict[_core.TableId, dict[str, Any] | None]:
        """Specifications of these tables, in order of creation; None for dropped ones, which are
        last.

        Several objects may be of one table.
        """
        handles = {table._handle for table in tables}
        there = self._core.tables()
        found: dict[_core.TableId, dict[str, Any] | None] = {
            handle: self._core.table_info(handle)["spec"] for handle in there if handle in handles
        }
        found.update((handle, None) for handle in handles if handle not in found)
        return found

    def _handles_again(
        self, held: dict[_core.TableId, dict[str, Any] | None]
    ) -> tuple[dict[_core.TableId, _core.TableId], bool]:
        """The handle of each table at the commit that was gone back to, whatever its name was
        there, and whether tables were made anew, because they came after that commit.

        No two tables have one handle. One whose name is another's there has none.
        """
        there = self._core.tables()
        found = _found_again(held, there, self._core.find_table)
        has_new = False
        for before, spec in held.items():
            if spec is None or before in found or self._core.find_table(spec["name"]) is not None:
                continue
            found[before], has_new = self._core.table(json.dumps(spec)), True
        return found, has_new

    def _moved_reader(
        self, step: int | str, held: dict[_core.TableId, dict[str, Any] | None]
    ) -> _core.Store:
        """The engine's reader at a commit. Errors: ``NotFoundError`` where a table is not there."""
        moved = self._opener(step)
        named = f"pinned as {step!r}" if isinstance(step, str) else f"of step {step}"
        found = _found_again(held, moved.tables(), moved.find_table)
        for before, spec in held.items():
            if spec is not None and before not in found:
                name = spec["name"]
                moved.close()
                raise NotFoundError(
                    f"table {name!r} is not in the commit {named} of {self.path}, and "
                    f"somebody has it: open that commit by itself, with step= and read_only=True"
                )
        return moved

    def _take_state(self, taken: bool = True) -> None:
        """Somebody took over what the commit has beside rows, or with False nobody did."""
        self._state_taken = taken

    def _commits_with(self, name: str) -> None:
        """From now on every commit has the byte string of that name."""
        self._of_ranks = name

    def _opened(self, arguments: dict[str, Any], place: tuple[int, int, int, int] | None) -> None:
        """Notes what it was opened with, to write, and where."""
        self._arguments, self._place = arguments, place

    def _give_again(self) -> None:
        """``open`` gave this handle out once more."""
        self._given_again += 1


def _found_again(
    held: dict[_core.TableId, dict[str, Any] | None],
    there: list[_core.TableId],
    named: Callable[[str], _core.TableId | None],
) -> dict[_core.TableId, _core.TableId]:
    """Held tables at a commit that has the tables ``there``, with their handles there: matched by
    number, then by name. Those dropped since keep their number if no other has taken it."""
    live = {before: spec["name"] for before, spec in held.items() if spec is not None}
    found = {before: before for before in there if before in live}
    for before, name in live.items():
        handle = named(name)
        if before not in found and handle is not None and handle not in found.values():
            found[before] = handle
    taken = set(found.values())
    found.update((before, before) for before in there if before in held and before not in taken)
    return found
