"""Following a log: each record exactly once, whatever ends the follower and wherever."""

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
    CorruptError,
    FullError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
)
from embedrock.follow import Follower, LogReader, LogWriter, Record, Source
from embedrock.follow.segment import encoded
from rows import numbered

KILLS = int(os.environ.get("EMBEDROCK_KILLS", "5"))
ROWS = 3000


def make(path: Path) -> None:
    with embedrock.open(path, "16MiB", max_disk_bytes=100 << 20) as store:
        store.table("ads", 8, optimizer="adagrad", initializer=0.0)
        store.table("ids", 4, ROWS, optimizer="adam")
        store.table("half", 8, optimizer="sgd", dtype="float16")
        store.commit(5, meta={"made": True}, state={"dense": b"weights"})


def reopened(path: Path) -> embedrock.Store:
    return embedrock.open(path, "16MiB", max_disk_bytes=100 << 20, create=False)


def digests(store: embedrock.Store) -> dict[str, int]:
    return {name: table.digest() for name, table in store.tables.items()}


def append(log: LogWriter, number: int) -> None:
    """Record ``number``: none of its kinds may be applied twice, or out of order."""
    generator = np.random.default_rng(number)
    keys = generator.integers(0, ROWS, 20)
    if number % 11 == 0:
        log.delete("ads", keys[:3])
    elif number % 7 == 0:
        log.put("ads", keys, generator.standard_normal((20, 8)).astype(np.float32))
    else:
        name, dim = (("ads", 8), ("ids", 4), ("half", 8))[number % 3]
        log.update(name, keys, generator.standard_normal((20, dim)).astype(np.float32), lr=0.1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    with LogWriter(tmp_path / "log", segment_bytes=20_000) as writer:
        yield writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "s")
    return tmp_path / "s"


def follow(store: embedrock.Store, log: LogWriter, **arguments: Any) -> Any:
    with LogReader(log.directory) as source:
        return Follower(store, source, **{"start": "begin", **arguments}).run(once=True)


def applied_once(path: Path, log: Path) -> dict[str, int]:
    """State of a store after the records of a log, applied one after another without a follower."""
    make(path)
    with reopened(path) as store, LogReader(log) as reader:
        while records := reader.poll():
            for record in records:
                table = store.table(record.table)
                if record.kind == "delete":
                    table.delete(record.keys)
                elif record.kind == "put":
                    table.put(record.keys, record.rows)
                else:
                    table.update(record.keys, record.rows, lr=record.options["lr"])
        store.commit(6)
        return digests(store)


def test_a_log_that_is_followed_in_parts_is_applied_once(
    tmp_path: Path, path: Path, log: LogWriter
) -> None:
    for part in range(5):
        for number in range(part * 100, part * 100 + 100):
            append(log, number)
        with reopened(path) as store:
            done = follow(store, log, commit_rows=500)
            assert (done.records, done.lag_bytes) == (100, 0)
            assert done.commits >= 3 and store.uncommitted == (0, 0)
    expected = applied_once(tmp_path / "other", log.directory)
    with reopened(path) as store:
        assert digests(store) == expected
        assert follow(store, log).commits == 0


def test_the_rest_of_the_commit_before_is_kept(path: Path, log: LogWriter) -> None:
    append(log, 1)
    with reopened(path) as store:
        follow(store, log)
        assert (store.step, store.meta) == (7, {"made": True})
        state = store.state()
    assert state.pop("dense") == b"weights"
    assert json.loads(state.pop("follow"))["position"]["records"] == 1 and not state


def test_a_follower_that_begins_at_the_end_leaves_out_what_was_there(
    path: Path, log: LogWriter
) -> None:
    log.put("ads", [1], np.ones((1, 8), np.float32))
    with reopened(path) as store, LogReader(log.directory) as source:
        Follower(store, source, start="end")  # its position is durable from here on
    log.put("ads", [2], np.ones((1, 8), np.float32))
    with reopened(path) as store:
        assert follow(store, log, start="end").records == 1
        assert store.table("ads").contains([1, 2]).tolist() == [False, True]


def test_a_reader_beside_the_follower_sees_each_commit_when_it_refreshes(
    path: Path, log: LogWriter
) -> None:
    with (
        reopened(path) as store,
        embedrock.open(path, "8MiB", read_only=True) as reader,
        LogReader(log.directory) as source,
    ):
        follower = Follower(store, source, start="begin")
        for value in range(1, 6):
            log.put("ads", [3], np.full((1, 8), value, np.float32))
            assert reader.table("ads").get([3])[0, 0] == value - 1
            follower.run(once=True)
            assert reader.table("ads").get([3])[0, 0] == value - 1
            assert reader.refresh().step == store.step
            assert reader.table("ads").get([3])[0, 0] == value


