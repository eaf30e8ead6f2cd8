"""Commits: what is known of one, and the handle of one that is not durable yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embedrock import _core
from embedrock._arguments import seconds
from embedrock.errors import ForkedError, MisuseError

__all__ = ["Commit", "PendingCommit", "commit_of", "decode_meta", "encode_meta"]


@dataclass(frozen=True)
class Commit:
    """A durable point of a store."""

    sequence: int
    """Number of the commit within the store, from 1."""
    step: int
    """The caller's step."""
    meta: Any
    """The meta that the caller gave to ``commit``."""
    unix_time: int
    """When it was made, in seconds since 1970."""
    rows_flushed: int
    """Rows written since the commit before."""
    bytes_written: int
    """All bytes written for it since the commit before: pages, journal, state."""
    state_bytes: int
    """Bytes of the named byte strings."""


class PendingCommit:
    """A commit that the engine writes while training goes on.

    ``Store.commit(wait=False)`` gives it. Dropping it changes nothing: the commit goes on, closing
    the store waits for it, and what keeps it from becoming durable is raised by the next verb that
    changes rows. A process that ends before then, and does not close its store, loses it.

    >>> _ = table.update([1], np.ones((1, 4), np.float32), lr=0.1)
    >>> pending = store.commit(1, wait=False)
    >>> _ = table.update([1], np.ones((1, 4), np.float32), lr=0.1)  # of the next commit
    >>> pending.wait().rows_flushed
    1
    >>> pending
    <embedrock.PendingCommit of step 1, done>
    """

    def __init__(self, core: _core.PendingCommit, step: int) -> None:
        """Not for callers: handles come from ``Store.commit``."""
        self._core = core
        self.step = step
        """The caller's step."""

    @property
    def done(self) -> bool:
        """Whether waiting would return, or raise, at once. Errors: ``ForkedError``."""
        return self._core.is_done()

    def wait(self, timeout: float | None = None) -> Commit:
        """Returns the commit once it is durable.

        ``timeout`` are seconds, None: as long as it takes.

        Errors: what kept it from becoming durable, each time (``IoError``, ``PoisonedError`` after
        an error of another verb); opened again, the store is at an earlier commit, or at this one
        where the error came after its record. ``TimeoutError`` when it is not
        durable in time, which leaves it as it is; ``ForkedError`` in a forked child.

        Blocking: for the disk, without the interpreter lock. Ctrl-C ends the wait.
        """
        info = self._core.wait(seconds("timeout", timeout))
        if info is None:
            raise TimeoutError(
                f"the commit of step {self.step} is not durable after {timeout} s; wait again, or "
                f"longer"
            )
        return commit_of(info)

    def __repr__(self) -> str:
        try:
            state = "done" if self.done else "under way"
        except ForkedError:
            state = "of another process"
        return f"<embedrock.PendingCommit of step {self.step}, {state}>"


def commit_of(info: Mapping[str, Any]) -> Commit:
    """A commit as the engine tells it."""
    told = {**info, "meta": decode_meta(info["meta"])}
    told.pop("writer", None)  # it distinguishes commits of a copy, and is not public
    return Commit(**told)


def encode_meta(meta: Any) -> str:
    """``meta`` as the engine keeps it. Errors: ``MisuseError`` for what JSON does not hold."""
    if meta is None:
        return ""
    try:
        return json.dumps(meta)
    except (TypeError, ValueError, RecursionError) as error:
        raise MisuseError(f"meta must be something that JSON holds: {error}") from error


def decode_meta(text: str) -> Any:
    """The value that was given to ``encode_meta``."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text  # written by another program than this package
