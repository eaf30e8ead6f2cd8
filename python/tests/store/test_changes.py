"""Changes between commits, and copies that follow a store by them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.cli import main
from embedrock.errors import (
    FullError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.follow import StoreFollower, apply_changes, stores

KILLS = int(os.environ.get("EMBEDROCK_KILLS", "2"))
ROWS = 2000
Rows = dict[int, list[float]]


LOG_SOON = pytest.mark.parametrize(
    "path", ["log", pytest.param("lsm", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture(params=["log", "lsm"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    with embedrock.open(tmp_path / "source", "16MiB", check_disk=False) as store:
        store.table("ids", 4, ROWS, optimizer="adagrad", storage=request.param)
        store.table("keys", 8, optimizer="adam", dtype="float16", storage=request.param)
        write(store, 0)
        store.commit(1, {"at": 1}, {"dense": b"one"})
    return tmp_path / "source"


def write(store: embedrock.Store, seed: int) -> None:
    """Puts, updates and deletes, of keys above 2**63 too."""
    generator = np.random.default_rng(seed)
    keys = generator.integers(0, ROWS, 60)
    store.table("ids").update(keys, generator.standard_normal((60, 4)).astype("f4"), lr=0.1)
    store.table("ids").put(keys[:9], np.full((9, 4), seed, np.float32))
    named = keys[:40].astype(np.uint64) + np.uint64((1 << 63) - 500)
    store.table("keys").update(named, generator.standard_normal((40, 8)).astype("f4"), lr=0.1)
    if seed % 3:
        store.table("ids").delete(keys[20:30])
        store.table("keys").delete(named[5:9])


def opened(path: Path, **more: Any) -> embedrock.Store:
    settings: dict[str, Any] = {"create": False, "check_disk": False, **more}
    return embedrock.open(path, "16MiB", **settings)


def rows_of(table: embedrock.Table) -> Rows:
    return {
        key: [*values, *state]
        for keys, some, states in table.items(state=True)
        for key, values, state in zip(keys.tolist(), some.tolist(), states.tolist(), strict=True)
    }


def digests(store: embedrock.Store) -> dict[str, int]:
    return {name: table.digest() for name, table in store.tables.items()}


@pytest.fixture
def store(path: Path) -> Iterator[embedrock.Store]:
    with opened(path) as store:
        yield store


def test_changes_lead_from_one_commit_to_the_last(store: embedrock.Store) -> None:
    before = {name: rows_of(table) for name, table in store.tables.items()}
    first = store.commits()[-1]
    write(store, 1)
    second = store.commit(2)
    after = {name: rows_of(table) for name, table in store.tables.items()}
    write(store, 2)  # without a commit these are no changes
    for since in (1, first):
        found: dict[str, Rows] = {"ids": {}, "keys": {}}
        gone: dict[str, set[int]] = {"ids": set(), "keys": set()}
        with store.changes(since, batch_rows=16, state=True) as changes:
            assert changes.commit == second
            for batch in changes:
                assert batch.state is not None and len(batch.keys) <= 16
                assert batch.keys.dtype == batch.deleted.dtype == np.int64
                rows = np.hstack([batch.values, batch.state]).tolist()
                found[batch.table] |= dict(zip(batch.keys.tolist(), rows, strict=True))
                gone[batch.table] |= {*batch.deleted.tolist()}
            assert changes.bytes_read == (0, 0)  # it was closed behind the last
        for name in before:
            old, new = before[name], after[name]
            assert found[name].items() <= new.items()
            assert {key for key in new if new[key] != old.get(key)} <= {*found[name]}
            assert gone[name] == {*old} - {*new}
    assert list(store.changes(2)) == []
    store.commit(3)


def test_all_rows_some_tables_and_what_is_no_argument(store: embedrock.Store, path: Path) -> None:
    total = sum(len(batch.keys) for batch in store.changes(None))
    assert total == sum(len(table) for table in store.tables.values())
    ids = store.table("ids")
    for tables in (["ids"], [ids], (ids,)):
        assert {batch.table for batch in store.changes(None, tables=tables)} == {"ids"}
    for bad in ("ids", 3):
        with pytest.raises(MisuseError, match="tables is"):
            store.changes(None, tables=bad)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=r"tables has 'none', which .* has not"):
        store.changes(None, tables=["none"])
    with pytest.raises(MisuseError, match="since"):
        store.changes(-1)
    with pytest.raises(NotFoundError, match=r"step 7: it is open at step 1.*since=None.*pin"):
        store.changes(7)
    with opened(path, read_only=True) as reader:
        changes = reader.changes(None, batch_rows=1)
        next(changes)
        store.commit(2)
        reader.refresh()
        with pytest.raises(MisuseError, match="was refreshed while its changes were read"):
            next(changes)
        changes.close()
        assert list(changes) == []


def test_a_pin_is_a_way_back_that_the_journal_is_not(store: embedrock.Store) -> None:
    store.pin(1, "published")
    pinned, long = store.commits()[-1], {"long": "m" * 200_000}
    rows = {name: rows_of(table) for name, table in store.tables.items()}
    for step in range(2, 12):
        write(store, step)
        store.commit(step, long)
    for missing in (3, 4):
        with pytest.raises(NotFoundError, match=r"pinned are 'published' \(step 1\)"):
            store.changes(missing)
    for since in (1, pinned):
        found = dict.fromkeys(rows, 0)
        for batch in store.changes(since, state=True):
            assert batch.state is not None
            old = rows[batch.table]
            given = np.hstack([batch.values, batch.state]).tolist()
            found[batch.table] += sum(
                old.get(key) != row for key, row in zip(batch.keys.tolist(), given, strict=True)
            )
        for name, table in store.tables.items():
            new = rows_of(table)
            assert found[name] == sum(rows[name].get(key) != row for key, row in new.items())


def test_rows_without_versions_are_refused(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "16MiB") as store:
        store.table("mapped", 4, 100, storage="pmem").put([1], np.ones((1, 4), np.float32))
        store.commit(1)
        with pytest.raises(UnsupportedError, match=r"'mapped'.*have no versions"):
            store.changes(1)


@LOG_SOON
def test_a_copy_follows_commit_by_commit(path: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    with opened(path) as store:
        write(store, 4)
        store.commit(2, {"at": 2})
    embedrock.copy(path, copied, step=1)
    reader = opened(copied, read_only=True)
    with (
        opened(copied) as copy,
        opened(path) as store,
        StoreFollower(copy, path, memory="16MiB") as follower,
    ):
        assert follower.run(once=True).step == copy.step == 2
        assert digests(copy) == digests(store) and copy.meta == {"at": 2}
        for step in range(3, 9):
            write(store, step)
            if step == 5:  # a table that comes later
                store.table("late", 2, initializer=0.0).put([9], np.ones((1, 2), np.float32))
            store.commit(step, {"at": step, "long": "m" * 200_000}, {"dense": b"%d" % step})
            if step % 2:
                told = follower.run(once=True)
                assert (told.step, copy.step, copy.meta["at"]) == (step, step, step)
                assert digests(copy) == digests(store)
                assert copy.state()["dense"] == b"%d" % step
        assert told.commits == 4 and told.deleted > 0
        assert reader.refresh() is not None and reader.step == 7
        assert reader.table("late").get([9])[0, 0] == 1
        assert follower.run(once=True).step == 8 and digests(copy) == digests(store)
        assert follower.run(once=True).commits == 5
        with opened(path, read_only=True) as other:
            assert apply_changes(copy, other.changes(None))[0] > 100
            assert digests(copy) == digests(other)  # rows are absolute
            copy.commit(9)
    reader.close()


def test_an_empty_store_takes_all_and_others_are_refused(path: Path, tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "new", "16MiB", check_disk=False) as copy:
        with pytest.raises(MisuseError, match="read_only"):
            StoreFollower(opened(path, read_only=True), path)
        with pytest.raises(MisuseError, match="follow itself"):
            StoreFollower(copy, copy.path)
        with StoreFollower(copy, path) as follower:
            assert follower.run(once=True).rows > 50
        with opened(path) as store:
            assert digests(copy) == digests(store)
            assert len(copy.tables) == 2 and copy.state()["dense"] == b"one"
        copy.table("ids").put([1], np.ones((1, 4), np.float32))
        with pytest.raises(MisuseError, match="no commit holds"):
            StoreFollower(copy, path)
        with StoreFollower(reopened(copy), path) as follower:
            pass
        copy.commit(2)
    embedrock.copy(path, tmp_path / "other")
    with (
        opened(tmp_path / "new", step=1) as copy,
        StoreFollower(copy, tmp_path / "other") as follower,
        pytest.raises(MismatchError, match=r"follows the store .* and .*other is store"),
    ):
        follower.run(once=True)


def reopened(store: embedrock.Store) -> embedrock.Store:
    store.go_back(store.step if store.step is not None else 0)
    return store


def test_a_source_that_has_gone_back_is_told(path: Path, tmp_path: Path) -> None:
    embedrock.copy(path, tmp_path / "copied")
    with opened(path) as store, opened(tmp_path / "copied") as copy:
        with StoreFollower(copy, path) as follower:
            write(store, 5)
            store.commit(2)
            follower.run(once=True)
        store.go_back(1)
        write(store, 7)
        write(store, 8)
        for step in (2, 3):  # of the step that was followed, and behind it
            store.commit(step)
            with (
                StoreFollower(copy, path) as follower,
                pytest.raises(NotFoundError, match="has gone back since"),
            ):
                follower.run(once=True)
            write(store, 9)
        store.commit(4)


@LOG_SOON
def test_commits_that_come_beside_a_look_are_not_passed_over(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some before the source is opened, when the reader before holds the journal; one after."""
    embedrock.copy(path, tmp_path / "copied")
    with (
        opened(path) as store,
        opened(tmp_path / "copied") as copy,
        StoreFollower(copy, path) as follower,
    ):

        def commit(times: int) -> None:
            for step in range(store.step + 1, store.step + 1 + times):
                write(store, step)
                store.commit(step, {"long": "m" * 200_000})

        commit(1)
        assert follower.run(once=True).step == 2
        open_source = stores.open_source

        def opening(*given: Any, **more: Any) -> embedrock.Store:
            commit(8)
            reader = open_source(*given, **more)
            commit(1)
            return reader

        commit(1)
        looks = iter([False, True])
        with monkeypatch.context() as patched:
            patched.setattr(stores, "open_source", opening)
            assert follower.run(stop=lambda: next(looks)).step == store.step - 1
        assert follower.run(once=True).step == copy.step == store.step
        assert digests(copy) == digests(store)


