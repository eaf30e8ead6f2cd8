"""A store that is opened again in the process that has it open, as cells of a notebook do."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import ClosedError, LockedError, UncommittedWarning

SMALL: dict[str, Any] = {"memory": "4MiB", "max_disk_bytes": 100 << 20}
KEYS = np.arange(100)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    embedrock.close_all()


def fill(store: embedrock.Store, value: float = 1.0) -> embedrock.Table:
    table = store.table("t", 4, num_embeddings=1000)
    table.put(KEYS, np.full((len(KEYS), 4), value, np.float32))
    return table


# A cell that was run a second time ended in LockedError, and only a new kernel helped.
def test_a_cell_that_is_run_again_gets_its_handle(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    store = embedrock.open(tmp_path / "s", **SMALL)
    table = fill(store)
    for path in (tmp_path / "s", str(tmp_path / "link" / "s"), tmp_path / "s" / ".." / "s"):
        assert embedrock.open(path, **SMALL) is store
    assert embedrock.open(tmp_path / "s", create=False, **SMALL) is store
    assert store.uncommitted[0] == 1 and table.get([7]).sum() == 4
    store.commit(1)
    store.close()
    with pytest.raises(ClosedError):
        table.get([7])
    again = embedrock.open(tmp_path / "s", **SMALL)
    assert again is not store and again.step == 1


# The traceback of an exception keeps the module alive, and with it the handle.
def test_a_handle_that_only_a_traceback_holds_is_given_again(tmp_path: Path) -> None:
    def cell() -> None:
        store = embedrock.open(tmp_path / "s", **SMALL)
        fill(store)
        raise ZeroDivisionError

    try:
        cell()
    except ZeroDivisionError:
        last = sys.exc_info()
    gc.collect()
    with pytest.raises(LockedError, match="memory='4MiB' \\(asked for: '5MiB'\\)") as caught:
        embedrock.open(tmp_path / "s", "5MiB", max_disk_bytes=100 << 20)
    assert "embedrock.close_all()" in str(caught.value)
    assert embedrock.open(tmp_path / "s", **SMALL).table("t").get([7]).sum() == 4
    with pytest.warns(UncommittedWarning, match="1 batches that touched 100 rows"):
        embedrock.close_all()
    with embedrock.open(tmp_path / "s", "5MiB") as store:
        assert store.tables == {}
    del last


def test_other_arguments_are_named(tmp_path: Path) -> None:
    held = embedrock.open(tmp_path / "s", keep=3, **SMALL)
    for given, said in (
        ({}, "keep=3 (asked for: 2)"),
        ({"keep": 3, "policy": "lru"}, "policy='lfu' (asked for: 'lru')"),
        ({"keep": 4, "page_bytes": 4096}, "page_bytes=None (asked for: 4096), keep=3"),
        ({"keep": 3, "step": 1}, "to go to step 1, close it first"),
    ):
        with pytest.raises(LockedError) as caught:
            embedrock.open(tmp_path / "s", **{**SMALL, **given})
        assert said in str(caught.value) and "open in this process already" in str(caught.value)
    assert not held.closed


# "10 %" was refused where the store was open with "10%".
@pytest.mark.parametrize(
    ("memory", "again"),
    [
        ("10%", "10 %"),
        (" 10.0%", "10%"),
        ("4MiB", 4 << 20),
        ("4MiB", "4096 k"),
        ("4.5MB", "4500KB"),
        ("4.7MiB", str(int(4.7 * (1 << 20)))),
    ],
)
def test_equal_amounts_of_memory_agree_however_they_are_written(
    tmp_path: Path, memory: Any, again: Any
) -> None:
    store = embedrock.open(tmp_path / "s", memory)
    assert embedrock.open(tmp_path / "s", again) is store
    assert embedrock.open(tmp_path / "s", memory) is store and store.memory == str(memory)


@pytest.mark.parametrize(
    ("memory", "other"), [("10%", "10.5 %"), ("4MiB", "4MB"), ("4100%", "4100KB")]
)
def test_other_amounts_of_memory_are_named_as_they_were_given(
    tmp_path: Path, memory: str, other: str
) -> None:
    held = embedrock.open(tmp_path / "s", memory)
    with pytest.raises(LockedError) as caught:
        embedrock.open(tmp_path / "s", other)
    assert not held.closed
    assert f"memory={memory!r} (asked for: {other!r})" in str(caught.value)


def test_readers_are_handles_of_their_own(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", **SMALL)
    fill(store)
    store.commit(1)
    readers = [embedrock.open(tmp_path / "s", read_only=True, **SMALL) for _ in range(2)]
    assert len({id(one) for one in (store, *readers)}) == 3
    fill(store, 2.0)
    store.commit(2)
    assert readers[0].refresh() is not None and readers[1].step == 1
    readers[0].close()
    assert readers[1].table("t").get([1]).sum() == 4
    embedrock.close_all()
    assert store.closed and readers[1].closed


def test_a_step_is_given_again_while_nothing_left_it(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", **SMALL) as store:
        for step in (1, 2):
            fill(store, step)
            store.commit(step)
    store = embedrock.open(tmp_path / "s", step=1, **SMALL)
    assert embedrock.open(tmp_path / "s", step=1, **SMALL) is store
    with pytest.raises(LockedError, match="opened at step 1 and used since; to go to the last"):
        embedrock.open(tmp_path / "s", **SMALL)
    fill(store, 3)
    with pytest.raises(LockedError, match="opened at step 1 and used since; to go to step 1"):
        embedrock.open(tmp_path / "s", step=1, **SMALL)
    store.commit(5)
    with pytest.raises(LockedError, match="to go to step 1"):
        embedrock.open(tmp_path / "s", step=1, **SMALL)


def test_a_with_block_closes_what_it_opened_and_nothing_else(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", **SMALL)
    with embedrock.open(tmp_path / "s", **SMALL) as inner:
        assert inner is store
        with embedrock.open(tmp_path / "s", **SMALL):
            pass
    fill(store)
    store.commit(1)
    with store:
        pass
    assert store.closed
    with embedrock.open(tmp_path / "s", **SMALL) as store:
        embedrock.open(tmp_path / "s", **SMALL).close()
        assert store.closed


def test_of_many_threads_one_opens_and_all_have_it(tmp_path: Path) -> None:
    for turn in range(10):
        path, found, start = tmp_path / f"s{turn}", [], threading.Barrier(8)

        def opener(path: Path = path, found: list = found, start: Any = start) -> None:
            start.wait()
            found.append(embedrock.open(path, **SMALL))

        threads = [threading.Thread(target=opener) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and len(set(map(id, found))) == 1
        found[0].close()


def test_a_forked_child_has_no_handle_of_its_parent(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", **SMALL)
    fill(store)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            embedrock.close_all()
            embedrock.open(tmp_path / "s", **SMALL)
        except LockedError as error:
            status = 42 if f"process {os.getppid()}" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert not store.closed
    store.commit(1)


def test_a_folder_that_was_removed_and_made_again_is_another_store(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", **SMALL)
    fill(store)
    store.commit(1)
    shutil.rmtree(tmp_path / "s")
    again = embedrock.open(tmp_path / "s", **SMALL)
    assert again is not store and again.step is None
    (tmp_path / "s").rename(tmp_path / "moved")
    assert embedrock.open(tmp_path / "moved", **SMALL) is again


def test_one_that_refuses_changes_is_not_given_again(tmp_path: Path) -> None:
    import resource

    store = embedrock.open(tmp_path / "s", **SMALL)
    table = fill(store)
    store.commit(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    table.put(KEYS, np.full((len(KEYS), 4), 2, np.float32))
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        with pytest.raises(embedrock.EmbedrockError) as caught:
            store.commit(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert getattr(caught.value, "errno", None) in (errno.EFBIG, None)
    with pytest.raises(LockedError, match="refuses changes after an error"):
        embedrock.open(tmp_path / "s", **SMALL)
    with pytest.warns(UncommittedWarning):
        store.close()
    assert embedrock.open(tmp_path / "s", **SMALL).table("t").get([1]).sum() == 4
