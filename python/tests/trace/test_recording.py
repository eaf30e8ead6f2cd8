"""Recordings: keys, time by cause, and the best possible cache."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import ClosedError, EmbedrockError, MisuseError
from embedrock.observe.recording import Recording
from embedrock.observe.trace import load

ROWS, DIM = 20_000, 8


@pytest.fixture
def store(tmp_path: Path):
    """Written rows, of which a part fits into memory."""
    with embedrock.open(tmp_path / "store", "64MiB") as opened:
        table = opened.table("rows", DIM, ROWS, optimizer="none")
        table.put(np.arange(ROWS), np.ones((ROWS, DIM), np.float32))
        opened.commit(0)
    with embedrock.open(tmp_path / "store", 600_000, create=False) as opened:
        yield opened
        opened.commit(1)


def test_time_is_divided_by_cause(store: embedrock.Store) -> None:
    table = store.table("rows")
    for begin in range(0, ROWS, 1000):
        keys = np.arange(begin, begin + 1000)
        table.put(keys, table.get(keys) + 1)
    store.commit(1)
    time = store.stats()["time"]
    parts = ["merging", "resident", "missing", "reading", "writing", "locks"]
    assert sum(time[part] for part in parts) == pytest.approx(time["verbs"], rel=0.01)
    assert all(time[part] > 0 for part in ["merging", "resident", "reading", "writing", "commits"])
    assert time["locks"] == 0
    assert time["verbs"] > time["reading"]


def test_the_optimum_of_a_scan_in_turns_is_known(store: embedrock.Store) -> None:
    table = store.table("rows")
    capacity = store.stats()["classes"][0]["cache_capacity"]
    assert capacity < ROWS // 2
    with store.record() as recording:
        for _ in range(12):
            for begin in range(0, ROWS, 500):
                table.get(np.arange(begin, begin + 500))
    found = recording.report()
    assert found["distinct_rows"] == found["rows"] == found["batches"] * 500
    assert found["notes"] == []
    # Of rows in turns the best cache keeps those it has; a turn reads the others.
    optimal = 1 - found["optimal_hit_rate"]
    assert optimal == pytest.approx(1 - capacity / ROWS, abs=0.02)
    assert found["hit_rate"] < found["optimal_hit_rate"]
    assert found["rows_loaded"] > found["optimal_rows_loaded"] > 0
    assert found["time"]["verbs"] >= found["time"]["reading"] > 0
    assert found["seconds"] >= found["time"]["verbs"]
    assert found["least"]["copying"] < found["time"]["verbs"]


def test_rows_that_nobody_wrote_need_no_load(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "store", "16MiB") as store:
        table = store.table("rows", DIM, 3000, optimizer="none")
        with store.record() as recording:
            for begin in range(0, 3000, 100):
                table.get(np.arange(begin, begin + 100))
        found = recording.report()
    assert found["rows_loaded"] == found["optimal_rows_loaded"] == 0
    assert found["hit_rate"] == found["optimal_hit_rate"] == 1
    assert any("record longer" in note for note in found["notes"]) is False


def test_a_trace_keeps_keys_batches_and_tables_apart(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "store", "16MiB") as store:
        one = store.table("one", DIM, 100)
        two = store.table("two", DIM, optimizer="adagrad")
        keys = np.array([3, 4, 3])
        with store.record() as recording:
            store.get([(one, keys), (two, [3])])
            keys[:] = 9
            two.update([-1], np.ones((1, DIM), np.float32), lr=0.1)
            one.modify([5], lambda values, state: values + 1)
        one.get([1])
        recording.save(tmp_path / "trace.npz")
        store.commit(1)
    trace = load(tmp_path / "trace.npz")
    assert trace.offsets.tolist() == [0, 4, 5, 6]
    assert trace.values[:3].tolist() == [3, 4, 3]
    assert len(set(trace.values.tolist())) == 5
    assert trace.values[5] == 5


def test_it_ends_when_its_keys_take_their_bytes(store: embedrock.Store) -> None:
    table = store.table("rows")
    recording = store.record(max_bytes=3 * (8 * 100 + 400))
    for _ in range(5):
        table.get(np.arange(100))
    assert recording.batches == 3
    assert not recording.running
    small = store.record(max_bytes=20_000)
    for _ in range(100):
        table.get([1])
        table.get([])
    assert small.batches < 60
    assert any("max_bytes" in note for note in recording.report()["notes"])


def test_a_store_that_is_closed_ends_its_recordings(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "store", "16MiB")
    table = store.table("rows", DIM, 1000, optimizer="none")
    recording, other = store.record(), store.record()
    for _ in range(30):
        table.get(np.arange(100))
    other.stop()
    store.close()
    assert not recording.running
    found = recording.report()
    assert found["rows"] == 100 * found["batches"]
    assert found["notes"] == other.report()["notes"]
    recording.stop()


def test_a_recording_keeps_no_store_open(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "store", "16MiB")
    store.commit(1)
    recording = store.record()
    del store
    with embedrock.open(tmp_path / "store", "16MiB") as again:
        assert again.step == 1
    assert not recording.running


def test_a_closed_store_records_nothing(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "store", "16MiB")
    store.close()
    with pytest.raises(ClosedError):
        store.record()


def in_child_beside_a_locked_recording(
    store: embedrock.Store, recording: Recording, work: Callable[[], object]
) -> str:
    """The last line of ``work`` in a child, forked while another thread holds the locks."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with recording._lock, store._listeners._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # A child that waits for a lock that nobody here can release is killed instead of hanging.
        signal.alarm(20)
        text = "done"
        try:
            work()
        except EmbedrockError as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    done.set()
    holder.join()
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


