"""Locks of stores and holds on commits: copies of the directory, ``os.chdir``, users without write
access.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import CommitGoneError

SMALL = {"memory": "4MiB", "max_disk_bytes": 100 << 20}
KEYS = np.arange(3000)


def train(store: embedrock.Store, steps: range) -> None:
    table = store.table("t", 8, num_embeddings=len(KEYS))
    for step in steps:
        table.put(KEYS, np.full((len(KEYS), 8), step, np.float32))
        store.commit(step, state={"step": bytes([step])})


# The kernel drops a record lock when its process closes the file anywhere.
def test_a_copy_of_the_directory_leaves_the_lock_to_its_writer(tmp_path: Path) -> None:
    script = "import sys, embedrock; embedrock.open(sys.argv[1], memory='4MiB')"
    with embedrock.open(tmp_path / "s", **SMALL) as store:
        train(store, range(1, 3))
        shutil.copytree(store.path, tmp_path / "copy")
        done = subprocess.run(
            [sys.executable, "-c", script, str(store.path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "LockedError" in done.stderr and f"process {os.getpid()}" in done.stderr
    # A copied lock file locks nothing.
    embedrock.open(tmp_path / "copy", **SMALL).close()


def test_a_closed_reader_holds_nothing(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", **SMALL) as store:
        train(store, range(1, 3))
        reader = embedrock.open(store.path, read_only=True, **SMALL)
        assert reader.held and list(store.path.glob("hold-*"))
        reader.close()
        assert not list(store.path.glob("hold-*"))
        train(store, range(3, 9))
    embedrock.open(tmp_path / "s", **SMALL).close()
    assert reader.closed


def test_a_relative_path_is_that_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with embedrock.open("s", **SMALL) as store:
        train(store, range(1, 3))
        with embedrock.open("s", read_only=True, **SMALL) as reader:
            assert store.path == reader.path == tmp_path / "s"
            monkeypatch.chdir(tmp_path / "elsewhere")
            train(store, range(3, 40))
            assert reader.table("t").get(KEYS).max() == 2
            assert reader.state() == {"step": b"\x02"}
        assert embedrock.open("../s", **SMALL) is store
    assert not list((tmp_path / "s").glob("hold-*"))
    assert not list(Path().iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the right to become another user")
def test_a_reader_of_another_user_holds_nothing_and_says_so() -> None:
    script = """
        import contextlib, io, json, os, sys
        import numpy as np
        import embedrock
        from embedrock import cli
        from embedrock.errors import CommitGoneError, IoError

        def shown(*arguments):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert cli.main([*arguments, path]) == 0, arguments
            return out.getvalue()

        os.setgid(65534)
        os.setuid(65534)
        path, small = sys.argv[1], {"memory": "4MiB", "max_disk_bytes": 100 << 20}
        try:
            embedrock.open(path, **small)
            raise AssertionError("opened to write")
        except IoError as error:
            assert "open it with read_only=True" in str(error), error
        reader = embedrock.open(path, read_only=True, **small)
        table = reader.table("t")
        assert not reader.held and not reader.stats()["commits"]["held"]
        assert (table.get(np.arange(10)) == 2).all()
        report = embedrock.check(path)
        assert report["commits"] == 2 and report["problems"] == [], report
        assert "all is well" in shown("check")
        assert "not held" in shown("info")
        assert json.loads(shown("info", "--json"))["stats"]["commits"]["held"] is False
        print("read", flush=True)
        sys.stdin.readline()
        for call in (lambda: table.get(np.arange(3000)), reader.state, lambda: list(table.keys())):
            try:
                call()
                raise AssertionError("the commit is still there")
            except CommitGoneError:
                pass
        with embedrock.open(path, read_only=True, **small) as again:
            assert (again.table("t").get(np.arange(3000)) == again.step).all()
            print(again.step)
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "s")
        with embedrock.open(path, **SMALL) as store:
            train(store, range(1, 3))
        for readable in (Path(directory), path):
            readable.chmod(0o755)
        command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "read\n"
            with embedrock.open(path, **SMALL) as store:
                train(store, range(3, 60))
            said, _ = reader.communicate("go on\n", timeout=120)
        assert (reader.returncode, said) == (0, "59\n")


# The example of the documentation for a reader that is forgotten.
def test_a_reader_whose_hold_was_taken_away_is_told_and_goes_on_refreshed(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", max_held_bytes=0, **SMALL) as store:
        train(store, range(1, 3))
        with embedrock.open(store.path, read_only=True, **SMALL) as reader:
            table = reader.table("t")
            assert reader.held
            train(store, range(3, 40))
            assert not reader.held
            with pytest.raises(CommitGoneError):
                table.get(KEYS)
            moved = reader.refresh()
            assert moved is not None and moved.step == 39 and reader.held
            np.testing.assert_array_equal(table.get(KEYS), np.full((len(KEYS), 8), 39))
