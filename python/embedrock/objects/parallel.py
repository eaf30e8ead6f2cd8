"""Pieces of work side by side, a bounded number at a time."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar, cast

from embedrock.objects.remote import LOOK_SECONDS, Remote

__all__ = ["side_by_side"]

J = TypeVar("J")
R = TypeVar("R")


def side_by_side(
    workers: int, jobs: Iterable[J], work: Callable[[J], R], remote: Remote, name: str
) -> Generator[tuple[J, R], None, None]:
    """Does all jobs, ``workers`` at a time, and gives each with its result as it is done.

    The first error ends it: jobs that were begun are waited for, and no other is begun. An
    interrupt, or a caller that ends early, ends requests of ``remote`` that have no answer.
    """
    # Not an executor of the standard library: an interrupt of a call to it can leave one of its
    # locks taken, for which its threads then wait for ever. These queues have none in Python.
    left = iter(jobs)
    begun: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[J, R | None, BaseException | None]] = queue.SimpleQueue()
    threads: list[threading.Thread] = []
    running = 0

    def worker() -> None:
        while (job := begun.get()) is not _END:
            try:
                done.put((job, work(job), None))
            except BaseException as error:
                done.put((job, None, error))

    try:
        while True:
            while running < workers + 1 and (job := next(left, _END)) is not _END:
                begun.put(job)
                running += 1
                if len(threads) < workers:
                    named = f"{name}_{len(threads)}"
                    threads.append(threading.Thread(target=worker, name=named, daemon=True))
                    threads[-1].start()
            if not running:
                return
            try:
                # A signal that comes between Python's look for signals and the system call that
                # waits is seen after the call.
                finished, result, error = done.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            running -= 1
            if error is not None:
                raise error
            yield finished, cast("R", result)
    except BaseException as error:
        if not isinstance(error, Exception):
            remote.stop()
        raise
    finally:
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    begun.get_nowait()
            for _ in threads:
                begun.put(_END)
            # A thread whose start was interrupted may never run: it is not alive.
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_SECONDS)
        except BaseException:
            # A second interrupt: nobody waits for jobs that were begun, and threads still end.
            remote.stop()
            for _ in threads:
                begun.put(_END)
            raise


_END = object()
