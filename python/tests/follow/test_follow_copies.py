"""Stores that may follow another one: its copies, at the commit that they were copied at or
followed to. Any other would silently mix rows of the source with its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import objects
from embedrock.cli import main
from embedrock.errors import MismatchError, MisuseError, NotFoundError
from embedrock.follow import StoreFollowed, StoreFollower
from embedrock.store import files
from embedrock.store.copied import NOTE, copied_from, last_facts, look_at

DIM = 4


def opened(path: Path, **options: Any) -> embedrock.Store:
    return embedrock.open(path, "8MiB", **{"check_disk": False, **options})


def made(path: Path, rows: int, step: int, **options: Any) -> Path:
    with opened(path, **options) as store:
        store.table("t", DIM, optimizer="adagrad").put(
            np.arange(rows), np.full((rows, DIM), rows, np.float32)
        )
        store.commit(step)
    return path


def go_on(path: Path, step: int, rows: int = 1) -> None:
    """One commit more of the trainer."""
    with opened(path) as store:
        keys = np.arange(step, step + rows)
        store.table("t").put(keys, np.full((rows, DIM), step, np.float32))
        store.commit(step)


def contents(path: Path) -> tuple[int | None, int]:
    with opened(path, read_only=True) as store:
        return store.step, store.table("t").digest()


def follow(copy: Path, source: Path) -> StoreFollowed:
    with opened(copy) as store, StoreFollower(store, source, memory="8MiB") as follower:
        return follower.run(once=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return made(tmp_path / "source", 100, 20, keep=4)


def refuses(copy: Path, source: Path, kind: type[Exception], *words: str) -> None:
    before = contents(copy)
    with pytest.raises(kind) as caught:
        follow(copy, source)
    for word in words:
        assert word in str(caught.value), caught.value
    assert contents(copy) == before


def test_a_store_that_is_no_copy_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took over what had changed since a commit of its step, and kept rows of its own."""
    other = made(tmp_path / "other", 2, 20)
    go_on(source, 21)
    before = contents(other)
    command = ["follow", str(other), "--store", str(source), "--once", "--memory", "8MiB"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"{other} is no copy of {source}" in said and f"embedrock copy {source} NEW" in said
    assert contents(other) == before
    copied = tmp_path / "copied"  # of that one, which the message names
    embedrock.copy(other, copied)
    refuses(copied, source, MismatchError, f"is a copy of {other}", "make a copy")


@pytest.mark.parametrize("keeps_state", [False, True])
@pytest.mark.parametrize("followed", [False, True])
def test_a_commit_of_others_is_named_as_the_cause(
    source: Path, tmp_path: Path, followed: bool, keeps_state: bool
) -> None:
    copy = tmp_path / "copy"
    embedrock.copy(source, copy)
    if followed:
        go_on(source, 21)
        assert follow(copy, source).step == 21
    last = 20 + followed
    with opened(copy) as store:
        store.table("t").put([7], np.zeros((1, DIM), np.float32))
        store.commit(22, None, store.state() if keeps_state else None)
    go_on(source, 23)
    refuses(copy, source, MisuseError, "step 22", "was made by others", f"of the steps {last}")
    with opened(copy, step=last) as store, StoreFollower(store, source) as follower:
        assert follower.run(once=True).step == 23
    assert contents(copy) == contents(source)


def test_a_store_that_was_pulled_follows(source: Path, tmp_path: Path) -> None:
    url, pulled = f"file://{tmp_path}/pushes", tmp_path / "pulled"
    objects.push(source, url)
    objects.pull(url, pulled)
    go_on(source, 21)
    assert follow(pulled, source).step == 21
    assert contents(pulled) == contents(source)
    other = tmp_path / "other"
    objects.pull(url, other)
    # As the source has one of this number and step, perhaps of this second; it wrote less.
    go_on(other, 21, rows=1000)
    go_on(source, 22)
    refuses(other, source, MisuseError, "step 21", "was made by others")


@pytest.mark.parametrize("way", ["pulled", "cp -r"])
def test_commits_of_one_step_second_and_size_are_told_apart(tmp_path: Path, way: str) -> None:
    """A follower took the commit of the pulled store for that of its source, and what had changed
    in the one stayed among the rows of the other."""
    for attempt in range(20):
        source, other = tmp_path / f"source{attempt}", tmp_path / f"other{attempt}"
        made(source, 100, 20, keep=4)
        if way == "pulled":
            objects.push(source, tmp_path / f"pushes{attempt}")
            objects.pull(tmp_path / f"pushes{attempt}", other)
        else:
            shutil.copytree(source, other)
        with opened(source) as one, opened(other) as two:
            for store, value in ((one, 1.0), (two, 2.0)):
                store.table("t").put([3], np.full((1, DIM), value, np.float32))
            # Nothing lies between them but the clock.
            one.commit(21)
            two.commit(21)
            facts = [last_facts(one), last_facts(two)]
        assert facts[0] is not None and facts[1] is not None
        if facts[0][:4] == facts[1][:4]:
            break
    else:
        pytest.fail(f"{facts}: no two commits of one second and size")
    go_on(source, 22)
    refuses(other, source, MisuseError, "step 21", "was made by others")


@pytest.mark.parametrize("followed", [False, True])
def test_a_copy_that_was_pushed_and_pulled_is_one_still(
    source: Path, tmp_path: Path, followed: bool
) -> None:
    """Its note stayed behind, so it was refused as no copy, and had to be copied anew."""
    copy, pulled, url = tmp_path / "copy", tmp_path / "pulled", tmp_path / "pushes"
    embedrock.copy(source, copy)
    if followed:
        go_on(source, 21)
        follow(copy, source)
    objects.push(copy, url)
    objects.pull(url, pulled)
    go_on(source, 22)
    assert follow(pulled, source).step == 22
    assert contents(pulled) == contents(source)
    # A commit that others have made there is none of the source, and its push says nothing.
    go_on(pulled, 23)
    objects.push(pulled, url)
    shutil.rmtree(pulled)
    objects.pull(url, pulled)
    go_on(source, 24)
    refuses(pulled, source, MismatchError if not (pulled / NOTE).exists() else MisuseError, "copy")


def test_a_note_is_no_part_of_another_push(source: Path, tmp_path: Path) -> None:
    """A pull that goes on in the place of one that was cut off leaves nothing of that."""
    copy, url = tmp_path / "copy", tmp_path / "pushes"
    embedrock.copy(source, copy)
    objects.push(copy, url)
    place = tmp_path / "place"
    objects.pull(url, place)
    assert copied_from(place) == copied_from(copy)
    shutil.rmtree(place)
    place.mkdir()
    (place / "unfinished-copy").touch()
    shutil.copy(copy / NOTE, place)
    objects.push(source, tmp_path / "others")
    objects.pull(tmp_path / "others", place)
    assert not (place / NOTE).exists()


def test_a_copy_of_a_copy_follows_either(source: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    embedrock.copy(source, first)
    go_on(source, 21)
    follow(first, source)
    seconds = [tmp_path / "second", tmp_path / "third"]
    for second in seconds:
        embedrock.copy(first, second)
    go_on(source, 22)
    assert follow(seconds[0], source).rows == 1
    follow(first, source)
    assert follow(seconds[1], first).rows == 1
    assert contents(seconds[0]) == contents(seconds[1]) == contents(source)
    refuses(seconds[1], source, MismatchError, "follows the store", "make a copy")


def test_a_copy_of_some_buckets_is_refused(source: Path, tmp_path: Path) -> None:
    embedrock.copy(source, tmp_path / "part", buckets="0-511")
    refuses(tmp_path / "part", source, MismatchError, "buckets 0-511 alone", "all rows")


def test_copies_of_earlier_versions(source: Path, tmp_path: Path) -> None:
    """They have no note, so nothing tells them from other stores; what was followed says it."""
    copy = tmp_path / "copy"
    embedrock.copy(source, copy)
    go_on(source, 21)
    follow(copy, source)
    with opened(copy) as store:
        told = json.loads(store.state()["source"])
        del told["by"]
        store.go_back(20)
        store.table("t").put([21], np.full((1, DIM), 21, np.float32))
        store.commit(21, None, {"source": json.dumps(told).encode()})
    (copy / NOTE).unlink()
    go_on(source, 22)
    assert follow(copy, source).rows == 1 and contents(copy) == contents(source)
    old = tmp_path / "old"
    embedrock.copy(source, old)
    (old / NOTE).unlink()
    refuses(old, source, MismatchError, "is no copy of", "copied by an earlier version")
    (old / NOTE).write_text("{}")
    refuses(old, source, MismatchError, "is no copy of")


def test_an_empty_copy_needs_the_seed_of_the_source(source: Path, tmp_path: Path) -> None:
    with (
        opened(tmp_path / "new", seed=7) as store,
        StoreFollower(store, source) as follower,
        pytest.raises(MismatchError, match=r"seed 7 .* has 0.*seed=0"),
    ):
        follower.run(once=True)


def test_a_source_that_becomes_another_store_is_told(source: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", made(tmp_path / "other", 5, 21)
    embedrock.copy(source, copy)
    with opened(copy) as store, StoreFollower(store, source) as follower:
        follower.run(once=True)
        shutil.rmtree(source)
        shutil.copytree(other, source)
        with pytest.raises(MismatchError, match=r"when .* began to follow it, and is store"):
            follower.run(once=True)


def test_the_commit_that_is_noted_is_the_one_that_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer goes on between both: it may even drop the commit that was looked at."""
    looked = 0

    def look(*arguments: Any) -> Any:
        nonlocal looked
        found = look_at(*arguments)
        looked += 1
        if looked == 1:
            for step in range(21, 27):
                go_on(source, step)
        return found

    monkeypatch.setattr(files, "look_at", look)
    report = embedrock.copy(source, tmp_path / "copy")
    assert looked == 2 and report["commit"]["step"] == 26
    with opened(tmp_path / "copy") as copy, opened(source) as store:
        note = copied_from(copy.path)
        assert note is not None and note.store == store.id and note.path == str(source)
        assert note.source == last_facts(store) and note.copy == last_facts(copy)
        assert note.source.writer != note.copy.writer
    with pytest.raises(NotFoundError, match="step 3"):
        embedrock.copy(source, tmp_path / "none", step=3)


def test_a_note_that_cannot_be_written_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("embedrock.store.copied.sync", full)
    with pytest.warns(UserWarning, match="whole copy, and .*No space left.*copy again to follow"):
        embedrock.copy(source, tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(source)
    assert not list((tmp_path / "copy").glob(f"*{NOTE}*"))
