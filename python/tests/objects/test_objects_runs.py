"""Runs of ranks go to object storage, while they train, and come back at one commit of all."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")
pytest.importorskip("torch")

from embedrock import cli, objects
from embedrock._ranks import commit_manifest_name
from embedrock.distributed import open as open_ranks
from embedrock.errors import (
    CorruptError,
    MismatchError,
    MisuseError,
    NotFoundError,
)
from embedrock.objects.remote import Remote
from embedrock.objects.runs import holding
from pushes import objects_in
from ranks import run
from runpushes import Run, contents_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/objects"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


class DiedError(BaseException):
    """The process is dead: it asks for nothing more."""


def dying(monkeypatch: pytest.MonkeyPatch, last: int) -> list[int]:
    """From request number ``last`` on nothing is asked of the storage. Returns the count."""
    before, count = Remote._call, [0]

    def call(self: Remote, kind: str, name: str, request: Any) -> Any:
        count[0] += 1
        if count[0] >= last:
            raise DiedError
        return before(self, kind, name, request)

    monkeypatch.setattr(Remote, "_call", call)
    return count


# --- one machine ---------------------------------------------------------------------------------


def test_a_run_that_commits_meanwhile_is_pushed_at_a_step_that_all_have(
    tmp_path: Path, url: str
) -> None:
    with Run(tmp_path / "run") as trained:
        trained.commit(1)
        stopped, failed = threading.Event(), []

        def train() -> None:
            try:
                step = 2
                while not stopped.is_set():
                    trained.commit(step)
                    step += 1
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        told: list[tuple[int, int]] = []
        try:
            pushed: list[dict[str, Any]] = []
            while len(pushed) < 3:
                report = objects.push(tmp_path / "run", url, progress=lambda *p: told.append(p))
                pushed.append(report)
                until, enough = time.monotonic() + 60, report["step"] + 2
                while max(trained.then) < enough:  # all stores have the step before
                    assert thread.is_alive() and time.monotonic() < until
                    time.sleep(0.01)
        finally:
            stopped.set()
            thread.join()
        assert not failed and len({total for _, total in told[:2]}) == 1
        assert told[-1][0] == told[-1][1]
        steps = [push["step"] for push in pushed]
        assert [push["number"] for push in pushed] == [1, 2, 3] and steps == sorted(steps)
        assert [push["step"] for push in objects.list(url)] == steps
        for push in pushed:
            place = tmp_path / f"pulled {push['number']}"
            pulled = objects.pull(url, place, step=push["step"])
            assert contents_of(place) == trained.then[push["step"]]
            assert pulled["stores"] == sorted(push["stores"]) == [*trained.then[1]]
            assert sorted(path.name for path in place.iterdir()) == [
                *trained.then[1],
                commit_manifest_name(push["step"]),
            ]
        trained.commit(10**6)
        last = objects.push(tmp_path / "run", url)
        again = objects.push(tmp_path / "run", url)
        assert (last["is_new"], again["is_new"], again["number"]) == (True, False, 4)
        assert 0 < last["sent_bytes"] < last["bytes"] and again["sent_bytes"] == 0


def test_stores_that_ended_at_different_steps_are_pushed_at_the_common_one(
    tmp_path: Path, url: str
) -> None:
    with Run(tmp_path / "run") as trained:
        with pytest.raises(NotFoundError, match="nothing was committed yet"):
            objects.push(tmp_path / "run", url)
        for step in (35, 40, 45):
            trained.commit(step)
        trained.commit(50, of=slice(1))
        assert objects.push(tmp_path / "run", url)["step"] == 45
        with pytest.raises(NotFoundError, match=r"buckets-0512.*of step 50.*pin a commit"):
            objects.push(tmp_path / "run", url, step=50)
    objects.pull(url, tmp_path / "back")
    assert contents_of(tmp_path / "back") == trained.then[45]
    told = json.loads((tmp_path / "back" / "manifest-000000000045.json").read_text())
    assert told["buckets"] == ["0-511", "512-1023"] and told["run"] == "a run"
    assert told["world"] == 2 and {*told["tables"]} == {"d", "g"}


@pytest.mark.long
def test_a_step_that_is_gone_when_the_last_store_is_held_gives_way_to_a_newer_one(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(tmp_path / "run") as trained:
        for step in (1, 2):
            trained.commit(step)
        before, steps = holding.facts_of, iter((3, 4, 5, 6))

        def facts_of(held: Any, path: Path) -> Any:
            facts = before(held, path)
            for step in (next(steps, 0), next(steps, 0)):
                if step:
                    trained.commit(step)
            return facts

        monkeypatch.setattr(holding, "facts_of", facts_of)
        assert objects.push(tmp_path / "run", url)["step"] == 6
    objects.pull(url, tmp_path / "back")
    assert contents_of(tmp_path / "back") == trained.then[6]


@pytest.mark.long
def test_a_push_of_a_run_that_dies_at_any_request_leaves_the_last_one(
    tmp_path: Path, url: str
) -> None:
    with Run(tmp_path / "run") as trained:
        trained.commit(1)
        objects.push(tmp_path / "run", url)
        trained.commit(2)
        last, died = 0, True
        while died:
            last += 1
            with pytest.MonkeyPatch.context() as patched:
                dying(patched, last)
                try:
                    objects.push(tmp_path / "run", url, in_flight=1)
                    died = False
                except DiedError:
                    pass
            pushes = objects.list(url)
            assert [push["step"] for push in pushes] in ([1], [1, 2])
            if len(pushes) == 2 or last % 8 == 0:
                place = tmp_path / f"p{last}"
                objects.pull(url, place)
                assert contents_of(place) == trained.then[pushes[-1]["step"]]
        assert last > 20 and len(pushes) == 2
        again = objects.push(tmp_path / "run", url)
        assert again["is_new"] is False and again["sent_pieces"] == 0


def test_a_pull_of_a_run_that_dies_is_no_run_and_goes_on(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "back"
    with Run(tmp_path / "run") as trained:
        trained.commit(1)
        objects.push(tmp_path / "run", url)
        with monkeypatch.context() as patched:
            count = dying(patched, 10**9)
            objects.pull(url, tmp_path / "whole")
        for last in (8, 9):
            with monkeypatch.context() as patched:
                dying(patched, last)
                with pytest.raises(DiedError):
                    objects.pull(url, place, in_flight=1)
            with pytest.raises(MisuseError, match="embedrock pull into it goes on"):
                objects.push(place, f"{url}-2")
        done = objects.pull(url, place)
        assert 0 < done["received_bytes"] < done["bytes"]
        assert contents_of(place) == trained.then[1] and not (place / "unfinished-pull").exists()
        with pytest.raises(MisuseError, match="expected a new or empty folder"):
            objects.pull(url, place)
        # A newer push came while one was cut off: what is whole of the older one is none then.
        shutil.rmtree(place)
        with monkeypatch.context() as patched:
            dying(patched, count[0])
            with pytest.raises(DiedError):
                objects.pull(url, place, in_flight=1)
        assert (place / "unfinished-pull").read_text().endswith("\nbuckets-0000-0511\n")
        trained.commit(2)
        objects.push(tmp_path / "run", url)
        assert objects.pull(url, place)["step"] == 2
        assert contents_of(place) == trained.then[2]


def test_stores_of_one_push_live_or_die_together(
    tmp_path: Path, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(tmp_path / "run") as trained:
        for step in (1, 2, 3):
            trained.commit(step)
            objects.push(tmp_path / "run", url)
        # One that was cut off between the stores has one more of the first.
        trained.commit(4)
        with monkeypatch.context() as patched:
            before = Remote.create

            def create(self: Remote, name: str, content: bytes) -> None:
                if "buckets-0512" in self.url:
                    raise DiedError
                before(self, name, content)

            patched.setattr(Remote, "create", create)
            with pytest.raises(DiedError):
                objects.push(tmp_path / "run", url)
        (folder / "notes#7").write_text("not ours")
        done = objects.prune(url, 2, alone=True)
        assert (done["pruned"], done["kept"], done["missing"]) == (1, 2, [])
        assert done["removed_pieces"] > 0 and (folder / "notes#7").exists()
        with pytest.raises(NotFoundError, match="push 1 was pruned"):
            objects.pull(url, tmp_path / "one", number=1)
        for number in (2, 3):
            objects.pull(url, tmp_path / f"{number}", number=number)
            assert contents_of(tmp_path / f"{number}") == trained.then[number]
        # It goes on: what the first store has is used, and not sent again.
        fourth = objects.push(tmp_path / "run", url)
        assert fourth["stores"] == {"buckets-0000-0511": 4, "buckets-0512-1023": 4}
        objects.prune(url, 1, alone=True)
        assert [push["number"] for push in objects.list(url)] == [4]
        objects.pull(url, tmp_path / "four")
        assert contents_of(tmp_path / "four") == trained.then[4]
    kept = {name for name in objects_in(folder) if name.startswith("buckets-")}
    assert len([name for name in kept if "/pieces/" in name]) > 0
    assert not [name for name in kept if "/pushes/" in name]


# --- several machines ----------------------------------------------------------------------------


def test_each_machine_pushes_its_own_stores_at_one_step(tmp_path: Path, url: str) -> None:
    with Run(tmp_path / "run") as trained:
        trained.commit(1, pin="keep")
        for step in (2, 3, 4):
            trained.commit(step)
    first, second = tmp_path / "first", tmp_path / "second"
    for place, name in ((first, "buckets-0000-0511"), (second, "buckets-0512-1023")):
        shutil.copytree(tmp_path / "run" / name, place / name)
    with pytest.raises(MisuseError, match=r"none of the buckets 512-1023.*pin=NAME.*step=NAME"):
        objects.push(first, url)
    done = objects.push(first, url, step="keep")
    assert (done["number"], done["waiting_for"]) == (None, ["512-1023"])
    assert objects.list(url) == []
    with pytest.raises(NotFoundError, match="never all of one commit"):
        objects.pull(url, tmp_path / "back")
    assert objects.push(first, url, step=4)["waiting_for"] == ["512-1023"]
    done = objects.push(second, url, step="keep")
    assert (done["number"], done["step"], done["waiting_for"]) == (1, 1, [])
    assert objects.push(first, url, step="keep")["is_new"] is False
    assert objects.push(second, url, step=4)["number"] == 2
    for number, step in ((1, 1), (2, 4)):
        place = tmp_path / f"pulled {number}"
        objects.pull(url, place, number=number)
        assert contents_of(place) == trained.then[step]
    objects.pull(url, tmp_path / "half", stores=["buckets-0512-1023"])
    name = "buckets-0512-1023"
    assert contents_of(tmp_path / "half") == {name: trained.then[4][name]}
    with pytest.raises(MisuseError, match="expected some of buckets-0000-0511"):
        objects.pull(url, tmp_path / "none", stores=["buckets-0000-0341"])


@pytest.mark.long
def test_what_one_machine_pushed_before_a_later_push_was_made_is_pushed_again(
    tmp_path: Path, url: str
) -> None:
    # A prune may take it just then, so a run's manifest names none older than the last one's.
    with Run(tmp_path / "run") as trained:
        trained.commit(1, pin="keep")
        trained.commit(2)
        first, second = tmp_path / "first", tmp_path / "second"
        for place, name in ((first, "buckets-0000-0511"), (second, "buckets-0512-1023")):
            shutil.copytree(tmp_path / "run" / name, place / name)
        objects.push(first, url, step="keep")
        objects.push(tmp_path / "run", url)
        assert objects.push(second, url, step="keep")["waiting_for"] == ["0-511"]
        assert objects.push(first, url, step="keep")["number"] == 2
    objects.pull(url, tmp_path / "back", step=1)
    assert contents_of(tmp_path / "back") == trained.then[1]


# --- what is refused -----------------------------------------------------------------------------


def test_what_is_not_one_run_is_refused_with_a_way_out(
    tmp_path: Path, url: str, folder: Path
) -> None:
    def refused(kind: type[Exception], match: str, call: Callable[[], Any]) -> None:
        with pytest.raises(kind, match=match):
            call()

    path = tmp_path / "run"
    with Run(path) as trained, Run(tmp_path / "other", name="another") as other:
        trained.commit(1)
        other.commit(1)
        objects.push(path, url)
        refused(MismatchError, "run 'a run' of 2 ranks", lambda: objects.push(other.path, url))
        one = path / "buckets-0000-0511"
        refused(MismatchError, "pushes of a run of ranks", lambda: objects.push(one, url))
        objects.push(one, f"{url}-one")
        refused(MismatchError, "of a single store", lambda: objects.push(path, f"{url}-one"))
        for of in (path, one):
            for place in (path.as_uri(), one.as_uri()):
                with pytest.raises(MisuseError, match="is the folder of a store"):
                    objects.push(of, place)
        refused(MisuseError, "cold", lambda: objects.push(path, url, cold_directory=tmp_path))
        refused(NotFoundError, "steps", lambda: objects.pull(url, tmp_path / "t", step=9))
        refused(
            NotFoundError,
            "it has push 1 of step 1 ",
            lambda: objects.pull(url, tmp_path / "t", number=9),
        )
        assert not (tmp_path / "t").exists()
        # Commits of one step that were not made together.
        trained.commit(2, of=slice(1))
        trained.commit(2, of=slice(1, 2))
        refused(MismatchError, "are of two commits", lambda: objects.push(path, url, step=2))
        refused(MismatchError, "with step=", lambda: objects.push(path, url))
        assert objects.push(path, url, step=1)["is_new"] is False
        next(iter(trained.stores.values())).commit(3, None, {"dense": b"by itself"})
        refused(MismatchError, "does not say which buckets", lambda: objects.push(path, url))
    (folder / "buckets-0512-1023" / "manifests" / "0000000001.json").unlink()
    refused(
        CorruptError, "which push 1 of the run needs", lambda: objects.pull(url, tmp_path / "t")
    )


def test_the_command_line_backs_up_a_run(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run")
    with Run(tmp_path / "run") as trained:
        trained.commit(1, pin="keep")
        trained.commit(2)
        assert cli.main(["push", path, url]) == 0
        assert "push 1, commit at step 2, 2 stores" in capsys.readouterr().out
        trained.commit(3)
        assert cli.main(["push", path, url, "--keep", "1"]) == 0
        assert "\n1 push pruned, " in capsys.readouterr().out
        assert cli.main(["pull", url, "--list"]) == 0
        assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["2", "3"]
    assert cli.main(["pull", url, str(tmp_path / "back")]) == 0
    assert "push 2, commit at step 3, 2 stores, " in capsys.readouterr().out
    assert contents_of(tmp_path / "back") == trained.then[3]
    shutil.move(tmp_path / "run" / "buckets-0512-1023", tmp_path / "far")
    assert cli.main(["push", path, url, "--step", "keep"]) == 0
    assert "no push yet: the stores of the buckets 512-1023" in capsys.readouterr().out
    assert cli.main(["pull", url, str(tmp_path / "t"), "--number", "77"]) == 2
    assert "no push 77; it has push 2 of step 3 (embedrock pull --list" in capsys.readouterr().err
    for command in ("info", "check", "serve"):
        assert cli.main([command, str(tmp_path / "back")]) == 2
        said = capsys.readouterr().err
        assert "has the stores of 2 ranks: buckets-0000-0511, buckets-0512-1023; give" in said


# --- ranks ---------------------------------------------------------------------------------------


def train_push_and_resume(rank: int, world: int, path: Path, url: str) -> None:
    """Two real ranks: one pushes all of the run, all open what is pulled, and go on like it."""

    def step_of(shard: Any, step: int) -> Any:
        table = shard.table("items", 8, 5000, optimizer="adagrad")
        draw = np.random.default_rng([step, shard.rank])
        ids = draw.integers(0, 5000, 100)
        table.update(ids, draw.normal(size=(100, 8)).astype(np.float32), lr=0.1)
        return table

    with open_ranks(path / "run", "4MiB") as shard:
        for step in range(1, 6):
            table = step_of(shard, step)
            shard.commit(step, pin="best" if step == 2 else None)
            if step == 2:
                best = table.local.digest()
        shard.pin(5, "last")
        assert shard.pins() == {"best": 2, "last": 5}
        with pytest.raises(NotFoundError, match="no commit of step 3"):
            shard.pin(3, "gone")
        with pytest.raises(MisuseError, match="all ranks give the same"):
            shard.pin(5, f"of rank {rank}")
        if rank == 0:
            for step in ("best", None):
                assert objects.push(path / "run", url, step=step)["ranks"] == world
            objects.pull(url, path / "back", step=2)
            objects.pull(url, path / "last")
        step_of(shard, 6)
        shard.unpin("best")
        shard.unpin("last")
        with pytest.raises(NotFoundError):
            shard.unpin("last")
        assert shard.pins() == {}
        digest = table.local.digest()
    with open_ranks(path / "back", "4MiB", create=False) as shard:
        assert shard.step == 2 and shard.table("items").local.digest() == best
    with open_ranks(path / "last", "4MiB", create=False) as shard:
        assert shard.step == 5
        assert step_of(shard, 6).local.digest() == digest
        shard.commit(6)


@pytest.mark.long
def test_a_run_of_real_ranks_is_resumed_from_object_storage(tmp_path: Path, url: str) -> None:
    run(2, train_push_and_resume, tmp_path, url)
