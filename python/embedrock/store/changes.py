"""Changes: the rows that commits have written and the keys that they have deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import flag, iterated, shown, text, whole
from embedrock._verbs import Floats
from embedrock.commits import Commit, commit_of
from embedrock.errors import MisuseError, NotFoundError
from embedrock.store.catalog import Catalog
from embedrock.table import Table

__all__ = ["ChangedRows", "Changes", "Changing"]


class ChangedRows(NamedTuple):
    """Some changes of one table. Keys of 2**63 and above appear negative, as ``Table.items``
    gives them."""

    table: str
    """The table's name."""
    keys: npt.NDArray[np.int64]
    """Keys of rows that were written, ``(N,)`` int64."""
    values: Floats
    """These rows, ``(N, embedding_dim)`` float32, whatever the dtype of the table is."""
    state: Floats | None
    """Their optimizer state, ``(N, state_words)`` float32, where it was asked for."""
    deleted: npt.NDArray[np.int64]
    """Keys that have no row any more, ``(M,)`` int64."""


class Changes(Iterator[ChangedRows]):
    """The changes between two commits, batch by batch. ``Store.changes`` makes it.

    The later commit is held until all were read, or :meth:`close`; a ``with`` block closes it.
    """

    def __init__(
        self, core: _core.Changes, widths: dict[str, tuple[int, int]], most: int, state: bool
    ) -> None:
        """Not for callers: ``Store.changes`` makes it."""
        self._core = core
        self._widths = widths
        self._most = most
        self._state = state
        told = core.commit()
        self._commit = None if told is None else commit_of(told)

    @property
    def commit(self) -> Commit | None:
        """The commit that the changes lead to: the next ``since``. None where there is none."""
        return self._commit

    @property
    def table_events(self) -> list[tuple[Any, ...]]:
        """Dropped, renamed and grown tables between the commits, in order, of the whole store.

        Each is ``("made", name)``, ``("dropped", name)``, ``("renamed", name, new)`` or
        ``("grown", name, num_embeddings)``. Rows that come are of tables as they are in the later
        commit; of a table that was dropped none come. Without ``since`` there are none.
        """
        return [_event_of(event) for event in self._core.table_events()]

    @property
    def bytes_read(self) -> tuple[int, int]:
        """Bytes of the journal that say what changed, and of pages read by this reader so far."""
        return self._core.bytes_read()

    def close(self) -> None:
        """Releases the commits; remaining changes are not returned. A second call does nothing."""
        self._core.close()

    def __enter__(self) -> Changes:
        """The changes themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes them."""
        self.close()

    def __iter__(self) -> Changes:
        """Itself: changes are read once."""
        return self

    def __next__(self) -> ChangedRows:
        """The next changes."""
        found = self._core.next_batch(self._most, self._state)
        if found is None:
            self.close()
            raise StopIteration
        table, keys, values, state, deleted = found
        # One that was renamed or dropped since has its name of the commit.
        dim, words = self._widths.get(table, (0, 0))
        if len(keys):
            dim, words = len(values) // len(keys), len(state) // len(keys)
        return ChangedRows(
            table,
            keys.view(np.int64),
            values.reshape(len(keys), dim),
            state.reshape(len(keys), words) if self._state else None,
            deleted.view(np.int64),
        )


class Changing(Catalog):
    """The part of a store that reports its commits' changes."""

    def changes(
        self,
        since: int | Commit | None,
        *,
        tables: Iterable[str | Table] | None = None,
        batch_rows: int = 65536,
        state: bool = False,
    ) -> Changes:
        """The rows that were written and the keys that were deleted since a commit.

        They lead to the commit at which the store is open; for a store open for writing, to its
        last commit, whatever was written since. Each row that a verb wrote appears once, as it is
        in that commit, and so does each deleted key that has no row there. Both are absolute:
        applying them twice changes nothing. A row that cleaning or a merge has moved may also
        appear, although nobody has changed it; other rows do not. A key that was written and
        deleted in between may appear as deleted.

        Args:
            since: The step of a commit, or the :class:`Commit` itself, which cannot be mistaken for
                another one of its step after the store has gone back. None: all rows, as of a
                commit before the first. The journal must still have everything between both
                commits, or a pin the earlier one: the kept commits are in the journal, and usually
                many before them.
            tables: Names of tables, or tables; None: all.
            batch_rows: Maximum number of rows, and of deleted keys, in a batch.
            state: Whether to return the optimizer state with the values.

        Errors: ``NotFoundError`` where neither the journal nor a pin leads back to the commit, with
        the steps from which there is a way; ``UnsupportedError`` where a table has storage
        ``"pmem"``, whose rows have no versions; ``MisuseError`` where a reader is refreshed before
        all were read. Those of ``open``.

        Blocking: reads the journal behind the earlier commit, and pages as batches are asked for:
        those of a log that were written since, and no others; of an lsm also the partitions that
        merges have written since. Changes since a pinned commit that the journal does not reach
        read pages with rows of that commit, too; of an lsm all.

        Memory: a bit for each row of the files of rows, and 24 MiB for deleted keys, in as many
        passes as it takes. A store that is open to write opens its last commit to read: until all
        was read there is a second index beside the budget. A reader that is open at a commit needs
        none.

        >>> commit = store.commit(step=1)
        >>> table.put([7, 8], np.ones((2, 4), np.float32))
        >>> table.delete([8])
        1
        >>> commit = store.commit(step=2)
        >>> for batch in store.changes(since=1):
        ...     print(batch.table, batch.keys, batch.values.shape, batch.deleted)
        ads [7] (1, 4) []
        """
        step, named = _commit_before(since)
        flag("state", state)
        most = whole("batch_rows", batch_rows, 1)
        self._listeners.before()
        handles = None if tables is None else [self._handle_of(table) for table in _list(tables)]
        changes = _core.Changes(self._core, handles, step, named)
        return Changes(changes, self._widths(), most, state)

    def _handle_of(self, table: str | Table) -> _core.TableId:
        name = table.name if isinstance(table, Table) else text("a table of tables", table)
        handle = self._core.find_table(name)
        if handle is None:
            there = self._names_beside(name)
            raise NotFoundError(f"tables has {name!r}, which {self.path} has not ({there})")
        return handle

    def _widths(self) -> dict[str, tuple[int, int]]:
        """Values and words of state of a row, by the table's name."""
        infos = [self._core.table_info(handle) for handle in self._core.tables()]
        return {
            info["spec"]["name"]: (info["spec"]["embedding_dim"], info["state_words"])
            for info in infos
        }


def _event_of(event: dict[str, Any]) -> tuple[Any, ...]:
    ((what, told),) = event.items()
    if what == "made":
        return what, told["name"]
    return (what, told) if isinstance(told, str) else (what, *told)


def _list(tables: Iterable[str | Table]) -> list[str | Table]:
    if isinstance(tables, str):
        raise MisuseError(f"tables is {shown(tables)}, expected a list of names or tables")
    return iterated("tables", tables, "a list of names or tables")


def _commit_before(since: int | Commit | None) -> tuple[int | None, tuple[int, int, int] | None]:
    if since is None:
        return None, None
    if isinstance(since, Commit):
        return since.step, (since.sequence, since.unix_time, since.bytes_written)
    return whole("since", since, 0), None
