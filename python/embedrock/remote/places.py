"""Places of a pool, of which none is lost when an exception comes at any instant.

A handler of a signal raises between any two instructions: behind the one that takes a place, too,
before any ``finally`` knows of it. A count that is lowered here and raised there would be wrong for
ever. So nothing is counted: a place is an object that lives for as long as somebody has it, and it
is free again when it is gone, whatever has ended its owner. The only thing that happens then is a
call of the interpreter's own, which nothing can interrupt.
"""

from __future__ import annotations

import queue
import threading
import weakref
from time import monotonic

__all__ = ["Place", "Places"]

_LOOK_S = 0.05
"""Seconds between a waiting thread's own checks: the thread that was told of a free place may have
been interrupted."""


class Place:
    """A place, taken until it is left or nobody has it any more."""

    __slots__ = ("__weakref__", "is_left")

    def __init__(self) -> None:
        """Taken."""
        self.is_left = False


class Places:
    """So many places."""

    def __init__(self, size: int) -> None:
        """All are free."""
        self._size = size
        # Guards the list; nobody waits for anything while it is held.
        self._lock = threading.Lock()
        self._taken: list[weakref.ref[Place]] = []
        self._told: queue.SimpleQueue[object] = queue.SimpleQueue()

    @property
    def _value(self) -> int:
        """Number of free places."""
        with self._lock:
            return self._size - len(self._living())

    def take(self, timeout: float | None) -> Place | None:
        """A place; None where none became free within so many seconds (None: waits for ever)."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            place = self._try()
            if place is not None:
                return place
            left = _LOOK_S if end is None else min(_LOOK_S, end - monotonic())
            if left <= 0:
                return None
            try:
                self._told.get(timeout=left)
            except queue.Empty:
                continue

    def leave(self, place: Place) -> None:
        """Gives a place back."""
        place.is_left = True
        self._told.put(None)

    def _try(self) -> Place | None:
        with self._lock:
            if len(self._taken) >= self._size:
                self._taken = self._living()
                if len(self._taken) >= self._size:
                    return None
            place = Place()
            # The callback at a place's end is set at its beginning: from here on nothing has to be
            # done for it to be free again.
            self._taken.append(weakref.ref(place, self._told.put))
        # A place says twice that it is free: when it is left and when it goes.
        for _ in range(2):
            if self._told.empty():
                break
            try:
                self._told.get_nowait()
            except queue.Empty:
                break
        return place

    def _living(self) -> list[weakref.ref[Place]]:
        found = [(one, one()) for one in self._taken]
        return [one for one, place in found if place is not None and not place.is_left]
