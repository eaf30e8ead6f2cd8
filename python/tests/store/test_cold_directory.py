"""Stores whose partitions lie in a cold directory: made, moved, missing, foreign, copied."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import cli
from embedrock.errors import BudgetError, MismatchError, MisuseError

DIM, ROWS = 6, 6000
OPTIONS: dict[str, Any] = {"memory": "2MiB", "page_bytes": 512, "segment_bytes": 8192, "seed": 5}


def opened(path: Path, cold: Path | None = None, **more: Any) -> embedrock.Store:
    return embedrock.open(path, cold_directory=cold, **{**OPTIONS, **more})


def write(store: embedrock.Store, value: float, rounds: int = 3) -> None:
    """Writes all rows several times, with a commit after each: most of them are merged."""
    table = store.table("t", DIM, expected_rows=ROWS, storage="lsm")
    for _ in range(rounds):
        for first in range(0, ROWS, 400):
            keys = np.arange(first, first + 400)
            table.put(keys, np.full((400, DIM), value, np.float32))
        store.commit((store.step or 0) + 1)


def values(store: embedrock.Store) -> set[float]:
    return set(np.unique(store.table("t").get(np.arange(ROWS))).tolist())


def partitions(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("part-*"))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A store and its cold directory."""
    path, cold = tmp_path / "items.store", tmp_path / "items.cold"
    with opened(path, cold) as store:
        write(store, 1.0)
    return path, cold


def test_a_store_remembers_its_cold_directory(pair: tuple[Path, Path]) -> None:
    path, cold = pair
    assert partitions(cold)
    assert not partitions(path)
    with opened(path) as store:
        assert values(store) == {1.0}
        stats = store.stats()
        assert stats["cold_directory"] == str(cold)
        assert 0 < stats["cold_bytes"] < stats["disk_bytes"]
        write(store, 2.0)
        with opened(path, read_only=True) as reader:
            assert values(reader) == {2.0}
            write(store, 3.0)
            assert reader.refresh()
            assert values(reader) == {3.0}
    assert embedrock.check(path)["problem_count"] == 0
    with opened(path, step=8) as store:  # an earlier commit, and on from there
        assert values(store) == {3.0}
        write(store, 4.0)
    with opened(path) as store:
        assert values(store) == {4.0}


def test_a_cold_directory_that_moved_is_named_once(pair: tuple[Path, Path]) -> None:
    path, cold = pair
    moved = cold.with_name("moved.cold")
    cold.rename(moved)
    with pytest.raises(MismatchError) as missing:
        opened(path)
    for text in (str(path), str(cold), "is not there", "cold_directory="):
        assert text in str(missing.value)
    with opened(path, moved, read_only=True) as reader:
        assert values(reader) == {1.0}
    with pytest.raises(MismatchError):
        opened(path)  # a reader notes nothing
    for place in (moved, None):
        with opened(path, place) as store:
            assert values(store) == {1.0}


def test_a_wrong_directory_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path, cold = pair
    empty, other = tmp_path / "empty", tmp_path / "other.cold"
    empty.mkdir()
    with opened(tmp_path / "other.store", other) as store:
        write(store, 9.0)
    with pytest.raises(MismatchError, match=r"other\.store"):
        opened(path, other)
    with pytest.raises(MismatchError, match="no cold directory"):
        opened(path, empty)
    with pytest.raises(MismatchError, match="two stores may not share one"):
        opened(tmp_path / "third.store", cold)
    with pytest.raises(MisuseError, match="the store's own"):
        opened(path, path)
    with pytest.raises(MisuseError, match="expected a path"):
        embedrock.open(path, cold_directory=3)  # type: ignore[arg-type]
    assert not list(empty.iterdir())
    assert not (tmp_path / "third.store" / "superblock").exists()
    with opened(path) as store:
        assert values(store) == {1.0}


def test_a_place_that_can_be_none_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path, plain = tmp_path / "items.store", tmp_path / "plain"
    plain.write_text("")
    inside = "is inside the store"
    for places in ("new", "there"):
        for cold, says in [
            (path / "cold", inside),
            (path / "parts", inside),
            (path, "the store's own"),
            (tmp_path, "is inside cold_directory"),
            (plain, "is a file"),
            (plain / "cold", "is a file"),
            (tmp_path / "no" / "such", "there is no folder"),
            (Path("~/items.cold"), "expanduser"),
        ]:
            with pytest.raises(MisuseError, match=says):
                opened(path, cold)
            assert (path / "superblock").exists() == (places == "there")
        with opened(path) as store:
            write(store, 1.0)
    assert not (path / "cold").exists()
    with pytest.raises(MisuseError, match=inside):
        embedrock.copy(path, tmp_path / "copy", cold_directory=tmp_path / "copy" / "cold")
    assert not (tmp_path / "copy").exists()


