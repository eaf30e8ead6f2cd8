"""Commits of ranks: every store at the same step, or an error on every rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import embedrock
from embedrock.distributed import binding
from embedrock.distributed import commits as distributed_commits
from embedrock.distributed.binding import Run, runs_of, wrong_with
from embedrock.errors import (
    FullError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from ranks import run
from rankstores import (
    IDS,
    MEMORY,
    opened,
    refused,
    step_of,
    steps_of_manifests,
    tables_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::embedrock.PartWarning")  # one rank's is looked at


def test_runs_of_buckets_are_contiguous_and_leave_none_out() -> None:
    assert runs_of(1) == [Run(0, 1023)]
    assert runs_of(3) == [Run(0, 341), Run(342, 682), Run(683, 1023)]
    for world in (1, 2, 3, 7, 1000, 1024):
        assert wrong_with(runs_of(world)) is None
        assert sorted(map(len, runs_of(world)))[-1] == -(-1024 // world)
    assert wrong_with([Run(0, 5), Run(4, 900)]) == (
        "no store has the buckets 901-1023 and several stores have the buckets 4-5"
    )
    assert wrong_with([Run(0, 900), Run(4, 5), Run(901, 1023)]) == (
        "several stores have the buckets 4-5"
    )
    assert Run(0, 5).with_(Run(5, 9)) == Run(5, 5) and Run(0, 4).with_(Run(5, 9)) is None


def two_ranks(rank: int, world: int, folder: Path) -> None:
    """All checks of two ranks in one start, each in a folder of its own."""
    a_new_run(rank, folder / "run")
    what_commits_refuse(rank, folder / "run")
    a_disk_that_is_full(rank, folder / "full")
    a_step_that_one_rank_made(rank, folder / "half-made")
    a_stale_commit(rank, folder / "stale")
    a_manifest_that_has_no_room(rank, folder / "no-manifest")
    a_commit_of_one_store(rank, folder / "own")
    del world


def a_new_run(rank: int, path: Path) -> None:
    with refused(NotFoundError, "no store with a commit"):
        opened(path, create=False)
    with opened(path, run="mine") as shard:
        assert (shard.step, shard.run, shard.path) == (None, "mine", path / runs_of(2)[rank].folder)
        step_of(shard, 1)
        commit = shard.commit(1, {"rank": rank}, {"own": bytes([rank])})
        assert (commit.step, shard.step, shard.meta) == (1, 1, {"rank": rank})
        assert shard.state() == {"own": bytes([rank])}
        step_of(shard, 2)
        shard.commit(2)
        bound = binding.binding_of(shard.store.state(), shard.path)
    manifest = json.loads((path / "manifest-000000000002.json").read_text())
    assert (manifest["run"], manifest["step"], manifest["world"]) == ("mine", 2, 2)
    assert manifest["buckets"] == ["0-511", "512-1023"]
    assert (manifest["token"], manifest["tables"]) == (bound.token, bound.tables)
    assert len(bound.tables) == 3


def what_commits_refuse(rank: int, path: Path) -> None:
    with opened(path) as shard:
        assert (shard.step, shard.run) == (2, "mine")
        with refused(UnsupportedError, "wait=True"):
            shard.commit(3, wait=False)
        with refused(MisuseError, "step is 2", "of step 2"):
            shard.commit(2)
        with refused(MisuseError, "3 on rank 0, 4 on rank 1"):
            shard.commit(3 + rank)
        # One rank alone gives what no commit takes: all are told.
        with refused(MisuseError, "rank 1" if rank == 0 else "state"):
            shard.commit(3, None, {"own": "text"} if rank == 1 else None)
        with refused(MisuseError, "rank 1" if rank == 0 else "meta"):
            shard.commit(3, {"own": object()} if rank == 1 else None)
        step_of(shard, 3)
        shard.commit(3)
        with refused(NotFoundError, "step 1"):
            shard.go_back(1)
        with refused(MisuseError, "2 on rank 0, 3 on rank 1"):
            shard.go_back(2 + rank)
        assert shard.go_back(2).step == 2
        assert [commit.step for commit in shard.commits()] == [2, 2]
        assert steps_of_manifests(path) == [2]
        step_of(shard, 3)
        shard.commit(3)
    with refused(MisuseError, "keep is 1"):
        opened(path, keep=1)
    with refused(MismatchError, "run is 'other'", "'mine'"):
        opened(path, run="other")
    with refused(MismatchError, "step= is 2 on rank 0", "None on rank 1"):
        opened(path, step=2 if rank == 0 else None)
    with refused(MismatchError, "run= is None on rank 0", "'mine' on rank 1"):
        opened(path, run="mine" if rank else None)
    with refused(MismatchError, "create= is True on rank 0", "False on rank 1"):
        opened(path.parent / "nowhere", create=rank == 0)
    assert not (path.parent / "nowhere").exists()
    with opened(path) as shard:
        assert [commit.step for commit in shard.commits()] == [2, 3], "nothing was dropped"


def a_disk_that_is_full(rank: int, path: Path) -> None:
    """Rank 1's commit fails: all raise its error, and go on from the commit before."""
    with opened(path) as shard:
        step_of(shard, 1)
        shard.commit(1)
        step_of(shard, 2)
        commit = shard.store.commit
        if rank == 1:

            def full(*_: Any, **__: Any) -> None:
                raise FullError("no room on disk")

            shard.store.commit = full
        with refused(FullError, "rank 1", "no room on disk"):
            shard.commit(2)
        shard.store.commit = commit
        assert shard.store.step == (2 if rank == 0 else 1)
        assert steps_of_manifests(path) == [1], "one is of a commit that all have"
        with refused(embedrock.errors.PoisonedError, "commit of step 2 failed", "go back"):
            shard.commit(3)
        assert shard.go_back(1).step == 1
        step_of(shard, 2)
        go_back = shard.store.go_back
        if rank == 1:
            shard.store.go_back = full
        with refused(FullError, "rank 1", "no room on disk"):
            shard.go_back(1)
        shard.store.go_back = go_back
        # Rank 0 is at step 1, rank 1 behind its changes: no commit is of both.
        with refused(embedrock.errors.PoisonedError, "going back to step 1 failed", "go back"):
            shard.commit(2)
        assert shard.go_back(1).step == 1
        step_of(shard, 2)
        shard.commit(2)


