"""Calls that would wait for ever are refused at once: in forked children, inside a modify.

Calls that may hang run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import ForkedError, MisuseError
from places import TESTS

SMALL = {"max_disk_bytes": 100 << 20}


def run(script: str, *arguments: object) -> str:
    """Output of a script that must succeed; it finds the modules beside this file."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Within the function of a modify, repr(store), tables, table(), stats() and record() waited for the
# modify itself.
def test_every_call_of_the_store_from_inside_a_modify_is_refused(tmp_path: Path) -> None:
    script = """
        import sys, embedrock
        from calls import HARMLESS_INSIDE, calls
        from embedrock.errors import MisuseError

        store = embedrock.open(sys.argv[1], memory="64MiB", max_disk_bytes=100 << 20)
        table = store.table("t", 4)
        table.put([1, 2], [[1, 1, 1, 1], [2, 2, 2, 2]])
        permits = store.permits()
        found = calls(store, table, permits)
        outcomes = {}

        def function(values, state):
            for name, call in found.items():
                try:
                    outcomes[name] = repr(call())
                except MisuseError as error:
                    outcomes[name] = f"refused: {error}"
                except BaseException as error:
                    outcomes[name] = f"{type(error).__name__}: {error}"

        table.modify([1], function)
        for name, outcome in outcomes.items():
            refused = outcome.startswith("refused: ") and "calling it" in outcome
            assert refused != (name in HARMLESS_INSIDE), (name, outcome)
        assert "inside modify" in outcomes["Store.__repr__"], outcomes["Store.__repr__"]
        assert "MisuseError" in outcomes["Table.__repr__"], outcomes["Table.__repr__"]
        # Afterwards, and with what the refused calls asked for, all of it goes on.
        assert not store.closed and store.tables and len(table) == 2
        for name in ("Store.commit", "Store.stats", "Table.get", "Permits.acquire"):
            found[name]()
        store.commit(10)
        store.close()
        print(len(outcomes))
    """
    assert int(run(script, tmp_path / "s")) > 60


def test_iterating_from_inside_a_modify_is_refused(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", memory="64MiB", **SMALL) as store:
        table = store.table("t", 4, num_embeddings=10)
        table.put([1, 2], np.ones((2, 4), np.float32))
        batches = table.items(batch_size=1)
        with pytest.raises(MisuseError, match="calling it"):
            table.modify([1], lambda values, state: next(batches))
        store.commit(1)


# A child forked during a commit hung on step, commits(), repr, tables and table(); one that was
# forked while another thread opened a store hung when it opened one.
def test_forked_children_are_refused_open_stores_themselves_and_end(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, threading, warnings
        import numpy as np
        import embedrock
        from calls import HARMLESS, calls
        from embedrock.errors import ForkedError

        warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads
        FORKS = int(os.environ.get("EMBEDROCK_FORKS", "10"))
        SMALL = {"memory": "4MiB", "max_disk_bytes": 100 << 20}
        path, other = sys.argv[1:]
        embedrock.open(other, **SMALL).close()
        store = embedrock.open(path, **SMALL)
        table = store.table("t", 4)
        permits = store.permits()
        keys, rows = np.arange(500), np.ones((500, 4), np.float32)
        table.put(keys, rows)
        store.commit(0)
        pending = store.commit(1, wait=False)
        permit = permits.acquire({table: [1]})
        found = calls(store, table, permits)
        left, failures = threading.Event(), []

        def loop(work):
            def repeat():
                step = 1
                while not left.is_set():
                    step += 1
                    try:
                        work(step)
                    except BaseException as error:
                        failures.append(error)
                        return
            return threading.Thread(target=repeat)

        def commit(step):
            table.put(keys, rows * step)
            store.commit(step, wait=step % 2 == 0)

        threads = [
            loop(commit),
            # That a child kept the lock of one of these would be seen here.
            loop(lambda step: embedrock.open(other, **SMALL).close()),
            loop(lambda step: embedrock.open(path, read_only=True, **SMALL).close()),
        ]
        for thread in threads:
            thread.start()

        def child():
            signal.alarm(100)  # ends a child that hangs, with another status
            for name, call in found.items():
                try:
                    outcome = repr(call())
                except ForkedError:
                    outcome = "refused"
                assert (outcome == "refused") != (name in HARMLESS), (name, outcome)
                if name == "Store.__repr__":
                    assert "forked" in outcome, outcome
            for refused in (permit.release, pending.wait):
                try:
                    refused()
                    raise AssertionError(refused)
                except ForkedError:
                    pass
            assert "another process" in repr(pending), repr(pending)
            reader = embedrock.open(path, read_only=True, **SMALL)
            mine = reader.table("t").get(keys)
            assert (mine == mine[0, 0]).all() and reader.step is not None

        for round in range(FORKS):
            pid = os.fork()
            if pid == 0:
                child()
                sys.exit(42)  # with all that an interpreter does at its end
            _, status = os.waitpid(pid, 0)
            if os.waitstatus_to_exitcode(status) != 42:
                failures.append(f"child {round} ended with {status:#x}")
                break
        left.set()
        for thread in threads:
            thread.join()
        permit.release()
        assert not failures, failures
        store.commit(10**6)
        store.close()
    """
    run(script, tmp_path / "store", tmp_path / "other")


def test_a_child_that_forks_inside_a_modify_is_told_of_the_fork(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", memory="64MiB", **SMALL) as store:
        table = store.table("t", 4)

        def function(values: np.ndarray, state: np.ndarray) -> None:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    len(table)
                except ForkedError:
                    status = 42
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 42

        table.modify([1], function)
        store.commit(1)


# The refusal of an array was made under a lock. Making it imports a class and allocates, which may
# run Python (hooks of imports, finalizers): another thread then had the interpreter and waited.
def test_threads_that_are_refused_arrays_do_not_wait_for_each_other(tmp_path: Path) -> None:
    script = """
        import builtins, faulthandler, sys, threading, time
        import numpy as np
        import embedrock
        from embedrock.errors import MisuseError

        faulthandler.dump_traceback_later(60, exit=True)
        plain_import = builtins.__import__

        def hooked_import(*given, **named):
            time.sleep(1e-4)
            return plain_import(*given, **named)

        builtins.__import__ = hooked_import
        store = embedrock.open(sys.argv[1], memory="4MiB", max_disk_bytes=100 << 20)
        table = store.table("t", 4, num_embeddings=10)
        refused = []

        def work():
            out = np.empty((1, 4), np.float32)
            for _ in range(300):
                try:
                    store.get([(table, [1]), (table, [2])], out=[out, out])
                except MisuseError:
                    refused.append(1)
                table.get([1], out=out)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.close()
        print(len(refused))
    """
    assert int(run(script, tmp_path / "s")) == 4 * 300


# Closing a store refuses a child with an error that its ending interpreter could not import.
def test_a_child_that_ends_with_an_open_store_says_nothing(tmp_path: Path) -> None:
    script = """
        import builtins, os, sys
        import embedrock

        os.dup2(1, 2)
        # Where it outlives the modules.
        store = builtins.kept = embedrock.open(sys.argv[1], memory="4MiB", max_disk_bytes=100 << 20)
        store.table("t", 4).put([1], [[1, 1, 1, 1]])
        store.commit(1)
        for _ in range(5):
            child = os.fork()
            if child == 0:
                sys.exit(7)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 7
        store.close()
    """
    assert run(script, tmp_path / "s") == ""