def raw(log: LogWriter, *record: Any) -> None:
    """Appends what ``LogWriter`` refuses."""
    parts, checksum = encoded(*record, log._chain)
    log._write(parts, checksum, 1)


def bad(name: str) -> tuple[Any, ...]:
    keys, rows = np.array([1, 2], np.uint64), np.ones((2, 8), np.float32)
    records: dict[str, tuple[Any, ...]] = {
        "table": ("put", "none", keys, rows, {}),
        "dim": ("put", "ads", keys, rows[:, :4], {}),
        "nan": ("put", "ads", keys, rows * np.nan, {}),
        "inf": ("update", "ads", keys, rows * np.inf, {"lr": 0.1}),
        "range": ("put", "ids", keys + ROWS, rows[:, :4], {}),
        "no lr": ("update", "ads", keys, rows, {}),
        "option": ("update", "ads", keys, rows, {"lr": 0.1, "non_finite": "apply"}),
        "factor": ("update", "ads", keys, rows, {"lr": 0.1, "momentum": 0.9}),
        "lr": ("update", "ads", keys, rows, {"lr": "fast"}),
        "half": ("put", "half", keys, rows * 1e6, {}),
    }
    return records[name]


BAD = {
    "table": (NotFoundError, "no table 'none'"),
    "dim": (MisuseError, r"have shape \(2, 4\), expected \(2, 8\)"),
    "nan": (NonFiniteError, "NaN"),
    "inf": (NonFiniteError, "inf"),
    "range": (KeyRangeError, "3001"),
    "no lr": (MisuseError, "has no lr"),
    "option": (MisuseError, "takes no non_finite"),
    "factor": (MisuseError, "takes no momentum"),
    "lr": (MisuseError, "lr is 'fast'"),
    "half": (NonFiniteError, "float16"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_does_not_fit_is_named_and_what_is_before_it_kept(
    name: str, tmp_path: Path, path: Path, log: LogWriter
) -> None:
    kind, message = BAD[name]
    append(log, 1)
    offset = log._offset
    raw(log, *bad(name))
    append(log, 2)
    with reopened(path) as store:
        for _ in range(2):  # it stands there again
            place = f"^segment-0000000001.log, offset {offset}: .*"
            with pytest.raises(kind, match=place + message):
                follow(store, log)
            assert store.uncommitted == (0, 0)
            assert json.loads(store.state()["follow"])["position"]["records"] == 1
        said: list[tuple[str, Exception]] = []
        done = follow(store, log, skip_bad=True, on_bad=lambda *of: said.append(of))
        assert (done.records, done.bad, len(said)) == (1, 1, 1)
        assert said[0][0] == f"segment-0000000001.log, offset {offset}"
        assert isinstance(said[0][1], kind)
        assert follow(store, log).bad == 1  # of all that it has followed
        got = digests(store)
    with LogWriter(tmp_path / "good") as good:
        append(good, 1)
        append(good, 2)
    assert got == applied_once(tmp_path / "other", tmp_path / "good")


def test_damage_is_an_error_and_what_is_before_it_is_kept(path: Path, log: LogWriter) -> None:
    offsets = []
    for number in range(1, 6):
        offsets.append(log._offset)
        append(log, number)
    offset = offsets[2]
    file = log.directory / "segment-0000000001.log"
    content = bytearray(file.read_bytes())
    content[offset + 50] ^= 1
    file.write_bytes(content)
    with reopened(path) as store:
        with pytest.raises(CorruptError, match=rf"damaged at offset {offset}"):
            follow(store, log, skip_bad=True)
        assert json.loads(store.state()["follow"])["position"]["records"] == 2


def test_a_store_of_another_log_is_refused_by_name(
    tmp_path: Path, path: Path, log: LogWriter
) -> None:
    append(log, 1)
    with LogWriter(tmp_path / "second") as second, reopened(path) as store:
        follow(store, log)
        with pytest.raises(MismatchError, match=f"of log {log.log}, and .* is log {second.log}"):
            follow(store, second)
        assert store.step == 7


def test_an_empty_log_is_followed_and_waited_for(path: Path, log: LogWriter) -> None:
    with reopened(path) as store, LogReader(log.directory) as source:
        follower = Follower(store, source, start="begin")
        assert follower.run(once=True).records == 0
        asked = iter(range(100))

        def stop() -> bool:
            turn = next(asked)
            if turn == 3:
                append(log, 1)
            return turn > 6

        assert follower.run(stop=stop).records == 1
        assert follower.position["records"] == 1


def test_stores_that_cannot_be_followed_into_are_refused(path: Path, log: LogWriter) -> None:
    with LogReader(log.directory) as source:
        with (
            embedrock.open(path, "8MiB", read_only=True) as reader,
            pytest.raises(MisuseError, match="open read_only"),
        ):
            Follower(reader, source, start="begin")
        with reopened(path) as store:
            store.table("ads").put([1], np.ones((1, 8), np.float32))
            with pytest.raises(MisuseError, match="1 batches have changed 1 rows"):
                Follower(store, source, start="begin")
            store.commit(6)
            follower = Follower(store, source, start="begin")
            append(log, 1)
            store.commit(9)
            with pytest.raises(MisuseError, match="committed at step 9 by others"):
                follower.run(once=True)
            store.commit(10)


def test_a_commit_that_others_made_between_two_followers_is_not_begun_anew(
    path: Path, log: LogWriter
) -> None:
    log.update("ads", [1], np.ones((1, 8), np.float32), lr=0.1)
    with LogReader(log.directory) as source, reopened(path) as store:
        with pytest.raises(MisuseError, match=r"step 5 in .* has no position in a log; say"):
            Follower(store, source)
        assert Follower(store, source, start="begin").run(once=True).records == 1
        before = store.table("ads").get([1])
        assert Follower(store, source).run(once=True).records == 0
        store.commit(50)
        with pytest.raises(MisuseError, match=r"step 50 in .* others have committed it since"):
            Follower(store, source)
        np.testing.assert_array_equal(store.table("ads").get([1]), before)
    with embedrock.open(path, "16MiB", step=7) as store, LogReader(log.directory) as source:
        assert Follower(store, source).run(once=True).records == 0


def test_a_store_without_commits_begins_at_the_beginning(tmp_path: Path, log: LogWriter) -> None:
    log.put("ads", [1], np.ones((1, 8), np.float32))
    with embedrock.open(tmp_path / "new", "16MiB") as store, LogReader(log.directory) as source:
        store.table("ads", 8)
        assert Follower(store, source).run(once=True).records == 1


def test_a_follower_that_was_interrupted_in_a_record_does_not_go_on(
    path: Path, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, 1)
    with LogReader(log.directory) as source, reopened(path) as store:
        follower = Follower(store, source, start="begin")
        update = embedrock.Table.update

        def interrupted(*arguments: Any, **named: Any) -> Any:
            update(*arguments, **named)
            raise KeyboardInterrupt

        monkeypatch.setattr(embedrock.Table, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            follower.run(once=True)
        monkeypatch.undo()
        with pytest.raises(MisuseError, match="interrupted while it read or applied a record"):
            follower.run(once=True)
        with pytest.raises(MisuseError, match="interrupted while it read or applied a record"):
            follower.commit()
        with pytest.raises(MisuseError, match="no commit holds"):
            Follower(store, source, start="begin")
        store.commit(99)


def test_a_follower_that_was_interrupted_in_a_read_does_not_go_on(
    path: Path, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It went on behind the records that the source had read and that never arrived.
    append(log, 1)
    with LogReader(log.directory) as source, reopened(path) as store:
        follower = Follower(store, source, start="begin")
        poll = source.poll

        def interrupted() -> Any:
            poll()
            raise KeyboardInterrupt

        monkeypatch.setattr(source, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            follower.run(once=True)
        monkeypatch.undo()
        with pytest.raises(MisuseError, match="interrupted while it read or applied a record"):
            follower.run(once=True)
        assert Follower(store, source, start="begin").run(once=True).records == 1


def test_a_full_disk_is_followed_on_where_commits_make_room(tmp_path: Path) -> None:
    rows, piece, pieces = 20_000, 2000, 100
    with LogWriter(tmp_path / "log") as log:
        for number in range(pieces):
            keys = (np.arange(piece) + number * piece) % rows
            log.put("t", keys, np.full((piece, 64), number, np.float32))
    with embedrock.open(tmp_path / "s", "2MiB", max_disk_bytes=10 << 20) as store:
        table = store.table("t", 64, expected_rows=rows, optimizer="none")
        store.commit(0)
        done = follow(store, log, commit_seconds=None)
        assert done.records == pieces
        assert done.commits > 10  # it was full several times
        last = pieces - rows // piece + np.arange(rows) // piece
        np.testing.assert_array_equal(table.get(np.arange(rows))[:, 0], last)


def test_a_disk_that_is_too_small_is_an_error_and_what_was_applied_is_kept(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "log") as log:
        log.put("t", [1], np.ones((1, 64), np.float32))
        log.put("t", np.arange(4000), np.ones((4000, 64), np.float32))
    with embedrock.open(tmp_path / "s", "4MiB", max_disk_bytes=2 << 20) as store:
        store.table("t", 64, expected_rows=4000, optimizer="none")
        store.commit(0)
        with pytest.raises(FullError, match="max_disk_bytes"):
            follow(store, log)
        assert json.loads(store.state()["follow"])["position"]["records"] == 1


class Numbers:
    """A source of another kind: record n puts n in row n."""

    def __init__(self) -> None:
        self.at = 0

    @property
    def position(self) -> dict[str, Any]:
        return {"at": self.at}

    def begin(self) -> None:
        self.at = 0

    def end(self) -> None:
        self.at = 10

    def seek(self, position: Any) -> None:
        self.at = position["at"]

    def poll(self) -> list[Record]:
        if self.at >= 10:
            return []
        self.at += 1
        keys = np.array([self.at], np.uint64)
        rows = numbered(keys, 8)
        return [Record("put", "ads", keys, rows, {}, f"number {self.at}", self.position)]

    def lag_bytes(self) -> int:
        return 10 - self.at


def test_other_sources_are_followed_too(path: Path) -> None:
    assert isinstance(Numbers(), Source)
    with reopened(path) as store:
        assert Follower(store, Numbers(), start="begin").run(once=True).records == 10
        assert Follower(store, Numbers(), start="begin").run(once=True).records == 0
        np.testing.assert_array_equal(store.table("ads").get([3]), numbered([3], 8))


def command(path: Path, log: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "embedrock",
        "follow",
        str(path),
        "--log",
        str(log),
        "--from",
        "begin",
        *more,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(embedrock.__file__).parents[1])}


def committed(path: Path) -> int:
    """Number of records that the last commit of the store has followed."""
    with embedrock.open(path, "8MiB", read_only=True) as reader:
        found = reader.state().get("follow")
        return 0 if found is None else int(json.loads(found)["position"]["records"])


@pytest.mark.long
def test_a_follower_that_is_killed_again_and_again_applies_each_record_once(
    tmp_path: Path, path: Path, log: LogWriter
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # of a failure
    chance = random.Random(seed)
    number, cut_off = 0, 0
    for kill in range(KILLS):
        every = ("200", "0s", "0.02s")[kill % 3]
        with subprocess.Popen(
            command(path, log.directory, "--commit-every", every, "--memory", "16MiB"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            before, deadline = committed(path), time.monotonic() + 30
            for _ in range(200):
                append(log, number)
                number += 1
            while committed(path) == before and child.poll() is None:
                assert time.monotonic() < deadline
                append(log, number)
                number += 1
                time.sleep(0.01)  # opening it again and again takes a core from the child
            for _ in range(chance.randrange(200)):
                append(log, number)
                number += 1
            child.kill()
            said = child.stderr.read() if child.stderr else ""
            assert child.wait() == -signal.SIGKILL, said
        cut_off += committed(path) < number
    assert cut_off > KILLS // 4  # in the midst of it, not behind the end
    done = subprocess.run(
        command(path, log.directory, "--once", "--json"),
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["position"]["records"] == number
    expected = applied_once(tmp_path / "other", log.directory)
    with reopened(path) as store:
        assert digests(store) == expected


def test_ctrl_c_commits_and_ends(tmp_path: Path, path: Path, log: LogWriter) -> None:
    for number in range(50):
        append(log, number)
    raw(log, *bad("table"))
    log.sync()
    before = committed(path)
    with subprocess.Popen(
        command(path, log.directory, "--commit-every", "1000000", "--skip-bad", "--json"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert "left out" in child.stderr.readline()  # it has read what lies before that
        assert (embedrock_step(path), committed(path)) == (6, before)
        child.send_signal(signal.SIGINT)
        said = json.loads(child.stdout.read())
    assert child.returncode == 130
    assert (said["records"], said["bad"], committed(path)) == (50, 1, 51)


def embedrock_step(path: Path) -> int:
    with embedrock.open(path, "8MiB", read_only=True) as reader:
        return reader.step or 0


def test_the_command_says_how_far_it_is(
    path: Path, log: LogWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    append(log, 1)
    raw(log, *bad("table"))
    follow = ["follow", str(path), "--log", str(log.directory), "--once", "--memory", "16MiB"]
    assert main(follow) == 2
    assert 'say where to begin (start="begin" or "end", --from)' in capsys.readouterr().err
    assert main([*follow, "--from", "begin"]) == 2
    assert "segment-0000000001.log, offset" in capsys.readouterr().err
    assert main([*follow, "--skip-bad"]) == 0
    out, err = capsys.readouterr()
    assert "0 records with 0 rows, 1 left out in all" in out
    assert "left out: segment-0000000001.log, offset" in err
    assert main([*follow, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["bad"], said["lag_bytes"], said["position"]["log"]) == (1, 0, log.log)
    assert main([*follow[:-1], "1KiB"]) == 2
    assert main([*follow[:3], str(path), "--once"]) == 2
    assert "holds no log" in capsys.readouterr().err
    for odd in ("x", "-1", "0", "-1s", "nans", ""):
        with pytest.raises(SystemExit):
            main([*follow, "--commit-every", odd])
