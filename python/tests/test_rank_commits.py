"""Stores of ranks: opened together, bound to their run and buckets, committed as one, made anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock.cli import main  # noqa: E402
from embedrock.distributed import binding, reshard  # noqa: E402
from embedrock.distributed import commits as distributed_commits  # noqa: E402
from embedrock.distributed import open as open_ranks  # noqa: E402
from embedrock.distributed.binding import Run, runs_of, wrong_with  # noqa: E402
from embedrock.errors import (  # noqa: E402
    CorruptError,
    FullError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.remote.nodes import buckets_of  # noqa: E402
from ranks import run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::embedrock.PartWarning")  # one rank's is looked at

IDS = 3000
MEMORY = "2MiB"


def opened(path: Path, **options: Any) -> Any:
    """A shard whose steps are the same for any number of ranks."""
    return open_ranks(path, MEMORY, shard={"reduction": "sum"}, **{"seed": 5, **options})


def step_of(shard: Any, step: int) -> None:
    """One step of training that all ranks make together, whatever their number."""
    shared = np.random.default_rng(step)
    keys = shared.integers(0, IDS, 120).astype(np.int64)
    gradients = shared.standard_normal((120, 4)).astype(np.float32)
    mine = slice(shard.rank, None, shard.world)
    tables = tables_of(shard)
    for name, table in tables.items():
        wide = keys * (1 << 33) if name == "grow" else keys
        table.update(wide[mine], gradients[mine], lr=0.1)


def tables_of(shard: Any) -> dict[str, Any]:
    return {
        "dense": shard.table("dense", 4, IDS, optimizer="adagrad"),
        "grow": shard.table("grow", 4, optimizer="adagrad", expected_rows=IDS),
        "half": shard.table("half", 4, IDS, dtype="float16", optimizer="adam", storage="lsm"),
    }


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """An error of that kind, on this rank as on all, which says these words."""
    with pytest.raises(kind) as caught:
        yield
    for word in words:
        assert word in str(caught.value), caught.value


def all_rows(folder: Path) -> dict[str, dict[int, bytes]]:
    """Every row of all stores of a folder with its state, by table and key, and counts of steps."""
    found: dict[str, dict[int, bytes]] = {}
    for store_folder in sorted(folder.glob("buckets-*")):
        with embedrock.open(store_folder, MEMORY, read_only=True) as store:
            run = binding.binding_of(store.state(), store_folder).buckets
            for name, table in store.tables.items():
                rows = found.setdefault(name, {})
                for keys, values, state in table.items(state=True):
                    buckets = buckets_of(keys, dense=table.num_embeddings is not None)
                    assert ((buckets >= run.first) & (buckets <= run.last)).all()
                    for key, row, words in zip(keys.tolist(), values, state, strict=True):
                        assert key not in rows, f"{name} has {key} in two stores"
                        rows[key] = row.tobytes() + words.tobytes()
    return found


def test_runs_of_buckets_are_contiguous_and_leave_none_out() -> None:
    assert runs_of(1) == [Run(0, 1023)]
    assert runs_of(3) == [Run(0, 341), Run(342, 682), Run(683, 1023)]
    for world in (1, 2, 3, 7, 1000, 1024):
        assert wrong_with(runs_of(world)) is None
        assert sorted(map(len, runs_of(world)))[-1] == -(-1024 // world)
    assert wrong_with([Run(0, 5), Run(4, 900)]) == (
        "no store has the buckets 901-1023 and several stores have the buckets 4-5"
    )


def lives_of_two(rank: int, world: int, folder: Path) -> None:
    """What two ranks do in one start, each part in a folder of its own."""
    a_new_run(rank, folder / "run")
    what_commits_refuse(rank, folder / "run")
    trap_11_ranks_get_other_numbers(rank, folder / "run")
    trap_12_a_store_of_another_run(rank, folder)
    stores_that_do_not_fit(rank, folder)
    a_disk_that_is_full(rank, folder / "full")
    a_step_that_one_rank_made(rank, folder / "half-made")
    a_stale_commit(rank, folder / "stale")
    a_copy_of_another_history(rank, folder / "parted")
    a_manifest_that_has_no_room(rank, folder / "no-manifest")
    stores_without_their_binding(rank, folder / "plain-shards")
    a_commit_of_one_store(rank, folder / "own")
    a_save_with_a_loader(rank, folder / "loader")
    with opened(folder / "divide") as shard:
        for step in range(1, 4):
            step_of(shard, step)
        shard.commit(3, {"note": 1}, {"dense": b"weights", "random": bytes([rank])})
    del world


def steps_of_manifests(path: Path) -> list[int]:
    return [int(file.stem.split("-")[1]) for file in sorted(path.glob("manifest-*.json"))]


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
        step_of(shard, 3)
        shard.commit(3)
        with refused(NotFoundError, "step 1"):
            shard.go_back(1)
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


def stores_without_their_binding(rank: int, path: Path) -> None:
    """What `Shard` alone cannot know is refused by what the stores hold."""
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


class Loader:
    """A loader that tells how far it is, of one rank."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def parts_of(shard: Any) -> tuple[Any, Any, Loader]:
    torch.manual_seed(1)
    model = torch.nn.ModuleDict(
        {
            "bag": embedrock.nn.EmbeddingBag(IDS, 4, store=shard, name="dense", optimizer="sgd"),
            "top": torch.nn.Linear(4, 1),
        }
    )
    return model, torch.optim.Adam(model["top"].parameters(), lr=0.1), Loader()


