"""Eleven traps of a look-ahead embedding store, each as what a user sees, in a log and in an lsm.

Source of the list: a reading of the published code of an earlier store with look-ahead windows.

Traps that other modules cover, and are not tried again here:

* The package imports under the name that its wheel has: ``scripts/check-wheel.sh``, in an
  environment of its own.
* A killed training goes on bit for bit: ``test_crash.py``. Here a window is in the middle.
* Trainers with permits lose no update: ``test_permits.py``. Here nobody takes permits.
* Arrays that are being filled end with the store: ``test_prefetch.py``. Here a window is read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock

ROWS, DIM, MEMORY = 30_000, 8, 1 << 20
KINDS = ["log", pytest.param("lsm", marks=pytest.mark.long)]
AHEAD = 4

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

pytestmark = pytest.mark.filterwarnings("ignore::embedrock.UncommittedWarning")


def opened(path: Path, **more: Any) -> embedrock.Store:
    """Some rows in memory, most on storage; groups of a window are short."""
    return embedrock.open(path, MEMORY, page_bytes=1024, window_group=AHEAD, seed=3, **more)


def grown(ids: Keys) -> Keys:
    """Keys of a growing table, all over their range."""
    return ids * 0x9E3779B97F4A7C1 - 2**62


def first_rows(ids: Keys) -> Rows:
    return np.asarray((ids % 4096)[:, None] + np.arange(DIM), np.float32)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def path(kind: Any, tmp_path: Path) -> Path:
    """A store whose rows all lie on storage: of an lsm in its bottom."""
    path, ids = tmp_path / "store", np.arange(ROWS)
    with opened(path) as store:
        dense = store.table("dense", DIM, ROWS, optimizer="sgd", storage=kind)
        growing = store.table(
            "growing", DIM, expected_rows=ROWS, optimizer="sgd", storage=kind, initializer=0.5
        )
        for part in np.array_split(ids, 20):
            dense.put(part, first_rows(part))
            growing.put(grown(part), first_rows(part))
        store.commit(1)
        store.commit(2)
    return path


@pytest.fixture
def store(path: Path) -> Iterator[embedrock.Store]:
    with opened(path, create=False) as store:
        yield store


def trained(
    store: embedrock.Store,
    batches: list[Keys],
    expected: Rows,
    gradients_of: Callable[[Keys], Rows],
) -> list[Keys]:
    """Trains both tables with a window ahead; every batch must read what it should.

    Returns the batches that the window took: it refuses one while it is full.
    """
    dense, growing = store.table("dense"), store.table("growing")
    numbers: dict[int, int] = {}
    coming = 0
    for i, ids in enumerate(batches):
        coming = max(coming, i)
        while coming < min(i + 1 + AHEAD, len(batches)):
            number = store.window.announce(
                {dense: batches[coming], growing: grown(batches[coming])}
            )
            if number is None:
                break
            numbers[coming] = number
            coming += 1
        if i in numbers:
            store.window.begin(numbers[i])
        np.testing.assert_array_equal(dense.get(ids), expected[ids])
        np.testing.assert_array_equal(growing.get(grown(ids)), expected[ids])
        gradients = gradients_of(ids)
        dense.update(ids, gradients, lr=1.0)
        growing.update(grown(ids), gradients, lr=1.0)
        np.subtract.at(expected, ids, gradients)
        if i in numbers:
            store.window.finish(numbers[i])
    # Other programs may have all cores: then the window stays full, and batches are read when used.
    starved = store.window.stats()["starved"]
    assert 2 * len(numbers) >= len(batches) or starved, "most batches are read ahead"
    return [batches[i] for i in numbers]


def expect(store: embedrock.Store, expected: Rows) -> None:
    ids = np.arange(ROWS)
    np.testing.assert_array_equal(store.table("dense").get(ids), expected)
    np.testing.assert_array_equal(store.table("growing").get(grown(ids)), expected)


def counted(ids: Keys) -> Rows:
    """A gradient for each place of a batch, of whole numbers: sums of any order are equal."""
    return np.asarray(np.arange(len(ids))[:, None] % 16 + np.arange(DIM), np.float32)


def ones(ids: Keys) -> Rows:
    return np.ones((len(ids), DIM), np.float32)


def test_rows_land_under_their_own_key_whatever_the_order_and_however_often(
    store: embedrock.Store,
) -> None:
    rng = np.random.default_rng(1)
    expected = first_rows(np.arange(ROWS))
    batches = [rng.choice(rng.integers(0, ROWS, 90), 300) for _ in range(40)]
    assert all(len(np.unique(ids)) < 91 and (np.diff(ids) < 0).any() for ids in batches)
    trained(store, batches, expected, counted)
    expect(store, expected)


def test_batches_of_any_size_lose_no_row(store: embedrock.Store) -> None:
    rng = np.random.default_rng(2)
    expected = first_rows(np.arange(ROWS))
    sizes = [1, 2, 3, 5, 7, 11, 13, 31, 63, 65, 127, 257, 509, 1021, 1]
    batches = [rng.permutation(ROWS)[:size] for size in sizes]
    ahead = trained(store, batches, expected, ones)
    expect(store, expected)
    window = store.window.stats()
    assert window["announced"] == window["finished"] == len(ahead)
    assert window["keys"] == 2 * sum(len(ids) for ids in ahead)


def test_a_key_that_was_never_written_gives_its_initial_row(store: embedrock.Store) -> None:
    growing = store.table("growing")
    rng = np.random.default_rng(3)
    for _ in range(10):
        absent, there = rng.integers(ROWS, 10 * ROWS, 301), rng.integers(0, ROWS, 300)
        ids = rng.permutation(np.concatenate([absent, there]))
        number = store.window.announce({growing: grown(ids)})
        if number is not None:
            store.window.begin(number)
        rows = growing.get(grown(ids))
        initial = np.full_like(rows, 0.5)
        np.testing.assert_array_equal(rows, np.where(ids[:, None] < ROWS, first_rows(ids), initial))
        if number is not None:
            store.window.finish(number)
    assert len(growing) == ROWS, "who reads writes nothing"


def test_what_a_window_keeps_it_gives_back(store: embedrock.Store) -> None:
    store.table("dense").get([1])
    before = store.stats()
    expected = first_rows(np.arange(ROWS))
    rng = np.random.default_rng(4)
    ahead = 0
    for _ in range(3):
        batches = [rng.integers(0, ROWS, 400) for _ in range(30)]
        ahead += len(trained(store, batches, expected, ones))
        window = store.window.stats()
        assert window["memory_bytes"] <= window["most_bytes"]
    assert window["announced"] == window["finished"] == ahead
    store.window.release()
    until = time.monotonic() + 20
    least = 0.9 * before["memory"]["cache_bytes"]
    # The cache takes what it gets back part by part.
    while (memory := store.stats()["memory"])["window_bytes"] > 0 or memory["cache_bytes"] < least:
        assert time.monotonic() < until, memory
        time.sleep(0.01)
    assert sum(memory.values()) <= MEMORY
    # Rows that the window kept can leave: a pass over all others finds room for each.
    for part in np.array_split(rng.permutation(ROWS), 40):
        store.table("dense").get(part)
    expect(store, expected)


def run(threads: list[Callable[[], None]]) -> None:
    """Runs all at once; what one raises is raised."""
    raised: list[BaseException] = []

    def caught(run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)

    running = [threading.Thread(target=caught, args=[one]) for one in threads]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if raised:
        raise raised[0]


# Both look at all rows in a store that was opened again, one of them at once, too.
@pytest.mark.parametrize(
    "reopens", [False, pytest.param(True, marks=pytest.mark.long)], ids=["at once", "reopened"]
)
def test_an_update_is_never_lost_to_the_row_that_was_read_ahead_of_it(
    path: Path, reopens: bool
) -> None:
    times = np.zeros(ROWS, np.float32)
    counting = threading.Lock()

    def trainer(store: embedrock.Store, seed: int) -> Callable[[], None]:
        def train() -> None:
            rng, dense, growing = np.random.default_rng(seed), store.table("dense"), "growing"
            for _ in range(60):
                # Few enough that trainers meet, so many that rows come and go.
                ids = rng.integers(0, 2_000, 150) * 15
                number = store.window.announce({dense: ids, growing: grown(ids)})
                dense.update(ids, ones(ids), lr=1.0)
                if number is not None:
                    store.window.begin(number)
                store.table(growing).update(grown(ids), ones(ids), lr=1.0)
                if number is not None:
                    store.window.finish(number)
                with counting:
                    np.add.at(times, ids, 1)

        return train

    def scanner(store: embedrock.Store) -> Callable[[], None]:
        def scan() -> None:
            rng = np.random.default_rng(99)
            for _ in range(80):
                store.table("dense").get(rng.integers(0, ROWS, 1_500))

        return scan

    def commits(store: embedrock.Store) -> Callable[[], None]:
        def commit() -> None:
            for step in range(3, 8):
                store.commit(step)

        return commit

    with opened(path, create=False) as store:
        run([trainer(store, seed) for seed in range(3)] + [scanner(store), commits(store)])
        if not reopens:
            expect(store, first_rows(np.arange(ROWS)) - times[:, None])
        store.commit(9)
    with opened(path, create=False) as store:
        expect(store, first_rows(np.arange(ROWS)) - times[:, None])


def test_a_row_that_gets_hot_and_cold_and_hot_again_is_the_newest(path: Path) -> None:
    rng = np.random.default_rng(6)
    expected = first_rows(np.arange(ROWS))
    hot, others = rng.permutation(ROWS)[:200], 0
    for step in range(3):
        with opened(path, create=False) as store:
            for _ in range(2):
                trained(store, [rng.choice(hot, 300) for _ in range(10)], expected, counted)
                evicted = store.stats()["evicted"]
                trained(store, [rng.integers(0, ROWS, 900) for _ in range(10)], expected, ones)
                others += store.stats()["evicted"] - evicted
            trained(store, [rng.choice(hot, 300) for _ in range(10)], expected, counted)
            store.commit(3 + step)
    with opened(path, create=False) as store:
        expect(store, expected)
    assert others > ROWS, "rows have left memory in between"


@pytest.mark.parametrize("how", [pytest.param("close", marks=pytest.mark.long), "kill"])
def test_a_restart_in_the_middle_of_a_window_reads_the_last_commit(path: Path, how: str) -> None:
    for life in range(2):
        child = subprocess.Popen(
            [sys.executable, __file__, str(path), how, str(life)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        said = child.stdout.readline()
        if how == "kill":
            time.sleep(0.1 * life)
            os.kill(child.pid, signal.SIGKILL)
        child.communicate(timeout=60)
        assert said == f"committed {life}\n"
        assert child.returncode == (-signal.SIGKILL if how == "kill" else 0)
        with opened(path, create=False) as store:
            assert store.step == 10 + life
            expect(store, first_rows(np.arange(ROWS)) - (life + 1))


def live(path: Path, how: str, life: int) -> None:
    """A life that commits one step on all rows, then goes on in a window until it ends."""
    with opened(path, create=False) as store:
        dense, growing = store.table("dense"), store.table("growing")
        ids = np.arange(ROWS)
        for part in np.array_split(ids, 20):
            dense.update(part, ones(part), lr=1.0)
            growing.update(grown(part), ones(part), lr=1.0)
        store.commit(10 + life)
        print(f"committed {life}", flush=True)
        rng = np.random.default_rng(life)
        number, until = None, time.monotonic() + (0.3 if how == "close" else 60)
        while time.monotonic() < until:
            ids = rng.integers(0, ROWS, 500)
            number = store.window.announce({dense: ids, growing: grown(ids)}) or number
            dense.update(ids, ones(ids), lr=1.0)
            growing.update(grown(ids), ones(ids), lr=1.0)
            if number is not None and number % 3 == 0:
                store.window.begin(number)


def test_old_copies_are_removed_and_counted_where_they_are(tmp_path: Path, kind: Any) -> None:
    rng = np.random.default_rng(8)
    with opened(tmp_path / "store") as store:
        table = store.table("items", DIM, ROWS, optimizer="sgd", storage=kind)
        still = store.table("still", 2 * DIM, 2_000, optimizer="sgd", storage=kind)
        for part in np.array_split(np.arange(ROWS), 20):
            table.put(part, first_rows(part))
        still.put(np.arange(2_000), np.ones((2_000, 2 * DIM), np.float32))
        store.commit(1)
        store.commit(2)

        def classes() -> tuple[dict[str, Any], dict[str, Any]]:
            by_rows = {one["row_bytes"]: one for one in store.stats()["classes"]}
            return by_rows[4 * DIM], by_rows[8 * DIM]

        changing, resting = classes()
        sizes = []
        for turn in range(24):
            for _ in range(20):
                ids = rng.integers(0, ROWS, 1_000)
                number = store.window.announce({table: ids})
                table.update(ids, ones(ids), lr=1.0)
                if number is not None:
                    store.window.begin(number)
                    store.window.finish(number)
            store.commit(3 + turn)
            sizes.append(store.stats()["disk_bytes"])
        # Each turn writes two thirds of all rows anew, sixteen times all of them.
        assert max(sizes[12:]) <= 1.3 * max(sizes[4:12]), sizes
        assert store.stats()["written"]["rows"] > 8 * ROWS * 4 * DIM
        changed, rested = classes()
        # A row in the top of an lsm has a copy in the bottom, too, until a merge takes it down.
        assert ROWS <= changed["newest_copies"] <= (1.5 if kind == "log" else 2) * ROWS
        for name in ("newest_copies", "disk_bytes"):
            assert rested[name] == resting[name], name
        assert rested["retained_copies"] == 0
        assert changing["page_bytes"] == changed["page_bytes"] == 1024


def threads_here() -> int:
    """Threads of this process without io_uring's workers, which the kernel starts and ends."""
    threads = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            threads += not (task / "comm").read_text().startswith("iou-")
    return threads


