"""Allowed paths of a new store: ``open`` and ``copy`` with mistaken paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embedrock
import withtorch
from embedrock.errors import CorruptError, MisuseError, NotFoundError


def test_a_folder_of_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "data").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MisuseError, match='holds no store, but other files: "data" and 1 more'):
        embedrock.open(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(NotFoundError, match="there is no store"):
        embedrock.open(tmp_path, create=False)


@pytest.mark.parametrize("name", [".gitkeep", "lost+found", "lock", "superblock.new"])
def test_what_a_file_system_or_a_beginning_leaves_is_no_obstacle(tmp_path: Path, name: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).touch()
    for _ in range(2):
        with embedrock.open(tmp_path / "s", "4MiB") as store:
            store.commit(1)


def test_a_store_with_files_beside_it_opens(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "4MiB") as store:
        store.commit(1)
    (tmp_path / "s" / "notes.txt").touch()
    with embedrock.open(tmp_path / "s", "4MiB") as store:
        assert store.step == 1
    (tmp_path / "s" / "superblock").rename(tmp_path / "s" / "gone")
    with pytest.raises(CorruptError, match="superblock is missing"):
        embedrock.open(tmp_path / "s", "4MiB")


# A mistyped path became folders.
def test_one_folder_above_the_store_is_made_and_not_two(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=f"there is no folder {tmp_path}/hmoe; make it first"):
        embedrock.open(tmp_path / "hmoe" / "me" / "ads.store")
    assert list(tmp_path.iterdir()) == []
    embedrock.open(tmp_path / "runs" / "ads.store", "4MiB").close()
    assert (tmp_path / "runs" / "ads.store" / "superblock").is_file()


def test_a_copy_goes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "4MiB") as store:
        store.table("t", 4).put([1], np.ones((1, 4), np.float32))
        store.commit(1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").touch()
    for place in ("other", "no/such/place"):
        with pytest.raises(MisuseError, match=r"other files: \"a\";|there is no folder"):
            embedrock.copy(tmp_path / "s", tmp_path / place)
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["a"]
    assert embedrock.copy(tmp_path / "s", tmp_path / "there" / "copy")["rows"] == 1


def test_train_finds_it_out_before_it_reads_the_data(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    (tmp_path / "no.tsv").write_text("no line of Criteo\n")
    command = ["-m", "embedrock", "train", "--data", "no.tsv"]
    command += ["--format", "criteo", "--store", "full"]
    done = withtorch.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no store, but other files" in done.stderr and "no.tsv" not in done.stderr
