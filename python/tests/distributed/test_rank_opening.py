"""Stores of ranks are opened together: each at its buckets of one run, or refused on all ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock.distributed import binding, reshard  # noqa: E402
from embedrock.distributed.binding import Run, runs_of  # noqa: E402
from embedrock.distributed.opening import _Opening  # noqa: E402
from embedrock.errors import MismatchError, MisuseError  # noqa: E402
from ranks import run  # noqa: E402
from rankstores import (  # noqa: E402
    IDS,
    MEMORY,
    opened,
    refused,
    step_of,
    steps_of_manifests,
    tables_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::embedrock.PartWarning")  # one rank's is looked at


def two_ranks(rank: int, world: int, folder: Path) -> None:
    """All checks of two ranks in one start, each in a folder of its own."""
    with opened(folder / "run", run="mine") as shard:
        for step in (1, 2, 3):
            step_of(shard, step)
            shard.commit(step)
    trap_11_ranks_get_other_numbers(rank, folder / "run")
    trap_12_a_store_of_another_run(rank, folder)
    stores_that_do_not_fit(rank, folder)
    a_copy_of_another_history(rank, folder / "parted")
    a_table_that_one_store_has(rank, folder / "tables")
    stores_without_their_binding(rank, folder / "plain-shards")
    del world


def trap_11_ranks_get_other_numbers(rank: int, path: Path) -> None:
    """A store is bound to its buckets, whatever its rank is called after a restart."""
    alone = path.parent / f"disk-of-{1 - rank}"
    if rank == 0:  # each machine has a disk, and ranks come up on the other one
        for place, run in enumerate(runs_of(2)):
            disk = path.parent / f"disk-of-{place}"
            disk.mkdir()
            for manifest in path.glob("manifest-*.json") if place == 0 else ():
                shutil.copy(manifest, disk)
            shutil.copytree(path / run.folder, disk / run.folder)
    torch.distributed.barrier()
    with opened(alone) as shard:
        assert shard.path.name == runs_of(2)[1 - rank].folder
        assert shard.owners[0] == 1 and shard.owners[1023] == 0
        step_of(shard, 4)
        shard.commit(4)
    # Those of commits that are gone do not stay beside the store that was rank 0's.
    torch.distributed.barrier()
    assert steps_of_manifests(alone) == ([3] if rank == 1 else [4])
    other: list[Any] = [None, None]
    with opened(path) as shard:
        step_of(shard, 4)
        digests = {name: table.local.digest() for name, table in tables_of(shard).items()}
        shard.commit(4)
    with embedrock.open(alone / runs_of(2)[1 - rank].folder, MEMORY, read_only=True) as store:
        there = {name: table.digest() for name, table in store.tables.items()}
    torch.distributed.all_gather_object(other, digests)
    assert there == other[1 - rank], "the same steps, whoever has the store"


def trap_12_a_store_of_another_run(rank: int, folder: Path) -> None:
    """One that is left over has the same step, and is told by its run."""
    with opened(folder / "leftover") as shard:
        for step in range(1, 5):
            step_of(shard, step)
            shard.commit(step)
    if rank == 0:
        mixed, name = folder / "mixed", runs_of(2)[1].folder
        mixed.mkdir()
        shutil.copytree(folder / "run" / runs_of(2)[0].folder, mixed / runs_of(2)[0].folder)
        shutil.copytree(folder / "leftover" / name, mixed / name)
    torch.distributed.barrier()
    with refused(MismatchError, "'mine'", "rank 0", "rank 1", "whatever their steps"):
        opened(folder / "mixed")


def stores_that_do_not_fit(rank: int, folder: Path) -> None:
    runs = runs_of(2)
    if rank == 0:
        for name, source, wanted in (
            ("gap", runs[0].folder, ["buckets-0000-0500"]),
            ("twice", runs[0].folder, ["buckets-0000-0600", "buckets-0500-1023"]),
            ("half", runs[0].folder, [runs[0].folder]),
            ("renamed", runs[0].folder, [runs[0].folder, runs[1].folder]),
        ):
            for each in wanted:
                shutil.copytree(folder / "run" / source, folder / name / each)
        plain = folder / "plain"
        plain.mkdir()
        for run in runs:
            with embedrock.open(plain / run.folder, MEMORY) as store:
                store.commit(1)
        (folder / "cut").mkdir()
        (folder / "cut" / binding.UNFINISHED).write_text("{}")
    torch.distributed.barrier()
    with refused(MismatchError, "no store has the buckets 501-1023"):
        opened(folder / "gap")
    with refused(MismatchError, "several stores have the buckets 500-600"):
        opened(folder / "twice")
    with refused(MismatchError, "rank 0", "has commits", "rank 1", "512-1023", "from a copy"):
        opened(folder / "half")
    assert not (folder / "half" / runs[1].folder).exists(), "nothing was made"
    with refused(MismatchError, "0-511 by its commit", "buckets-0000-0511"):
        opened(folder / "renamed")
    with refused(MismatchError, "no store of ranks"):
        opened(folder / "plain")
    with refused(MismatchError, "is not whole", "embedrock reshard"):
        opened(folder / "cut")
    with refused(MismatchError, "seed"):
        opened(folder / "seeds", seed=rank)


def a_copy_of_another_history(rank: int, path: Path) -> None:
    """A store that was copied before the run went back has commits of the same steps as now."""
    with opened(path) as shard:
        for step in (1, 2, 3):
            step_of(shard, step)
            shard.commit(step)
        place = shard.path
    if rank == 1:
        shutil.copytree(place, path / "copy")
    with opened(path, step=2) as shard:
        step_of(shard, 30)
        shard.commit(3)
    if rank == 1:
        shutil.rmtree(place)
        (path / "copy").rename(place)
    torch.distributed.barrier()
    with refused(MismatchError, "step 3", "two commits", "rank 1", "step="):
        opened(path)
    torch.distributed.barrier()
    if rank == 0:
        with refused(MismatchError, "step 3", "two commits", "step="):
            reshard(path, path.parent / "parted-3", 3, memory=MEMORY)
    torch.distributed.barrier()
    with opened(path, step=2) as shard:
        assert shard.step == 2


def a_table_that_one_store_has(rank: int, path: Path) -> None:
    """Rank 1 has made one by itself: rows of it are nowhere on rank 0."""
    with opened(path) as shard:
        step_of(shard, 1)
        if rank == 1:
            shard.store.table("own", 4)
        shard.commit(1)
    with refused(MismatchError, "table 'own' is not there on rank 0", "the same tables"):
        opened(path)
    torch.distributed.barrier()
    if rank == 0:
        with refused(MismatchError, "have tables that differ"):
            reshard(path, path.parent / "tables-3", 3, memory=MEMORY)


def stores_without_their_binding(rank: int, path: Path) -> None:
    """Errors that `Shard` alone cannot know are found from the content of the stores."""
    path.mkdir(exist_ok=True)
    with opened(path / "bound") as shard:
        step_of(shard, 1)
        shard.commit(1)
        place = shard.path
    with (
        embedrock.open(place, MEMORY) as store,
        refused(MisuseError, "bound to buckets", "embedrock.distributed.open"),
    ):
        embedrock.distributed.Shard(store)
    mine = path / f"rank-{rank}.store"
    with embedrock.open(mine, MEMORY) as store:
        step_of(embedrock.distributed.Shard(store), 1)
        store.commit(1)
    torch.distributed.barrier()
    with embedrock.open(path / f"rank-{1 - rank}.store", MEMORY) as store:
        shard = embedrock.distributed.Shard(store)
        for name in ("dense", "grow", "half"):
            with refused(MismatchError, "other ranks' buckets", "embedrock.distributed.open"):
                shard.table(name)
    torch.distributed.barrier()
    with embedrock.open(mine, MEMORY) as store:
        tables_of(embedrock.distributed.Shard(store))


def of_three_ranks(rank: int, world: int, folder: Path) -> None:
    """Stores that two ranks have made, without a binding, given to three."""
    with embedrock.open(folder / "plain-shards" / f"rank-{rank}.store", MEMORY) as store:
        shard = embedrock.distributed.Shard(store)
        for name in ("dense", "grow", "half"):
            with refused(MismatchError, "another number of ranks", "embedrock reshard"):
                shard.table(name, 4, IDS if name != "grow" else None)
    del world


def refuse_other_numbers(rank: int, world: int, folder: Path) -> None:
    for path in (folder / "run", folder / "leftover"):
        with refused(MismatchError, "2 ranks", f"there are {world}", "embedrock reshard"):
            opened(path)
    del rank


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder left by two ranks, in one start of both."""
    made = tmp_path_factory.mktemp("ranks")
    run(2, two_ranks, made)
    return made


def test_a_store_goes_to_a_rank_that_can_reach_it() -> None:
    """The rank in the order of buckets first, unless a store would be left without one."""
    first, second, third = runs_of(3)
    everything = {first, second, third}

    def assigned(*visible: set[Run]) -> list[Run]:
        opening = object.__new__(_Opening)
        return opening._assigned(runs_of(3), everything, visible)

    assert assigned(everything, everything, everything) == [first, second, third]
    assert assigned({second}, {first, third}, {first}) == [second, third, first]
    assert assigned(everything, {first, second}, {first}) == [third, second, first]


def test_two_ranks_open_their_stores_or_are_refused_together(folder: Path) -> None:
    """Traps 11 and 12, in `two_ranks`."""
    assert steps_of_manifests(folder / "run") == [3, 4]


def test_other_numbers_of_ranks_are_told_of_reshard(folder: Path) -> None:
    run(3, refuse_other_numbers, folder)
    run(3, of_three_ranks, folder)
