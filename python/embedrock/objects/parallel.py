"""Pieces of work side by side, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["side_by_side"]

J = TypeVar("J")
R = TypeVar("R")


def side_by_side(
    workers: int, jobs: Iterable[J], work: Callable[[J], R], name: str
) -> Iterator[tuple[J, R]]:
    """Does all jobs, ``workers`` at a time, and gives each with its result as it is done.

    The first error ends it: jobs that were begun are waited for, and no other is begun.
    """
    left = iter(jobs)
    pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
    running: dict[Future[R], J] = {}
    try:
        while True:
            while len(running) < workers + 1 and (job := next(left, _END)) is not _END:
                running[pool.submit(work, job)] = job  # type: ignore[arg-type, assignment]
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_END = object()
