"""Dropping and renaming the tables of a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from embedrock import _core
from embedrock._arguments import text
from embedrock._names import beside
from embedrock.commits import Commit, commit_of, encode_meta
from embedrock.errors import NotFoundError
from embedrock.store.pins import Pins

if TYPE_CHECKING:
    from embedrock.optimizers import OptimizerSpec
    from embedrock.table import Table

__all__ = ["Catalog"]


class Catalog(Pins):
    """A store whose tables go and get other names."""

    def drop(self, name: str) -> None:
        """Drops a table with all its rows. Its name is free for a new table at once.

        Kept and pinned commits still have the table, and so does a reader until it moves on; its
        disk space is freed once no commit has it. Rows of a table with storage ``"pmem"`` go with
        the next commit. Verbs of its ``Table`` raise ``NotFoundError`` from here on.

        Errors: ``NotFoundError`` with the names that there are; ``MisuseError`` for a store that is
        open ``read_only``; ``FullError``.

        Blocking: waits for verbs of other threads and for a commit that is under way, and writes
        changed rows.

        Durability: with the next commit; a crash or a close before that leaves the table as it was.

        >>> store.table("old", 4).put([1], np.ones((1, 4), np.float32))
        >>> store.drop("old")
        >>> "old" in store.tables
        False
        """
        handle = self._handle_named(text("name", name))
        self._core.drop_table(handle)
        self._later = []  # a change, behind which nothing is left

    def rename(self, name: str, new: str) -> None:
        """Renames a table.

        Its rows, optimizer state and initial rows stay, and so do its ``Table`` objects and the
        modules over them, which have the new name from now on. Other records of the old name, such
        as placements, recordings or the names of byte strings, are not changed.

        Errors: ``NotFoundError`` with the names that there are; ``MisuseError`` for a name that
        another table has and for a store that is open ``read_only``; ``FullError``.

        Blocking: waits for verbs of other threads and for a commit that is under way.

        Durability: as of :meth:`drop`.

        >>> _ = store.table("shops", 4)
        >>> store.rename("shops", "stores")
        >>> "stores" in store.tables, "shops" in store.tables
        (True, False)
        """
        handle = self._handle_named(text("name", name))
        self._core.rename_table(handle, text("new", new))
        self._later = []
        self._tell_again(handle)

    def _grow(self, table: Table, num_embeddings: int) -> None:
        """Gives a dense table more ids."""
        self._core.grow_table(table._handle, num_embeddings)
        self._later = []
        self._tell_again(table._handle)

    def _take_optimizer(self, table: Table, optimizer: OptimizerSpec) -> bool:
        """Gives a table another optimizer that nobody has named one for, and whose rows no commit
        has: it is made anew, with the values that were written. False for any other table.

        Errors: ``BudgetError`` and ``FullError`` where there is no room for both beside each other
        meanwhile; nothing has changed then.
        """
        made_at = self._unnamed.get(table._handle)
        info = self._core.table_info(table._handle)
        is_uncommitted = made_at == self._sequence() or info["rows"] == 0
        if made_at is None or info["updates"] or not is_uncommitted:
            return False
        old, spec, name = table._handle, info["spec"], table.name
        beside = f"{name} with {optimizer['kind']}"
        first = spec.get("first_name") or name
        asked = {**spec, "name": beside, "first_name": first, "optimizer": optimizer}
        made = self._core.table(json.dumps(asked))
        try:
            new = type(table)(table.store, made)
            for keys, values in table.items():
                new.put(keys, values)
        except BaseException:
            self._core.drop_table(made)
            raise
        self._core.drop_table(old)
        self._core.rename_table(made, name)
        self._later = []
        self._name_optimizer(old)
        for other in self._held_tables():
            if other._handle in (old, made):
                other._moved(made)
        return True

    def _name_optimizer(self, handle: _core.TableId) -> None:
        """The table's optimizer is the one that somebody wants, or has written state of."""
        self._unnamed.pop(handle, None)

    def _sequence(self) -> int:
        """The number of the last commit; 0 without one."""
        last = self._core.last_commit()
        return 0 if last is None else int(last["sequence"])

    def _commit_again(self) -> Commit:
        """A commit with step, meta and byte strings of the last one: for a change of tables that
        is no step of a training."""
        last = self._core.last_commit()
        step, meta = (0, encode_meta(None)) if last is None else (last["step"], last["meta"])
        return commit_of(self._core.commit_with_last_state(step, meta))

    def _tell_again(self, handle: _core.TableId | None = None) -> None:
        """Tables look again at what they are: that of a handle, or all that are there."""
        there = set(self._core.tables())
        for table in self._held_tables():
            if table._handle in there and handle in (None, table._handle):
                table._look()

    def _handle_named(self, name: str) -> _core.TableId:
        """Errors: ``NotFoundError`` naming the tables that there are."""
        handle = self._core.find_table(name)
        if handle is None:
            raise NotFoundError(f"{self._path} has no table {name!r} ({self._names_beside(name)})")
        return handle

    def _names_beside(self, name: str) -> str:
        infos = (self._core.table_info(handle) for handle in self._core.tables())
        return beside(name, [info["spec"]["name"] for info in infos])
