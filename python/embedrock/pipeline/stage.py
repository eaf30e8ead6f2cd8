"""A thread that works through a bounded queue, in order.

Owns the thread's life: it is no daemon thread, ends on request, and by itself when the program
ends. Invariants: items are processed one at a time, in order of arrival; after one has failed, the
others are dropped, and every caller that waits for the stage gets its error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Generic, TypeVar

from embedrock.errors import ClosedError

__all__ = ["Stage"]

T = TypeVar("T")

_POLL_S = 0.1
"""Seconds between checks of an idle stage whether the program has ended without stopping it."""


class Stage(Generic[T]):
    """One stage of a pipeline."""

    def __init__(
        self, name: str, work: Callable[[T], None], limit: int, failed: Callable[[], None]
    ) -> None:
        """Starts a thread that calls ``work`` with each item; at most ``limit`` wait.

        ``failed`` is called on that thread when ``work`` has raised.
        """
        self.error: BaseException | None = None
        """The first error that ``work`` raised."""
        self.told = False
        """Whether somebody got it."""
        self.busy_s = 0.0
        """Seconds in ``work``."""
        self.blocked_s = 0.0
        """Seconds that callers waited in ``put`` and ``drain``."""
        self._work = work
        self._limit = limit
        self._failed = failed
        self._items: deque[T] = deque()
        self._put = self._done = 0
        self._stopping = False
        # Taken as a lock, not as the condition, which is one in Python: an interrupt within its
        # `__enter__` leaves it taken for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name=f"embedrock {name}")
        self._thread.start()

    def put(self, item: T) -> None:
        """Adds an item; waits while the queue is full.

        Errors: what an earlier item has raised; ``ClosedError`` when the stage was stopped.
        """
        with self._lock:
            self._wait(lambda: self._stopping or len(self._items) < self._limit)
            if self._stopping:
                raise ClosedError(
                    "the pipeline has ended, for its store was closed; end the loop first"
                )
            self._items.append(item)
            self._put += 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until all items so far are done.

        Errors: what one of them has raised.
        """
        with self._lock:
            target = self._put
            self._wait(lambda: self._done >= target)

    def check(self) -> None:
        """Errors: what an item has raised."""
        if self.error is not None:
            self.told = True
            raise self.error

    def fail(self, error: BaseException) -> None:
        """Has everybody who comes to the stage get this error, which its caller has got already."""
        with self._lock:
            self.error, self.told = error, True

    def stop(self, *, discard: bool) -> None:
        """Ends the thread when its items are done, or the one at hand with ``discard``."""
        with self._lock:
            self._stopping = True
            if discard:
                kept = 1 if self._put > self._done else 0
                while len(self._items) > kept:
                    self._items.pop()
                    self._put -= 1
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if self.error is None and not condition():
            begin = perf_counter()
            self._changed.wait_for(lambda: self.error is not None or condition())
            self.blocked_s += perf_counter() - begin
        self.check()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._items:
                    if self._stopping or not threading.main_thread().is_alive():
                        return
                    self._changed.wait(_POLL_S)
                item = self._items[0]
            begin = perf_counter()
            try:
                self._work_on(item)
            finally:
                del item
                with self._lock:
                    self._items.popleft()
                    self._done += 1
                    self.busy_s += perf_counter() - begin
                    self._changed.notify_all()

    def _work_on(self, item: T) -> None:
        try:
            if self.error is None:
                self._work(item)
        except BaseException as error:
            with self._lock:
                self.error = error
            self._failed()
