"""Hot sets: the most requested keys of a table, found by sampling here and sent to the server.

About one pull of sixteen is sampled, and costs a copy of its keys; the others cost a comparison. A
thread counts the copied keys, and every few seconds sends the most frequent ones. Memory for a
table is bounded: the copies of a round, and a fixed number of counts.

Source: hotness-aware placement of PetPS, whose clients identify hot sets so that the server need
not. Counts are kept within their bound as mergeable Misra-Gries summaries are (Agarwal et al.,
2012), and halved from round to round, so that what was hot and is not any more leaves.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from embedrock._warnings import warn
from embedrock.errors import EmbedrockError, IoError

__all__ = ["HOT_KEYS_MAX", "Counts", "Sampler"]

_PULLS = 16
"""Pulls of which about one is looked at."""
_ROUND_KEYS = 1 << 16
"""Keys that are copied of a table in one round, at most."""
_COUNTS = 1 << 14
"""Keys of a table that are counted."""
HOT_KEYS_MAX = 1 << 12
"""Keys of a hot set."""
_LEAST = 2.0
"""A key that came less often is not hot."""

Array = npt.NDArray[np.uint64]
Send = Callable[[bytes, Array], None]


class Counts:
    """Counts of the most frequent keys.

    A key that came ``n`` times of ``all`` is counted at least ``n - all / (most + 1)`` times and at
    most ``n``: no key above that frequency is missing.
    """

    def __init__(self, most: int = _COUNTS) -> None:
        """Nothing is counted yet; ``most`` keys will be."""
        self._most = most
        self.keys: Array = np.empty(0, np.uint64)
        self.counts: npt.NDArray[np.float64] = np.empty(0)

    def add(self, keys: Array) -> None:
        """Counts these keys, each as often as it stands there."""
        new, often = np.unique(keys, return_counts=True)
        joined, at = np.unique(np.concatenate([self.keys, new]), return_inverse=True)
        weights = np.concatenate([self.counts, often.astype(np.float64)])
        counts = np.bincount(at, weights, len(joined)).astype(np.float64, copy=False)
        if len(joined) > self._most:
            # The largest count that has no place is taken off all: what is left keeps its error.
            counts -= np.partition(counts, -self._most - 1)[-self._most - 1]
            kept = counts > 0
            joined, counts = joined[kept], counts[kept]
        self.keys, self.counts = joined, counts

    def fade(self) -> None:
        """Halves all counts; those of less than a quarter are forgotten."""
        kept = self.counts >= 0.5
        self.keys, self.counts = self.keys[kept], self.counts[kept] / 2

    def hot(self, most: int = HOT_KEYS_MAX, least: float = _LEAST) -> Array:
        """The keys that came most, the most frequent first; none that came less than ``least``."""
        chosen = np.flatnonzero(self.counts >= least)
        order = np.argsort(-self.counts[chosen], kind="stable")[:most]
        return self.keys[chosen[order]]


class _Round:
    """Copies of keys of one table since its hot set was sent."""

    def __init__(self) -> None:
        self.copies: list[Array] = []
        self.keys = 0
        self.counts = Counts()


class Sampler:
    """Looks at some pulls, and has a thread send what is hot every ``every`` seconds.

    Threads share it. The thread begins with the first pull that is looked at, in each process, and
    ends when the sampler is closed or nobody has it any more.
    """

    def __init__(self, every: float, send: Send) -> None:
        """``send`` gets a table's encoded name and its hot set; what it raises is told once."""
        self._every = every
        self._send = send
        self._random = random.Random()  # pulls that follow one another must not miss a rhythm
        self._left = 1
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._rounds: dict[bytes, _Round] = {}
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def look(self, table: bytes, keys: Array) -> None:
        """A pull asked for these keys of a table. Returns at once."""
        # Threads that pass here together look at a pull more or less, which is all the same.
        self._left -= 1
        if self._left <= 0:
            self._left = 1 + int(self._random.random() * 2 * _PULLS)
            self._copy(table, keys)

    def _copy(self, table: bytes, keys: Array) -> None:
        if self._pid != os.getpid():
            self._begin()  # a forked child has a thread of its own
        with self._lock:
            if self._ends.is_set():
                return
            round_ = self._rounds.get(table) or self._rounds.setdefault(table, _Round())
            room = _ROUND_KEYS - round_.keys
            if room > 0 and len(keys):
                # Of a large pull every so many-th key.
                step = -(-len(keys) // room)
                copy = keys[self._random.randrange(step) :: step].copy()
                round_.copies.append(copy)
                round_.keys += len(copy)
            if self._thread is None:
                arguments = (weakref.ref(self), self._ends, self._every)
                self._thread = threading.Thread(
                    target=_run, args=arguments, name="embedrock-hot", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Ends the thread; nothing more is sent."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            self._ends.set()

    def send(self) -> None:
        """Counts what was copied, and sends the hot set of each table that was asked for."""
        with self._lock:
            rounds = list(self._rounds.items())
            copies = [round_.copies for _, round_ in rounds]
            for _, round_ in rounds:
                round_.copies, round_.keys = [], 0
        for (table, round_), copied in zip(rounds, copies, strict=True):
            if not copied:
                continue
            round_.counts.add(np.concatenate(copied))
            hot = round_.counts.hot()
            round_.counts.fade()
            if len(hot):
                self._try(table, hot)

    def _try(self, table: bytes, hot: Array) -> None:
        try:
            self._send(table, hot)
        except EmbedrockError as error:
            if self._ends.is_set():
                return
            if not self._has_warned:
                self._has_warned = True
                warn(f"the hot set of table {table.decode()!r} was not sent: {error}")
            if not isinstance(error, IoError):
                self._ends.set()  # a server that refuses one refuses all


def _run(sampler: weakref.ref[Sampler], ends: threading.Event, every: float) -> None:
    while not ends.wait(every):
        found = sampler()
        if found is None:
            return
        found.send()
        del found
