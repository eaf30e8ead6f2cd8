"""Pinned commits from Python and from the command line."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import embedrock
from embedrock import nn
from embedrock.cli import main
from embedrock.errors import (
    EmbedrockError,
    FullError,
    LockedError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)

KEYS = np.arange(200)
MIB = 1 << 20


@pytest.fixture(params=["log", "lsm"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[embedrock.Store]:
    with embedrock.open(tmp_path / "s", memory="16MiB", check_disk=False) as store:
        store.table("t", 4, optimizer="none", storage=request.param)
        yield store


def write(store: embedrock.Store, step: int, pin: str | None = None, wait: bool = True) -> None:
    store.table("t").put(KEYS, np.full((len(KEYS), 4), step, np.float32))
    done = store.commit(step, {"at": step}, {"dense": b"%d" % step}, wait=wait, pin=pin)
    if isinstance(done, embedrock.PendingCommit):
        done.wait()


def row(store: embedrock.Store) -> float:
    values = store.table("t").get(KEYS)
    assert (values == values[0, 0]).all()
    return float(values[0, 0])


def test_a_pin_keeps_its_commit_and_its_name_moves(store: embedrock.Store) -> None:
    write(store, 1, pin="best")
    write(store, 2)
    store.pin(2, "second")
    store.pin(2, "also second")
    for step in range(3, 9):
        write(store, step, wait=step % 2 == 0, pin="late" if step == 5 else None)
    assert store.pins() == {"best": 1, "second": 2, "also second": 2, "late": 5}
    assert [commit.step for commit in store.commits()] == [7, 8]
    for named in ("best", 1, "second", 5, "late"):
        with embedrock.open(store.path, "1MiB", read_only=True, step=named) as reader:
            step = named if isinstance(named, int) else store.pins()[named]
            assert (reader.step, row(reader), reader.held) == (step, step, True)
            assert reader.meta == {"at": step} and reader.state() == {"dense": b"%d" % step}
            assert reader.pins() == store.pins()
    write(store, 9, pin="best")
    assert store.pins() == {"second": 2, "also second": 2, "late": 5, "best": 9}
    with pytest.raises(NotFoundError, match="no commit of step 1"):
        embedrock.open(store.path, "1MiB", read_only=True, step=1)
    store.unpin("second")
    store.unpin("also second")
    with pytest.raises(NotFoundError, match=r"pinned as 'second'.*'late' \(step 5\)"):
        store.unpin("second")
    with pytest.raises(NotFoundError, match="step 77"):
        store.pin(77, "none")
    for name in ("", "12", "a\nb", "x" * 201):
        with pytest.raises(MisuseError, match="name of a pin"):
            store.commit(10, pin=name)
    assert store.step == 9


def test_going_back_to_a_pin_in_place_and_after_opening_again(store: embedrock.Store) -> None:
    table = store.table("t")
    write(store, 1, pin="best")
    for step in range(2, 7):
        write(store, step)
    with pytest.raises(NotFoundError, match=r"pinned as 'none'.*pinned are: 'best' \(step 1\)"):
        store.go_back("none")
    assert store.go_back("best").step == 1 == row(store)
    assert store.go_back(6).step == 6 == row(store)  # nothing has changed since
    assert store.go_back(1).step == 1
    write(store, 2)
    assert table.get([5])[0, 0] == 2 and store.pins() == {"best": 1}
    write(store, 3, pin="later")
    with pytest.raises(MisuseError, match=r"'later' \(step 3\).*unpin it first"):
        store.go_back("best")
    assert row(store) == 3 and not store.closed
    path = store.path
    store.close()
    with pytest.raises(MisuseError, match="'later'"):
        embedrock.open(path, "16MiB", check_disk=False, step="best")
    with embedrock.open(path, "16MiB", check_disk=False) as again:
        assert again.pins() == {"best": 1, "later": 3}
        again.unpin("later")
    with embedrock.open(path, "16MiB", check_disk=False, step="best") as again:
        assert row(again) == 1
        same = embedrock.open(path, "16MiB", check_disk=False, step="best")
        assert same is again
        with pytest.raises(LockedError, match="opened at pin 'best'"):
            embedrock.open(path, "16MiB", check_disk=False)
        write(again, 4)
        with pytest.raises(LockedError, match="opened at pin 'best'"):
            embedrock.open(path, "16MiB", check_disk=False, step="best")
    report = embedrock.check(path)
    assert report["problems"] == [] and report["commits"] == 2


def test_a_model_goes_back_to_its_pinned_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with embedrock.open(tmp_path / "s", memory="16MiB", check_disk=False) as store:
        bag = nn.EmbeddingBag(50, 4, store=store, name="words", optimizer="sgd")
        rows = embedrock.optim.SGD(bag, lr=0.1)

        def step(number: int, pin: str | None = None) -> None:
            bag(torch.arange(12).reshape(4, 3)).square().sum().backward()
            rows.step()
            rows.zero_grad()
            store.commit(number, pin=pin)

        step(1, "best")
        best, expected = copy.deepcopy(bag.state_dict()), store.table("words").get(np.arange(50))
        for number in range(2, 7):
            step(number)
        with pytest.raises(MismatchError, match=r"call store\.go_back\(1\) first"):
            bag.load_state_dict(best)
        store.go_back("best")
        bag.load_state_dict(best)
        np.testing.assert_array_equal(store.table("words").get(np.arange(50)), expected)


def test_readers_move_between_pins_and_copies_take_names(
    store: embedrock.Store, tmp_path: Path
) -> None:
    write(store, 1, pin="best")
    for step in range(2, 6):
        write(store, step)
    with embedrock.open(store.path, "1MiB", read_only=True) as reader:
        assert reader.go_back("best").step == 1 == row(reader)
        store.unpin("best")
        write(store, 6)
        assert row(reader) == 1  # held
        newest = reader.refresh()
        assert newest is not None and newest.step == 6 == row(reader)
    write(store, 7, pin="kept")
    for step in range(8, 12):
        write(store, step)
    copied = embedrock.copy(store.path, tmp_path / "copy", step="kept", memory="16MiB")
    assert copied["commit"]["step"] == 7
    with embedrock.open(tmp_path / "copy", "16MiB", check_disk=False) as other:
        assert row(other) == 7 and other.pins() == {}
    with pytest.raises(NotFoundError, match="'gone'"):
        embedrock.copy(store.path, tmp_path / "other", step="gone")


def test_a_full_store_names_what_pins_keep(tmp_path: Path) -> None:
    bound = 4 * MIB
    with embedrock.open(tmp_path / "s", "2MiB", max_disk_bytes=bound, check_disk=False) as store:
        table = store.table("t", 16, 4000, optimizer="none")
        full = None
        for step in range(100):
            try:
                for first in range(0, 4000, 500):
                    keys = np.arange(first, first + 500)
                    table.put(keys, np.full((500, 16), step, np.float32))
                store.commit(step, pin=f"p{step}")
            except FullError as error:
                full = str(error)
                break
        assert full is not None and "of pinned commits 'p" in full
        assert sum(file.stat().st_blocks * 512 for file in store.path.iterdir()) <= bound
        pins = store.stats()["pins"]
        # Kept commits need the rows of the last pins, too.
        assert len(pins) > 3 and all(pin["bytes"] > 100_000 for pin in pins[:-3]), pins
        for name in list(store.pins()):
            store.unpin(name)
        for step in range(200, 204):
            store.commit(step)
        for first in range(0, 4000, 500):
            table.put(np.arange(first, first + 500), np.full((500, 16), 7, np.float32))
        store.commit(300)


def test_rows_that_are_durable_by_update_are_not_pinned(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "16MiB") as store:
        store.table("t", 4, 10, storage="pmem")
        store.commit(1)
        with pytest.raises(UnsupportedError, match="pmem"):
            store.pin(1, "best")
        with pytest.raises(UnsupportedError, match="pmem"):
            store.commit(2, pin="best")
        assert store.step == 1 and store.pins() == {}


CHILD = """
import sys
import numpy as np
import embedrock
store = embedrock.open(sys.argv[1], "16MiB", check_disk=False)
table = store.table("t", 4, optimizer="none", storage=sys.argv[2])
for step in range(1, 10_000):
    table.put(np.arange(200), np.full((200, 4), step, np.float32))
    store.commit(step)
    if step % 3 == 0:
        store.pin(step, "best")
        print(step, flush=True)
    if step % 7 == 0 and store.pins():
        store.pin(step - 1, "other")
        store.unpin("other")
