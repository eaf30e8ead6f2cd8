"""Pieces of work side by side, a bounded number at a time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar, cast

from embedrock._workers import LOOK_SECONDS, Worker, stop
from embedrock.objects.remote import Remote

__all__ = ["side_by_side"]

J = TypeVar("J")
R = TypeVar("R")


def side_by_side(
    workers: int, jobs: Iterable[J], work: Callable[[J], R], remote: Remote
) -> Generator[tuple[J, R], None, None]:
    """Does all jobs, ``workers`` at a time, and gives each with its result as it is done.

    The first error ends it: jobs that were begun are waited for, and no other is begun. An
    interrupt, or a caller that ends early, ends requests of ``remote`` that have no answer.
    """
    left = iter(jobs)
    begun: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[J, R | None, BaseException | None]] = queue.SimpleQueue()
    threads: list[Worker] = []
    running = 0

    def do(job: J) -> None:
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
                    threads.append(Worker(begun, do))
                    threads[-1].start()
            if not running:
                return
            try:
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
            stop(threads, begun)
            for thread in threads:
                thread.join()
        except BaseException:
            # A second interrupt: nobody waits for jobs that were begun, and threads still end.
            remote.stop()
            stop(threads, begun)
            raise


_END = object()
