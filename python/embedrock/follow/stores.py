"""``StoreFollower``: a copy of a store that follows its commits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from embedrock._arguments import flag, function, instance, named_path, number, shown
from embedrock.commits import Commit
from embedrock.errors import MismatchError, MisuseError, NotFoundError
from embedrock.store import Store
from embedrock.store import open as open_store
from embedrock.store.changes import ChangedRows

__all__ = ["SOURCE", "StoreFollowed", "StoreFollower", "apply_changes"]

SOURCE = "source"
"""Name of the byte string that a commit of a copy has its position in."""
_VERSION = 1
_HEAD = "head"
"""The file of a store that is written with each commit."""
_NO_META = ""
_CHANGES = "what Store.changes gives"


@dataclass(frozen=True, slots=True)
class StoreFollowed:
    """How far a copy is."""

    commits: int
    """Commits of the source that it took over; those between two looks count as one."""
    rows: int
    """Rows that were put."""
    deleted: int
    """Keys that were deleted."""
    step: int | None
    """Step of the last commit, of source and copy; None before the first."""


def apply_changes(store: Store, changes: Iterable[ChangedRows]) -> tuple[int, int]:
    """Puts the rows and deletes the keys of changes; how many rows, and how many keys.

    Rows come with their optimizer state where the changes have it, and keep their own otherwise.
    Nothing is committed. Applied again it changes nothing: what was interrupted is begun anew.

    Errors: ``NotFoundError`` for a table that is not there, ``MismatchError`` where its rows are
    others; those of ``Table.put`` and ``Table.delete``.

    >>> commit = store.commit(step=1)
    >>> table.put([7], np.ones((1, 4), np.float32))
    >>> commit = store.commit(step=2)
    >>> with embedrock.open("other.store", memory="4MiB") as other:
    ...     made = other.table("ads", 4, optimizer="adagrad")
    ...     embedrock.follow.apply_changes(other, store.changes(since=1))
    ...     other.commit(step=2).step
    (1, 0)
    2
    """
    tables = instance("store", store, Store).tables
    rows = deleted = 0
    try:
        batches = iter(changes)
    except (TypeError, RuntimeError) as error:  # what PyTorch says of a jagged tensor
        raise MisuseError(f"changes is {shown(changes)}, expected {_CHANGES}") from error
    for batch in batches:
        if not isinstance(batch, ChangedRows):
            raise MisuseError(f"changes has {shown(batch)}, expected {_CHANGES}")
        table = tables.get(batch.table)
        if table is None:
            names = ", ".join(repr(name) for name in tables) or "none"
            raise NotFoundError(
                f"the changes are of a table {batch.table!r}, and {store.path} has {names}; make "
                f"it first, with the parameters that it has where they come from"
            )
        if len(batch.keys):
            table.put(batch.keys, batch.values, state=batch.state, non_finite="apply")
            rows += len(batch.keys)
        if len(batch.deleted):
            deleted += table.delete(batch.deleted)
    return rows, deleted


class StoreFollower:
    """Keeps ``copy`` equal to the store at ``source``, commit by commit.

    ``copy`` is a store that :func:`embedrock.copy` made of an earlier commit of the source, or one
    without commits, which takes all rows over. Each commit of the copy has the step, meta and byte
    strings of the source's commit, and in the byte string ``"source"`` which one that was: so a
    process that was killed goes on from there. Rows and their optimizer state are copied as they
    are, so nothing is lost and nothing counted twice. Tables that come to the source are made.

    While it runs it keeps a reader of the source open at the commit that the copy is at: the
    journal from there on stays. Between two runs nothing does. Where the source has gone on too
    far meanwhile there is no way back (``NotFoundError``): pin the commits from which copies are to
    go on, or copy anew.

    ``memory`` is that of the readers of the source, two at times: their index must fit.

    Nothing else may change or commit the copy.

    Errors: ``MisuseError`` for a copy that is ``read_only`` or has changes that no commit holds;
    ``MismatchError`` for one that follows another store.

    >>> table.put([7, 8], np.ones((2, 4), np.float32))
    >>> commit = store.commit(step=1)
    >>> copied = embedrock.copy(store.path, "served.store")
    >>> table.put([7], np.zeros((1, 4), np.float32))
    >>> commit = store.commit(step=2)
    >>> with (
    ...     embedrock.open("served.store", memory="4MiB") as copy,
    ...     embedrock.follow.StoreFollower(copy, store.path) as follower,
    ... ):
    ...     followed = follower.run(once=True)
    ...     print(followed.step, followed.rows, copy.table("ads").get([7, 8])[:, 0])
    2 1 [0. 1.]
    """

    def __init__(
        self,
        copy: Store,
        source: str | os.PathLike[str],
        *,
        memory: int | str = "64MiB",
    ) -> None:
        """Looks where the copy is. The source is opened by :meth:`run`."""
        self._copy = instance("copy", copy, Store)
        self._source = named_path("source", source)
        self._memory = memory
        if copy.read_only:
            raise MisuseError(f"{copy.path} is open read_only; open it to write to follow a store")
        batches, rows = copy.uncommitted
        if batches:
            raise MisuseError(
                f"{batches:,} batches have changed {rows:,} rows of {copy.path} that no commit "
                f"holds; close it and open it again, at its last commit"
            )
        if _is_same_place(copy.path, self._source):
            raise MisuseError(f"{copy.path} is to follow itself")
        self._held: Store | None = None
        """The reader of the commit that the copy is at."""
        self._stamp: int | None = None
        self._commits = self._rows = self._deleted = 0
        self._position = _position_of(copy)
        self._step = copy.step

    @property
    def followed(self) -> StoreFollowed:
        """How far it is."""
        return StoreFollowed(self._commits, self._rows, self._deleted, self._step)

    def run(
        self,
        *,
        once: bool = False,
        stop: Callable[[], bool] | None = None,
        look_seconds: float = 0.2,
        progress: Callable[[StoreFollowed], object] | None = None,
    ) -> StoreFollowed:
        """Follows until ``stop()`` is true, or with ``once`` to the source's last commit.

        The source is looked at every ``look_seconds``; its commits in between are taken over as
        one. ``progress`` is called after each. An exception leaves the copy as it is: close it, and
        open it again at its last commit.

        Errors: those of the class, of :meth:`embedrock.Store.changes` and ``Store.commit``.
        ``MisuseError`` when others have committed the copy meanwhile.

        Blocking: as long as it follows.
        """
        flag("once", once)
        function("stop", stop, "nothing that says whether to stop")
        function("progress", progress, "a StoreFollowed")
        if not 0 <= number("look_seconds", look_seconds) < 1e6:
            raise MisuseError(f"look_seconds is {shown(look_seconds)}, expected 0 or more")
        while stop is None or not stop():
            if self._go_on():
                if progress is not None:
                    progress(self.followed)
            elif once:
                break
            else:
                time.sleep(look_seconds)
        return self.followed

    def close(self) -> None:
        """Lets go of the source; a second call does nothing. The copy stays open."""
        held, self._held = self._held, None
        self._stamp = None
        if held is not None:
            held.close()

    def __enter__(self) -> StoreFollower:
        """The follower itself."""
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        return f"<embedrock.follow.StoreFollower of {self._source} at step {self._step}>"

    def _go_on(self) -> bool:
        """Takes the source's newest commit over; whether there was one."""
        stamp = _stamp_of(self._source)
        if self._held is not None and stamp == self._stamp:
            return False
        reader = open_store(self._source, self._memory, read_only=True)
        try:
            took = self._take_over(reader)
        except BaseException:
            reader.close()
            raise
        # The old reader has held the journal until here.
        held, self._held = self._held, reader
        self._stamp = stamp
        if held is not None:
            held.close()
        return took

    def _take_over(self, reader: Store) -> bool:
        if self._copy.step != self._step:
            raise MisuseError(
                f"{self._copy.path} was committed at step {self._copy.step} by others while it "
                f"follows {self._source}; make a new copy, and leave its commits to the follower"
            )
        if self._position is not None and self._position["id"] != reader.id:
            raise MismatchError(
                f"{self._copy.path} follows the store {self._position['id']}, and "
                f"{self._source} is {reader.id}; make a new copy of that one"
            )
        commits = reader.commits()
        if not commits:
            return False
        newest = commits[-1]
        since = self._since()
        if isinstance(since, Commit) and _is_same(since, newest):
            return False
        for table in reader.tables.values():
            if table.name not in self._copy.tables:
                spec = reader._core.table_info(table._handle)["spec"]
                self._copy._core.table(json.dumps(spec))
        with reader.changes(since, state=True) as changes:
            rows, deleted = apply_changes(self._copy, changes)
        told = {"version": _VERSION, "id": reader.id, **_told_of(newest)}
        state = {**reader.state(), SOURCE: json.dumps(told).encode()}
        self._copy.commit(newest.step, newest.meta, state)
        self._position, self._step = told, newest.step
        self._commits, self._rows = self._commits + 1, self._rows + rows
        self._deleted += deleted
        return True

    def _since(self) -> int | Commit | None:
        if self._position is None:
            return self._step  # a copy has the step of what it is a copy of
        names = ("sequence", "step", "unix_time", "bytes_written")
        of = {name: int(self._position[name]) for name in names}
        return Commit(**of, meta=_NO_META, rows_flushed=0, state_bytes=0)


def _told_of(commit: Commit) -> dict[str, int]:
    """What tells a commit from others, for JSON."""
    told = asdict(commit)
    return {name: told[name] for name in ("sequence", "step", "unix_time", "bytes_written")}


def _is_same(one: Commit, other: Commit) -> bool:
    return _told_of(one) == _told_of(other)


def _position_of(copy: Store) -> dict[str, Any] | None:
    """The commit of the source that the copy is at, where its own says it."""
    told = copy.state().get(SOURCE) if copy.step is not None else None
    if told is None:
        return None
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(told)
        if found["version"] == _VERSION and isinstance(found["id"], str):
            for name in ("sequence", "step", "unix_time", "bytes_written"):
                int(found[name])
            return dict(found)
    raise MismatchError(
        f"the byte string {SOURCE!r} of the commit of step {copy.step} in {copy.path} is no "
        f"position of a follower; it is {told[:60]!r}"
    )


def _stamp_of(source: Path) -> int | None:
    try:
        return (source / _HEAD).stat().st_mtime_ns
    except FileNotFoundError:
        return None  # opening it says whether there is a store


def _is_same_place(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
