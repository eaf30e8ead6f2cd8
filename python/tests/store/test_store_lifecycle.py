"""Opening, committing, closing; threads, forks, signals; what a store says of itself."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import (
    ClosedError,
    ForkedError,
    LockedError,
    MisuseError,
    UncommittedWarning,
)
from rows import numbered

DISK = 100 << 20  # too little to measure the disk's speed in, which takes a quarter second


class TestCommit:
    def test_meta_and_state_come_back_after_reopening(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        meta = {"epoch": 3, "names": ["ä", None, 1.5]}
        state = {"dense": os.urandom(100_000), "empty": b"", "ü": bytearray(b"x")}
        with embedrock.open(path, memory="64MiB", max_disk_bytes=DISK) as store:
            assert store.step is None and store.meta is None and store.commits() == []
            table = store.table("t", 4, optimizer="adagrad")
            table.put(np.arange(10), numbered(np.arange(10)))
            commit = store.commit(7, meta, state)
            assert (commit.step, commit.meta) == (7, meta)
            assert store.step == 7
            digest = table.digest()
        with embedrock.open(path, memory="64MiB", create=False, max_disk_bytes=DISK) as store:
            assert store.step == 7
            assert store.meta == meta
            assert store.state() == state
            kept = store.commits()[-1]
            assert (kept.sequence, kept.step, kept.meta) == (commit.sequence, 7, meta)
            assert kept.unix_time == commit.unix_time and kept.state_bytes == 100_001
            assert store.table("t").digest() == digest
            np.testing.assert_array_equal(store.table("t").get([3]), numbered([3]))

    def test_without_waiting_a_commit_has_what_was_there_at_the_call(self, tmp_path: Path) -> None:
        path, keys = tmp_path / "s", np.arange(20_000)
        with embedrock.open(path, memory="4MiB", max_disk_bytes=DISK) as store:
            table = store.table("t", 4, num_embeddings=20_000, initializer=0.0)
            table.put(keys, numbered(keys))
            pending = store.commit(1, {"n": 1}, {"dense": b"one"}, wait=False)
            # Rows are changed, and leave memory, while the commit is written.
            for first in range(0, 20_000, 500):
                part = keys[first : first + 500]
                table.put(part, numbered(part) + 1)
            commit = pending.wait()
            assert (commit.step, commit.meta, pending.step) == (1, {"n": 1}, 1)
            assert commit.rows_flushed >= 20_000 and pending.done
            assert store.step == 1 and store.uncommitted == (40, 20_000)
            assert repr(pending) == "<embedrock.PendingCommit of step 1, done>"
            with pytest.warns(UncommittedWarning):
                store.close()
        with embedrock.open(path, memory="4MiB", create=False, max_disk_bytes=DISK) as store:
            assert store.state() == {"dense": b"one"}
            np.testing.assert_array_equal(store.table("t").get(keys), numbered(keys))

    def test_closing_waits_for_a_commit_that_nobody_waited_for(self, tmp_path: Path) -> None:
        path, keys = tmp_path / "s", np.arange(5_000)
        with embedrock.open(path, memory="4MiB", max_disk_bytes=DISK) as store:
            store.table("t", 4).put(keys, numbered(keys))
            pending = store.commit(3, wait=False)
        assert pending.wait(timeout=10).step == 3
        with embedrock.open(path, memory="4MiB", create=False, max_disk_bytes=DISK) as store:
            assert store.step == 3 and len(store.table("t")) == 5_000

    def test_a_handle_in_a_forked_child_says_where_the_commit_runs(self, tmp_path: Path) -> None:
        with embedrock.open(tmp_path / "s", memory="4MiB", max_disk_bytes=DISK) as store:
            store.table("t", 4).put([1], numbered([1]))
            pending = store.commit(1, wait=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads
                child = os.fork()
            if child == 0:
                try:
                    pending.wait()
                except ForkedError:
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert pending.wait().step == 1

    def test_an_older_commit_can_be_opened_by_its_step(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with embedrock.open(path, memory="64MiB", max_disk_bytes=DISK) as store:
            table = store.table("t", 4)
            for step in (10, 20):
                table.put([1], numbered([step]))
                store.commit(step, state={"n": str(step).encode()})
        with embedrock.open(path, memory="64MiB", step=10, max_disk_bytes=DISK) as store:
            assert store.step == 10
            assert store.state() == {"n": b"10"}
            np.testing.assert_array_equal(store.table("t").get([1]), numbered([10]))

    def test_meta_that_json_cannot_hold_is_refused(self, store: embedrock.Store) -> None:
        with pytest.raises(MisuseError, match="meta must be something that JSON holds"):
            store.commit(1, meta=object())
        with pytest.raises(MisuseError, match="step is -1"):
            store.commit(-1)


class TestClose:
    def test_closing_with_uncommitted_changes_warns_with_how_much(self, tmp_path: Path) -> None:
        store = embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK)
        table = store.table("t", 4)
        store.commit(1)
        table.put([1, 2, 3], numbered([1, 2, 3]))
        table.put([1, 2], numbered([1, 2]))
        assert store.uncommitted == (2, 5)
        with pytest.warns(UncommittedWarning, match=r"2 batches that touched 5 rows") as caught:
            store.close()
        assert caught[0].filename == __file__
        with embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK) as store:
            assert len(store.table("t")) == 0

    def test_leaving_a_with_statement_warns_too(self, tmp_path: Path) -> None:
        with (
            pytest.warns(UncommittedWarning, match="1 batches") as caught,
            embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK) as store,
        ):
            store.table("t", 4).put([1], numbered([1]))
        assert caught[0].filename == __file__

    def test_a_store_that_is_dropped_is_closed_with_the_warning(self, tmp_path: Path) -> None:
        store = embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK)
        store.table("t", 4).put([1], numbered([1]))
        with pytest.warns(UncommittedWarning):
            del store
            gc.collect()
        embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK).close()

    def test_closing_twice_or_after_a_commit_is_silent(self, tmp_path: Path) -> None:
        store = embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK)
        store.table("t", 4).put([1], numbered([1]))
        store.commit(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.close()
            store.close()
        assert store.closed

    def test_a_closed_store_refuses_every_verb_and_still_prints(self, tmp_path: Path) -> None:
        store = embedrock.open(tmp_path / "s", memory="64MiB", max_disk_bytes=DISK)
        table = store.table("t", 4)
        store.commit(1)
        store.close()
        calls = [
            lambda: table.get([1]),
            lambda: table.put([1], numbered([1])),
            lambda: table.update([1], numbered([1]), lr=1.0),
            lambda: table.modify([1], lambda values, state: None),
            lambda: table.delete([1]),
            lambda: table.contains([1]),
            lambda: table.lookahead([1]),
            lambda: table.items(),
            lambda: table.digest(),
            lambda: len(table),
            lambda: store.table("new", 4),
            lambda: store.commit(2),
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                call()
        assert "closed" in repr(store)
        assert "ClosedError" in repr(table)

    def test_a_store_cannot_be_pickled(self, table: embedrock.Table) -> None:
        with pytest.raises(TypeError, match="in the process that uses it"):
            pickle.dumps(table)


class TestOptions:
    @pytest.mark.parametrize(
        ("memory", "budget_bytes"),
        [
            ("64MiB", 67_108_864),
            ("67MB", 67_000_000),
            (64 << 20, 67_108_864),
            (np.int64(64 << 20), 67_108_864),
            # A million rows of 64 float32 values and a float32 of state.
            ("10%", 26_000_000),
        ],
    )
    def test_memory_is_bytes_or_text(self, tmp_path: Path, memory: Any, budget_bytes: int) -> None:
        with embedrock.open(tmp_path / "s", memory) as store:
            store.table("t", 64, num_embeddings=1_000_000)
            store.commit(0)
            assert store.stats()["budget_bytes"] == budget_bytes

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"memory": "ten"}, 'memory is "ten", expected bytes, "10%"'),
            ({"memory": 0.1}, "memory is 0.1, expected bytes"),
            ({"memory": True}, "memory is True, expected bytes"),
            ({"memory": 0}, "memory is 0, expected 1 or more"),
            ({"io": "mmap"}, "io is 'mmap', expected 'auto', 'uring' or 'pread'"),
            ({"policy": "fifo"}, "policy is 'fifo', expected 'lru' or 'lfu'"),
            (
                {"merge_picker": "newest"},
                "merge_picker is 'newest', expected one of score, largest, round_robin, oldest",
            ),
            (
                {"upkeep_scheduler": "on"},
                "upkeep_scheduler is 'on', expected 'off', 'gate' or 'share'",
            ),
            ({"top_share": 0.6}, "top_share is 0.6, expected 0.01 to 0.5"),
            ({"top_share": float("nan")}, "top_share is nan, expected 0.01 to 0.5"),
            ({"top_share": "10%"}, "top_share is '10%', expected a number"),
            ({"keep": 0}, "keep is 0, expected 1 or more"),
            ({"step": -1}, "step is -1, expected 0 or more"),
            ({"seed": 2**64}, "seed is 18446744073709551616"),
        ],
    )
    def test_unusable_options_are_refused_by_name(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(MisuseError, match=message):
            embedrock.open(tmp_path / "s", **options)
        assert not (tmp_path / "s").exists()

    def test_a_store_tells_what_matters(self, filled: embedrock.Table) -> None:
        text = repr(filled.store)
        for fact in (str(filled.store.path), "64MiB", "tables=1", "uncommitted_batches=1"):
            assert fact in text
        assert repr(filled) == (
            "<embedrock.Table 'ads': 100 rows x 4 float32, growing, adagrad, 32 bytes per row>"
        )

    def test_stats_are_nested_numbers(self, filled: embedrock.Table) -> None:
        def leaves(value: Any) -> list[Any]:
            if isinstance(value, dict):
                return [leaf for child in value.values() for leaf in leaves(child)]
            return [value]

        stats = filled.store.stats()
        assert isinstance(stats, dict)
        assert any(isinstance(value, dict) for value in stats.values())
        assert all(isinstance(key, str) for key in stats)
        assert leaves(stats)


class TestThreads:
    def test_batches_of_several_threads_all_arrive(self, store: embedrock.Store) -> None:
        table = store.table("t", 8, optimizer="sgd", initializer=0.0)
        keys = np.arange(500)

        def work() -> None:
            for _ in range(20):
                table.update(keys, np.ones((500, 8), np.float32), lr=1.0)
                assert table.get(keys).shape == (500, 8)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(table.get(keys), np.full((500, 8), -80.0))

    def test_whoever_waits_for_a_modify_lets_the_interpreter_run(self, tmp_path: Path) -> None:
        """A verb that held the interpreter while it waits for a row would never be woken: the
        function that holds the row needs the interpreter to end."""
        script = """
            import sys, threading
            import numpy as np, embedrock
            store = embedrock.open(sys.argv[1], memory="64MiB")
            table = store.table("t", 4, initializer=0.0)
            rows = np.ones((1, 4), np.float32)
            verbs = {
                "get": lambda: table.get([1]),
                "put": lambda: table.put([1], rows),
                "update": lambda: table.update([1], rows, lr=0.1),
                "modify": lambda: table.modify([1], lambda values, state: None),
                "delete": lambda: table.delete([1]),
                "contains": lambda: table.contains([1]),
                "len": lambda: len(table),
                "digest": lambda: table.digest(),
                "items": lambda: list(table.items()),
                "stats": lambda: store.stats(),
                "repr": lambda: repr(store),
                "tables": lambda: store.tables,
                "commit": lambda: store.commit(1),
            }
            for name, verb in verbs.items():
                inside, started, leave = (threading.Event() for _ in range(3))
                def hold(values, state):
                    inside.set()
                    leave.wait()
                def wait():
                    started.set()
                    verb()
                holder = threading.Thread(target=table.modify, args=([1], hold))
                holder.start()
                inside.wait()
                waiter = threading.Thread(target=wait)
                waiter.start()
                started.wait()
                waiter.join(0.02)
                leave.set()
                holder.join()
                waiter.join()
                print(name, flush=True)
            store.commit(2)
            store.close()
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "s")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(done.stdout.split()) == 13


