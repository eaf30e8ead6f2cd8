"""``Follower``: applies the records of a source to a store, and commits them with the position."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embedrock import _logs
from embedrock._arguments import choice, flag, function, instance, number, shown, whole_or_none
from embedrock.commits import PendingCommit
from embedrock.errors import (
    FullError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
)
from embedrock.follow.source import Position, Record, RemoteSource, Source
from embedrock.store import Store
from embedrock.table import Table

__all__ = ["STATE", "Followed", "Follower"]

_log = _logs.of("follow")
STATE = "follow"
"""Name of the byte string that a commit has the position in."""
_VERSION = 1
_WAIT_SECONDS = 0.05
"""Between two looks at a log that has nothing new; also how late Ctrl-C may be noticed."""
_SHOW_SECONDS = 0.2
_HYPER = ("lr", "eps", "betas", "weight_decay", "step")
_OWN_HYPER = ("momentum", "dampening", "nesterov", "lr_power", "l1", "l2", "beta")
_OPTIONS = {
    "put": frozenset({"reset_state"}),
    "update": frozenset({*_HYPER, *_OWN_HYPER}),
    "delete": frozenset(),
}
"""Options that records may set for a verb. Handling of rows that are not finite, for one, is not
among them."""
_BAD = (KeyRangeError, MismatchError, MisuseError, NonFiniteError, NotFoundError)
"""The errors of verbs for a record that does not fit the store, raised before any row changes."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The progress of a follower."""

    records: int
    """Records applied since the follower was made."""
    rows: int
    """Rows, or gradients, or keys to delete, that they had."""
    bad: int
    """Records that were left out, of all that the store has followed."""
    commits: int
    """Commits since the follower was made."""
    step: int | None
    """Step of the last commit; None before the first."""
    committed_at: float
    """When it was made, by ``time.monotonic``."""
    lag_bytes: int | None
    """Bytes of the log that are still to be read; None where the source does not say it."""
    lag_records: int | None = None
    """Records of the log that are still to be read; None where the source does not say it."""