def test_relative_places_and_slashes_are_remembered_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with embedrock.open("items.store", cold_directory="items.cold/", **OPTIONS) as store:
        write(store, 1.0)
        assert store.stats()["cold_directory"] == str(tmp_path / "items.cold")
    monkeypatch.chdir("/")
    for cold in (None, tmp_path / "items.cold"):
        with opened(tmp_path / "items.store", cold) as store:
            assert values(store) == {1.0}


def test_an_opening_that_fails_does_not_note_the_directory(tmp_path: Path) -> None:
    path, typo = tmp_path / "items.store", tmp_path / "itmes.cold"
    with opened(path) as store:
        write(store, 1.0)
    with pytest.raises(BudgetError):
        embedrock.open(path, cold_directory=typo, memory="64KiB")
    assert not (path / "cold").exists()
    with opened(path) as store:
        assert values(store) == {1.0}
        assert store.stats()["cold_directory"] is None


def test_a_reader_that_looks_elsewhere_is_told_to_open_again(tmp_path: Path) -> None:
    path, cold = tmp_path / "items.store", tmp_path / "items.cold"
    with opened(path) as store:
        write(store, 1.0)
    with opened(path, read_only=True) as reader:
        with opened(path, cold) as store:
            assert not reader.refresh()
            write(store, 2.0)
            with pytest.raises(MismatchError, match="open it again"):
                reader.refresh()
        assert values(reader) == {1.0}
    with opened(path, read_only=True) as reader:
        assert values(reader) == {2.0}


def test_files_of_a_store_that_are_copied_do_not_share_it(pair: tuple[Path, Path]) -> None:
    path, _ = pair
    copied = path.with_name("copied.store")
    shutil.copytree(path, copied)
    with pytest.raises(MismatchError, match="embedrock copy"):
        opened(copied)
    shutil.rmtree(path)
    with opened(copied) as store:  # as after a move
        assert values(store) == {1.0}


def test_a_copy_has_one_directory_or_two(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, cold = pair
    whole, two, apart = (tmp_path / name for name in ("whole.store", "two.store", "two.cold"))
    embedrock.copy(path, whole)
    with opened(whole) as store:
        assert values(store) == {1.0}
        assert store.stats()["cold_directory"] is None
    assert cli.main(["copy", str(path), str(two), "--cold-directory", str(apart)]) == 0
    with opened(two) as store:
        assert values(store) == {1.0}
        assert store.stats()["cold_directory"] == str(apart)
    with pytest.raises(MismatchError):
        embedrock.copy(path, tmp_path / "no.store", cold_directory=cold)
    capsys.readouterr()


def test_info_names_both_directories_with_their_bytes(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, cold = pair
    assert cli.main(["info", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    taken = sum(file.stat().st_blocks * 512 for file in cold.glob("part-*"))
    assert found["cold_files"]["part"] == taken > 0
    assert "part" not in found["files"]
    assert cli.main(["info", str(path)]) == 0
    told = capsys.readouterr().out
    assert "cold disk" in told
    assert str(cold) in told
    with opened(path.with_name("plain.store")) as store:
        write(store, 1.0)
    assert cli.main(["info", str(path.with_name("plain.store"))]) == 0
    told = capsys.readouterr().out
    assert "partitions" in told
    assert "cold" not in told


def test_a_trainer_that_is_killed_leaves_its_last_commit(tmp_path: Path) -> None:
    path, cold = tmp_path / "store", tmp_path / "cold"
    for life in range(1, 1 + int(os.environ.get("EMBEDROCK_KILLS", "2"))):
        child = subprocess.Popen(
            [sys.executable, __file__, str(path), str(cold), str(life)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(embedrock.__file__).parents[1])},
        )
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(1 + life)]
        child.send_signal(signal.SIGKILL)
        said += child.stdout.read().split()
        child.wait()
        last = int(next(line for line in reversed(said) if line))
        with opened(path) as store:
            # The values that are written are the number of the commit.
            assert store.step in (last, last + 1)
            assert values(store) == {float(store.step)}
        assert embedrock.check(path)["problem_count"] == 0
    assert partitions(cold)
    assert not partitions(path)


def _train(path: Path, cold: Path) -> None:
    with opened(path, cold) as store:
        while True:
            write(store, float((store.step or 0) + 1), rounds=1)
            print(store.step, flush=True)


if __name__ == "__main__":
    _train(Path(sys.argv[1]), Path(sys.argv[2]))
