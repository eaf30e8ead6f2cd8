"""Listeners to the verbs of a store: recordings, recorders, key samples, pipelines and more.

A store knows no class of these. They take part as :class:`Listener` in its :class:`Listeners`; what
has nothing to do with a moment leaves out that method. A store without listeners pays for a look at
an empty tuple.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Listener", "Listeners", "Part", "Waits"]

Part: TypeAlias = tuple[str, npt.NDArray[np.uint64]]
"""The name of a table, and keys (N,) in the order of the call, equal ones included."""


class Waits(NamedTuple):
    """Waits of a loop that overlaps batches, since its pass began."""

    overlapped: int
    """Batches that were read and updated beside the loop."""
    rows_s: float
    """Seconds in which forwards waited for rows."""
    updates_s: float
    """Seconds in which the loop waited for steps to be applied."""


class Listener:
    """The base of what is told. Calls come on the threads of the verbs, several at once."""

    def before(self) -> None:
        """A verb is about to call the engine. It waits for this, and raises what this raises."""

    def visited(self, parts: Sequence[Part]) -> None:
        """A verb has read or changed these rows. Must not fail: the verb is done."""

    def asked(self, parts: Sequence[Part], changed: bool) -> None:
        """A query: a verb has read these rows, or has changed them based on their values. A ``put``
        is not a query. Must not fail: the verb is done."""

    def changed(self, parts: Sequence[Part]) -> None:
        """A verb has changed or deleted these rows. Of what it changed, ``visited`` came before."""

    def refreshing(self) -> None:
        """The store is about to move to another commit."""

    def returning(self) -> None:
        """The store is about to go back to an earlier commit. Errors: why it cannot now."""

    def closing(self) -> None:
        """The store is about to close: the last moment to call verbs."""

    def ended(self) -> None:
        """Every verb is over, and counters can be read a last time."""

    def waits(self) -> Waits | None:
        """Of what overlaps the batches of a loop; None of all else."""
        return None


L = TypeVar("L", bound=Listener)


class Listeners:
    """The listeners of one store, told in the order in which they came."""

    def __init__(self) -> None:
        """Nobody listens."""
        self.all: tuple[Listener, ...] = ()
        """Those that are told now."""
        self._lock = threading.Lock()
        """Guards the tuple where it is replaced; whoever tells takes the one that is there."""

    def add(self, listener: Listener) -> None:
        """Tells it from here on."""
        with self._lock:
            self.all += (listener,)

    def remove(self, listener: Listener) -> bool:
        """Tells it no more; False when it was not told."""
        with self._lock:
            others = tuple(one for one in self.all if one is not listener)
            found = len(others) < len(self.all)
            self.all = others
        return found

    def find(self, kind: type[L]) -> L | None:
        """The first of a class."""
        for one in self.all:
            if isinstance(one, kind):
                return one
        return None

    def overlapping(self) -> Listener | None:
        """The one that overlaps the batches of a loop."""
        return next((one for one in self.all if one.waits() is not None), None)

    def __iter__(self) -> Iterator[Listener]:
        """Those that are told now."""
        return iter(self.all)

    def __len__(self) -> int:
        """Number of listeners."""
        return len(self.all)

    def before(self) -> None:
        """Tells them of a verb to come. Errors: those of a listener."""
        for one in self.all:
            one.before()

    def visited(self, parts: Sequence[Part]) -> None:
        """Tells them which rows a verb has read or changed."""
        for one in self.all:
            one.visited(parts)

    def asked(self, parts: Sequence[Part], changed: bool) -> None:
        """Tells them which rows a query was for, and whether it has changed them."""
        for one in self.all:
            one.asked(parts, changed)

    def changed(self, parts: Sequence[Part]) -> None:
        """Tells them which rows a verb has changed or deleted."""
        for one in self.all:
            one.changed(parts)

    def refreshing(self) -> None:
        """Tells them that the store moves to another commit."""
        for one in self.all:
            one.refreshing()

    def closing(self) -> None:
        """Tells them that the store is about to close. Errors: those of a listener."""
        for one in self.all:
            one.closing()

    def ended(self) -> None:
        """Tells them that every verb is over."""
        for one in self.all:
            one.ended()
