"""Stores of a run are made anew for another number of ranks, which go on with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock.cli import main  # noqa: E402
from embedrock.distributed import binding, reshard  # noqa: E402
from embedrock.distributed.binding import runs_of  # noqa: E402
from embedrock.errors import CorruptError, MismatchError, MisuseError, NotFoundError  # noqa: E402
from ranks import run  # noqa: E402
from rankstores import (  # noqa: E402
    IDS,
    MEMORY,
    all_rows,
    opened,
    refused,
    step_of,
    steps_of_manifests,
)

pytestmark = pytest.mark.filterwarnings("ignore::embedrock.PartWarning")  # one rank's is looked at


def two_ranks(rank: int, world: int, folder: Path) -> None:
    """The runs that are divided anew, in one start of both ranks."""
    for name in ("run", "other"):
        with opened(folder / name, run="mine" if name == "run" else None) as shard:
            for step in range(1, 5):
                step_of(shard, step)
                shard.commit(step)
    if rank == 0:
        for name, run_of in zip(("run", "other"), runs_of(2), strict=True):
            shutil.copytree(folder / name / run_of.folder, folder / "mixed" / run_of.folder)
    a_save_with_a_loader(rank, folder / "loader")
    with opened(folder / "divide") as shard:
        for step in range(1, 4):
            step_of(shard, step)
        shard.commit(3, {"note": 1}, {"dense": b"weights", "random": bytes([rank])})
    del world


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
        # If one rank cannot save, all are told, and none waits.
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder left by two ranks, in one start of both."""
    made = tmp_path_factory.mktemp("ranks")
    run(2, two_ranks, made)
    return made


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
    assert steps_of_manifests(new) == [], "it is for stores that are whole"
    goes_on = f"embedrock reshard {old} {new} --ranks 4 --step "
    with refused(MisuseError, "another embedrock reshard", goes_on):
        reshard(old, new, 3, memory=MEMORY)
    with refused(MismatchError, "is not whole", goes_on):
        reshard(new, tmp_path / "other", 3, memory=MEMORY)
    mine, another = new / kept[0], tmp_path / "another"
    mine.rename(another)
    shutil.copytree(old / "buckets-0000-0511", mine)
    with refused(MisuseError, "the buckets 0-511 of step 4", "is to have the buckets 0-255"):
        reshard(old, new, 4, memory=MEMORY)
    shutil.rmtree(mine)
    another.rename(mine)
    times = {name: (new / name / "superblock").stat().st_mtime_ns for name in kept}
    reshard(old, new, 4, memory=MEMORY)
    assert steps_of_manifests(new) == [4]
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


def test_the_newest_step_that_all_have_is_taken(folder: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(folder / "run", old)
    with embedrock.open(old / "buckets-0000-0511", MEMORY) as store:
        store.table("dense").put([3], np.ones((1, 4), np.float32))
        store.commit(9, store.meta, store.state())
    assert reshard(old, new, 1, memory=MEMORY)["step"] == 4
    assert all_rows(new) == all_rows(folder / "run")


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
