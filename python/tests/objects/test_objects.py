"""Commits go to object storage and come back as the stores they were."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import cli, objects
from embedrock.errors import (
    CommitGoneError,
    CorruptError,
    EmbedrockError,
    FullError,
    IoError,
    LockedError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.objects import history
from embedrock.objects.manifest import manifest_name
from embedrock.objects.remote import Remote
from pushes import SMALL, commit, contents, contents_at, made, objects_in, train

pytest.importorskip("obstore", reason="obstore is not installed")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/objects"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.mark.parametrize("storage", [pytest.param("log", marks=pytest.mark.long), "lsm"])
def test_a_store_in_use_comes_back_as_it_was_committed_and_goes_on_like_it(
    tmp_path: Path, url: str, storage: str
) -> None:
    with made(tmp_path / "s", storage) as store:
        for step in range(1, 6):
            train(store, step)
            commit(store, step)
        then = contents(store)
        train(store, 6)
        told: list[tuple[int, int]] = []
        first = objects.push(store, url, progress=lambda *p: told.append(p))
        assert first["step"] == 5 and first["number"] == 1 and first["is_new"]
        assert first["sent_bytes"] > 0 and told[-1] == (first["bytes"], first["bytes"])
        again = objects.push(tmp_path / "s", url)
        assert (again["number"], again["is_new"], again["sent_pieces"]) == (1, False, 0)
        commit(store, 6)
        assert objects.push(store, url)["step"] == 6
        last = contents(store)
    assert [(p["number"], p["step"]) for p in objects.list(url)] == [(1, 5), (2, 6)]
    pulled = objects.pull(url, tmp_path / "five", step=5)
    assert pulled["received_bytes"] == pulled["bytes"]
    assert pulled["rows"] >= sum(then["rows"].values())  # of an lsm also what lies below newer ones
    objects.pull(url, tmp_path / "six")
    assert contents_at(tmp_path / "five") == then and contents_at(tmp_path / "six") == last
    for name in ("five", "six", "s"):
        assert embedrock.check(tmp_path / name)["problems"] == []
    ends = []
    for name in ("six", "s"):
        # The counters, which chance in rounding depends on, are the same, too.
        with embedrock.open(tmp_path / name, **SMALL) as store:
            for step in range(7, 10):
                train(store, step)
                commit(store, step)
            ends.append(contents(store))
    assert ends[0] == ends[1]
    assert embedrock.check(tmp_path / "six")["problems"] == []


def test_a_store_without_rows_and_one_with_a_cold_directory(tmp_path: Path, url: str) -> None:
    with made(tmp_path / "empty") as store:
        store.commit(3)
    objects.push(tmp_path / "empty", url + "/empty")
    objects.pull(url + "/empty", tmp_path / "none")
    assert contents_at(tmp_path / "none") == contents_at(tmp_path / "empty")
    with embedrock.open(tmp_path / "none", **SMALL) as store:
        train(store, 1)
        commit(store, 4)
    with made(tmp_path / "s", "lsm", cold_directory=tmp_path / "cold") as store:
        for step in range(1, 12):
            train(store, step, 20_000)
            commit(store, step)
        assert list((tmp_path / "cold").glob("part-0-*"))
        objects.push(store, url + "/cold")
        then = contents(store)
    objects.pull(url + "/cold", tmp_path / "t")
    assert list((tmp_path / "t").glob("part-0-*")) and contents_at(tmp_path / "t") == then
    with embedrock.open(tmp_path / "t", **SMALL, cold_directory=tmp_path / "colder") as store:
        train(store, 12)
        commit(store, 12)


@pytest.mark.parametrize("storage", ["log", pytest.param("lsm", marks=pytest.mark.long)])
def test_pinned_commits_that_the_journal_has_dropped_are_pushed(
    tmp_path: Path, url: str, storage: str
) -> None:
    with made(tmp_path / "s", storage) as store:
        for step in range(1, 8):
            train(store, step)
            commit(store, step, pin="best" if step == 2 else None)
        then = contents_at(tmp_path / "s", step="best")
        last = contents(store)
        assert objects.push(store, url, step="best")["step"] == 2
        with pytest.raises(NotFoundError, match="no commit of step 3"):
            objects.push(store, url, step=3)
        assert objects.push(store, url)["step"] == 7
        with embedrock.open(tmp_path / "s", "8MiB", read_only=True, step=2) as reader:
            assert objects.push(reader, url)["step"] == 2
    assert [push["pin"] for push in objects.list(url)] == ["best", None, None]
    with pytest.raises(NotFoundError, match=r"no push of 'other'.*by name best"):
        objects.pull(url, tmp_path / "none", step="other")
    for number, expected in ((1, then), (2, last), (3, then)):
        path = tmp_path / f"pulled {number}"
        done = objects.pull(url, path, **({"number": number} if number > 1 else {"step": "best"}))
        assert done["number"] == number
        assert contents_at(path) == expected and embedrock.check(path)["problems"] == []
        assert not list(path.glob("pin*"))
        with embedrock.open(path, **SMALL) as store:
            train(store, 8)
            commit(store, 8, pin="again")


@pytest.mark.long
def test_a_writer_that_never_rests_is_pushed_ten_times(tmp_path: Path, url: str) -> None:
    path = tmp_path / "s"
    committed: dict[int, Any] = {}
    stop = threading.Event()
    with made(path, max_disk_bytes=24 << 20) as store:

        def write() -> None:
            step = 0
            while not stop.is_set():
                step += 1
                train(store, step)
                commit(store, step)
                committed[step] = contents(store)

        writer = threading.Thread(target=write)
        writer.start()

        def wait_for(step: int, *_: int) -> None:
            while max(committed, default=0) < step:
                assert writer.is_alive()
                time.sleep(0.001)

        try:
            pushed: list[dict[str, Any]] = []
            while len(pushed) < 10:
                wait_for(pushed[-1]["step"] + 1 if pushed else 3)
                begun = max(committed)
                # The writer goes on while the first pieces are sent and the others are to be read.
                told = functools.partial(wait_for, begun + 1)
                pushed.append(objects.push(path, url, in_flight=1, progress=told))
        finally:
            stop.set()
            writer.join()
        assert len({done["step"] for done in pushed}) == 10
        assert store.stats()["rows_moved"] > 0
    for done in pushed:
        place = tmp_path / f"p{done['number']}"
        objects.pull(url, place, number=done["number"])
        assert contents_at(place) == committed[done["step"]]


def test_a_second_push_sends_what_has_changed_alone(tmp_path: Path, url: str) -> None:
    rows = 200_000
    with embedrock.open(tmp_path / "s", "64MiB", check_disk=False) as store:
        table = store.table("t", 62, rows, optimizer="rowwise_adagrad", initializer=0.0)
        draw = np.random.default_rng(1)
        for begin in range(0, rows, 20_000):
            ids = np.arange(begin, begin + 20_000)
            table.put(ids, draw.normal(size=(20_000, 62)).astype(np.float32))
        store.commit(1)
        first = objects.push(store, url)
        ids = draw.choice(rows, rows // 100, replace=False)
        table.update(ids, np.ones((len(ids), 62), np.float32), lr=0.1)
        store.commit(2)
        second = objects.push(store, url)
        assert second["sent_bytes"] <= 0.03 * second["bytes"], (second, first)


# --- what a push or a pull that is cut off leaves ------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
from embedrock import objects
from embedrock.objects.remote import Remote
path, url, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
count, before = [0], Remote._call
def call(self, kind, name, request):
    count[0] += 1
    if count[0] == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(self, kind, name, request)
Remote._call = call
objects.push(path, url, in_flight=1)
print(count[0])
"""