def test_closing_in_the_middle_of_a_window_ends_its_threads_and_raises_nothing(path: Path) -> None:
    rng = np.random.default_rng(9)
    before = threads_here()
    most = before
    for turn in range(12):
        store = opened(path, create=False)
        dense, growing = store.table("dense"), store.table("growing")
        for _ in range(40):
            ids = rng.integers(0, ROWS, 800)
            store.window.announce({dense: ids, growing: grown(ids)})
        if turn % 3 == 1:
            dense.update(ids, ones(ids), lr=1.0)
        if turn % 3 == 2:
            time.sleep(0.002 * turn)
        most = max(most, threads_here())
        store.close()
        assert threads_here() <= before, f"turn {turn}"
    assert most > before, "a window has threads"


def test_threads_that_share_a_window_and_stores_side_by_side_do_no_harm(
    path: Path, tmp_path: Path, kind: Any
) -> None:
    expected = first_rows(np.arange(ROWS))

    def reads(store: embedrock.Store, seed: int) -> Callable[[], None]:
        def read() -> None:
            rng, dense = np.random.default_rng(seed), store.table("dense")
            for _ in range(50):
                ids = rng.integers(0, ROWS, 300)
                number = store.window.announce({dense: ids, "growing": grown(ids)})
                if number is not None:
                    store.window.begin(number)
                np.testing.assert_array_equal(dense.get(ids), expected[ids])
                np.testing.assert_array_equal(store.table("growing").get(grown(ids)), expected[ids])
                if number is not None:
                    store.window.finish(number)

        return read

    def disturbs(store: embedrock.Store) -> Callable[[], None]:
        def disturb() -> None:
            for _ in range(30):
                store.window.pause()
                store.window.resume()
                store.stats()
                time.sleep(0.001)

        return disturb

    with (
        opened(path, create=False) as writer,
        opened(path, read_only=True) as one,
        opened(path, read_only=True) as other,
    ):
        stores = [writer, writer, one, one, other]
        run([reads(store, seed) for seed, store in enumerate(stores)] + [disturbs(writer)])
        for store in (writer, one, other):
            window = store.window.stats()
            assert window["error"] is None
            assert window["announced"] == window["finished"], window
            expect(store, expected)


if __name__ == "__main__":
    live(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