def a_step_that_one_rank_made(rank: int, path: Path) -> None:
    """Rank 1 has no room for an update or a put that rank 0 makes: neither is ever committed."""
    with opened(path) as shard:
        step_of(shard, 1)
        shard.commit(1)
        table = tables_of(shard)["dense"]
        keys = np.arange(0, IDS, 7)

        def full(*_: Any, **__: Any) -> None:
            raise FullError("no room for rows")

        def put() -> None:
            table.put(keys, np.ones((len(keys), 4), np.float32))

        for change, owner, verb in (
            (lambda: step_of(shard, 2), shard.store, "_update"),
            (put, embedrock.Table, "put"),
        ):
            made = getattr(owner, verb)
            if rank == 1:
                setattr(owner, verb, full)
            with refused(FullError, "rank 1", "no room for rows", "go back"):
                change()
            setattr(owner, verb, made)
            with refused(embedrock.errors.PoisonedError, "by some ranks", "go back"):
                shard.commit(2)
            assert shard.go_back(1).step == 1
        step_of(shard, 2)
        shard.commit(2)


def a_stale_commit(rank: int, path: Path) -> None:
    """A commit that one rank alone has is dropped before another of its step is made."""
    with opened(path) as shard:
        step_of(shard, 1)
        shard.commit(1)
        step_of(shard, 2)
        if rank == 0:  # as if rank 1 had died before its own
            bound = shard._binding.now(shard.store, "mine")
            shard.store.commit(2, None, {binding.NAME: bound.encoded(2)})
        shard.store.go_back(1) if rank == 1 else None
    with opened(path) as shard:
        assert shard.step == 1
    with embedrock.open(shard.path, MEMORY, read_only=True) as store:
        assert {commit.step for commit in store.commits()} <= {0, 1}
    with refused(NotFoundError, "step 2", "rank 0"):
        opened(path, step=2)


def a_manifest_that_has_no_room(rank: int, path: Path) -> None:
    """The commit is made all the same, and the next one goes on from it."""
    written = distributed_commits.write_manifest

    def full(*_: Any) -> None:
        raise FullError("no room for the manifest")

    with opened(path) as shard:
        step_of(shard, 1)
        shard.commit(1)
        step_of(shard, 2)
        distributed_commits.write_manifest = full
        with pytest.warns(UserWarning, match="step 2 is made.*rank 0: no room for the manifest"):
            assert shard.commit(2).step == 2
        distributed_commits.write_manifest = written
    with opened(path, step=1) as shard:
        assert shard.step == 1 and steps_of_manifests(path) == [1]
        step_of(shard, 2)
        shard.commit(2)
        assert steps_of_manifests(path) == [1, 2]
    with opened(path, step=1):
        assert steps_of_manifests(path) == [1]
    del rank


def a_commit_of_one_store(rank: int, path: Path) -> None:
    """A commit that one rank's store alone would have is refused, and left behind where it is."""
    with opened(path) as shard:
        step_of(shard, 1)
        shard.commit(1)
        with refused(MisuseError, "of one rank", "of the shard"):
            shard.store.commit(2)
        place = shard.path
    with embedrock.open(place, MEMORY) as store:
        store.commit(2)
    with refused(MismatchError, "which buckets it has", "with step=, of 1"):
        opened(path)
    with opened(path, step=1) as shard:
        assert shard.step == 1
    with opened(path) as shard:
        assert shard.step == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder left by two ranks, in one start of both."""
    made = tmp_path_factory.mktemp("ranks")
    run(2, two_ranks, made)
    return made


def test_two_ranks_commit_and_go_back_together(folder: Path) -> None:
    """Trap 10, in `two_ranks`."""
    assert steps_of_manifests(folder / "run") == [2, 3]
