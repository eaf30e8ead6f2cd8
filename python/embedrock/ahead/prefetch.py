"""Rows that are read in the background, straight into arrays of the caller.

Owns one thread for each store that is asked for it, from the first request until the store is
closed. The thread works requests off in their order; each is one get of the engine, without the
interpreter lock. Invariants:

* An array is kept alive until it is filled, and is the request's alone: a second request for the
  same memory is refused until the first is done.
* Invalid requests are refused at once; an error in reading is raised by the wait for that request,
  and affects no other.
* Closing the store ends the request at hand first; those behind it fail.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import seconds
from embedrock._arrays import pinned
from embedrock._workers import LOOK_SECONDS, Worker, stop
from embedrock.errors import ClosedError, ForkedError, MisuseError

__all__ = ["Prefetch", "Prefetcher"]

T = TypeVar("T")

UNFINISHED_MAX = 1024
"""Requests that wait to be read: far more than a bound of staleness lets anybody use."""

Part: TypeAlias = tuple[_core.TableId, npt.NDArray[np.uint64], npt.NDArray[Any], None]
"""A table, keys and values to fill, as the engine takes them."""


class Prefetch(Generic[T]):
    """Rows on their way into the caller's array; ``lookahead`` with ``out`` returns it.

    Until it is done the array is the store's: what the caller reads there may be half a batch, what
    the caller writes there may be lost. A handle that is dropped leaves the array to be filled all
    the same; what went wrong then is told to nobody.

    >>> rows = np.empty((2, 4), np.float32)
    >>> coming = table.lookahead([7, 8], out=rows)
    >>> coming.wait() is rows
    True
    >>> coming.done
    True
    """

    def __init__(self, request: _Request, out: T, keys: int, prefetcher: Prefetcher) -> None:
        """Not for callers: handles come from ``Table.lookahead`` and ``Store.lookahead``."""
        self._request = request
        self._out = out
        self._keys = keys
        self._core, self._path = prefetcher.core, prefetcher.path
        self._pid = os.getpid()
        self._seen_done = False

    @property
    def done(self) -> bool:
        """Whether waiting would return, or raise, at once.

        Errors: ``ForkedError`` in a forked child, unless the parent had seen that it is done.
        """
        if not self._seen_done:
            self._refuse_child()
            self._seen_done = self._request.done
        return self._seen_done

    def wait(self, timeout: float | None = None) -> T:
        """Returns ``out`` once it holds all of its rows.

        ``timeout`` are seconds, None: as long as it takes.

        Errors: what reading has raised, each time (``CorruptError``, ``IoError``, ``MisuseError``
        for a number that ``announce`` did not return); ``ClosedError`` when the store was closed
        before the rows were read; ``TimeoutError`` when they are not there in time, which leaves
        the request as it is; ``MisuseError`` inside the function of a ``modify``, for which reading
        waits; ``ForkedError`` in a forked child.

        Blocking: waits for the rows of this request and of those before it, without the
        interpreter lock. Ctrl-C ends the wait.
        """
        timeout = seconds("timeout", timeout)
        if not self.done:
            self._core.check_call()
        if not self._request.wait(timeout):
            raise TimeoutError(
                f"the rows of {self._keys} keys are not there after {timeout} s; wait again, or "
                f"longer"
            )
        self._seen_done = True
        if self._request.refused:
            raise ClosedError(
                f"store {self._path} was closed before the rows of {self._keys} keys were read; "
                f"wait for them first"
            )
        if self._request.error is not None:
            raise self._request.error
        return self._out

    def __repr__(self) -> str:
        if self._pid != os.getpid():
            state = "of another process"
        else:
            state = "done" if self.done else "under way"
        return f"<embedrock.Prefetch of {self._keys} keys, {state}>"

    def _refuse_child(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                f"process {self._pid} is reading {self._keys} keys of store {self._path}, this is "
                f"its forked child; wait for them before the fork"
            )


class _Request:
    """Arrays that the reader will fill, and what came of it.

    Not a future of the standard library, whose condition an interrupt can leave locked for ever:
    here an interrupted wait costs those that wait beside it ``LOOK_SECONDS`` at most.
    """

    def __init__(
        self, parts: list[Part], announced: int | None, is_over: Callable[[], bool]
    ) -> None:
        self._is_over = is_over
        """Whether nobody reads any more."""
        self.ranges = [_range(values) for _, _, values, _ in parts]
        """The memory that is filled."""
        self.done = False
        self.error: BaseException | None = None
        """What reading has raised."""
        self.refused = False
        """Whether the store was closed before it was read."""
        self._parts = parts
        self._pins = [pin for _, _, values, _ in parts for pin in pinned(values)]
        """Keep the arrays where they are."""
        self._announced = announced
        self._under_way = threading.Lock()
        """Held until it is done."""
        self._under_way.acquire()

    def read(self, core: _core.Store) -> None:
        """Fills the arrays."""
        try:
            if self._announced is not None:
                core.begin(self._announced)
            core.get(self._parts)
        except BaseException as error:
            self.error = error
        self._end()

    def refuse(self) -> None:
        """Leaves the arrays as they are: the store is closed."""
        self.refused = True
        self._end()

    def wait(self, timeout: float | None) -> bool:
        """Whether it was done in so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = LOOK_SECONDS if end is None else min(LOOK_SECONDS, end - time.monotonic())
            if left < 0:
                return False
            if self._under_way.acquire(timeout=left):
                self._under_way.release()
            elif self._is_over() and not self.done:  # whoever stopped the reader was interrupted
                self.refuse()
        return True

    def _end(self) -> None:
        self._parts, self._pins = [], []
        self.done = True
        self._under_way.release()