# A child forked while another thread noted its keys waited for ever for that thread's lock: in
# stop(), at the end of a with block, and when the store was closed or collected.
def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent(store: embedrock.Store) -> None:
    table = store.table("rows")
    ended = store.record()
    recording = store.record()
    for _ in range(9):
        table.get(np.arange(100))
    ended.stop()
    cases: list[tuple[Callable[[], object], str]] = [
        (recording.stop, "done"),
        (lambda: recording.__exit__(), "done"),
        (lambda: recording.running or recording.trace(), "done"),
        (recording.report, "ForkedError: the recording runs in process"),
        (ended.report, "done"),
        (lambda: table.get([1]), "ForkedError"),
        (store.record, "ForkedError"),
        (store.close, "ForkedError"),
        (store.__del__, "done"),
    ]
    for work, expected in cases:
        found = in_child_beside_a_locked_recording(store, recording, work)
        assert found.startswith(expected), found
    assert recording.running
    table.get([1])
    recording.stop()
    assert recording.batches == 10


def test_scans_and_deletes_count_as_verbs(store: embedrock.Store) -> None:
    table = store.table("rows")
    assert sum(len(keys) for keys, _ in table.items(4096)) == ROWS
    table.contains(np.arange(ROWS))
    table.delete(np.arange(0, ROWS, 2))
    time = store.stats()["time"]
    parts = ["merging", "resident", "missing", "reading", "writing", "locks"]
    assert sum(time[part] for part in parts) == pytest.approx(time["verbs"], rel=0.01)
    assert time["reading"] > 0


def test_what_cannot_be_reported_is_said(store: embedrock.Store) -> None:
    table = store.table("rows")
    with store.record() as recording:
        table.get([1])
        with pytest.raises(MisuseError, match="still runs"):
            recording.report()
    with pytest.raises(MisuseError, match="1 batches were recorded"):
        recording.report()
    recording.stop()
    with pytest.raises(MisuseError, match="max_bytes"):
        store.record(max_bytes=0)


def test_a_recording_that_has_ended_is_gone_with_its_last_reference(
    store: embedrock.Store,
) -> None:
    # Its listener referred to it and it to its listener: keys stayed until a collection.
    gc.disable()
    try:
        with store.record() as recording:
            pass
        gone = weakref.ref(recording)
        del recording
        assert gone() is None
    finally:
        gc.enable()
