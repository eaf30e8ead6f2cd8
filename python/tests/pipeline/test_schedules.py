"""Schedules: made from keys, matched to the passes of loaders, and of no influence on results."""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.ahead import Schedule
from embedrock.errors import CorruptError, LookaheadWarning, MisuseError, NotFoundError
from embedrock.pipeline.orders import equal, orders

Batches = Sequence[dict[str, list[int]]]


def batches_of(seed: int, count: int, rows: int = 40) -> list[dict[str, list[int]]]:
    draw = np.random.default_rng(seed)
    return [
        {"a": draw.integers(0, rows, 6).tolist(), "b": draw.integers(0, 9, 2).tolist()}
        for _ in range(count)
    ]


def expected(batches: Batches, at: int, stretch: int, behind: Batches) -> dict[str, list[int]]:
    """Stretches until each key's next use, looked for one by one."""
    all_of_them = [*batches, *behind]
    found = {}
    for table, keys in batches[at].items():
        found[table] = [
            0
            if key in keys[place + 1 :]
            else next(
                (
                    later // stretch - at // stretch
                    for later in range(at + 1, len(all_of_them))
                    if key in all_of_them[later][table]
                ),
                -1,
            )
            for place, key in enumerate(keys)
        ]
    return found


@pytest.mark.parametrize("behind", ["nothing", "repeat", "others"])
def test_a_schedule_has_the_next_use_of_each_use(tmp_path: Path, behind: str) -> None:
    batches = batches_of(1, 30)
    others = {"nothing": None, "repeat": "repeat", "others": batches_of(2, 10)}[behind]
    told: list[tuple[int, int]] = []
    made = embedrock.schedule(
        iter(batches),
        tmp_path / "one",
        4,
        behind=others,  # type: ignore[arg-type]
        progress=lambda done, total: told.append((done, total)),
    )
    assert (len(made), made.uses, made.stretch_batches, made.stretches) == (30, 240, 4, 8)
    assert made.tables == ["a", "b"] and made.repeats == (behind == "repeat")
    assert told[-1][0] == told[-1][1] == 240 + (80 if behind == "others" else 0)
    # Behind 30 batches in stretches of 4 the next ones begin with a stretch of their own.
    gap: Batches = [{"a": [], "b": []}] * 2
    then: Any = {"nothing": [], "repeat": batches, "others": others}[behind]
    later = [*gap, *then]
    furthest = 0
    for opened in (made, Schedule(tmp_path / "one")):
        for at, batch in enumerate(batches):
            found = opened.batch(at, batch, first_stretch=100)
            assert found is not None
            assert (found.stretch, found.stretch_batches) == (100 + at // 4, 4)
            uses = {str(table): np.asarray(uses).tolist() for table, uses in found.next_use.items()}
            assert uses == expected(batches, at, 4, later)
            furthest = max(furthest, *map(max, uses.values()))
        assert opened.furthest == furthest


def test_batches_of_others_are_told_and_found(tmp_path: Path) -> None:
    batches = batches_of(3, 20)
    made = embedrock.schedule(batches, tmp_path / "one", 4)
    assert made.batch(5, batches[6]) is None
    assert made.batch(5, {"a": batches[5]["a"]}) is None
    assert made.batch(5, {**batches[5], "a": batches[5]["a"][::-1]}) is None
    assert made.find(batches[6]) == 6 and made.find(batches[6], start=7) == 6
    assert made.find(batches_of(4, 1)[0]) is None
    # A table that the schedule does not have is none of its business.
    found = made.batch(5, {**batches[5], "c": [1]})
    assert found is not None and "c" not in found.next_use
    with pytest.raises(MisuseError, match="batch 20 of a schedule of 20"):
        made.batch(20, batches[0])


def test_a_trace_makes_the_schedule_of_its_queries(tmp_path: Path) -> None:
    batches = batches_of(5, 40)
    for tables in (["a"], ["a", "b"]):
        columns = {}
        for table in tables:
            keys = [batch[table] for batch in batches]
            offsets = np.cumsum([0, *map(len, keys)])
            columns[table] = (np.concatenate(keys).astype(np.uint64), offsets)
        trace = embedrock.trace.Trace(columns)
        of_trace = embedrock.schedule(trace, tmp_path / "trace", 8)
        of_dicts = [{table: batch[table] for table in tables} for batch in batches]
        embedrock.schedule(of_dicts, tmp_path / "dicts", 8)
        assert of_trace.tables == tables
        assert (tmp_path / "trace").read_bytes() == (tmp_path / "dicts").read_bytes()


def test_what_makes_no_schedule_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with pytest.raises(MisuseError, match="there is no batch to make"):
        embedrock.schedule([], path)
    with pytest.raises(MisuseError, match=r"a batch is .*, expected \{table name: keys\}"):
        embedrock.schedule([[1, 2]], path)
    with pytest.raises(MisuseError, match=r"batch 1 uses table 'b', the first one does not"):
        embedrock.schedule([{"a": [1]}, {"b": [1]}], path)
    with pytest.raises(MisuseError, match="keys_of without model"):
        embedrock.schedule([{"a": [1]}], path, keys_of=dict)
    with pytest.raises(MisuseError, match="behind"):
        embedrock.schedule([{"a": [1]}], path, behind="again")  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="stretch_batches"):
        embedrock.schedule([{"a": [1]}], path, 0)
    assert not path.exists()
    with pytest.raises(NotFoundError, match="one"):
        Schedule(path)
    path.write_bytes(b"x" * 100)
    with pytest.raises(CorruptError, match="it is no schedule"):
        Schedule(path)


