"""Bounded staleness: permits for batches in flight.

A batch is in flight from the moment its rows are read until its updates are applied.
:meth:`embedrock.Store.permits` gives a :class:`Permits`, with which several trainer threads, or a
pipeline of stages, keep to a bound: a row is read while at most that many earlier batches that
touch it are in flight.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedrock import _core
from embedrock._arguments import shown
from embedrock._arrays import ArrayLike, as_keys
from embedrock.errors import ClosedError, EmbedrockError, ForkedError, MisuseError

if TYPE_CHECKING:
    from embedrock.store import Store
    from embedrock.table import Table

__all__ = ["Permit", "Permits", "staleness_bound_of"]

Batch = Mapping["Table | str", ArrayLike]


class Permit:
    """The right of one batch to have read its rows before others are applied.

    Release it when the batch's updates are applied; as a context manager it does so at the end of
    its block, whatever ends it. A permit that is lost gives itself back.
    """

    def __init__(self, permits: Permits, number: int) -> None:
        """Not for callers: permits come from :meth:`Permits.acquire`."""
        self._permits = permits
        self._core = permits._core
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held = True
        self.number = number
        """Counts up from 1 in the order in which permits were asked for."""

    def release(self) -> None:
        """Says that the batch's updates are applied.

        Errors: ``MisuseError`` when it was released before; ``ForkedError`` in a forked child.
        """
        if not self._take():
            raise MisuseError(f"permit {self.number} was released before")
        self._core.release(self.number)

    def hand_over(self) -> Permit:
        """Says that another thread will release it; returns the permit itself.

        Without it, a thread that waits for a permit of its own gets an error, for nobody else is
        thought to release it.
        """
        self._core.hand_over(self.number)
        return self

    def __enter__(self) -> Permit:
        """The permit itself."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Releases it, if that was not done; after an exception without counting an update."""
        self._give_back(applied=kind is None)

    def __del__(self) -> None:
        """Gives it back."""
        if getattr(self, "_held", False) and self._pid == os.getpid():
            with contextlib.suppress(EmbedrockError):
                self._give_back(applied=False)

    def __repr__(self) -> str:
        return f"<embedrock.Permit {self.number} {'held' if self._held else 'released'}>"

    def _take(self) -> bool:
        """Whether it was held until now."""
        if self._pid != os.getpid():
            # The lock may be taken, by a thread that this process does not have.
            raise ForkedError(
                f"permit {self.number} was given to process {self._pid}, this is its forked child"
            )
        with self._lock:
            held, self._held = self._held, False
        return held

    def _give_back(self, applied: bool) -> None:
        if self._take():
            self._core.release(self.number, applied)


class Permits:
    """Permits of one bound over the rows of one store; :meth:`Store.permits` makes it.

    All threads that train on the store share one object. It keeps a count for each row of the
    batches in flight, in memory beside the budget; nothing is stored with rows.

    Source: bounded staleness consistency of MLKV (III-C), whose clock is in each stored row.

    >>> permits = store.permits(staleness_bound=1)
    >>> for step in range(3):
    ...     with permits.acquire({table: [7, 8]}):
    ...         rows = table.get([7, 8])
    ...         report = table.update([7, 8], np.ones((2, 4), np.float32), lr=0.1)
    >>> permits.stats()["granted"]
    3
    """

    def __init__(self, store: Store, staleness_bound: float) -> None:
        """Not for callers: use :meth:`Store.permits`."""
        self._store = store
        self._bound = staleness_bound_of(staleness_bound)
        self._core = _core.Permits(self._bound)

    @property
    def staleness_bound(self) -> float:
        """The bound; infinity when there is none."""
        return math.inf if self._bound is None else self._bound

    def acquire(self, batch: Batch) -> Permit:
        """A permit for a batch, once its rows may be read.

        ``batch`` has the keys of each table that the batch reads and updates, of any shape, equal
        ones included. Batches that only infer need no permit.

        Errors: ``MisuseError`` when the batch would wait for ever, because more than the bound of
        the permits in its way are held by this thread itself, or by threads that wait for it;
        ``ClosedError``, ``ForkedError``.

        Blocking: waits, without the interpreter lock, until at most ``staleness_bound`` earlier
        batches that touch one of the same rows are in flight. Ctrl-C ends the wait.
        """
        if self._store.closed:
            raise ClosedError(f"store {self._store.path} is closed; open it again")
        self._store._core.check_call()  # inside modify the batches in its way would wait for it
        if not isinstance(batch, Mapping):
            raise MisuseError(f"batch is {shown(batch)}, expected {{table: keys}}")
        parts = []
        for named, keys in batch.items():
            table = self._store.table(named) if isinstance(named, str) else self._store._own(named)
            parts.append((table._handle, as_keys(keys, f"keys of table {table.name!r}").flat))
        return Permit(self, self._core.acquire(parts))

    def stats(self) -> dict[str, Any]:
        """Counters since it was made.

        ``bound`` (None: none), batches ``in_flight`` and ``rows_in_flight``; permits ``granted``
        and ``given_back`` without an update; ``staleness_max``, the most earlier batches in flight
        that touched a row when it could be read; ``waits`` and ``wait_s``; ``deferred_rows`` that
        could not be read at once; ``bytes`` of memory.
        """
        return self._core.stats()

    def __repr__(self) -> str:
        return f"<embedrock.Permits staleness_bound={self.staleness_bound} of {self._store!r}>"


def staleness_bound_of(value: float) -> int | None:
    """A bound as the engine takes it: a number, or None for infinity.

    Errors: ``MisuseError`` for anything but whole numbers from 0 and infinity.
    """
    if isinstance(value, float) and value == math.inf:
        return None
    try:
        bound = operator.index(value)  # type: ignore[arg-type]
    except Exception:  # of the object's own, too
        bound = -1
    if isinstance(value, bool) or not 0 <= bound < 2**31:
        raise MisuseError(
            f"staleness_bound is {shown(value)}, expected 0, a number of batches, or math.inf"
        )
    return bound
