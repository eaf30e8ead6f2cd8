"""Rows read in the background into the caller's arrays: what is in them, and how it can end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock._listeners import Listener
from embedrock.ahead.prefetch import UNFINISHED_MAX
from embedrock.errors import (
    ClosedError,
    CorruptError,
    ForkedError,
    KeyRangeError,
    MisuseError,
    NotFoundError,
)


class Gate:
    """The engine of a store, whose background reads wait until the gate is opened."""

    def __init__(self, store: embedrock.Store) -> None:
        self._core = store._prefetcher.core
        self.opened = threading.Event()
        self.reached = threading.Event()
        store._prefetcher.core = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def get(self, parts: Any) -> None:
        if parts:
            self.reached.set()
            self.opened.wait()
        self._core.get(parts)


def room(table: embedrock.Table, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((*shape, table.embedding_dim), np.nan, np.float32)


def test_an_array_gets_what_a_get_gives(filled: embedrock.Table) -> None:
    keys = np.array([[3, 3, 99], [5, 1000, 0]])
    expected = filled.get(keys)
    out = room(filled, 2, 3)
    coming = filled.lookahead(keys, out=out)
    keys[...] = 7  # the request has its own
    assert coming.wait() is out
    assert coming.done
    assert (out == expected).all()
    assert coming.wait(0) is out
    assert repr(coming) == "<embedrock.Prefetch of 6 keys, done>"
    none = room(filled, 0)
    assert filled.lookahead([], none).wait() is none


def test_several_tables_come_in_one_request(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    users = store.table("users", 2, 50)
    out = [room(filled, 3), room(users, 1, 2)]
    answer = store.lookahead([(filled, [1, 2, 3]), (users, [[4, 4]])], out).wait()
    assert answer[0] is out[0] and answer[1] is out[1]
    assert (out[0] == filled.get([1, 2, 3])).all()
    assert (out[1] == users.get([[4, 4]])).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_are_filled_in_the_tables_dtype(store: embedrock.Store, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    table = store.table("half", 8, dtype=dtype)
    for of in (getattr(torch, dtype), torch.float32):
        out = torch.zeros(3, 8, dtype=of)
        assert table.lookahead(torch.arange(3), out=out).wait() is out
        assert torch.equal(out, table.get(torch.arange(3), out=torch.empty_like(out)))


def test_what_is_applied_before_the_call_is_in_and_what_is_applied_after_the_read_is_not(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    first, second = room(filled, 1), room(filled, 1)
    filled.put([7], np.full((1, 4), 1, np.float32))
    one, two = filled.lookahead([7], first), filled.lookahead([7], second)
    gate.reached.wait()
    assert not one.done and not two.done
    filled.put([7], np.full((1, 4), 2, np.float32))  # in between: it may be in
    gate.opened.set()
    assert two.wait()[0, 0] in (1, 2)
    assert one.done, "requests are read in their order"
    before = second.copy()
    filled.put([7], np.full((1, 4), 3, np.float32))
    assert (second == before).all()


def test_rows_of_an_array_are_whole_while_others_change_them(store: embedrock.Store) -> None:
    table = store.table("sums", 64, 100, optimizer="sgd", initializer=0.0)
    keys = np.arange(100)
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            table.update(keys, np.full((100, 64), -1, np.float32), lr=1.0)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        last = np.zeros(100)
        for _ in range(50):
            rows = table.lookahead(keys, room(table, 100)).wait()
            assert (rows == rows[:, :1]).all()
            assert (rows[:, 0] >= last).all()
            last = rows[:, 0]
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("bound", [1, 3])
def test_with_permits_an_array_misses_no_more_updates_than_the_bound(
    store: embedrock.Store, bound: int
) -> None:
    # One thread reads so many batches ahead as the bound allows, and is in nobody's way.
    table = store.table("sums", 4, 30, optimizer="sgd", initializer=0.0)
    permits = store.permits(bound)
    random = np.random.default_rng(5)
    batches = [np.unique(random.integers(0, 30, 20)) for _ in range(60)]
    before, coming, held = np.zeros(30), [], []
    stale = 0
    for step, keys in enumerate(batches):
        while len(coming) < min(step + 1 + bound, len(batches)):
            ahead = batches[len(coming)]
            held.append(permits.acquire({table: ahead}))
            coming.append(table.lookahead(ahead, room(table, len(ahead))))
        found = coming[step].wait()[:, 0]
        missing = before[keys] - found
        assert (missing >= 0).all() and (missing <= bound).all()
        stale = max(stale, int(missing.max()))
        table.update(keys, np.full((len(keys), 4), -1, np.float32), lr=1.0)
        before[keys] += 1
        held[step].release()
    assert 0 < stale <= permits.stats()["staleness_max"] == bound


def test_a_request_waits_for_what_was_announced(store: embedrock.Store) -> None:
    table = store.table("many", 4, 5000)
    keys = np.arange(5000)
    table.put(keys, np.repeat(keys[:, None], 4, 1).astype(np.float32))
    number = store.window.announce({table: keys[:100]})
    rows = table.lookahead(keys[:100], room(table, 100), announced=number).wait()
    assert (rows[:, 0] == keys[:100]).all()
    window = store.window.stats()
    # If other processes leave the window's threads no core, nobody waits for them.
    assert window["filled"] == number or window["starved"] or window["resting"]
    store.window.finish(number)
    with pytest.raises(MisuseError, match="batch 9 was not announced"):
        table.lookahead([1], room(table, 1), announced=9).wait()
    with pytest.raises(MisuseError, match="announced is 0, expected 1 or more"):
        table.lookahead([1], room(table, 1), announced=0)
    with pytest.raises(MisuseError, match="takes it with out"):
        table.lookahead([1], announced=1)  # type: ignore[call-overload]


def test_arguments_are_refused_at_the_call(
    store: embedrock.Store, filled: embedrock.Table, tmp_path: Path
) -> None:
    dense = store.table("dense", 4, 10)
    fixed = room(filled, 1)
    fixed.flags.writeable = False
    with pytest.raises(KeyRangeError, match=r"keys\[1\] is -1, expected 0 to 9: table 'dense'"):
        dense.lookahead([1, -1], room(dense, 2))
    with pytest.raises(MisuseError, match=r"out has shape \(2, 4\), expected \(1, 4\)"):
        filled.lookahead([1], room(filled, 2))
    with pytest.raises(MisuseError, match="out is float64, expected float32"):
        filled.lookahead([1], np.zeros((1, 4)))
    with pytest.raises(MisuseError, match="read-only"):
        filled.lookahead([1], fixed)
    with pytest.raises(MisuseError, match="out has 1 arrays, expected 2"):
        store.lookahead([(filled, [1]), (dense, [1])], [room(filled, 1)])
    with pytest.raises(MisuseError, match=r"out\[1\] has shape"):
        store.lookahead([(filled, [1]), (dense, [1])], [room(filled, 1), room(filled, 3)])
    with pytest.raises(NotFoundError), embedrock.open(tmp_path / "other", "64MiB") as other:
        store.lookahead([(other.table("ads"), [1])], [room(filled, 1)])
    with (
        embedrock.open(tmp_path / "other", "64MiB") as other,
        pytest.raises(MisuseError, match="belongs to another store"),
    ):
        store.lookahead([(other.table("ads", 4), [1])], [room(filled, 1)])
    assert not store._prefetcher._readers, "no thread for requests that are refused"


def test_memory_that_is_being_filled_is_refused_until_it_is_done(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    out = room(filled, 10)
    with pytest.raises(MisuseError, match="out overlaps an array"):
        store.lookahead([(filled, [1, 2]), (filled, [3, 4])], [out[:2], out[1:3]])
    coming = filled.lookahead([1, 2], out[:2])
    beside = filled.lookahead([1, 2], out[2:4])
    with pytest.raises(MisuseError, match="out overlaps an array that another request is filling"):
        filled.lookahead([1], out[1:2])
    gate.opened.set()
    beside.wait()
    assert coming.done
    assert (filled.lookahead([3], out[1:2]).wait() == filled.get([3])).all()


def test_no_more_requests_wait_than_there_may(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    out = room(filled, UNFINISHED_MAX + 1)
    coming = [filled.lookahead([i % 100], out[i : i + 1]) for i in range(UNFINISHED_MAX)]
    with pytest.raises(MisuseError, match=f"at most {UNFINISHED_MAX} may"):
        filled.lookahead([1], out[-1:])
    gate.opened.set()
    coming[-1].wait()
    assert (out[:-1] == filled.get(np.arange(UNFINISHED_MAX) % 100)).all()
    filled.lookahead([1], out[-1:]).wait()


def test_a_wait_ends_in_time_and_by_ctrl_c_and_leaves_the_request(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    coming = filled.lookahead([1], room(filled, 1))
    with pytest.raises(TimeoutError, match=r"rows of 1 keys are not there after 0\.001 s"):
        coming.wait(0.001)
    assert repr(coming) == "<embedrock.Prefetch of 1 keys, under way>"
    timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        coming.wait()
    timer.join()
    gate.opened.set()
    assert (coming.wait() == filled.get([1])).all()


@pytest.mark.filterwarnings("ignore::embedrock.UncommittedWarning")
def test_closing_ends_what_is_being_read_and_fails_what_waits(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    expected = filled.get([1])
    first = filled.lookahead([1], room(filled, 1))
    second = filled.lookahead([2], room(filled, 1))
    gate.reached.wait()
    closing = threading.Thread(target=store.close)
    closing.start()
    with pytest.raises(ClosedError, match="was closed before the rows of 1 keys were read"):
        second.wait()
    gate.opened.set()
    closing.join()
    assert (first.wait() == expected).all()
    assert second.done
    with pytest.raises(ClosedError):
        filled.lookahead([1], room(filled, 1))


@pytest.mark.filterwarnings("ignore::embedrock.UncommittedWarning")
def test_a_store_that_is_dropped_on_its_reader_closes_there(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    # The collector may find a store on any thread: the reader must not wait for its own end.
    gate = Gate(store)
    reader = store._prefetcher
    stopped_on = []

    def stopping(parts: Any) -> None:
        if parts:
            reader.stop()
            stopped_on.append(threading.get_ident())

    coming = filled.lookahead([1], room(filled, 1))
    gate.reached.wait()
    gate.get = stopping  # type: ignore[method-assign]
    behind = filled.lookahead([2], room(filled, 1))
    gate.opened.set()
    coming.wait(60)
    behind.wait(60)
    assert stopped_on == [reader._readers[0]._ident] != [threading.get_ident()]
    with pytest.raises(ClosedError):
        filled.lookahead([1], room(filled, 1))


def test_an_array_lives_until_it_is_filled_and_no_longer(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    out = room(filled, 1)
    alive = weakref.ref(out)
    coming: Any = filled.lookahead([1], out)
    del out, coming
    gc.collect()
    assert alive() is not None
    last = filled.lookahead([1], room(filled, 1))
    gate.opened.set()
    last.wait()
    gc.collect()
    assert alive() is None


def test_a_request_inside_modify_is_refused_and_so_is_waiting_for_one(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    coming = filled.lookahead([1], room(filled, 1))

    def inside(values: Any, state: Any) -> None:
        for call in (lambda: filled.lookahead([2], room(filled, 1)), coming.wait):
            with pytest.raises(MisuseError, match="the function given to modify"):
                call()

    filled.modify([1], inside)
    gate.opened.set()
    coming.wait()


def test_a_forked_child_is_refused_and_the_parent_goes_on(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    gate = Gate(store)
    gate.opened.set()
    over = filled.lookahead([1], room(filled, 1))
    over.wait()
    gate.opened.clear()
    coming = filled.lookahead([2], room(filled, 1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                coming.wait,
                lambda: coming.done,
                lambda: filled.lookahead([3], room(filled, 1)),
            ):
                with pytest.raises(ForkedError):
                    call()
            store._prefetcher.stop()
            code = 0 if over.done and "another process" in repr(coming) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    gate.opened.set()
    assert (coming.wait() == filled.get([2])).all()


def test_damage_is_raised_where_it_is_waited_for_and_stops_nothing_else(tmp_path: Path) -> None:
    keys = np.arange(20_000)
    with embedrock.open(tmp_path / "store", "64MiB", page_bytes=4096) as store:
        table = store.table("items", 8, 20_000)
        table.put(keys, np.ones((20_000, 8), np.float32))
        store.commit(1)
    (file,) = (tmp_path / "store").glob("rows-0")
    content = bytearray(file.read_bytes())
    content[len(content) // 2 + 100] ^= 1
    file.write_bytes(content)
    with embedrock.open(tmp_path / "store", "64MiB", read_only=True) as store:
        table = store.table("items")
        coming = table.lookahead(keys, room(table, len(keys)))
        after = table.lookahead(keys[:10], room(table, 10))
        for _ in range(2):
            with pytest.raises(CorruptError, match="page"):
                coming.wait()
        assert (after.wait() == 1).all()


def test_a_reader_of_the_store_can_look_ahead(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "store", "64MiB") as store:
        store.table("items", 4).put([1], np.ones((1, 4), np.float32))
        store.commit(1)
        with embedrock.open(tmp_path / "store", "64MiB", read_only=True) as reader:
            table = reader.table("items")
            assert (table.lookahead([1], room(table, 1)).wait() == 1).all()


def test_recordings_note_what_is_read_ahead(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    with store.record() as recording:
        filled.lookahead([1, 2, 3], room(filled, 3)).wait()
    assert recording.batches == 1


def test_steps_of_a_pipeline_are_applied_before_the_rows_are_read(
    store: embedrock.Store, filled: embedrock.Table
) -> None:
    waiting = [np.full((1, 4), 9, np.float32)]

    class Steps(Listener):
        def before(self) -> None:
            while waiting:
                part = (filled._handle, np.array([1], np.uint64), waiting.pop(), None)
                store._core.put([part], False, "refuse")

    store._listeners.add(Steps())
    assert (filled.lookahead([1], room(filled, 1)).wait() == 9).all()


def test_a_program_may_end_without_waiting(tmp_path: Path) -> None:
    program = (
        "import numpy as np, embedrock\n"
        f"store = embedrock.open({str(tmp_path / 'store')!r}, '64MiB')\n"
        "table = store.table('items', 4)\n"
        "coming = [table.lookahead([1], np.empty((1, 4), np.float32)) for _ in range(100)]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