"""


@pytest.mark.parametrize("storage", ["log", pytest.param("lsm", marks=pytest.mark.long)])
def test_a_pin_that_returned_survives_a_kill(tmp_path: Path, storage: str) -> None:
    path = tmp_path / "s"
    for kills in (3, 8, 14):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), storage], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        promised = [int(child.stdout.readline()) for _ in range(kills)][-1]
        child.send_signal(signal.SIGKILL)
        promised = max([promised, *(int(line) for line in child.stdout.read().split())])
        child.wait()
        child.stdout.close()
        with embedrock.open(path, "1MiB", read_only=True, step="best") as reader:
            step = reader.step
            assert step is not None and step in (promised, promised + 3) and row(reader) == step
        assert embedrock.check(path)["problems"] == []
        with embedrock.open(path, "16MiB", check_disk=False) as store:
            assert set(store.pins()) <= {"best", "other"}
            # The next child counts from 1 again.
            for name in store.pins():
                store.unpin(name)
            assert not list(path.glob("pin-*"))


GOES_BACK = """
import sys
import numpy as np
import embedrock
store = embedrock.open(sys.argv[1], "16MiB", check_disk=False)
table = store.table("t", 4, optimizer="none", storage=sys.argv[2])
for turn in range(10_000):
    if "best" in store.pins():
        store.go_back("best")
        assert (table.get(np.arange(200)) == 1).all()
    for step in range(1, 8):
        table.put(np.arange(200), np.full((200, 4), step, np.float32))
        store.commit(step, pin="best" if step == 1 and turn == 0 else None)
    print(turn, flush=True)