def test_a_progress_function_that_raises_leaves_the_schedule_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "one"
    embedrock.schedule(batches_of(6, 9), path, 2)
    before = path.read_bytes()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedrock.schedule(batches_of(7, 9), path, 2, progress=stop)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


# Loaders


class Clicks:
    """A dataset of samples with equally many keys, or not."""

    def __init__(self, count: int, ragged: bool = False) -> None:
        draw = np.random.default_rng(8)
        lengths = draw.integers(1, 5, count) if ragged else np.full(count, 4)
        self.ids = [draw.integers(0, 50_000, length) for length in lengths]
        self.looked_at = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        self.looked_at += 1
        return self.ids[index]


def collate(samples: list[Any]) -> dict[str, Any]:
    return {"t": np.concatenate(samples)}


def torch_loader(dataset: Any, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    given = {"batch_size": 16, "collate_fn": collate, **options}
    return torch.utils.data.DataLoader(dataset, **given)


def trained(path: Path, passes: Iterable[Any], schedule: Any) -> tuple[int, list[dict[str, int]]]:
    """The digest of a table that was trained in some passes over a loader, and their counts."""
    counts = []
    with embedrock.open(path, "2MiB", page_bytes=4096) as store:
        table = store.table("t", 32, num_embeddings=50_000, optimizer="sgd")
        loader: Any = None
        for batches in passes:
            if loader is None or loader.loader is not batches:
                loader = embedrock.LookaheadLoader(
                    batches,
                    store,
                    64,
                    keys_of=lambda batch: {"t": batch["t"]},
                    announce=True,
                    schedule=schedule,
                )
            for batch in loader:
                table.update(batch["t"], table.get(batch["t"]) / 8 + 0.01, lr=0.1)
            counts.append(loader.stats())
        window = store.window.stats()
        assert window["schedule_wrong"] == 0, window
        store.commit(1)
        return table.digest(), counts


def test_a_list_of_batches_comes_again_and_again(tmp_path: Path) -> None:
    draw = np.random.default_rng(9)
    batches = [{"t": draw.integers(0, 50_000, 64)} for _ in range(40)]
    plain, _ = trained(tmp_path / "plain", [batches] * 3, None)
    digest, counts = trained(tmp_path / "scheduled", [batches] * 3, "epoch")
    assert digest == plain
    assert [count["scheduled"] for count in counts] == [40] * 3, counts
    made = embedrock.schedule(batches, tmp_path / "made", 8, behind="repeat")
    digest, counts = trained(tmp_path / "made.store", [batches] * 3, made)
    assert digest == plain
    assert [count["scheduled"] for count in counts] == [40] * 3, counts
    # Temporary files are gone.
    assert {path.name for path in tmp_path.iterdir()} == {
        "plain",
        "scheduled",
        "made",
        "made.store",
    }


@pytest.mark.parametrize("ragged", [False, True])
def test_a_shuffling_loader_gives_what_it_gives_without_schedule(
    tmp_path: Path, ragged: bool
) -> None:
    torch = pytest.importorskip("torch")

    def passes(seed: int, dataset: Clicks) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(seed)
        loader = torch_loader(dataset, shuffle=True, generator=generator)
        for _ in range(3):
            yield loader

    found = []
    datasets = [Clicks(600, ragged) for _ in range(2)]
    for name, schedule, dataset in zip(("plain", "other"), (None, "epoch"), datasets, strict=True):
        torch.manual_seed(4)
        random.seed(4)
        digest, counts = trained(tmp_path / name, passes(5, dataset), schedule)
        found.append((digest, torch.rand(1).item(), random.random(), np.random.get_state()[1][0]))
    assert found[0] == found[1], "rows and random generators are the same"
    assert [count["scheduled"] for count in counts] == [38] * 3, counts
    # A worker process looks at the samples for the schedule.
    assert datasets[1].looked_at == 3 * 600


def samplers(torch: Any, dataset: Clicks) -> dict[str, Any]:
    data = torch.utils.data

    def seeded() -> Any:
        return torch.Generator().manual_seed(7)

    return {
        "in order": lambda: torch_loader(dataset),
        "its own generator": lambda: torch_loader(dataset, shuffle=True, generator=seeded()),
        "generator of the sampler": lambda: torch_loader(
            dataset, sampler=data.RandomSampler(dataset, generator=seeded())
        ),
        "with replacement": lambda: torch_loader(
            dataset,
            sampler=data.RandomSampler(
                dataset, replacement=True, num_samples=100, generator=seeded()
            ),
        ),
        "weights": lambda: torch_loader(
            dataset,
            sampler=data.WeightedRandomSampler([1.0] * 64 + [2.0] * 64, 90, generator=seeded()),
            drop_last=True,
        ),
        "ranks": lambda: torch_loader(
            dataset, sampler=data.DistributedSampler(dataset, num_replicas=2, rank=1, seed=3)
        ),
        "workers that stay": lambda: torch_loader(
            dataset, shuffle=True, generator=seeded(), num_workers=1, persistent_workers=True
        ),
        "batches of its own": lambda: torch_loader(
            dataset,
            batch_size=1,
            batch_sampler=data.BatchSampler(
                data.RandomSampler(dataset, generator=seeded()), 10, True
            ),
        ),
    }


NAMES = [
    "in order",
    "its own generator",
    "generator of the sampler",
    "with replacement",
    "weights",
    "ranks",
    "workers that stay",
    "batches of its own",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_this_pass_and_of_the_next_is_known(name: str) -> None:
    torch = pytest.importorskip("torch")
    dataset = Clicks(128)
    loader = samplers(torch, dataset)[name]()
    place = {tuple(ids.tolist()): index for index, ids in enumerate(dataset.ids)}
    foretold = None
    for epoch in range(3):
        if name == "ranks":
            loader.sampler.set_epoch(epoch)
        before = torch.random.get_rng_state()
        this, *behind = orders(loader, 3)
        torch.random.set_rng_state(before)
        assert len(behind) == 2
        if foretold is not None:
            assert all(map(equal, foretold, [this, behind[0]]))
        foretold = behind
        given = [
            [place[tuple(ids)] for ids in batch["t"].reshape(-1, 4).tolist()] for batch in loader
        ]
        assert given == [indices.tolist() for indices in this]
        torch.rand(3)  # a model that draws


def test_an_order_that_hangs_on_the_generator_of_all_is_known_for_this_pass(
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    dataset = Clicks(200)
    torch.manual_seed(1)
    loader = torch_loader(dataset, shuffle=True)
    (this,) = orders(copy.copy(loader), 3)
    assert len(this) == 13

    def passes() -> Iterator[Any]:
        torch.manual_seed(2)
        for _ in range(2):
            yield loader

    plain, _ = trained(tmp_path / "plain", passes(), None)
    digest, counts = trained(tmp_path / "scheduled", passes(), "epoch")
    assert digest == plain
    assert [count["scheduled"] for count in counts] == [13, 13], counts


def test_a_schedule_of_other_data_is_left_with_one_warning(tmp_path: Path) -> None:
    draw = np.random.default_rng(10)
    batches = [{"t": draw.integers(0, 50_000, 64)} for _ in range(80)]
    others = [{"t": draw.integers(0, 50_000, 64)} for _ in range(80)]
    plain, _ = trained(tmp_path / "plain", [batches] * 2, None)
    wrong = embedrock.schedule(others, tmp_path / "wrong", 8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        digest, counts = trained(tmp_path / "scheduled", [batches] * 2, wrong)
    assert digest == plain
    assert [count["scheduled"] for count in counts] == [0, 0]
    said = [str(one.message) for one in told if issubclass(one.category, LookaheadWarning)]
    assert len(said) == 1 and "32 batches are not those of" in said[0], said


def test_a_pass_that_begins_in_the_middle_finds_its_place(tmp_path: Path) -> None:
    draw = np.random.default_rng(11)
    batches = [{"t": draw.integers(0, 50_000, 64)} for _ in range(60)]
    made = embedrock.schedule(batches, tmp_path / "made", 8)
    plain, _ = trained(tmp_path / "plain", [batches[35:]], None)
    digest, counts = trained(tmp_path / "scheduled", [batches[35:]], made)
    assert digest == plain and counts[0]["scheduled"] == 25
    # Batches that the schedule does not have in between are announced without.
    mixed = [*batches[:10], {"t": np.arange(5)}, {"t": np.arange(6)}, *batches[12:20]]
    plain, _ = trained(tmp_path / "plain2", [mixed], None)
    digest, counts = trained(tmp_path / "scheduled2", [mixed], made)
    assert digest == plain and counts[0]["scheduled"] == 18


def test_loaders_whose_order_nobody_knows_are_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    with embedrock.open(tmp_path / "s", "4MiB") as store:
        store.table("t", 4, num_embeddings=100, optimizer="sgd")
        unknown = [torch.utils.data.DataLoader(Stream()), iter([{"t": [1]}]), Wrapped()]
        for loader in unknown:
            with pytest.raises(MisuseError, match=r"needs to know the order of"):
                embedrock.LookaheadLoader(
                    loader, store, keys_of=lambda batch: batch, schedule="epoch"
                )
        with pytest.raises(MisuseError, match="schedule is 'batch', expected 'epoch'"):
            embedrock.LookaheadLoader(
                [],
                store,
                keys_of=lambda batch: batch,
                schedule="batch",  # type: ignore[arg-type]
            )


class Wrapped:
    """A loader of one's own, of which nobody knows whether it gives the same batches again."""

    def __iter__(self) -> Iterator[Any]:
        return iter([{"t": [1]}])


class Odd(Clicks):
    """A dataset that cannot give one of its samples."""

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if index == 77:
            raise OSError("sample 77 is damaged")
        return super().__getitem__(index)


def test_a_dataset_that_fails_does_so_where_its_batch_comes(tmp_path: Path) -> None:
    loader = torch_loader(Odd(160))
    with embedrock.open(tmp_path / "s", "2MiB") as store:
        store.table("t", 32, num_embeddings=50_000, optimizer="sgd")
        told = embedrock.LookaheadLoader(
            loader, store, keys_of=lambda batch: {"t": batch["t"]}, schedule="epoch"
        )
        given = 0
        with (
            pytest.warns(LookaheadWarning, match="there is no schedule for this pass: OSError"),
            pytest.raises(OSError, match="sample 77 is damaged"),
        ):
            for _ in told:
                given += 1
        assert given == 77 // 16


def test_only_samples_that_a_pass_has_are_looked_at(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.SubsetRandomSampler(
        [n for n in range(160) if n != 77], generator=torch.Generator().manual_seed(3)
    )
    loader = torch_loader(Odd(160), sampler=sampler)
    _, counts = trained(tmp_path / "s", [loader] * 2, "epoch")
    assert [count["scheduled"] for count in counts] == [10, 10]


def test_a_pass_without_a_batch_and_batches_of_some_tables_are_as_without(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "2MiB") as store:
        for name in "ab":
            store.table(name, 8, num_embeddings=100, optimizer="sgd")
        assert list(embedrock.LookaheadLoader([], store, 8, dict, schedule="epoch")) == []
        batches = [{"a": [1, 2]}, {"b": [3]}, {"a": [2], "b": [3]}]
        loader = embedrock.LookaheadLoader(batches, store, 8, dict, schedule="epoch")
        assert list(loader) == batches and loader.stats()["scheduled"] == 3
        empty = torch_loader(Clicks(9), drop_last=True)
        keys_of = lambda batch: {"a": batch["t"]}  # noqa: E731
        assert list(embedrock.LookaheadLoader(empty, store, 8, keys_of, schedule="epoch")) == []


def test_tables_of_one_name_in_two_stores_have_no_schedule(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with (
        embedrock.open(tmp_path / "1", "2MiB") as first,
        embedrock.open(tmp_path / "2", "2MiB") as second,
    ):
        bags = [
            embedrock.nn.EmbeddingBag(90, 8, mode="sum", store=store, name="items", optimizer="sgd")
            for store in (first, second)
        ]
        ids = torch.arange(6).reshape(2, 3)
        loader = embedrock.LookaheadLoader(
            [ids] * 4,
            torch.nn.ModuleList(bags),
            8,
            keys_of=lambda batch: dict.fromkeys(bags, batch),
            schedule="epoch",
        )
        with pytest.warns(LookaheadWarning, match="tables of different stores have one name"):
            assert len(list(loader)) == 4


def test_closing_a_loader_ends_what_is_made_for_its_next_pass(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "stores").mkdir()
    with embedrock.open(tmp_path / "stores" / "s", "2MiB") as store:
        store.table("t", 32, num_embeddings=50_000, optimizer="sgd")
        shuffled = torch_loader(
            Clicks(20_000), shuffle=True, generator=torch.Generator().manual_seed(1)
        )
        loader = embedrock.LookaheadLoader(
            shuffled, store, keys_of=lambda batch: {"t": batch["t"]}, schedule="epoch"
        )
        for _ in loader:
            break
        loader.close()
        assert "embedrock schedule" not in {one.name for one in threading.enumerate()}
    assert [path.name for path in (tmp_path / "stores").iterdir()] == ["s"]


def test_tables_of_two_stores_have_one_schedule(tmp_path: Path) -> None:
    draw = np.random.default_rng(12)
    torch = pytest.importorskip("torch")
    batches = [
        {name: torch.from_numpy(draw.integers(0, 9_000, (10, 5))) for name in ("one", "two")}
        for _ in range(30)
    ]
    with (
        embedrock.open(tmp_path / "1", "2MiB") as first,
        embedrock.open(tmp_path / "2", "2MiB") as second,
    ):
        bags = {
            name: embedrock.nn.EmbeddingBag(
                9_000, 16, mode="sum", store=store, name=name, optimizer="sgd"
            )
            for name, store in (("one", first), ("two", second))
        }
        model = torch.nn.ModuleDict(bags)
        loader = embedrock.LookaheadLoader(batches, model, 16, schedule="epoch")
        for _ in loader:
            pass
        counts = loader.stats()
        assert counts["scheduled"] == 30 and counts["announced"] > 0, counts