def a_save_with_a_loader(rank: int, path: Path) -> None:
    with opened(path) as shard:
        model, dense, loader = parts_of(shard)
        rows = embedrock.optim.SGD(model, lr=0.1)
        assert embedrock.resume(shard, model, [rows, dense], loader=loader) == 0
        model["top"](model["bag"](torch.arange(rank, 40).reshape(-1, 1))).sum().backward()
        for parameter in model["top"].parameters():  # as DistributedDataParallel does
            torch.distributed.all_reduce(parameter.grad)
        rows.step()
        dense.step()
        loader.done = 7 + rank
        # What one rank cannot save, all are told, and none waits.
        with refused(MisuseError, "rank 1" if rank == 0 else "extra"):
            embedrock.save(
                shard, model, [rows, dense], 1, loader=loader, extra={"x": object} if rank else None
            )
        embedrock.save(shard, model, [rows, dense], 1, loader=loader)
        random = torch.rand(1)
    with opened(path) as shard:
        again, dense, loader = parts_of(shard)
        rows = embedrock.optim.SGD(again, lr=0.1)
        assert embedrock.resume(shard, again, [rows, dense], loader=loader) == 1
        assert loader.done == 7 + rank and torch.equal(torch.rand(1), random)
        assert torch.equal(again["top"].weight, model["top"].weight)


def trap_13_resumed_by_others(rank: int, world: int, folder: Path) -> None:
    """Dense state is any rank's; generators and the loader's position are nobody's."""
    with opened(folder / "loader-3") as shard:
        model, dense, loader = parts_of(shard)
        rows, before = embedrock.optim.SGD(model, lr=0.1), torch.get_rng_state()
        weight = model["top"].weight.clone()
        with pytest.warns(UserWarning, match="of 2 ranks.*loader begins its epoch anew"):
            assert embedrock.resume(shard, model, [rows, dense], loader=loader) == 1
        assert loader.done == 0 and torch.equal(torch.get_rng_state(), before)
        assert not torch.equal(model["top"].weight, weight)
        assert dense.state_dict()["state"][0]["step"] == 1
        embedrock.save(shard, model, [rows, dense], 2, loader=loader)
    with opened(folder / "loader-3") as shard:
        model, dense, loader = parts_of(shard)
        rows = embedrock.optim.SGD(model, lr=0.1)
        assert embedrock.resume(shard, model, [rows, dense], loader=loader) == 2
    del rank, world


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
        with refused(embedrock.errors.PoisonedError, "commit of step 2 failed", "go back"):
            shard.commit(3)
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


def go_on(rank: int, world: int, folder: Path) -> None:
    """Two more steps on whatever ranks there are."""
    path = folder / f"divided-{world}" if world != 2 else folder / "divide"
    with opened(path) as shard:
        assert (shard.step, shard.meta) == (3, {"note": 1})
        moved = world != 2
        assert (shard._made_elsewhere() is not None) == moved
        for step in (4, 5):
            step_of(shard, step)
        shard.commit(5)
        assert shard._made_elsewhere() is None
    del rank


def refuse_other_numbers(rank: int, world: int, folder: Path) -> None:
    for path in (folder / "run", folder / "divide"):
        with refused(MismatchError, "2 ranks", f"there are {world}", "embedrock reshard"):
            opened(path)
    del rank


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have left, in one start of both."""
    made = tmp_path_factory.mktemp("ranks")
    run(2, lives_of_two, made)
    return made


def test_two_ranks_open_commit_and_refuse_together(folder: Path) -> None:
    """Traps 10, 11 and 12, in `lives_of_two`."""
    assert (folder / "divide" / "manifest-000000000003.json").exists()


def test_stores_are_divided_anew_with_every_bit_and_trained_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 -> 3 -> 1: rows, state and counts are kept, and what is trained afterwards is the same."""
    before = all_rows(folder / "divide")
    seen: list[tuple[int, int]] = []
    done = reshard(
        folder / "divide",
        folder / "divided-3",
        3,
        memory=MEMORY,
        progress=lambda rows, of: seen.append((rows, of)),
    )
    assert done["step"] == 3 and len(done["stores"]) == 3 and seen[-1][0] == seen[-1][1] > 0
    assert done["rows"] == sum(map(len, before.values()))
    assert all_rows(folder / "divided-3") == before
    again = folder / "divided-1"
    assert main(["reshard", str(folder / "divided-3"), str(again), "--ranks", "1"]) == 0
    said = capsys.readouterr().out
    assert f"\nrun {done['run']} at step 3 for 1 rank\n" in said, said
    assert main(["reshard", str(folder / "divided-3"), str(again), "--ranks", "1"]) == 0
    assert f"\ndone: run {done['run']} at step 3 for 1 rank\n" in capsys.readouterr().out
    assert all_rows(again) == before
    for world in (3, 1):
        run(world, go_on, folder)
    run(2, go_on, folder)
    trained = all_rows(folder / "divide")
    assert trained != before
    for name in ("dense", "grow"):
        for world in (1, 3):
            other = all_rows(folder / f"divided-{world}")[name]
            assert other.keys() == trained[name].keys()
            for key, row in other.items():
                ours = np.frombuffer(trained[name][key], np.float32)
                theirs = np.frombuffer(row, np.float32)
                np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
    with embedrock.open(again / "buckets-0000-1023", MEMORY, read_only=True) as store:
        counts = {table["spec"]["name"]: table["updates"] for table in store.stats()["tables"]}
    assert counts == {"dense": 5, "grow": 5, "half": 5}