class TestForks:
    def test_a_forked_child_gets_an_error_and_the_parent_goes_on(
        self, filled: embedrock.Table
    ) -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                filled.get([1])
            except ForkedError:
                status = 42
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 42
        np.testing.assert_array_equal(filled.get([1]), numbered([1]))

    def test_a_child_that_drops_the_store_frees_nothing_of_it(
        self, filled: embedrock.Table
    ) -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                filled.store.__del__()
                status = 42
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 42
        filled.put([1], numbered([5]))
        filled.store.commit(1)
        np.testing.assert_array_equal(filled.get([1]), numbered([5]))


class TestProcesses:
    def test_a_second_writer_is_refused_by_the_name_of_the_first(
        self, filled: embedrock.Table
    ) -> None:
        script = """
            import sys, embedrock
            try:
                embedrock.open(sys.argv[1], memory="64MiB")
            except embedrock.errors.LockedError as error:
                print(error)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(filled.store.path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert str(os.getpid()) in done.stdout
        with pytest.raises(LockedError, match="open in this process already"):
            embedrock.open(filled.store.path, memory="63MiB")

    def test_the_second_rank_of_a_job_is_told_how_ranks_open_one_model(
        self, tmp_path: Path
    ) -> None:
        script = """
            import sys, embedrock
            try:
                with embedrock.open(sys.argv[1], memory="64MiB", max_disk_bytes=100 << 20):
                    print("open", flush=True)
                    sys.stdin.readline()
            except embedrock.errors.LockedError as error:
                print(error)
        """

        def rank(number: int) -> subprocess.Popen[str]:
            job = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
            command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "s")]
            pipe = subprocess.PIPE
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **job}
            )

        with rank(0) as first:
            assert first.stdout is not None and first.stdout.readline() == "open\n"
            with rank(1) as second:
                said, _ = second.communicate(timeout=120)
            first.communicate("done\n", timeout=120)
        assert (first.returncode, second.returncode) == (0, 0)
        assert f"process {first.pid} on " in said
        assert "open with embedrock.distributed.open(path), which divides the tables of one" in said
        assert "rank-0" not in said, "stores of their own would be as many models"

    def test_a_reader_sees_the_last_commit_and_changes_nothing(
        self, filled: embedrock.Table
    ) -> None:
        filled.store.commit(1)
        filled.put([1], numbered([50]))
        with embedrock.open(filled.store.path, memory="64MiB", read_only=True) as reader:
            table = reader.table("ads")
            np.testing.assert_array_equal(table.get([1]), numbered([1]))
            with pytest.raises(MisuseError, match="read"):
                table.put([1], numbered([2]))
            with pytest.raises(MisuseError, match="read"):
                reader.commit(2)
        np.testing.assert_array_equal(filled.get([1]), numbered([50]))

    # The limit does not hold for a process with CAP_IPC_LOCK, which that of a container has not.
    def test_without_memory_to_lock_a_store_works_and_says_what_it_lacks(
        self, tmp_path: Path
    ) -> None:
        script = """
            import ctypes, json, resource, sys
            import numpy as np
            libc = ctypes.CDLL(None)
            header = (ctypes.c_uint32 * 2)(0x20080522, 0)
            held = (ctypes.c_uint32 * 6)()
            assert libc.capget(header, held) == 0
            held[0] &= ~(1 << 14)
            held[1] &= ~(1 << 14)
            assert libc.capset(header, held) == 0
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
            import embedrock
            with embedrock.open(sys.argv[1], 2 << 20, max_disk_bytes=100 << 20) as store:
                table = store.table("t", 4, 100_000, initializer=0.0)
                keys = np.arange(100_000)
                table.put(keys, np.repeat(keys[:, None], 4, 1).astype(np.float32))
                store.commit(1)
                assert (table.get(keys)[:, 2] == keys).all()
                stats = store.stats()
                print(json.dumps([stats["device"]["io"], stats["device"]["notes"]]))
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "s")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        io, notes = json.loads(done.stdout)
        if io == "pread":
            pytest.skip(f"io_uring cannot be used: {notes}")
        # Some kernels refuse the ring, too, or a deep one.
        lacking = ("io_uring without registered buffers: ", "io_uring for ", "pread instead of ")
        said = [note for note in notes if note.startswith(lacking)]
        assert said and all("raise the limit of locked memory" in note for note in said), notes
        assert len(set(notes)) == len(notes)