def test_a_step_that_could_not_be_committed_is_not_counted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedrock.copy(path, tmp_path / "copied")
    with opened(path) as store:
        write(store, 1)
        store.commit(2)

    def full(*_: Any, **__: Any) -> None:
        raise FullError("no room for a commit")

    with opened(tmp_path / "copied") as copy, StoreFollower(copy, path) as follower:
        with monkeypatch.context() as patched:
            patched.setattr(embedrock.Store, "commit", full)
            with pytest.raises(FullError, match="no room for a commit"):
                follower.run(once=True)
        assert (follower.followed.step, follower.followed.commits, copy.step) == (1, 0, 1)
        assert follower.run(once=True).step == copy.step == 2
        copy.commit(3)
        with opened(path) as store:
            store.commit(4)
            with pytest.raises(MisuseError, match="committed at step 3 by others"):
                follower.run(once=True)


@LOG_SOON
def test_a_follower_that_is_killed_anywhere_has_all_in_the_end(path: Path, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # of a failure
    chance = random.Random(seed)
    copied = tmp_path / "copied"
    embedrock.copy(path, copied)
    command = [sys.executable, "-m", "embedrock", "follow", str(copied), "--store", str(path)]
    command += ["--memory", "16MiB"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # The commit that a follower goes on from is kept, however long one takes to start.
    with opened(path, keep=400) as store:
        step = 1
        for _ in range(KILLS):
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            ) as child:
                behind, until = step_of(copied), time.monotonic() + 60
                while step_of(copied) == behind and time.monotonic() < until:
                    assert child.poll() is None, child.communicate()[1]
                    time.sleep(0.05)
                    step += 1
                    write(store, step)
                    store.commit(step)
                for _ in range(chance.randrange(5)):
                    step += 1
                    write(store, step)
                    store.commit(step)
                child.kill()
                said = child.stderr.read().decode() if child.stderr else ""
                assert child.wait() == -signal.SIGKILL, said
        done = subprocess.run(
            [*command, "--once", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)["step"] == step
        with opened(copied) as copy:
            assert copy.step == step and digests(copy) == digests(store)


def step_of(path: Path) -> int | None:
    with opened(path, read_only=True) as reader:
        return reader.step


def test_the_command_says_how_far_it_is(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "copied"
    embedrock.copy(path, copied)
    with opened(path) as store:
        store.table("ids").put([1, 2], np.zeros((2, 4), np.float32))
        store.table("ids").delete([2])
        store.commit(2)
    command = ["follow", str(copied), "--store", str(path), "--once", "--memory", "16MiB"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"{copied}: at step 2 of {path}, 1 rows and" in said and "in 1 commits" in said
    assert main([*command, "--skip-bad"]) == 2
    assert "--skip-bad is for a log" in capsys.readouterr().err
    assert main(["follow", str(copied), "--store", str(tmp_path / "none"), "--once"]) == 2
    assert "none holds no store" in capsys.readouterr().err
