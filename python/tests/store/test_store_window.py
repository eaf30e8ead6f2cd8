"""The look-ahead window as Python sees it: numbers, errors, counters, results that never change."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import embedrock
from embedrock import errors

ROWS, DIM, MEMORY = 20_000, 8, 600_000

pytestmark = pytest.mark.alone


@pytest.fixture
def store(tmp_path):
    """Rows on storage, a tenth of them in memory."""
    # Page size is given: where a noisy device makes it large, the budget below is too small.
    with embedrock.open(tmp_path / "store", ROWS * DIM * 4, page_bytes=1024) as store:
        table = store.table("items", DIM, ROWS, optimizer="sgd")
        keys = np.arange(ROWS)
        table.put(keys, rows_of(keys), reset_state=True)
        store.table("tags", DIM, optimizer="sgd").put(keys[:100], rows_of(keys[:100]))
        store.commit(1)
    with embedrock.open(tmp_path / "store", MEMORY, create=False, window_group=16) as store:
        yield store


def rows_of(keys):
    return np.asarray(keys, np.float32)[:, None] + np.arange(DIM, dtype=np.float32) / 8


def steps(count, size=100, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, ROWS, size) for _ in range(count)]


@pytest.mark.filterwarnings("ignore::embedrock.UncommittedWarning")
def test_rows_are_read_ahead_and_trained_in_place(store):
    items, tags = store.tables["items"], store.tables["tags"]
    batches = steps(60)
    expected = rows_of(np.arange(ROWS))
    before = store.stats()["misses"]
    numbers = []
    for i, keys in enumerate(batches):
        while len(numbers) < min(i + 24, len(batches)):
            coming = batches[len(numbers)]
            number = store.window.announce({items: coming, "tags": coming % 100})
            if number is None:
                break
            numbers.append(number)
        store.window.begin(numbers[i])
        assert (items.get(keys) == expected[keys]).all()
        items.update(keys, np.full((len(keys), DIM), 0.5, np.float32), lr=1.0)
        np.subtract.at(expected, keys, np.float32(0.5))
        tags.get(keys % 100)
        store.window.finish(numbers[i])
    assert numbers == list(range(1, 61))
    store.window.pause()  # its threads give memory back after the last batch
    window = store.window.stats()
    if window["starved"] == 0:  # else other programs had all cores, and nobody waited
        assert store.stats()["misses"] == before, window
        assert window["rows_loaded"] > 1000
        assert window["groups"] < window["group_batches"] == 60
    assert window["keys"] == 2 * 60 * 100
    assert window["memory_bytes"] == store.stats()["memory"]["window_bytes"] > 0
    assert (items.get(np.arange(ROWS)) == expected).all()


def test_the_first_announcement_is_where_the_window_takes_memory(store):
    store.tables["items"].get([1])
    before = store.stats()["memory"]
    assert before["window_bytes"] == 0
    number = store.window.announce({"items": [5, 6, 7]})
    store.window.begin(number)
    memory = store.stats()["memory"]
    assert memory["window_bytes"] > 0
    assert sum(memory.values()) <= MEMORY


def test_bad_announcements_name_what_is_wrong(store):
    with pytest.raises(errors.KeyRangeError, match="items"):
        store.window.announce({"items": [1, ROWS]})
    with pytest.raises(errors.NotFoundError, match=r"no table 'users' \(it has 'items', 'tags'"):
        store.window.announce({"users": [1]})
    with pytest.raises(errors.MisuseError, match="batch 1 was not announced"):
        store.window.begin(1)
    with pytest.raises(errors.MisuseError, match="batch 7 was not announced"):
        store.window.finish(7)
    for number in ("1", None, 0, -1, 2**70):
        for verb in (store.window.begin, store.window.finish):
            with pytest.raises(errors.MisuseError, match=r"number is .*that announce\(\) has"):
                verb(number)
    with pytest.raises(errors.MisuseError, match=r"batch is a list, expected \{table: keys\}"):
        store.window.announce([1, 2])


def test_what_is_cleared_is_forgotten_and_numbers_go_on(store):
    for keys in steps(5):
        store.window.announce({"items": keys})
    store.window.clear()
    window = store.window.stats()
    assert (window["cleared"], window["finished"]) == (5, 5)
    number = store.window.announce({"items": [1]})
    assert number == 6
    store.window.begin(number)


def test_a_paused_window_reads_nothing_and_goes_on(store):
    items = store.tables["items"]
    store.window.begin(store.window.announce({items: [1]}))
    store.window.pause()
    before = store.window.stats()
    batches = steps(5)
    numbers = [store.window.announce({items: keys}) for keys in batches]
    store.window.begin(numbers[-1])
    assert (items.get(batches[-1]) == rows_of(batches[-1])).all()
    assert store.window.stats()["rows_loaded"] == before["rows_loaded"]
    store.window.resume()
    store.window.begin(numbers[0])
    assert store.window.stats()["rows_loaded"] > before["rows_loaded"]


def test_a_reader_can_look_ahead(store, tmp_path):
    with embedrock.open(tmp_path / "store", MEMORY, read_only=True) as reader:
        keys = np.arange(5_000, 5_300)
        number = reader.window.announce({"items": keys})
        reader.window.begin(number)
        assert (reader.tables["items"].get(keys) == rows_of(keys)).all()
        assert reader.stats()["misses"] == 0


def test_a_forked_child_is_refused(store):
    store.window.announce({"items": [1]})
    items = store.tables["items"]
    items.lookahead([1, 2, 3])
    child = os.fork()
    if child == 0:
        refused = 0
        for touch in (lambda: store.window.announce({items: [1]}), lambda: items.get([1, 2, 3])):
            try:
                touch()
            except errors.ForkedError:
                refused += 1
        os._exit(7 if refused == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    store.window.begin(store.window.announce({"items": [2]}))


def test_a_wait_ends_with_the_store(store):
    items = store.tables["items"]
    number = store.window.announce({items: steps(1, 5_000)[0]})
    closing = threading.Thread(target=store._core.close)
    closing.start()
    begin = time.monotonic()
    with contextlib.suppress(errors.ClosedError):  # closed before
        store.window.begin(number)
    closing.join()
    assert time.monotonic() - begin < 30
    window = store.window
    for verb in (
        lambda: window.announce({items: [1]}),
        lambda: window.begin(number),
        lambda: window.finish(number),
        window.clear,
        window.pause,
        window.resume,
        window.stats,
    ):
        with pytest.raises(errors.ClosedError, match="is closed; open it again"):
            verb()


def test_gets_of_announced_keys_use_the_announcement_up(store):
    items = store.tables["items"]
    batches = steps(20, 50)
    for i, keys in enumerate(batches):
        if i % 5 == 0:
            for coming in batches[i : i + 5]:
                items.lookahead(coming)
        found, _ = embedrock.distinct(keys)
        assert (items.get(found[::-1]) == rows_of(found[::-1])).all()
    window = store.window.stats()
    assert (window["announced"], window["finished"]) == (20, 19)
    assert store.stats()["misses"] == 0


@pytest.mark.parametrize("window_bytes", [0, 1_000])
def test_a_window_without_room_leaves_everything_as_it_is(tmp_path, window_bytes):
    with embedrock.open(tmp_path / "s", 500_000, window_bytes=window_bytes) as store:
        table = store.table("items", DIM, ROWS, optimizer="none")
        keys = np.arange(1000)
        table.put(keys, rows_of(keys))
        number = store.window.announce({table: keys})
        store.window.begin(number)
        assert (table.get(keys) == rows_of(keys)).all()
        store.window.finish(number)
        assert store.window.stats()["rows_loaded"] == 0
        assert store.stats()["memory"]["window_bytes"] == 0
        store.commit(1)


def test_ctrl_c_ends_a_wait(tmp_path):
    with embedrock.open(tmp_path / "s", 4 << 20) as store:
        table = store.table("items", DIM, ROWS, optimizer="none")
        table.put(np.arange(ROWS), rows_of(np.arange(ROWS)))
        numbers = [store.window.announce({table: [i]}) for i in range(60)]
        store.window.begin(numbers[0])
        waiting, told = threading.Event(), threading.Event()

        def hold(values, state):
            # Nothing else runs meanwhile, the window neither.
            waiting.set()
            assert told.wait(60)

        thread = threading.Thread(target=table.modify, args=([1], hold))
        thread.start()
        waiting.wait()
        interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                store.window.begin(numbers[-1])
            assert thread.is_alive()  # the awaited rows are still to come
        finally:
            interrupt.cancel()  # a wait that ended too early must not end the tests
            told.set()
            thread.join()
        store.commit(1)