class TestWholeStores:
    @pytest.fixture
    def written(self, tmp_path: Path) -> Path:
        path = tmp_path / "written.store"
        with embedrock.open(path, memory="64MiB", max_disk_bytes=DISK) as store:
            table = store.table("t", 4)
            table.put(np.arange(10_000), numbered(np.arange(10_000)))
            store.commit(5, meta="five")
        return path

    def test_check_reads_a_sound_store_and_tells_its_progress(self, written: Path) -> None:
        seen: list[tuple[int, int]] = []
        report = embedrock.check(written, lambda done, total: seen.append((done, total)))
        assert isinstance(report, dict) and report
        assert seen and seen == sorted(seen)
        assert all(0 <= done <= total for done, total in seen)

    def test_a_copy_holds_the_commit(self, written: Path, tmp_path: Path) -> None:
        report = embedrock.copy(written, tmp_path / "copied.store")
        assert isinstance(report, dict)
        with (
            embedrock.open(written, memory="64MiB", max_disk_bytes=DISK) as one,
            embedrock.open(
                tmp_path / "copied.store", memory="64MiB", create=False, page_bytes=4096
            ) as two,
        ):
            assert two.step == 5 and two.meta == "five"
            assert one.table("t").digest() == two.table("t").digest()

    @pytest.mark.parametrize("work", ["check", "copy"])
    def test_an_exception_of_the_progress_ends_it_unchanged(
        self, written: Path, tmp_path: Path, work: str
    ) -> None:
        raised = ZeroDivisionError("of the caller")

        def progress(done: int, total: int) -> None:
            raise raised

        with pytest.raises(ZeroDivisionError) as caught:
            if work == "check":
                embedrock.check(written, progress)
            else:
                embedrock.copy(written, tmp_path / "copied.store", progress=progress)
        assert caught.value is raised

    def test_ctrl_c_ends_a_check_between_two_batches(self, written: Path) -> None:
        # A C function as progress: the signal arrives without the interpreter looking for it, so
        # that only the engine's own look can raise KeyboardInterrupt.
        interrupt = functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            embedrock.check(written, interrupt)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_smallest_memory_that_is_named_works(tmp_path: Path) -> None:
    """For every page size and depth that the device was given."""
    rows = 20_000_000
    with (
        embedrock.open(tmp_path / "store", 1 << 20, check_disk=False) as store,
        pytest.raises(embedrock.errors.BudgetError) as refused,
    ):
        store.table("rows", 4, rows, optimizer="none")
    named = str(refused.value).rsplit("memory=", 1)[1]
    with embedrock.open(tmp_path / "store", int(named), check_disk=False) as store:
        table = store.table("rows", 4, rows, optimizer="none")
        table.put([rows - 1], np.ones((1, 4), np.float32))
        assert table.get([rows - 1]).sum() == 4
        store.commit(1)
