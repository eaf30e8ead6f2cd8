"""``PartitionedEdges``: every edge once an epoch, whatever happens on the way."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

import torch

import embedrock
from embedrock import PartitionedEdges, SharedNegatives
from embedrock.errors import (
    CorruptError,
    KeyRangeError,
    LockedError,
    MismatchError,
    MisuseError,
    UnsupportedError,
)
from embedrock.kge.partitions import buckets, epochs

ROWS = 600


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Any:
    with embedrock.open(tmp_path / "graph.store", memory="2MiB") as store:
        yield store


@pytest.fixture(name="table")
def _table(store: embedrock.Store) -> embedrock.Table:
    return store.table("entities", 8, num_embeddings=ROWS, optimizer="adagrad")


def graph(columns: int = 3, edges: int = 5000, rows: int = ROWS) -> npt.NDArray[np.int64]:
    random = np.random.default_rng(5)
    ends = (rows * random.random((edges, 2)) ** 2).astype(np.int64)
    if columns == 2:
        return ends
    return np.stack([ends[:, 0], random.integers(0, 9, edges), ends[:, 1]], axis=1)


def edges_of(batches: Any, columns: int = 3) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        parts = [batch.heads, batch.relations, batch.tails][:: 3 - columns + 1]
        found.update(map(tuple, torch.stack(parts, 1).tolist()))
    return found


def counted(edges: npt.NDArray[Any]) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, edges.tolist()))


def same(one: list[Any], other: list[Any]) -> bool:
    fields = ("heads", "relations", "tails", "negatives", "step", "epoch")
    return len(one) == len(other) and all(
        np.array_equal(np.asarray(getattr(a, name)), np.asarray(getattr(b, name)))
        for a, b in zip(one, other, strict=True)
        for name in fields
    )


@pytest.mark.parametrize(
    ("columns", "resident", "order"),
    [
        # By day half of all, in which each pair of two of the three comes.
        pytest.param(
            columns, resident, order, marks=[pytest.mark.long] * ((columns + turn + at) % 2)
        )
        for columns in (2, 3)
        for turn, resident in enumerate((0.0, 0.05))
        for at, order in enumerate(["beta", "comet", "random"])
    ],
)
def test_every_edge_comes_once_an_epoch(
    table: embedrock.Table,
    order: str,
    resident: float,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epochs, "SHUFFLED", 300)
    monkeypatch.setattr(buckets, "_BLOCK", 700)
    edges = graph(columns)
    loader = PartitionedEdges(
        edges, table, partitions=12, order=order, resident=resident, batch_size=64
    )
    expected, orders = counted(edges), []
    for _ in range(2):
        batches = list(loader)
        assert edges_of(batches, columns) == expected
        orders.append(torch.cat([batch.heads for batch in batches]).tolist())
    assert orders[0] != orders[1]
    expected_batches = len(loader)
    assert sum(1 for _ in loader) == expected_batches


def test_ends_of_a_batch_and_its_negatives_are_in_the_buffer(table: embedrock.Table) -> None:
    loader = PartitionedEdges(
        graph(),
        table,
        partitions=12,
        buffer=3,
        order="beta",
        resident=0.05,
        negatives=SharedNegatives(40, degree=0.5),
        batch_size=64,
    )
    hubs = set(loader._buckets.hubs.tolist())
    assert len(hubs) == ROWS // 20
    for batch in loader:
        rows = set(batch.entities().tolist()) - hubs
        assert len(batch.negatives) == 40
        assert len({row * 12 // ROWS for row in rows}) <= 3


def test_negatives_by_degree_are_rows_of_many_edges(table: embedrock.Table) -> None:
    edges = np.zeros((400, 2), np.int64)
    edges[:, 1] = 1
    edges[::100, 1] = 2
    loader = PartitionedEdges(
        edges, table, partitions=1, negatives=SharedNegatives(100, degree=0.5), batch_size=100
    )
    for batch in loader:
        few = [int((batch.negatives == row).sum()) for row in range(3)]
        assert few[0] >= 15 and few[1] >= 15, few


def test_two_tables(store: embedrock.Store) -> None:
    users = store.table("users", 4, num_embeddings=300, optimizer="sgd")
    items = store.table("items", 4, num_embeddings=90, optimizer="sgd")
    edges = graph(2) // [2, 7]
    loader = PartitionedEdges(
        edges,
        {"head": users, "tail": items},
        partitions=10,
        order="beta",
        negatives=SharedNegatives(20, degree=0.2),
        batch_size=64,
    )
    batches = list(loader)
    assert edges_of(batches, 2) == counted(edges)
    assert all(int(batch.negatives.max()) < 90 for batch in batches)
    assert max(int(batch.negative_heads.max()) for batch in batches) >= 90
    # Pairs of two parts of one table have no edges and take no swaps.
    assert loader.stats()["epoch"]["swaps"] < loader.stats()["epoch"]["swaps_beta"]


@pytest.mark.parametrize("stop", [0, 1, 7, 40])
def test_a_run_that_goes_on_gets_the_batches_it_would_have_got(
    table: embedrock.Table, stop: int
) -> None:
    def loader() -> PartitionedEdges:
        return PartitionedEdges(
            graph(), table, partitions=8, negatives=SharedNegatives(8), batch_size=97, epochs=2
        )

    whole = list(loader())
    first = loader()
    some = [batch for _, batch in zip(range(stop), first, strict=False)]
    state = first.state_dict()
    first.close()
    second = loader()
    second.load_state_dict(state)
    assert same(some + list(second), whole)
    assert [batch.step for batch in whole] == list(range(len(whole)))
    assert len(second) == len(whole)


def test_a_position_among_other_batches_is_refused(table: embedrock.Table) -> None:
    one = PartitionedEdges(graph(), table, partitions=8, batch_size=97)
    for other in (
        PartitionedEdges(graph(), table, partitions=9, batch_size=97),
        PartitionedEdges(graph(), table, partitions=8, batch_size=98),
        PartitionedEdges(graph(edges=4999), table, partitions=8, batch_size=97),
    ):
        with pytest.raises(MismatchError, match="the position is one among batches with"):
            one.load_state_dict(other.state_dict())
    with pytest.raises(MisuseError, match="state_dict is 3, expected that of PartitionedEdges"):
        one.load_state_dict(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_batches_in_the_same_order(
    table: embedrock.Table, workers: int
) -> None:
    loader = PartitionedEdges(
        graph(), table, partitions=6, negatives=SharedNegatives(8), batch_size=500
    )
    alone = list(loader)
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        data = torch.utils.data.DataLoader(
            loader, batch_size=None, num_workers=workers, multiprocessing_context="fork"
        )
        found = list(data)
        expected = alone if epoch == 0 else list(loader)
        assert same(found, expected)
    copy = pickle.loads(pickle.dumps(loader))
    copy.set_epoch(0)
    assert same(list(copy), alone), "a copy in another process has no store"
    assert copy.stats()["entered"] == 0


def test_the_bucket_file_is_made_once_and_anew_after_an_interruption(
    table: embedrock.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader(**others: Any) -> PartitionedEdges:
        return PartitionedEdges(graph(), table, **{"partitions": 8, "batch_size": 97, **others})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loader()
    place = Path(table.store.path).parent
    assert not [*place.glob("*.edges*")]
    # A file left by a killed process belongs to nobody.
    path = loader().path
    path.rename(path.with_name(path.name + ".partial"))
    first = loader()
    assert first.path == path and path.exists()
    assert not path.with_name(path.name + ".partial").exists()
    written = path.stat().st_mtime_ns
    assert loader().path == path and path.stat().st_mtime_ns == written
    others = {loader(partitions=9).path, loader(seed=1).path, loader(resident=0.1).path}
    assert len(others | {path}) == 4


def test_two_processes_do_not_make_one_file_together(table: embedrock.Table) -> None:
    import fcntl

    path = PartitionedEdges(graph(), table, partitions=8, batch_size=97).path
    path.unlink()
    with path.with_name(path.name + ".partial").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="is being made by another process"):
            PartitionedEdges(graph(), table, partitions=8, batch_size=97)


def test_damage_is_named_and_never_returned(table: embedrock.Table) -> None:
    def loader() -> PartitionedEdges:
        return PartitionedEdges(graph(), table, partitions=4, batch_size=97)

    path = loader().path
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    for at in [0, 9, 40, 70, *random.integers(0, len(whole), 12).tolist(), len(whole) - 1]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CorruptError, match=rf"bucket file {path} is damaged: .* remove it"):
            list(loader())
    for length in (0, 50, 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptError, match=rf"bucket file {path} is damaged"):
            loader()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptError, match="the bucket of edges from partition 3 to partition 3"):
        list(loader())
    path.unlink()
    assert edges_of(loader()) == counted(graph())


def test_edges_in_files_and_of_any_whole_numbers(table: embedrock.Table, tmp_path: Path) -> None:
    edges = graph()
    np.save(tmp_path / "edges.npy", edges.astype(np.uint32))
    mapped = np.load(tmp_path / "edges.npy", mmap_mode="r")
    loader = PartitionedEdges(mapped, table, partitions=8, batch_size=97)
    assert edges_of(loader) == counted(edges)
    large = edges.copy()
    large[0, 1] = 1 << 40  # a relation that takes 8 bytes
    loader = PartitionedEdges(torch.from_numpy(large), table, partitions=8, batch_size=97)
    assert edges_of(loader) == counted(large)


def test_partitions_that_are_chosen_fit_the_memory(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "store", memory="1MiB") as store:
        table = store.table("entities", 8, num_embeddings=60_000, optimizer="adagrad")
        edges = graph(2, 20_000, 60_000)
        loader = PartitionedEdges(edges, table, batch_size=1000)
        capacity = store.stats()["classes"][0]["cache_capacity"]
        assert loader.buffer >= 2
        assert capacity / 4 < loader.buffer * 60_000 / loader.partitions < capacity
        assert PartitionedEdges(edges, table, order="random", batch_size=1000).partitions == 1
    with embedrock.open(tmp_path / "large", memory="100MiB") as store:
        table = store.table("entities", 8, num_embeddings=60_000, optimizer="adagrad")
        loader = PartitionedEdges(edges, table, batch_size=1000)
        assert (loader.partitions, loader.stats()["epoch"]["swaps"]) == (1, 0)


def test_what_it_says_of_itself(table: embedrock.Table) -> None:
    loader = PartitionedEdges(
        graph(), table, partitions=8, buffer=3, order="beta", batch_size=97, epochs=1
    )
    for batch in loader:
        rows = table.get(batch.entities())
        table.update(batch.entities(), rows, lr=0.1)
    table.store.commit(step=1)
    stats = loader.stats()
    assert stats["epoch"]["swaps"] == stats["epoch"]["swaps_beta"] == stats["swaps"]
    assert stats["entered"] == stats["swaps"] + 3
    assert stats["epoch"]["passes"] == stats["epoch"]["passes_beta"] == stats["swaps"] / 8
    assert stats["bytes_written"] > 0
    assert "3 of 8 partitions, 14 swaps an epoch (BETA 14, at least 13)" in repr(loader)
    table.store.close()
    assert "5,000 edges" in repr(loader)


def test_what_cannot_be_is_refused(store: embedrock.Store, table: embedrock.Table) -> None:
    edges = graph()

    def refused(error: type[Exception], match: str, **others: Any) -> None:
        given = {"edges": edges, "table": table, "partitions": 8, "batch_size": 9, **others}
        with pytest.raises(error, match=match):
            PartitionedEdges(**given)

    growing = store.table("words", 8, optimizer="adagrad")
    refused(UnsupportedError, "table 'words' is a growing one: its keys have no", table=growing)
    for column, what in ((0, "head"), (2, "tail")):
        for value in (ROWS, -1):
            bad = edges.copy()
            bad[77, column] = value
            refused(KeyRangeError, f"the {what} of edge 77 is {value}, but its table", edges=bad)
            refused(KeyRangeError, f"the {what} of edge 77 is", edges=bad, resident=0.1)
    bad = edges.copy()
    bad[77, 1] = -1
    refused(KeyRangeError, "the relation of edge 77 is below 0", edges=bad)
    refused(MisuseError, r"edges has shape \(3,\)", edges=np.arange(3))
    refused(MisuseError, "dtype float64", edges=edges * 0.5)
    refused(MisuseError, "edges has none", edges=edges[:0])
    refused(MisuseError, "table is 'entities', expected a table of a store", table="entities")
    refused(MisuseError, r"table has the names \['heads'\]", table={"heads": table})
    refused(MisuseError, "partitions is 'many', expected 'auto' or a number", partitions="many")
    refused(MisuseError, "partitions is 601, expected 600 at most", partitions=601)
    refused(MisuseError, "buffer is 1, expected 2 or more", buffer=1)
    refused(MisuseError, "buffer is for a number of partitions", partitions="auto", buffer=3)
    refused(MisuseError, "order is 'best', expected 'beta', 'comet' or 'random'", order="best")
    refused(MisuseError, "resident is 2.0, expected 0 to 1", resident=2)
    refused(MisuseError, "negatives is 9, expected embedrock.SharedNegatives", negatives=9)
    with pytest.raises(MisuseError, match="count is 0, expected 1 or more"):
        SharedNegatives(0)
    assert not [*Path(store.path).parent.glob("*.partial")]
