"""Threads whose start and end an interrupt cannot harm.

An interrupt (Ctrl-C) of ``threading.Thread.start`` can leave a lock taken for which the new thread
then waits for ever, because the locks of events and conditions are taken in Python. Here starting
is one call of the interpreter.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["LOOK_SECONDS", "Worker", "stop"]

LOOK_SECONDS = 0.2
"""A wait looks this often for what may have come past it: a signal that arrives between Python's
look for signals and the system call that waits is seen after the call."""


class Worker:
    """A thread that calls a function with one thing after another, until it gets None.

    Several may have one queue. Its exceptions are the function's to handle.
    """

    def __init__(self, asked: queue.SimpleQueue[Any], work: Callable[[Any], None]) -> None:
        """Starts nothing yet: note it among the workers to stop before you start it."""
        self._asked, self._work = asked, work
        self._ident: int | None = None
        """Of the thread, once it has begun."""
        self._ended = False
        self._running = threading.Lock()
        """Held while the thread runs. A wait takes it for a moment; when an interrupt leaves it
        taken, other waits lose ``LOOK_SECONDS`` at most."""

    def start(self) -> None:
        """Starts it. One whose start is interrupted may come to run later, or never."""
        _thread.start_new_thread(self._run, ())

    @property
    def has_ended(self) -> bool:
        """Whether it has run to its end."""
        return self._ended

    @property
    def is_current(self) -> bool:
        """Whether this thread asks."""
        return self._ident == threading.get_ident()

    def join(self) -> None:
        """Waits until it does not run. It must have been told to end: if it has yet to begin, it
        will end without any work."""
        while self._ident is not None and not self._ended:
            if self._running.acquire(timeout=LOOK_SECONDS):
                self._running.release()

    def _run(self) -> None:
        with self._running:
            self._ident = threading.get_ident()
            try:
                while (one := self._asked.get()) is not None:
                    self._work(one)
                    del one
            finally:
                self._ended = True


def stop(workers: list[Worker], asked: queue.SimpleQueue[Any]) -> list[Any]:
    """Has all workers of a queue end, and gives what they have not come to. It waits for none."""
    left = []
    with contextlib.suppress(queue.Empty):
        while True:
            left.append(asked.get_nowait())
    for _ in workers:
        asked.put(None)
    return [one for one in left if one is not None]