class Prefetcher:
    """A store's reads into arrays of callers, and the thread that performs them."""

    def __init__(self, core: _core.Store, path: Path) -> None:
        """Starts nothing yet. It knows the engine and not the store, which may be dropped."""
        self.core = core
        self.path = path
        self._pid = os.getpid()
        self._lock = threading.RLock()
        """Guards what follows; never held while reading or waiting. A store that is dropped while
        it is held, by the same thread, may close."""
        self._asked: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        """Requests in their order."""
        self._readers: list[Worker] = []
        """One, and those whose start was interrupted."""
        self._started = False
        self._unfinished: list[_Request] = []
        self._stopped = False

    def read(self, parts: Sequence[Part], out: T, announced: int | None) -> Prefetch[T]:
        """Reads the parts in the background, once the window has read an announced batch.

        Errors: ``MisuseError`` for memory that is being filled, and for too many requests;
        ``ClosedError``, ``ForkedError``; ``MisuseError`` inside the function of a ``modify``.
        """
        self.core.get([])
        # The caller may change its keys while they wait.
        kept: list[Part] = [
            (handle, keys.copy(), values, None) for handle, keys, values, _ in parts
        ]
        request = _Request(kept, announced, self._is_over)
        with self._lock:
            if self._stopped:
                raise ClosedError(f"store {self.path} is closed; open it again")
            self._unfinished = [one for one in self._unfinished if not one.done]
            if len(self._unfinished) >= UNFINISHED_MAX:
                raise MisuseError(
                    f"{len(self._unfinished)} requests of store {self.path} wait to be read, at "
                    f"most {UNFINISHED_MAX} may; wait for the first before the next is made"
                )
            taken = [taken for one in self._unfinished for taken in one.ranges]
            for place, mine in enumerate(request.ranges):
                if any(_overlap(mine, other) for other in (*taken, *request.ranges[:place])):
                    raise MisuseError(
                        "out overlaps an array that another request is filling; wait for it, or "
                        "give each request memory of its own"
                    )
            self._asked.put(request)
            self._unfinished.append(request)
            if not self._started:
                # The interpreter must not end while a thread is in the engine.
                atexit.register(self.stop)
                reader = Worker(self._asked, self._read)
                self._readers.append(reader)
                reader.start()
                self._started = True
        return Prefetch(request, out, sum(len(keys) for _, keys, _, _ in parts), self)

    def stop(self) -> None:
        """Ends the request at hand and the thread; what waits to be read fails."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._stopped = True
        for request in stop(self._readers, self._asked):
            request.refuse()
        for reader in self._readers:
            # A store that is found unreachable by its own reader closes on that thread.
            if not reader.is_current:
                reader.join()
        atexit.unregister(self.stop)

    def _is_over(self) -> bool:
        return self._stopped and all(reader.has_ended for reader in self._readers)

    def _read(self, request: _Request) -> None:
        request.read(self.core)


def _range(values: npt.NDArray[Any]) -> tuple[int, int]:
    """The begin and end of a contiguous array in memory."""
    begin = int(values.__array_interface__["data"][0])
    return begin, begin + values.nbytes


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