@pytest.mark.long
def test_a_push_that_is_killed_at_any_request_leaves_the_last_one(
    tmp_path: Path, url: str, folder: Path
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
        first = contents(store)
        train(store, 2, 500, 100)
        commit(store, 2)
        second = contents(store)

    def run(last: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CHILD, str(tmp_path / "s"), url, str(last)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    last, done, sent = 0, False, 0
    while not done:
        last += 1
        ended = run(last)
        done = ended.returncode == 0
        assert done or ended.returncode == -signal.SIGKILL, ended.stderr
        pushes = objects.list(url)
        is_made = len(pushes) == 2
        place = tmp_path / f"p{last}"
        if is_made or last % 4 == 0:
            objects.pull(url, place)
            assert contents_at(place) == (second if is_made else first)
        else:
            history.read(Remote(url), manifest_name(1))
        if is_made:
            break
        sent = len(list((folder / "pieces").rglob("*.*")))
    # Pieces sent by earlier pushes were reused: each piece is there once.
    digests = [path.name.partition(".")[0] for path in (folder / "pieces").rglob("*.*")]
    assert last > 10 and sent and len(digests) == len(set(digests))
    assert objects.push(tmp_path / "s", url)["is_new"] is False


def test_a_pull_that_is_cut_off_is_no_store_and_goes_on(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        pushed = objects.push(store, url)
        then = contents(store)
    place = tmp_path / "t"
    before = Remote._call
    left = [4]

    def call(self: Remote, kind: str, name: str, request: Any) -> Any:
        if name.startswith("pieces/"):
            left[0] -= 1
            if left[0] < 0:
                raise IoError("the line is cut")
        return before(self, kind, name, request)

    with monkeypatch.context() as patched:
        patched.setattr(Remote, "_call", call)
        with pytest.raises(IoError, match="the line is cut"):
            objects.pull(url, place, in_flight=1)
    with pytest.raises(NotFoundError, match="is no store: a copy into it goes on"):
        embedrock.open(place, "8MiB")
    (place / "journal-00000077").write_bytes(b"of another pull")
    told: list[tuple[int, int]] = []
    done = objects.pull(url, place, progress=lambda *p: told.append(p))
    assert 0 < done["received_bytes"] < pushed["bytes"] == done["bytes"]
    assert contents_at(place) == then and not (place / "journal-00000077").exists()
    with pytest.raises(MisuseError, match="holds a store already"):
        objects.pull(url, place)
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "notes.txt").touch()
    with pytest.raises(MisuseError, match="holds no store, but other files"):
        objects.pull(url, tmp_path / "u")


def test_two_pushers_one_wins_and_the_other_is_told(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
        train(store, 2)
        commit(store, 2)
        before = Remote.create

        def create(self: Remote, name: str, content: bytes) -> None:
            # The other one is faster by this much.
            with monkeypatch.context() as patched:
                patched.setattr(Remote, "create", before)
                train(store, 3)
                commit(store, 3)
                assert objects.push(store, url)["number"] == 2
            before(self, name, content)

        with monkeypatch.context() as patched:
            patched.setattr(Remote, "create", create)
            with pytest.raises(LockedError, match=r"push 2, of step 3, .* by process \d+ on"):
                objects.push(store, url)
        assert [push["step"] for push in objects.list(url)] == [1, 3]
        assert objects.push(store, url)["is_new"] is False
        # An answer that was lost, after which the request was repeated, is no other pusher.
        train(store, 4)
        commit(store, 4)

        def twice(self: Remote, name: str, content: bytes) -> None:
            before(self, name, content)
            before(self, name, content)

        monkeypatch.setattr(Remote, "create", twice)
        assert objects.push(store, url)["number"] == 3


def test_a_commit_that_is_taken_away_meanwhile_is_not_published(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        before = Remote.put
        calls = [0]

        def put(self: Remote, name: str, content: Any) -> None:
            calls[0] += 1
            if calls[0] == 3:
                for hold in (tmp_path / "s").glob("hold-*"):
                    hold.unlink()
                for step in range(2, 6):
                    train(store, step)
                    commit(store, step)
            before(self, name, content)

        monkeypatch.setattr(Remote, "put", put)
        with pytest.raises(CommitGoneError, match="was dropped by the writer"):
            objects.push(store, url, in_flight=1)
    assert objects.list(url) == []


# --- damage, refusals, pruning -------------------------------------------------------------------


def test_damage_there_and_here_is_named_and_never_returned(
    tmp_path: Path, url: str, folder: Path
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
    largest = max((folder / "pieces").rglob("*.*"), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    for wrong in (whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], b""):
        largest.write_bytes(wrong)
        with pytest.raises(CorruptError, match=rf"rows-\d, bytes .*{largest.name}.* is not what"):
            objects.pull(url, tmp_path / "t")
    largest.unlink()
    with pytest.raises(CorruptError, match=rf"{largest.name} is missing there"):
        objects.pull(url, tmp_path / "t")
    assert objects.prune(url, 1)["missing"] == [str(largest.relative_to(folder))]
    largest.write_bytes(whole)
    manifest = folder / manifest_name(1)
    told = manifest.read_bytes()
    for at in range(0, len(told), len(told) // 40):
        manifest.write_bytes(told[:at] + bytes([told[at] ^ 4]) + told[at + 1 :])
        with pytest.raises((CorruptError, UnsupportedError), match="manifests/0000000001"):
            objects.pull(url, tmp_path / "t")
    manifest.write_bytes(told[: len(told) // 2])
    with pytest.raises(CorruptError, match="second line is not what was written"):
        objects.pull(url, tmp_path / "t")
    manifest.write_bytes(told)
    # Damage of the store itself is sent as it is, and found when it comes back.
    rows = next((tmp_path / "s").glob("rows-0"))
    with rows.open("r+b") as file:
        file.seek(9000)
        file.write(b"damage")
    objects.push(tmp_path / "s", f"{url}2")
    with pytest.raises(CorruptError, match=r"rows-0, page 2.*checksum"):
        objects.pull(f"{url}2", tmp_path / "t")
    with pytest.raises(NotFoundError, match="is no store"):
        embedrock.open(tmp_path / "t", "8MiB")
    objects.pull(url, tmp_path / "t", number=1)
    assert embedrock.check(tmp_path / "t")["problems"] == []


@pytest.mark.parametrize("what", ["moved", "removed", "lock"])
def test_a_pull_whose_folder_is_replaced_touches_nothing_in_its_place(
    tmp_path: Path, url: str, what: str
) -> None:
    # Files were found by path: a store that had come there while the pull went on was overwritten.
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
    place, files = tmp_path / "t", dict[str, bytes]()

    def replace(_done: int, _all: int) -> None:
        if files:
            return
        if what == "lock":
            (place / "lock").unlink()
            (place / "lock").touch()
            files["none"] = b""
            return
        if what == "moved":
            place.rename(tmp_path / "away")
        else:
            shutil.rmtree(place)
        with made(place) as other:
            train(other, 7)
            commit(other, 7)
        files.update({one.name: one.read_bytes() for one in place.iterdir()})

    # Of a folder that is being removed the lock may go first, while other pieces are brought.
    refused = {
        "lock": (LockedError,),
        "moved": (NotFoundError,),
        "removed": (NotFoundError, LockedError),
    }
    with pytest.raises(refused[what], match="pull again"):
        objects.pull(url, place, progress=replace)
    if what != "lock":
        assert {one.name: one.read_bytes() for one in place.iterdir()} == files
        with embedrock.open(place, "16MiB", create=False) as other:
            assert other.step == 7
    objects.pull(url, tmp_path / "again")


def test_what_cannot_be_pushed_or_pulled_is_refused_with_a_way_out(
    tmp_path: Path, url: str, folder: Path
) -> None:
    with embedrock.open(tmp_path / "p", "16MiB", check_disk=False) as store:
        store.table("t", 4, 10, storage="pmem")
        store.commit(1)
        with pytest.raises(UnsupportedError, match=r"table 't' has storage \"pmem\".*\"log\""):
            objects.push(store, url)
    with made(tmp_path / "s") as store:
        with pytest.raises(NotFoundError, match="has no commit"):
            objects.push(store, url)
        commit(store, 1)
        objects.push(store, url)
    with made(tmp_path / "other") as store:
        commit(store, 1)
        with pytest.raises(MismatchError, match=r"has pushes of store .* name another URL"):
            objects.push(store, url)
    with pytest.raises(NotFoundError, match="no store"):
        objects.push(tmp_path / "none", url)
    for wrong in ("models/here", "ftp://x/y", "memory:///", "https://example.com/x", 5, None):
        with pytest.raises(MisuseError, match=r"URL|url|web server|memory|opened"):
            objects.list(wrong)
    with pytest.raises(NotFoundError, match="no such folder"):
        objects.list(f"file://{tmp_path}/nowhere")
    with pytest.raises(MisuseError, match="takes no options"):
        objects.list(url, options={"region": "x"})
    with pytest.raises(NotFoundError, match="nothing was pushed"):
        (tmp_path / "nothing").mkdir()
        objects.pull(f"file://{tmp_path}/nothing", tmp_path / "t")
    with pytest.raises(NotFoundError, match=r"no push of step 9; it has steps \[1\]"):
        objects.pull(url, tmp_path / "t", step=9)
    with pytest.raises(NotFoundError, match="there is no push 9; it has push 1 of step 1 "):
        objects.pull(url, tmp_path / "t", number=9)
    with pytest.raises(MisuseError, match="power of two"):
        objects.push(tmp_path / "s", url, piece_bytes=300_000)
    assert not (tmp_path / "t").exists()


def test_a_full_disk_is_told_at_both_ends(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        before = Remote._put

        def full(self: Remote, name: str, content: Any, mode: str) -> None:
            if name.startswith("pieces/"):
                raise OSError(28, "No space left on device")
            before(self, name, content, mode)

        with monkeypatch.context() as patched:
            patched.setattr(Remote, "_put", full)
            with pytest.raises(FullError, match=r"pieces/.*no room is left there.*prune"):
                objects.push(store, url)
        objects.push(store, url)
    statvfs = os.statvfs

    def little(path: Any) -> Any:
        found = statvfs(path)
        return os.statvfs_result([*found[:4], 1, *found[5:]])

    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", little)
        with pytest.raises(FullError, match=r"takes \d+ bytes, and \d+ are free"):
            objects.pull(url, tmp_path / "t")
    objects.pull(url, tmp_path / "t")


def test_old_pushes_are_pruned_and_nothing_that_a_push_counts_on(
    tmp_path: Path, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "s") as store:
        for step in range(1, 5):
            train(store, step)
            commit(store, step)
            objects.push(store, url)
        then = contents(store)
        done = objects.prune(url, 2)
        assert (done["pruned"], done["kept"], done["removed_pieces"]) == (2, 2, 0)
        assert done["waiting_bytes"] > 0 and done["missing"] == []
        assert [push["number"] for push in objects.list(url)] == [3, 4]
        with pytest.raises(NotFoundError, match="push 1 was pruned"):
            objects.pull(url, tmp_path / "t", number=1)
        # Less than a week later, and more.
        young, now = objects_in(folder), time.time()
        for days in (6, 8):
            for path in (folder / "pieces").rglob("*.*"):
                long_ago = now - timedelta(days=days).total_seconds()
                os.utime(path, (long_ago, long_ago))
            if days < 7:
                assert objects.prune(url, 2)["removed_pieces"] == 0
        assert objects.prune(url, 2)["removed_pieces"] > 0
        assert objects.prune(url, 2)["missing"] == []  # of both that are kept
        train(store, 5)
        commit(store, 5)
        before = Remote.create

        def create(self: Remote, name: str, content: bytes) -> None:
            # Beside a push that has sent its pieces and not its manifest yet.
            done = objects.prune(url, 1)
            assert done["removed_pieces"] > 0 and done["pruned"] == 1
            before(self, name, content)

        with monkeypatch.context() as patched:
            patched.setattr(Remote, "create", create)
            objects.push(store, url)
        five = contents(store)
    assert len(set(young) - set(objects_in(folder))) > 0
    objects.pull(url, tmp_path / "four", number=4)
    objects.pull(url, tmp_path / "five")
    assert contents_at(tmp_path / "four") == then and contents_at(tmp_path / "five") == five
    objects.prune(url, 1, alone=True)
    left = objects_in(folder)
    named = {p.name for p in history.read(Remote(url), manifest_name(5)).pieces()}
    assert {name for name in left if name.startswith("pieces/")} == named
    assert not [name for name in left if name.startswith("pushes/")]


def test_a_push_that_began_before_a_pruned_one_is_not_published(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
        train(store, 2)
        commit(store, 2)
        before = Remote.create

        def create(self: Remote, name: str, content: bytes) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Remote, "create", before)
                for step in (3, 4):
                    train(store, step)
                    commit(store, step)
                    objects.push(store, url)
            for _ in range(2):  # the numbers of those that were pruned stay taken
                objects.prune(url, 1, alone=True)
            before(self, name, content)

        with monkeypatch.context() as patched:
            patched.setattr(Remote, "create", create)
            with pytest.raises(LockedError, match="push 2, of step 3"):
                objects.push(store, url)
        monkeypatch.setattr(history, "PUSH_TIME", timedelta(0))
        with pytest.raises(IoError, match="took more than"):
            train(store, 5)
            commit(store, 5)
            objects.push(store, url)


def test_the_command_line_pushes_lists_pulls_and_prunes(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1, pin="best")
        then = contents(store)
    assert cli.main(["push", str(tmp_path / "s"), url, "--step", "best"]) == 0
    assert "push 1, commit at step 1" in capsys.readouterr().out
    assert cli.main(["push", str(tmp_path / "s"), url, "--keep", "1", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["is_new"] is False and done["pruned"]["kept"] == 1
    assert cli.main(["pull", url, "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()[-1].split()
    assert listed[:2] == ["1", "1"] and listed[-1] == "best"
    assert cli.main(["pull", url, str(tmp_path / "named"), "--step", "best"]) == 0
    assert "push 1, commit at step 1" in capsys.readouterr().out
    assert cli.main(["pull", url, str(tmp_path / "t"), "--number", "1"]) == 0
    assert "rows verified" in capsys.readouterr().out
    assert contents_at(tmp_path / "t") == then
    assert cli.main(["pull", url]) == 2
    assert cli.main(["push", str(tmp_path / "s"), "nowhere"]) == 2
    assert "is no URL" in capsys.readouterr().err


def test_a_store_of_obstore_is_taken_as_a_url(tmp_path: Path) -> None:
    from obstore.store import MemoryStore

    memory = MemoryStore()
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, memory)
        then = contents(store)
    objects.pull(memory, tmp_path / "t")
    assert contents_at(tmp_path / "t") == then
    with pytest.raises(MisuseError, match="belong to a URL"):
        objects.list(memory, options={"region": "x"})
    with pytest.raises(EmbedrockError):
        objects.pull(memory, tmp_path / "t")