def test_a_run_is_resumed_by_another_number_of_ranks(folder: Path) -> None:
    reshard(folder / "loader", folder / "loader-3", 3, memory=MEMORY)
    run(3, trap_13_resumed_by_others, folder)


def test_other_numbers_of_ranks_are_told_of_reshard(folder: Path) -> None:
    run(3, refuse_other_numbers, folder)
    run(3, of_three_ranks, folder)


def test_what_is_no_whole_run_is_not_divided(folder: Path, tmp_path: Path) -> None:
    def refuse(kind: type[Exception], old: Any, *words: str, ranks: int = 2) -> None:
        with refused(kind, *words):
            reshard(old, tmp_path / "new", ranks, memory=MEMORY)
        assert not (tmp_path / "new").exists()

    run, first = folder / "run", folder / "run" / "buckets-0000-0511"
    refuse(MismatchError, first, "no store has the buckets 512-1023", "2 ranks")
    refuse(MismatchError, [run, first], "several stores have the buckets 0-511")
    refuse(MismatchError, folder / "mixed", "'mine'", "of one run")
    refuse(NotFoundError, tmp_path, "no store of ranks")
    refuse(MisuseError, run, "at most one", ranks=1025)
    with refused(NotFoundError, "step 77", "buckets-0000-0511"):
        reshard(run, tmp_path / "new", 2, step=77, memory=MEMORY)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with refused(MisuseError, "not empty"):
        reshard(run, tmp_path / "full", 2, memory=MEMORY)


def test_a_reshard_that_was_cut_off_goes_on(folder: Path, tmp_path: Path) -> None:
    new, old = tmp_path / "new", folder / "run"

    def end_in_the_second(rows: int, of: int) -> None:
        if rows > of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard(old, new, 4, memory=MEMORY, progress=end_in_the_second)
    kept = [path.name for path in new.glob("buckets-*") if not (path / "unfinished-copy").exists()]
    assert 0 < len(kept) < 4 and (new / binding.UNFINISHED).exists()
    goes_on = f"embedrock reshard {old} {new} --ranks 4 --step "
    with refused(MisuseError, "another embedrock reshard", goes_on):
        reshard(old, new, 3, memory=MEMORY)
    with refused(MismatchError, "is not whole", goes_on):
        reshard(new, tmp_path / "other", 3, memory=MEMORY)
    times = {name: (new / name / "superblock").stat().st_mtime_ns for name in kept}
    reshard(old, new, 4, memory=MEMORY)
    assert {name: (new / name / "superblock").stat().st_mtime_ns for name in kept} == times
    assert all_rows(new) == all_rows(old) and not (new / binding.UNFINISHED).exists()
    files = {path: path.stat().st_mtime_ns for path in new.rglob("*") if path.is_file()}
    again = reshard(old, new, 4, memory=MEMORY)  # all of it is there
    assert not again["is_new"] and again["rows"] == sum(map(len, all_rows(new).values()))
    assert {p: p.stat().st_mtime_ns for p in new.rglob("*") if p.is_file()} == files
    with refused(MisuseError, "step", "is there", "was to be divided: give another folder"):
        reshard(folder / "divide", new, 4, memory=MEMORY)
    with refused(MisuseError, "is not empty"):
        reshard(old, new, 3, memory=MEMORY)


def test_rows_of_buckets_of_another_store_are_found(folder: Path, tmp_path: Path) -> None:
    """A row that somebody put into the wrong store is not lost in silence."""
    old = tmp_path / "old"
    shutil.copytree(folder / "divide", old)
    with embedrock.open(old / "buckets-0000-0511", MEMORY) as store:
        store.table("dense").put([1023], np.ones((1, 4), np.float32))
        store.commit(9, store.meta, store.state())
    with embedrock.open(old / "buckets-0512-1023", MEMORY) as store:
        store.commit(9, store.meta, store.state())
    with refused(CorruptError, "buckets that are not its own"):
        reshard(old, tmp_path / "new", 3, memory=MEMORY)
    assert (tmp_path / "new" / binding.UNFINISHED).exists()