"""


@pytest.mark.parametrize("storage", ["log", pytest.param("lsm", marks=pytest.mark.long)])
def test_what_was_trained_after_going_back_survives_a_kill(tmp_path: Path, storage: str) -> None:
    path = tmp_path / "s"
    for turns in (1, 3, 4):
        child = subprocess.Popen(
            [sys.executable, "-c", GOES_BACK, str(path), storage], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(turns)][-1] == f"{turns - 1}\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with embedrock.open(path, "16MiB", check_disk=False) as store:
            assert row(store) == store.step and store.pins() == {"best": 1}
        with embedrock.open(path, "1MiB", read_only=True, step="best") as reader:
            assert row(reader) == reader.step == 1
        assert embedrock.check(path)["problems"] == []


@pytest.mark.parametrize(
    "store", [pytest.param("log", marks=pytest.mark.long), "lsm"], indirect=True
)
def test_unpinning_gives_the_space_back(store: embedrock.Store) -> None:
    def taken() -> int:
        return sum(file.stat().st_blocks * 512 for file in store.path.iterdir())

    table = store.table("t")
    keys = np.arange(30_000)

    def train(step: int, pin: str | None = None) -> None:
        table.put(keys, np.full((len(keys), 4), step, np.float32))
        store.commit(step, pin=pin)

    train(1, pin="old")
    for step in range(2, 10):
        train(step)
    kept = store.stats()["pins"][0]["bytes"]
    assert kept > keys.size * 16 // 2, "values of most rows"
    before = taken()
    store.unpin("old")
    for step in range(10, 14):
        store.commit(step)
    assert taken() < before - kept // 2, (taken(), before, kept)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_the_command_line_pins_shows_copies_and_unpins(
    store: embedrock.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.path
    for step in range(3):
        write(store, step)
    store.close()
    said = run(capsys, "pin", path, "last")
    assert said == f"{path}: commit at step 2 is pinned as 'last'\n"
    pinned = json.loads(run(capsys, "pin", path, "before", "--step", 1, "--json"))
    assert (pinned["name"], pinned["step"]) == ("before", 1) and pinned["bytes"] > 0
    with embedrock.open(path, "16MiB", check_disk=False) as again:
        for step in range(3, 7):
            write(again, step)
    shown = run(capsys, "info", path)
    table = [line.split() for line in shown.splitlines() if line.startswith(("last", "before"))]
    assert [(line[0], line[1]) for line in table] == [("before", "1"), ("last", "2")]
    assert "keeps alone" in shown and "pins" in shown
    found = json.loads(run(capsys, "info", path, "--json"))
    assert [pin["step"] for pin in found["stats"]["pins"]] == [1, 2]
    assert all(pin["bytes"] > 0 for pin in found["stats"]["pins"])
    run(capsys, "copy", path, tmp_path / "copy", "--step", "before", "--memory", "16MiB")
    with embedrock.open(tmp_path / "copy", "16MiB", read_only=True) as other:
        assert row(other) == 1
    said = run(capsys, "unpin", path, "before")
    assert said == f"{path}: 'before' is unpinned; pinned are: last (step 2)\n"
    assert json.loads(run(capsys, "unpin", path, "last", "--json")) == {"pins": {}}
    assert main(["unpin", str(path), "last"]) == 2
    assert "pinned as 'last'" in capsys.readouterr().err
    assert main(["pin", str(tmp_path / "none"), "x"]) == 2


def test_a_process_that_reads_does_not_pin(store: embedrock.Store) -> None:
    write(store, 1)
    with embedrock.open(store.path, "1MiB", read_only=True) as reader:
        for call in (lambda: reader.pin(1, "best"), lambda: reader.unpin("best")):
            with pytest.raises(EmbedrockError, match="read_only"):
                call()
