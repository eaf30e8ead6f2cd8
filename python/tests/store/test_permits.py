"""Permits of bounded staleness: who waits for whom, and how a wait ends."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import ClosedError, ForkedError, MisuseError


def wait_until(condition: Any) -> None:
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.0005)
    raise AssertionError("never happened")


def test_a_batch_waits_for_batches_that_share_a_row_and_for_no_others(
    store: embedrock.Store, table: embedrock.Table
) -> None:
    permits = store.permits()
    other = store.table("users", 4)
    first = permits.acquire({table: [1, 2, 2]})
    permits.acquire({table: [3], "users": [1]}).release()  # no row in common
    permits.acquire({other: [[1], [2]]}).release()  # another table's
    events: list[str] = []

    def second() -> None:
        with permits.acquire({table: [2]}):
            events.append("read")

    thread = threading.Thread(target=second)
    thread.start()
    wait_until(lambda: permits.stats()["in_flight"] == 2)
    events.append("applied")
    first.release()
    thread.join()
    assert events == ["applied", "read"]
    stats = permits.stats()
    assert (stats["waits"], stats["in_flight"], stats["staleness_max"]) == (1, 0, 0)
    assert stats["wait_s"] > 0 and stats["bytes"] > 0


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_a_thread_that_would_wait_for_itself_is_told_how_to_go_on(
    store: embedrock.Store, table: embedrock.Table, bound: int
) -> None:
    permits = store.permits(bound)
    held = [permits.acquire({table: [1]}) for _ in range(bound + 1)]
    with pytest.raises(MisuseError, match=r"would wait for ever.*release a permit when"):
        permits.acquire({table: [1]})
    held[0].release()
    with permits.acquire({table: [1]}):
        assert permits.stats()["staleness_max"] == bound


def test_without_a_bound_nobody_waits_and_staleness_is_still_counted(
    store: embedrock.Store, table: embedrock.Table
) -> None:
    permits = store.permits(math.inf)
    held = [permits.acquire({table: [1]}) for _ in range(90)]
    stats = permits.stats()
    assert (stats["bound"], stats["staleness_max"], stats["waits"]) == (None, 89, 0)
    assert permits.staleness_bound == math.inf
    for permit in reversed(held):
        permit.release()
    assert permits.stats()["rows_in_flight"] == 0


def test_an_abandoned_permit_gives_itself_back(
    store: embedrock.Store, table: embedrock.Table
) -> None:
    permits = store.permits()
    permit: Any = permits.acquire({table: [1]})
    del permit
    gc.collect()
    with pytest.raises(ZeroDivisionError), permits.acquire({table: [1]}):
        raise ZeroDivisionError
    with permits.acquire({table: [1]}) as permit:
        permit.release()  # earlier than the block ends
    with pytest.raises(MisuseError, match="permit 3 was released before"):
        permit.release()
    stats = permits.stats()
    assert (stats["granted"], stats["given_back"], stats["in_flight"]) == (3, 2, 0)


def test_a_permit_may_be_released_by_another_thread(
    store: embedrock.Store, table: embedrock.Table
) -> None:
    permits = store.permits()
    permit = permits.acquire({table: [1]}).hand_over()
    # Released once the other waits for it: it could not be had otherwise.
    thread = threading.Thread(
        target=lambda: (wait_until(lambda: permits.stats()["in_flight"] == 2), permit.release())
    )
    thread.start()
    with permits.acquire({table: [1]}):
        thread.join()
        stats = permits.stats()
        assert (stats["granted"], stats["in_flight"]) == (2, 1)
    assert permits.stats()["in_flight"] == 0


def test_ctrl_c_ends_a_wait(store: embedrock.Store, table: embedrock.Table) -> None:
    permits = store.permits()
    permit = permits.acquire({table: [1]}).hand_over()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed = threading.Thread(
        target=lambda: (
            wait_until(lambda: permits.stats()["in_flight"] == 2),
            os.kill(os.getpid(), signal.SIGINT),
        )
    )
    try:
        pressed.start()
        with pytest.raises(KeyboardInterrupt):
            permits.acquire({table: [1]})
    finally:
        pressed.join()
        signal.signal(signal.SIGINT, before)
    assert permits.stats()["in_flight"] == 1
    permit.release()


def test_trainer_threads_lose_no_update_and_read_nothing_too_stale(
    store: embedrock.Store,
) -> None:
    # Each thread reads rows, computes from what it read, and puts them back (MLKV's Fig. 3). With
    # bound 0 that is as if one thread had done all of it.
    table = store.table("sums", 1, 40, optimizer="sgd", initializer=0.0)
    permits = store.permits(0)
    expected = np.zeros(40)

    def train(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            keys = np.unique(random.integers(0, 40, 6))
            with permits.acquire({table: keys}):
                table.put(keys, table.get(keys) + 1)
            with lock:
                expected[keys] += 1

    lock = threading.Lock()
    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.get(np.arange(40))[:, 0].tolist() == expected.tolist()
    assert permits.stats()["granted"] == 240


@pytest.mark.parametrize("bound", [-1, 1.5, "2", None, True, math.nan, 2**31])
def test_bounds_that_are_none_are_refused(store: embedrock.Store, bound: Any) -> None:
    with pytest.raises(MisuseError, match="staleness_bound is"):
        store.permits(bound)


def test_a_batch_that_is_no_mapping_is_refused(store: embedrock.Store) -> None:
    with pytest.raises(MisuseError, match=r"batch is a list, expected \{table: keys\}"):
        store.permits().acquire([1, 2])  # type: ignore[arg-type]


def test_permits_of_closed_stores_and_forked_children_are_refused(
    store: embedrock.Store, table: embedrock.Table
) -> None:
    permits = store.permits()
    held = permits.acquire({table: [1]})
    child = os.fork()
    if child == 0:
        try:
            permits.acquire({table: [2]})
        except ForkedError:
            del held
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert permits.stats()["in_flight"] == 1
    held.release()
    store.close()
    with pytest.raises(ClosedError):
        permits.acquire({table: [1]})
