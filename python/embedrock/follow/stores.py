"""``StoreFollower``: a copy of a store that follows its commits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from embedrock._arguments import flag, function, instance, named_path, number, shown
from embedrock._names import beside
from embedrock.errors import MismatchError, MisuseError, NotFoundError
from embedrock.follow.origin import SOURCE, origin_of, told_of
from embedrock.store import Store
from embedrock.store.changes import ChangedRows, Changes
from embedrock.store.copied import Facts, last_facts
from embedrock.store.opening import open_part as open_source
from embedrock.table import Table

__all__ = ["StoreFollowed", "StoreFollower", "apply_changes"]

_HEAD = "head"
"""The file of a store that is written with each commit."""
_CHANGES = "what Store.changes gives"


@dataclass(frozen=True, slots=True)
class StoreFollowed:
    """The progress of a copy."""

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
    Changes do not say which rows the store must have had before them. Whether it is a copy of their
    store, at the commit since which they are, is for the caller to know; :class:`StoreFollower`
    looks.

    Errors: ``NotFoundError`` for a table that is not there, ``MismatchError`` where its rows are
    others, and where a table was dropped, renamed or grown between the commits and was not in
    ``store``; those of ``Table.put`` and ``Table.delete``.

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
    if isinstance(changes, Changes):
        _refuse_other_tables(store, tables, changes)
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
            raise NotFoundError(
                f"the changes are of a table {batch.table!r}, which {store.path} does not have "
                f"({beside(batch.table, tables)}); make it first, with the parameters that it has "
                f"where they come from"
            )
        if len(batch.keys):
            table.put(batch.keys, batch.values, state=batch.state, non_finite="apply")
            rows += len(batch.keys)
        if len(batch.deleted):
            deleted += table.delete(batch.deleted)
    return rows, deleted


def _refuse_other_tables(store: Store, tables: dict[str, Table], changes: Changes) -> None:
    """Refuses a store whose tables did not become what those of the changes did."""
    for what, name, *more in changes.table_events:
        table = tables.get(name)
        if table is None:
            continue
        done = {"dropped": False, "renamed": False, "made": True}.get(what)
        if what == "grown":
            done = table.num_embeddings is not None and table.num_embeddings >= more[0]
        if not done and name not in _made_again(changes, name):
            call = {
                "dropped": f"drop({name!r})",
                "renamed": f"rename({name!r}, {more[0] if more else ''!r})",
                "grown": f"table({name!r}).grow({more[0] if more else 0})",
            }[what]
            raise MismatchError(
                f"table {name!r} was {what} where the changes come from, and {store.path} has it "
                f"as it was; call {call} of that store first"
            )


def _made_again(changes: Changes, name: str) -> set[str]:
    """Names that a later table has."""
    events = changes.table_events
    made = {event[1] for event in events if event[0] == "made"}
    return {name} & (made | {event[2] for event in events if event[0] == "renamed"})


def _do_again(copy: Store, changes: Changes) -> None:
    """Does to the tables of a copy what was done to those of its source."""
    for event in changes._core.table_events():
        ((what, told),) = event.items()
        if what == "made":
            copy._core.table(json.dumps(told))
        elif what == "dropped":
            copy.drop(told)
        elif what == "renamed":
            copy.rename(*told)
        else:
            name, num_embeddings = told
            copy.table(name).grow(num_embeddings)


class StoreFollower:
    """Keeps ``copy`` equal to the store at ``source``, commit by commit.

    ``copy`` is a store that :func:`embedrock.copy` made of an earlier commit of the source, that
    :func:`embedrock.objects.pull` made of a push of it, or one without commits, which takes all
    rows over. No other store is followed with, and no copy behind a commit that others have made:
    it would have rows that the source has not, without a word.

    Each commit of the copy has the step, meta and byte strings of the source's commit, and in the
    byte string ``"source"`` which one that was: so a process that was killed goes on from there.
    Rows and their optimizer state are copied as they are, so nothing is lost and nothing counted
    twice. Tables that come to the source are made, and those that are dropped, renamed or grown
    there are so in the copy.

    While it runs it keeps a reader of the source open at the commit that the copy is at: this keeps
    the journal from there on. Between two runs nothing keeps it. If the source has gone too far
    meanwhile, following fails (``NotFoundError``): pin the commits from which copies are to go on,
    or copy anew.

    ``memory`` is that of the readers of the source, two at times: their index must fit.

    Nothing else may change or commit the copy.

    Errors: ``MisuseError`` for a copy that is ``read_only``, has changes that no commit holds, or a
    last commit that others have made; ``MismatchError`` for a store that is a copy of another one,
    of some buckets or of none, and for one without commits with another seed of initial rows. A
    copy that an earlier version of this package has made, and nothing has followed with, is refused
    as no copy: copy anew.

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
        self._origin = origin_of(copy)
        self._at = last_facts(copy)
        """The copy's last commit."""
        self._id: str | None = None
        """The source's id, once it was opened."""
        self._since: Facts | None = None
        """The source's commit that the copy is at."""

    @property
    def followed(self) -> StoreFollowed:
        """Its progress."""
        return StoreFollowed(self._commits, self._rows, self._deleted, self._step)

    @property
    def _step(self) -> int | None:
        return None if self._at is None else self._at.step

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
        reader = open_source(self._source, self._memory, read_only=True)
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
        copy = self._copy
        if last_facts(copy) != self._at:
            raise MisuseError(
                f"{copy.path} was committed at step {copy.step} by others while it follows "
                f"{self._source}; make a new copy, and leave its commits to the follower"
            )
        if self._id is None:
            self._since, self._id = self._origin.commit_of(reader, copy), reader.id
        if self._id != reader.id:
            raise MismatchError(
                f"{self._source} was store {self._id} when {copy.path} began to follow it, and is "
                f"store {reader.id} now; make a new copy of that one"
            )
        newest = last_facts(reader)
        if newest is None or newest == self._since:
            return False
        if self._at is None and copy._core.seed() != reader._core.seed():
            raise MismatchError(
                f"{copy.path} has the seed {copy._core.seed()} of initial rows, and "
                f"{self._source} has {reader._core.seed()}: rows that nobody has written would "
                f"differ; make the copy with embedrock.open(..., seed={reader._core.seed()})"
            )
        since = None if self._since is None else self._since.commit()
        with reader.changes(since, state=True) as changes:
            _do_again(copy, changes)
            for table in reader.tables.values():
                if table.name not in copy.tables:
                    spec = reader._core.table_info(table._handle)["spec"]
                    copy._core.table(json.dumps(spec))
            rows, deleted = apply_changes(copy, changes)
        state = {**reader.state(), SOURCE: told_of(reader, newest, copy)}
        copy.commit(newest.step, reader.meta, state)
        self._since, self._at = newest, last_facts(copy)
        self._commits, self._rows = self._commits + 1, self._rows + rows
        self._deleted += deleted
        return True


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