class Follower:
    """Applies the records of ``source`` to ``store``, in their order, each exactly once.

    Each commit has the position behind its last record, in the byte string ``"follow"`` of
    :meth:`embedrock.Store.state`; other byte strings and the meta of the commit before are kept. A
    store that was closed, killed or lost power goes on at its last commit, from that commit's
    position. Readers of the store see the commits when they ``refresh``.

    ``start`` is where a store begins whose commit has no position: ``"begin"`` or ``"end"`` of the
    log. Say it the first time alone: without it such a store is refused, for its position may have
    been lost, and to begin anew would apply gradients twice. A store without commits begins at the
    beginning. A commit is made every ``commit_seconds``, and every
    ``commit_rows`` rows, where those are not None and something is new; steps are counted on. A
    record that does not fit (an unknown table, another dim, numbers that are not finite, a key out
    of range) is an error that names its place, after a commit of all before it; with ``skip_bad``
    it is left out and counted, and ``on_bad(place, error)`` is called.

    Nothing else may commit the store, meanwhile or between two followers: rows would become durable
    without their position.

    Errors: ``MisuseError`` for a store that is ``read_only``, has changes that no commit holds, or
    has a commit without position where ``start`` is not given;
    ``MismatchError`` when it has followed another log.

    >>> with embedrock.follow.LogWriter("ads.log") as log:
    ...     log.put("ads", [7, 8], np.ones((2, 4), np.float32))
    ...     log.update("ads", [7], np.ones((1, 4), np.float32), lr=0.5)
    >>> store.commit(step=1).step
    1
    >>> with embedrock.follow.LogReader("ads.log") as source:
    ...     followed = embedrock.follow.Follower(store, source, start="begin").run(once=True)
    >>> followed.records, followed.rows, store.uncommitted
    (2, 3, (0, 0))
    """

    def __init__(
        self,
        store: Store,
        source: Source,
        *,
        start: str | None = None,
        commit_seconds: float | None = 5.0,
        commit_rows: int | None = None,
        skip_bad: bool = False,
        on_bad: Callable[[str, Exception], object] | None = None,
    ) -> None:
        """Goes to the position of the store's commit; one that has none is committed at its start,
        durably."""
        self._store = instance("store", store, Store)
        if isinstance(source, type) or not isinstance(source, Source):
            raise MisuseError(
                f"source is {shown(source)}, expected a follow.LogReader, Kafka or a Source"
            )
        self._source = source
        self._remote = source if isinstance(source, RemoteSource) else None
        if start is not None:
            choice("start", start, ("begin", "end"))
        if commit_seconds is not None and not number("commit_seconds", commit_seconds) >= 0:
            raise MisuseError(f"commit_seconds is {shown(commit_seconds)}, expected 0 or more")
        self._commit_seconds = commit_seconds
        self._commit_rows = whole_or_none("commit_rows", commit_rows, 1)
        self._skip_bad = flag("skip_bad", skip_bad)
        self._on_bad = function("on_bad", on_bad, "a place and an error")
        if store.read_only:
            raise MisuseError(f"{store.path} is open read_only; open it to write to follow a log")
        batches, rows = store.uncommitted
        if batches:
            raise MisuseError(
                f"{batches:,} batches have changed {rows:,} rows of {store.path} that no commit "
                f"holds: commit them first, or, when a follower was interrupted, close the store "
                f"and open it again"
            )
        self._tables: dict[str, Table] = {}
        self._returns = store._returns
        self._waiting: deque[Record] = deque()
        self._left_out = _logs.Limit()
        self._interrupted = False
        self._pending: PendingCommit | None = None
        self._records = self._rows = self._bad = self._commits = self._fresh_rows = 0
        self._committed_at = self._shown_at = time.monotonic()
        self._step = store.step
        self._state = dict(store.state()) if store.step is not None else {}
        followed = self._state.pop(STATE, None)
        if followed is None:
            if start is None and store.step is not None:
                raise MisuseError(
                    f"the commit of step {store.step} in {store.path} has no position in a log; "
                    f'say where to begin (start="begin" or "end", --from), if this store has '
                    f"followed nothing yet; if it has, others have committed it since: open it "
                    f"at the follower's own commit with step="
                )
            source.end() if start == "end" else source.begin()
            self._position: Position = source.position
            self._committed: tuple[Position, int] | None = None
            self.commit()
            self._settle()
        else:
            self._position, self._bad = _decoded(followed, store)
            source.seek(self._position)
            self._committed = (self._position, self._bad)

    @property
    def position(self) -> Position:
        """The position behind the last record that was applied or left out."""
        return self._position

    @property
    def followed(self) -> Followed:
        """Its progress."""
        step, at = self._step, self._committed_at
        lag, lag_records = self._source.lag_bytes(), None
        if lag is not None:
            lag += sum(_bytes_of(record) for record in self._waiting)
        if self._remote is not None:
            waiting = sum(record.count for record in self._waiting)
            lag_records = self._remote.lag_records() + waiting
        counts = (self._records, self._rows, self._bad, self._commits)
        return Followed(*counts, step, at, lag, lag_records)

    def run(
        self,
        *,
        once: bool = False,
        stop: Callable[[], bool] | None = None,
        progress: Callable[[Followed], object] | None = None,
    ) -> Followed:
        """Follows until ``stop()`` is true, or with ``once`` until nothing whole is left to read.

        ``stop`` is asked between two records, ``progress`` called a few times a second. All that
        was applied is committed, durably, when it returns, and when it raises for a bad record or a
        damaged log. Any other exception, such as that of Ctrl-C, leaves the store as it is: close
        it, and open it again at its last commit.

        Errors: those of the class, with the place of the record; ``CorruptError`` of the source;
        those of ``Store.commit``. ``MisuseError`` when others have committed the store meanwhile.

        Blocking: as long as it follows.
        """
        flag("once", once)
        function("stop", stop, "nothing that says whether to stop")
        function("progress", progress, "a Followed")
        self._check()
        while stop is None or not stop():
            if not self._waiting and not self._read():
                self._commit_if_due()
                self._show(progress)
                if once and self._at_end():
                    break
                time.sleep(_WAIT_SECONDS)
                continue
            self._take(self._waiting[0])
            self._commit_if_due()
            self._show(progress)
        self.commit()
        self._settle()
        self._show(progress, last=True)
        return self.followed

    def commit(self) -> None:
        """Commits what was applied with its position; nothing where nothing is new.

        Durability: it is written while records are applied further; durable when :meth:`run`
        returns.

        Errors: ``MisuseError`` where Ctrl-C has left a record half applied.
        """
        self._check()
        self._settle()
        if self._committed != (self._position, self._bad):
            self._commit_again()

    def _check(self) -> None:
        if self._store._returns != self._returns:
            raise MisuseError(
                f"{self._store.path} has gone back since the follower was made, and its source has "
                f"not; make a new follower"
            )
        if self._interrupted:
            raise MisuseError(
                f"the follower of {self._store.path} was interrupted while it read or applied a "
                f"record; close the store and open it again, and make a new follower"
            )

    def _commit_again(self) -> None:
        """Commits, also where nothing is new."""
        told = {"version": _VERSION, "position": dict(self._position), "bad": self._bad}
        state = {**self._state, STATE: json.dumps(told).encode()}
        step = 0 if self._step is None else self._step + 1
        self._pending = self._store.commit(step, self._store.meta, state, wait=False)
        self._step, self._commits = step, self._commits + 1
        self._committed = (self._position, self._bad)
        self._committed_at, self._fresh_rows = time.monotonic(), 0

    def _settle(self) -> None:
        """Waits for the commit under way. Errors: ``MisuseError`` when the last is of others."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        if self._store.step != self._step:
            raise MisuseError(
                f"{self._store.path} was committed at step {self._store.step} by others while it "
                f"follows a log, without the position; close it, open it at step {self._step}, "
                f"and leave its commits to the follower"
            )

    def _commit_if_due(self) -> None:
        rows, seconds = self._commit_rows, self._commit_seconds
        by_rows = rows is not None and self._fresh_rows >= rows
        if by_rows or (
            seconds is not None and time.monotonic() - self._committed_at >= float(seconds)
        ):
            self.commit()

    def _read(self) -> bool:
        """Reads on in the log; whether something came. Damage comes after a commit."""
        self._interrupted = True  # until what the source is behind of waits here
        try:
            found = self._source.poll()
        except Exception:
            self._interrupted = False  # nothing was read
            self.commit()
            self._settle()
            raise
        self._waiting.extend(found)
        if not found:
            self._position = self._source.position  # behind the end of a segment, for example
        self._interrupted = False
        return bool(found)

    def _at_end(self) -> bool:
        """Whether all was read. Errors of the source come after a commit, as those of a read."""
        try:
            return self._remote is None or self._remote.at_end()
        except Exception:
            self.commit()
            self._settle()
            raise

    def _take(self, record: Record) -> None:
        """Applies the first record that waits, or leaves it out."""
        self._interrupted = True
        try:
            self._apply_with_room(record)
        except _BAD as error:
            if record.parts is not None:
                parts = record.parts()
                self._waiting.popleft()
                self._waiting.extendleft(reversed(parts))
                self._interrupted = False
                return
            self._interrupted = False  # nothing has changed
            told = type(error)(f"{record.place}: {error}")
            if not self._skip_bad:
                self.commit()
                self._settle()
                raise told from error
            if self._on_bad is not None:
                self._on_bad(record.place, told)
            else:
                # The error's text may contain a key.
                text = "%s: left out %s: %s"
                kind = type(error).__name__
                self._left_out.log(
                    _log, logging.WARNING, text, self._store.path, record.place, kind
                )
            self._interrupted = True
            self._bad += 1
        except FullError:
            self._interrupted = False
            raise
        else:
            self._records += record.count
            self._rows += len(record.keys)
            self._fresh_rows += len(record.keys)
        self._waiting.popleft()
        self._position = record.position
        self._interrupted = False

    def _apply_with_room(self, record: Record) -> None:
        """Applies a record; a full disk may have room once older commits are not kept any more."""
        commits_left: int | None = None
        while True:
            try:
                self._apply(record)
                return
            except FullError:  # nothing has changed
                if commits_left is None:
                    commits_left = len(self._store.commits())
                if commits_left == 0:
                    raise
            commits_left -= 1
            self._settle()
            self._commit_again()
            self._settle()

    def _apply(self, record: Record) -> None:
        if record.kind is None:
            raise MisuseError(record.fault)
        unknown = sorted(set(record.options) - _OPTIONS[record.kind])
        if unknown:
            raise MisuseError(
                f"a {record.kind} of a log takes no {unknown[0]}, expected some of "
                f"{', '.join(sorted(_OPTIONS[record.kind])) or 'none'}"
            )
        table = self._tables.get(record.table)
        if table is None:
            table = self._tables[record.table] = self._store.table(record.table)
        if record.kind == "delete":
            table.delete(record.keys)
        elif record.rows is None:
            raise MisuseError(f"a {record.kind} of a log has no rows")
        elif record.kind == "put":
            table.put(record.keys, record.rows, **record.options)
        elif "lr" not in record.options:
            raise MisuseError("an update of a log has no lr")
        else:
            table.update(record.keys, record.rows, **record.options)

    def _show(self, progress: Callable[[Followed], object] | None, last: bool = False) -> None:
        if progress is None:
            return
        now = time.monotonic()
        if last or now - self._shown_at >= _SHOW_SECONDS:
            self._shown_at = now
            progress(self.followed)


def _bytes_of(record: Record) -> int:
    """About how many bytes of a log a record has."""
    return record.keys.nbytes + (0 if record.rows is None else record.rows.nbytes)


def _decoded(content: bytes, store: Store) -> tuple[Position, int]:
    """The position of a commit, and how many records were left out before it."""
    try:
        told: Any = json.loads(content)
        version, position, bad = told["version"], told["position"], told["bad"]
    except (ValueError, KeyError, TypeError) as error:
        raise MismatchError(
            f"the byte string {STATE!r} of the commit at step {store.step} in {store.path} is not "
            f"a follower's position: {error!r}"
        ) from error
    if version != _VERSION or not isinstance(position, dict):
        raise MismatchError(
            f"the commit at step {store.step} in {store.path} has a position of version {version}, "
            f"this build reads {_VERSION}"
        )
    return position, int(bad)
