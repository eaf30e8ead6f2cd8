"""The look-ahead window of a store: rows of coming batches, read before they are used.

The engine does the work (``crates/core/src/store/window``); this is its face.
:class:`embedrock.LookaheadLoader` drives it from a data loader.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from embedrock._arguments import flag, shown
from embedrock._arrays import ArrayLike, as_keys
from embedrock._keys import KeysNamed
from embedrock._names import beside
from embedrock.ahead.schedule import BatchSchedule
from embedrock.errors import MisuseError, NotFoundError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedrock.store import Store
    from embedrock.table import Table

__all__ = ["WINDOW_GROUP", "Window"]

_LAST_USE = 2**31 - 1
"""Uses that are more stretches ahead count as so many; the engine's own limit is smaller."""

WINDOW_GROUP = 256
"""Most batches whose rows a window reads together, unless it is told otherwise."""


class Window:
    """Batches to come. :attr:`Store.window <embedrock.Store.window>` gives it.

    Batches are announced in the order in which they will be used, each once, with all of its
    tables. The store reads the rows of a group of them together, in the order of their pages, while
    the group before is used; rows stay in memory until the last announced batch that uses them is
    finished, as far as memory allows, and are updated there. Announcing never changes a result,
    only when it arrives: what was not read ahead is read when it is used, what is announced and
    never used costs the read.

    Memory: ``window_bytes`` of :func:`embedrock.open` for announced keys, and rows within the
    cache; all of it within the budget.

    Source: the window of RecDB (section 4.2), Lookahead of MLKV (III-C).

    >>> steps = [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    >>> numbers = [store.window.announce({table: keys}) for keys in steps]
    >>> for number, keys in zip(numbers, steps):
    ...     if number is not None:  # the window had room
    ...         store.window.begin(number)
    ...     rows = table.get(keys)
    ...     _ = table.update(keys, np.ones_like(rows), lr=0.1)
    ...     if number is not None:
    ...         store.window.finish(number)
    >>> store.window.stats()["batches"]
    3
    """

    def __init__(self, store: Store) -> None:
        """Not for callers: windows come from ``Store.window``."""
        self._store = store

    def announce(
        self, batch: Mapping[Table | str, ArrayLike], *, schedule: BatchSchedule | None = None
    ) -> int | None:
        """Announces the keys of one coming batch: ``{table or its name: keys (*,)}``.

        Returns the batch's number; None when the window is full, which changes once batches are
        finished. Keys may occur several times.

        With ``schedule`` the store knows where in the training each row is used next. A row that
        leaves memory is written to a page of the stretch that uses it next; then the rows of a
        stretch lie together and are read together, instead of a page for nearly every row. The
        schedule also decides which rows stay in memory. It never changes a result. One that is
        wrong about most uses is set aside with a warning in the log, until :meth:`clear`.

        Errors: ``KeyRangeError`` for ids outside a dense table, ``NotFoundError`` for a table that
        the store does not have, ``MisuseError`` for a schedule that does not fit the batch,
        ``ClosedError``.

        Blocking: copies the keys and returns.
        """
        if not isinstance(batch, Mapping):
            raise MisuseError(f"batch is {shown(batch)}, expected {{table: keys}}")
        found = [(self._table(table), as_keys(keys)) for table, keys in batch.items()]
        with KeysNamed(*found):
            if schedule is None:
                return self._store._core.announce([(t._handle, keys.flat) for t, keys in found])
            if not isinstance(schedule, BatchSchedule):
                expected = "expected an embedrock.ahead.BatchSchedule"
                raise MisuseError(f"schedule is {shown(schedule)}, {expected}")
            next_use = {self._table(t).name: uses for t, uses in schedule.next_use.items()}
            parts = [(t._handle, k.flat, _uses(t, k.flat, next_use.get(t.name))) for t, k in found]
            of = (schedule.stretch, schedule.stretch_batches, schedule.furthest)
            return self._store._core.announce_scheduled(parts, *of)

    def announce_range(self, table: Table | str, first: ArrayLike, last: ArrayLike) -> int | None:
        """Announces ids of a dense table that will be used much: ``first`` to ``last`` (exclusive),
        or several such runs, ``(R,)`` each, ascending and apart.

        Returns a number for :meth:`begin`, which waits until the rows are in memory, and
        :meth:`finish`; None when the cache has no room for them beside the ranges announced before,
        which changes once some are finished. Ranges are finished one by one, in any order. Until
        then their rows stay in memory before all others.

        Rows are read in the order of their ids, in requests of up to 256 KiB. A range takes 16
        bytes of the window for each run, however many ids that has. Together ranges have seven
        eighths of the cache at most.

        Errors: ``UnsupportedError`` for a growing table, whose keys have no order, and for
        ``storage="pmem"``, whose rows are in no cache; ``KeyRangeError`` for ids outside the table;
        ``MisuseError`` for runs that are empty or not ascending; ``NotFoundError``;
        ``ClosedError``.

        Blocking: no.

        >>> part = store.table("nodes", 4, num_embeddings=1000, optimizer="sgd")
        >>> number = store.window.announce_range(part, 0, 100)
        >>> store.window.begin(number)
        >>> report = part.update(range(100), np.ones((100, 4), np.float32), lr=0.1)
        >>> store.window.finish(number)
        """
        found = self._table(table)
        runs = [as_keys(ids, name).flat for name, ids in (("first", first), ("last", last))]
        return self._store._core.announce_range(found._handle, *runs)

    def begin(self, number: int) -> None:
        """The batch is about to be read: waits until its rows were read ahead. So with a range.

        Errors: ``MisuseError`` for a number that ``announce`` did not return, ``ClosedError``.

        Blocking: until the store has read the rows of the batch's group. Ctrl-C ends it.
        """
        self._store._core.begin(_number(number))

    def finish(self, number: int, *, evict: bool = False) -> None:
        """The batch, and all before it, is done with: its rows are no longer kept for it. Of a
        range the one alone; a second time does nothing. With ``evict`` the rows of a range leave
        memory soon, in the order of their ids; those that have changed are written so, and the
        range's next read is a long one. Of a batch it changes nothing.

        Call it when the updates of the batch are applied.

        Errors: ``MisuseError`` for a number that ``announce`` did not return, ``ClosedError``.
        """
        self._store._core.finish(_number(number), flag("evict", evict))

    def clear(self) -> None:
        """Forgets everything that is announced. Numbers go on. Errors: ``ClosedError``."""
        self._store._core.clear_announced()

    def release(self) -> None:
        """Forgets everything that is announced, and gives the window's memory back to the row
        cache, soon: a thread of the store does it. The next announcement takes it again.

        Errors: ``ClosedError``.
        """
        self._store._core.release_window()

    def pause(self) -> None:
        """Lets the window rest: it reads nothing, keeps what it has, and nobody waits for it.

        Errors: ``ClosedError``.

        Blocking: waits for the reads that are under way.
        """
        self._store._core.pause_window(True)

    def resume(self) -> None:
        """Goes on after ``pause``. Errors: ``ClosedError``."""
        self._store._core.pause_window(False)

    def stats(self) -> dict[str, Any]:
        """Counters of the window since the store was opened.

        ``batches`` announced (``keys`` in all, ``distinct`` within each batch), ``ranges``
        announced; ``refused`` because the window was full, ``skipped`` because they were begun
        before they could be read ahead or do not fit, ``cleared``; ``groups`` that were begun,
        ``group_batches`` that were read of them;
        ``rows_loaded`` in ``requests`` for ``pages`` and ``bytes``, of them ``pages_again`` within
        one group; ``rows_rewritten`` as they are, because those of their range, or of the batches
        of a schedule, were on too many pages; rows
        ``turned_away`` because all of their set are used sooner, rows ``lost``
        although an announced batch or a schedule uses them; announced uses that a schedule has
        foreseen (``schedule_right``, ``schedule_wrong``), and schedules that were set aside
        (``schedule_set_aside``); groups that ``failed``, and the ``error`` of the last
        one; seconds that callers waited (``wait_s``), and how much of the window's work they did
        meanwhile (``helped``: tasks and portions); how often one went on without, as the threads
        that read had no core (``starved``), and whether these rest since (``resting``); steps of
        merges that the window did in the place of verbs (``upkeep``); seconds that the window
        noted uses and formed groups (``planning_s``), read (``reading_s``) and in that waited for
        the device (``read_wait_s``); the numbers of the batches last ``announced``, ``filled`` and
        ``finished``; ``memory_bytes`` of ``most_bytes``.
        """
        found: dict[str, Any] = self._store._core.window_stats()
        return found

    def _table(self, given: Table | str) -> Table:
        if not isinstance(given, str):
            return self._store._own(given)
        tables = self._store.tables
        if given not in tables:
            there = beside(given, tables)
            raise NotFoundError(f"{self._store.path} has no table {given!r} ({there})")
        return tables[given]


def _uses(table: Table, keys: NDArray[Any], given: ArrayLike | None) -> NDArray[np.int32]:
    """Next uses as the engine takes them."""
    if given is None:
        raise MisuseError(f"next_use says nothing of table '{table.name}', which the batch has")
    expected = f"expected a whole number for each of its {keys.size} keys"
    try:
        uses = np.asarray(given)
    except Exception:  # of the object's own, too
        raise MisuseError(f"next_use of table '{table.name}' is no array, {expected}") from None
    if uses.dtype.kind not in "iu" or uses.size != keys.size:
        raise MisuseError(
            f"next_use of table '{table.name}' has shape {uses.shape} and dtype {uses.dtype}, "
            f"{expected}"
        )
    if uses.dtype != np.int32:
        uses = np.clip(uses, -1, _LAST_USE).astype(np.int32)
    return np.ascontiguousarray(uses).reshape(-1)


def _number(given: int) -> int:
    try:
        number = operator.index(given)
    except Exception:  # of the object's own, too
        number = 0
    if not 0 < number < 2**64:
        raise MisuseError(
            f"number is {shown(given)}, expected one that announce() has returned (None says that "
            f"the window was full: such a batch is neither begun nor finished)"
        )
    return number
