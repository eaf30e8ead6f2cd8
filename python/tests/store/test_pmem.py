"""Tables on persistent memory: equal bits with those in a log, durable by update, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock
from embedrock import cli
from embedrock.errors import (
    BudgetError,
    CorruptError,
    FullError,
    KeyRangeError,
    LockedError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
    UnsupportedError,
)
from rows import numbered
from servers import serving

#: Rows that are durable with each update and tables that no commit has are what this is about.
pytestmark = pytest.mark.filterwarnings("ignore::embedrock.UncommittedWarning")

DIM = 6
ROWS = 4000
CAPACITY = 6000
KINDS: tuple[Any, Any] = ("log", "pmem")

Both = dict[Any, embedrock.Store]


def opened(path: Path, **more: Any) -> embedrock.Store:
    return embedrock.open(path, "4MiB", **{"page_bytes": 512, "seed": 5, **more})


def table_in(store: embedrock.Store, name: str = "t", **more: Any) -> embedrock.Table:
    given = {"embedding_dim": 4, "optimizer": "adagrad", "storage": "pmem", **more}
    if "num_embeddings" not in given and "capacity" not in given:
        given["capacity"] = 100
    return store.table(name, **given)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    """A store for each kind."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(opened(tmp_path / kind)) for kind in KINDS}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.store"


def keys_of(rng: np.random.Generator, dense: bool, count: int) -> npt.NDArray[np.int64]:
    ids = rng.integers(0, ROWS, count)
    return ids if dense else ids * 0x9E3779B97F4A7C1 - 2**62


def add(stores: Both, name: str, dense: bool, **more: Any) -> None:
    for kind, store in stores.items():
        given = dict(more)
        if dense:
            given["num_embeddings"] = ROWS
        elif kind == "pmem":
            given["capacity"] = CAPACITY
        store.table(name, DIM, storage=kind, **given)


def assert_equal(stores: Both, name: str, dense: bool) -> None:
    log, pmem = (stores[kind].table(name) for kind in KINDS)
    assert (log.storage, pmem.storage) == KINDS
    assert len(log) == len(pmem)
    assert log.digest() == pmem.digest()
    keys = keys_of(np.random.default_rng(1), dense, 4000)
    np.testing.assert_array_equal(log.contains(keys), pmem.contains(keys))
    for a, b in zip(log.get(keys, state=True), pmem.get(keys, state=True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float16", marks=pytest.mark.long), "bfloat16"]
)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "growing"])
def test_verbs_have_the_bits_of_a_log(both: Both, dense: bool, dtype: str) -> None:
    add(both, "t", dense, dtype=dtype, optimizer="adagrad")
    for store in both.values():
        rng = np.random.default_rng(3)
        table = store.table("t")
        for step in range(60):
            keys = keys_of(rng, dense, 700)
            gradients = rng.standard_normal((700, DIM), np.float32)
            table.update(keys, gradients, lr=0.1)
            if step % 4 == 1:
                table.delete(keys_of(rng, dense, 200))
            if step % 5 == 2:
                some = np.unique(keys_of(rng, dense, 300))
                table.put(some, rng.standard_normal((len(some), DIM), np.float32))
            if step % 6 == 3:
                some = np.unique(keys_of(rng, dense, 100))
                values = rng.standard_normal((len(some), DIM), np.float32)
                table.put(some, values, reset_state=True)
            if step % 7 == 3:
                table.modify(keys[:50], lambda values, state: values * 0.5)
            if step % 9 == 4:
                table.promote(keys)
            if step % 10 == 9:
                store.commit(step)
    assert_equal(both, "t", dense)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rowwise_adagrad", "adam", "ftrl"])
def test_optimizers_train_the_same_rows(both: Both, optimizer: str) -> None:
    add(both, "t", True, optimizer=optimizer)
    for store in both.values():
        rng = np.random.default_rng(2)
        for _ in range(12):
            gradients = rng.standard_normal((500, DIM), np.float32)
            store.table("t").update(keys_of(rng, True, 500), gradients, lr=0.1)
    assert_equal(both, "t", True)


def test_rows_come_in_their_own_dtype_and_as_bits(both: Both) -> None:
    add(both, "t", True, dtype="float16", optimizer="sgd")
    keys = np.arange(0, 200)
    for store in both.values():
        store.table("t").put(keys[:100], numbered(keys[:100], DIM) / 64)
    halves = [both[kind].table("t").get(keys, dtype="float16") for kind in KINDS]
    np.testing.assert_array_equal(*halves)


def test_a_frozen_table_copies_to_memory(tmp_path: Path, path: Path) -> None:
    with opened(path) as store:
        store.table("t", DIM, optimizer="none", num_embeddings=ROWS, storage="pmem").put(
            np.arange(300), np.random.default_rng(1).standard_normal((300, DIM), np.float32)
        )
        expected = store.table("t").get(np.arange(300))
        store.commit(1)
    embedrock.freeze(path, tmp_path / "frozen", dtype="int8")
    with embedrock.open(tmp_path / "frozen", "16MiB", read_only=True) as frozen:
        found = frozen.table("t").get(np.arange(300))
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_two_tables_are_updated_in_one_call(path: Path) -> None:
    with opened(path) as store:
        log = store.table("log", 4, 100, optimizer="sgd")
        pmem = table_in(store, optimizer="sgd")
        store.put([(log, [1, 2], numbered([1, 2])), (pmem, [3], numbered([3]))])
        one = np.ones((1, 4), np.float32)
        store.update([(log, [1], one), (pmem, [3], one)], lr=1.0)
        for table, key in ((log, 1), (pmem, 3)):
            np.testing.assert_array_equal(table.get([key]), numbered([key]) - 1)
        some, others = store.get([(log, [2]), (pmem, [3])])
        np.testing.assert_array_equal(some, numbered([2]))
        np.testing.assert_array_equal(others, numbered([3]) - 1)


def test_rows_are_not_in_the_cache_and_hardly_take_memory(path: Path) -> None:
    with opened(path, check_disk=False) as store:
        table = table_in(store, num_embeddings=200_000)
        keys = np.arange(20_000)
        table.put(keys, numbered(keys))
        table.get(keys)
        stats = store.stats()
        (one,) = stats["classes"]
        assert one["resident_rows"] == 0
        # Two bits for each place of a row.
        assert stats["memory"]["index_bytes"] < 200_000 * 1.1 / 4
        assert stats["hits"] >= 20_000
        assert stats["misses"] == 0
        assert one["newest_copies"] == len(table) == 20_000


def test_look_ahead_and_warm_have_nothing_to_do(path: Path) -> None:
    with opened(path) as store:
        table, log = table_in(store), store.table("log", 4, 100)
        table.put([1, 2], numbered([1, 2]))
        number = store.window.announce({table: [1, 2], log: [3]})
        assert number is not None
        store.window.begin(number)
        np.testing.assert_array_equal(table.get([1, 2]), numbered([1, 2]))
        store.window.finish(number)
        table.lookahead([1, 2])
        np.testing.assert_array_equal(table.get([1, 2]), numbered([1, 2]))
        rows = np.empty((2, 4), np.float32)
        np.testing.assert_array_equal(table.lookahead([1, 2], out=rows).wait(), numbered([1, 2]))
        assert store.warm() == 0


def test_promote_says_how_many_are_at_home(path: Path) -> None:
    with opened(path) as store:
        table = table_in(store, capacity=2000)
        keys = np.arange(2000) * 977
        table.put(keys, numbered(keys))
        assert table.promote(keys[:50]) == 50
        assert table.promote([-1]) == 0, "it has no row"
        scan = table.items(10)
        next(scan)
        assert table.promote(keys[:50]) == 0, "nothing moves while rows are iterated over"
        del scan
        assert store.table("log", 4, 10).promote([1, 2]) == 0, "nobody has written them"
        with pytest.raises(KeyRangeError):
            store.table("log").promote([10])


def test_a_scan_gives_each_row_once_and_ends_when_the_table_changes(path: Path) -> None:
    with opened(path) as store:
        table = table_in(store, capacity=3000)
        keys = np.arange(3000) * 12345
        table.put(keys, numbered(keys))
        found = {
            int(k): row
            for some, rows in table.items(100)
            for k, row in zip(some, rows, strict=True)
        }
        assert len(found) == 3000
        assert all((row == numbered(key)).all() for key, row in found.items())
        scan = table.items(10)
        next(scan)
        table.delete([0])
        with pytest.raises(MisuseError, match="written to during a scan"):
            list(scan)


# Durable by update.


def test_rows_are_there_after_a_close_without_commit(path: Path) -> None:
    with opened(path) as store:
        table = table_in(store)
        store.commit(1)
        table.put([7], numbered([7]))
        table.update([7, 8], np.ones((2, 4), np.float32), lr=0.1)
        rows = table.get([7, 8], state=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.close()
    with opened(path) as store:
        for found, expected in zip(store.table("t").get([7, 8], state=True), rows, strict=True):
            np.testing.assert_array_equal(found, expected)
        assert len(store.table("t")) == 2


def test_a_table_without_commit_goes_and_a_warning_says_so(path: Path) -> None:
    with pytest.warns(embedrock.UncommittedWarning), opened(path) as store:
        table_in(store).put([7], numbered([7]))
    assert (path / "pmem-0").exists()
    with opened(path) as store:
        assert store.tables == {}
        assert not (path / "pmem-0").exists()
        # Another table takes its number.
        assert len(table_in(store, "other", capacity=5)) == 0


def test_an_earlier_step_is_refused(path: Path) -> None:
    with opened(path) as store:
        table_in(store)
        store.commit(1)
        store.commit(2)
    for more in ({}, {"read_only": True}):
        with pytest.raises(UnsupportedError, match="newer than any commit"):
            opened(path, step=1, **more)
    opened(path, step=2).close()


def test_checks_read_every_row_and_find_damage(path: Path) -> None:
    with opened(path) as store:
        table = table_in(store)
        log = store.table("log", 4, 100)
        keys = np.arange(60)
        for step in (1, 2):
            table.put(keys, numbered(keys))
            log.put(keys, numbered(keys))
            store.commit(step)
    report = embedrock.check(path)
    assert report["problems"] == []
    assert report["rows"] == 60 * 3, "the table's once, the log's of two commits"
    region = (path / "pmem-0").read_bytes()
    # This also replaces the outdated copies of the row.
    row, other = numbered(33).tobytes(), numbered(34).tobytes()
    (path / "pmem-0").write_bytes(region.replace(row, other))
    (problem,) = embedrock.check(path)["problems"]
    assert "table 't'" in problem["message"]
    assert "key 33" in problem["message"]
    with opened(path) as store:
        with pytest.raises(CorruptError, match=r"table 't'.*key 33"):
            store.table("t").get([33])
        np.testing.assert_array_equal(store.table("t").get([34]), numbered([34]))
        with pytest.raises(CorruptError, match="key 33"):
            list(store.table("t").items())


# Capacity.


def test_a_full_region_says_what_to_do_and_changes_nothing(path: Path) -> None:
    with opened(path) as store:
        table, log = table_in(store), store.table("log", 4, 1000, optimizer="sgd")
        keys = np.arange(90)
        table.put(keys, numbered(keys))
        more = np.arange(80, 120)
        digest = table.digest()
        with pytest.raises(FullError) as full:
            store.put([(log, more, numbered(more)), (table, more, numbered(more))])
        for what in ("'t'", "90 rows", "for 100", "30 more", "embedrock resize"):
            assert what in str(full.value)
        with pytest.raises(FullError):
            table.update(more, np.ones((40, 4), np.float32), lr=0.1)
        assert table.digest() == digest
        assert len(log) == 0
        # Keys that have a row can be changed, and the store goes on.
        table.put(np.arange(60, 100), numbered(np.arange(60, 100)))
        table.update(np.arange(100), np.ones((100, 4), np.float32), lr=0.1)
        assert table.delete(np.arange(10)) == 10
        table.put(np.arange(200, 210), numbered(np.arange(200, 210)))
        assert len(table) == 100
        store.commit(1)


def test_parameters_that_cannot_be_are_refused(path: Path) -> None:
    with opened(path) as store:
        with pytest.raises(MisuseError, match="give capacity="):
            store.table("t", 4, storage="pmem")
        with pytest.raises(MisuseError, match="capacity is 11, and there are 10 ids"):
            store.table("t", 4, 10, storage="pmem", capacity=11)
        with pytest.raises(MisuseError, match='capacity is 5, and storage "log" grows'):
            store.table("t", 4, capacity=5)
        with pytest.raises(MisuseError, match="capacity"):
            store.table("t", 4, storage="pmem", capacity=0)
        with pytest.raises(MisuseError, match="storage"):
            store.table("t", 4, storage="pmam")  # type: ignore[arg-type]
        assert store.tables == {}
        table = table_in(store, num_embeddings=10)
        assert table.capacity == 10
        with pytest.raises(KeyRangeError):
            table.put([10], numbered([10]))
        with pytest.raises(NonFiniteError):
            table.put([1], np.full((1, 4), np.nan, np.float32))
        with pytest.raises(MismatchError, match="storage is pmem, asked log"):
            store.table("t", 4, 10, storage="log")
        with pytest.raises(MismatchError, match="storage is log"):
            store.table("log", 4, 10)
            store.table("log", 4, 10, storage="pmem")


def test_a_table_is_opened_again_with_or_without_its_capacity(path: Path) -> None:
    with opened(path) as store:
        table_in(store, capacity=50)
        store.commit(1)
        assert store.table("t", 4, optimizer="adagrad").capacity == 50
        assert table_in(store, capacity=50).capacity == 50
        with pytest.raises(MismatchError, match=r"room for 50 rows, asked for 60.*resize"):
            table_in(store, capacity=60)


def test_a_region_larger_than_the_bound_on_disk_is_refused(path: Path) -> None:
    with opened(path, max_disk_bytes=8 << 20) as store:
        with pytest.raises(FullError, match="'t'"):
            table_in(store, capacity=1_000_000)
        assert store.tables == {}
        assert [name for name in os.listdir(path) if name.startswith("pmem")] == []
        table_in(store, capacity=1000)
        assert store.stats()["disk_bytes"] > (path / "pmem-0").stat().st_size


def test_a_budget_in_per_cent_does_not_count_rows_outside_memory(path: Path) -> None:
    with embedrock.open(path, "50%") as store:
        table = table_in(store, capacity=100_000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedrock.BudgetWarning)
            table.put([1], numbered([1]))
        assert store.stats()["budget_bytes"] < 1 << 20
        with pytest.raises(BudgetError):
            store.table("log", 4)


# Resizing and copying.


def test_resize_keeps_every_row(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = np.arange(100)
    with opened(path) as store:
        table = table_in(store)
        table.put(keys, numbered(keys))
        store.commit(1)
        digest = table.digest()
        with pytest.raises(LockedError):
            embedrock.resize(path, "t", 1000)
    command = ["resize", str(path), "t", "--capacity", "1000"]
    assert cli.main(command) == 0
    assert "100 rows, room for 1,000" in capsys.readouterr().out
    with opened(path) as store:
        assert (store.table("t").capacity, store.table("t").digest()) == (1000, digest)
        store.table("t").put(np.arange(500), numbered(np.arange(500)))
    with pytest.raises(FullError):
        embedrock.resize(path, "t", 400)
    assert embedrock.resize(path, "t", 500)["rows"] == 500
    assert sorted(name for name in os.listdir(path) if name.startswith("pmem")) == ["pmem-0"]
    for wrong, error in (
        (lambda: embedrock.resize(path, "u", 10), NotFoundError),
        (lambda: embedrock.resize(path / "no", "t", 10), NotFoundError),
        (lambda: embedrock.resize(path, "t", 500, make_empty=True), MisuseError),
        (lambda: embedrock.resize(path, "t", 0), MisuseError),
    ):
        with pytest.raises(error):
            wrong()


def test_a_resize_that_is_ended_changes_nothing(path: Path) -> None:
    with opened(path) as store:
        table = table_in(store)
        table.put([1], numbered([1]))
        store.commit(1)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedrock.resize(path, "t", 5000, progress=stop)
    # As one that was cut off would leave it.
    (path / "pmem-0.resized").write_bytes(b"cut off")
    (path / "pmem-0.resized.unfinished").write_bytes(b"cut off")
    with opened(path) as store:
        assert store.table("t").capacity == 100
        np.testing.assert_array_equal(store.table("t").get([1]), numbered([1]))
    assert sorted(name for name in os.listdir(path) if name.startswith("pmem")) == ["pmem-0"]


def test_copies_go_into_regions_and_out_of_them(tmp_path: Path, path: Path) -> None:
    keys = np.arange(50) * 3
    with opened(path) as store:
        table = table_in(store)
        table.update(keys, numbered(keys), lr=0.1)
        store.commit(1)
        digest = table.digest()
    with pytest.raises(MisuseError):
        embedrock.copy(path, tmp_path / "no", storage="pmam")  # type: ignore[arg-type]
    embedrock.copy(path, tmp_path / "log", storage="log")
    embedrock.copy(tmp_path / "log", tmp_path / "back", storage="pmem", capacity=77)
    embedrock.copy(tmp_path / "log", tmp_path / "twice", storage="pmem")
    embedrock.copy(path, tmp_path / "same")
    for name, room in (("log", None), ("back", 77), ("twice", 100), ("same", 100)):
        with opened(tmp_path / name) as store:
            table = store.table("t")
            assert (table.digest(), table.capacity) == (digest, room), name


# Folders of regions, and the stores that own them.


def test_regions_may_lie_in_a_folder_that_stores_share(tmp_path: Path) -> None:
    shared = tmp_path / "memory"
    for name in ("one", "two"):
        with opened(tmp_path / name, pmem_path=shared, seed=len(name)) as store:
            table_in(store).put([7], numbered([7]))
            store.commit(1)
    assert len(os.listdir(shared)) == 2
    for name in ("one", "two"):
        # The store remembers it.
        with opened(tmp_path / name, seed=len(name)) as store:
            np.testing.assert_array_equal(store.table("t").get([7]), numbered([7]))
    moved = tmp_path / "elsewhere"
    shared.rename(moved)
    with pytest.raises(MismatchError, match=r"table 't'.*pmem_path="):
        opened(tmp_path / "one")
    opened(tmp_path / "one", pmem_path=moved).close()
    with opened(tmp_path / "one") as store:
        np.testing.assert_array_equal(store.table("t").get([7]), numbered([7]))


def test_a_lost_region_begins_anew_when_it_is_asked_for(tmp_path: Path, path: Path) -> None:
    with opened(path, pmem_path=tmp_path / "memory") as store:
        table_in(store).put([7], numbered([7]))
        store.table("log", 4, 10).put([1], numbered([1]))
        store.commit(1)
    for region in (tmp_path / "memory").iterdir():
        region.unlink()
    with pytest.raises(MismatchError, match="--make-empty"):
        opened(path)
    embedrock.resize(path, "t", 30, make_empty=True)
    with opened(path) as store:
        assert (len(store.table("t")), store.table("t").capacity) == (0, 30)
        np.testing.assert_array_equal(store.table("log").get([1]), numbered([1]))


def test_the_region_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with opened(tmp_path / name) as store:
            table_in(store).put([7], numbered([7]))
            table_in(store, "other")
            store.commit(1)
    one, two = tmp_path / "one", tmp_path / "two"
    region = (one / "pmem-0").read_bytes()
    (one / "pmem-0").write_bytes((two / "pmem-0").read_bytes())
    with pytest.raises(CorruptError, match="of another store or table"):
        opened(one)
    (one / "pmem-0").write_bytes((one / "pmem-1").read_bytes())
    with pytest.raises(CorruptError, match="of another store or table"):
        opened(one)
    (one / "pmem-0").write_bytes(region)
    opened(one).close()


def test_a_reader_beside_a_writer_has_the_other_tables(path: Path) -> None:
    with opened(path) as store:
        table, log = table_in(store), store.table("log", 4, 10)
        table.put([1], numbered([1]))
        log.put([1], numbered([1]))
        store.commit(1)
        with opened(path, read_only=True) as reader:
            np.testing.assert_array_equal(reader.table("log").get([1]), numbered([1]))
            for refused in (
                lambda: reader.table("t").get([1]),
                lambda: reader.table("t").contains([1]),
                lambda: list(reader.table("t").items()),
            ):
                with pytest.raises(LockedError, match="table 't'"):
                    refused()
            log.put([1], numbered([2]))
            store.commit(2)
            reader.refresh()
            np.testing.assert_array_equal(reader.table("log").get([1]), numbered([2]))
        with pytest.raises(LockedError):
            embedrock.check(path)
        with pytest.raises(LockedError):
            embedrock.copy(path, path.parent / "copy")
    with opened(path, read_only=True) as reader:
        np.testing.assert_array_equal(reader.table("t").get([1]), numbered([1]))
        with pytest.raises(MisuseError):
            reader.table("t").promote([1])
        with pytest.raises(LockedError, match="pmem-0 is open elsewhere"):
            opened(path)
    opened(path).close()


def test_info_says_what_the_medium_keeps(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(path) as store:
        table_in(store, capacity=1234)
        store.commit(1)
    assert cli.main(["info", str(path)]) == 0
    said = capsys.readouterr().out
    assert "1,234" in said
    assert "pmem" in said
    assert "'t'" in said
    assert "survive" in said


def test_info_beside_a_writer_says_what_it_does_not_know(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It showed the rows and the room of the last commit that it could read: none, or old ones."""
    with opened(path) as store:
        table = table_in(store, num_embeddings=5000, capacity=1234)
        store.commit(1)
        table.put([1, 2], numbered([1, 2]))
        assert cli.main(["info", str(path)]) == 0
        (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("t "))
        assert line.split()[1:5] == ["in", "use", "in", "use"]
        assert cli.main(["info", str(path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["tables"]["t"]
        assert told["rows"] is told["capacity"] is None
    assert cli.main(["info", str(path)]) == 0
    assert "1,234" in capsys.readouterr().out


def test_commands_name_their_options_and_find_regions_that_were_moved(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They named arguments of Python, some of which they had no option for."""
    memory, moved = tmp_path / "memory", tmp_path / "moved"
    with opened(path, pmem_path=memory) as store:
        table_in(store).put([1], numbered([1]))
        store.commit(1)
        assert cli.main(["serve", str(path), "--writable", "--listen", "127.0.0.1:0"]) == 2
        said = capsys.readouterr().err
        assert "is open in this process" in said
        assert cli.main(["resize", str(path), "t", "--capacity", "200"]) == 2
        assert "read_only" not in capsys.readouterr().err
    memory.rename(moved)
    assert cli.main(["info", str(path)]) == 2
    assert "give --pmem-path the folder that it was moved to" in capsys.readouterr().err
    assert cli.main(["info", str(path), "--pmem-path", str(moved)]) == 0
    assert " 1 " in capsys.readouterr().out
    with serving(path, "--writable", "--pmem-path", str(moved)) as server:
        created = embedrock.connect(server.url).table("u", 4, storage="pmem", capacity=10)
        created.put([1], numbered([1]))
    assert len(list(moved.iterdir())) == 2


def test_modules_train_tables_on_persistent_memory(path: Path) -> None:
    torch = pytest.importorskip("torch")
    with opened(path) as store:
        bag = embedrock.nn.EmbeddingBag(
            None, 4, mode="sum", store=store, name="b", storage="pmem", capacity=50, optimizer="sgd"
        )
        single = embedrock.nn.Embedding(
            20, 4, store=store, name="e", storage="pmem", optimizer="sgd"
        )
        collection = embedrock.nn.EmbeddingBagCollection(
            [
                embedrock.nn.EmbeddingBagConfig(
                    "c", 4, ["f"], storage="pmem", capacity=9, optimizer="sgd"
                )
            ],
            store=store,
        )
        optimizer = embedrock.optim.SGD(torch.nn.ModuleList([bag, single, collection]), lr=0.5)
        before = {name: table.get([3]) for name, table in store.tables.items()}
        ids = torch.tensor([[3, 3]])
        loss = bag(ids).sum() + single(ids).sum() + collection({"f": ids})["f"].sum()
        loss.backward()
        optimizer.step()
        assert [table.capacity for table in store.tables.values()] == [50, 20, 9]
        for name, table in store.tables.items():
            np.testing.assert_allclose(before[name] - table.get([3]), 1.0, rtol=1e-5)


def test_a_child_of_the_process_leaves_the_region_alone(path: Path) -> None:
    code = f"""
import os, numpy as np, embedrock
store = embedrock.open({str(path)!r}, "4MiB")
table = store.table("t", 4, storage="pmem", capacity=100, optimizer="sgd")
table.put([1], np.ones((1, 4), np.float32))
store.commit(1)
asked, ask = os.pipe()
told, tell = os.pipe()
child = os.fork()
if child == 0:
    try:
        table.put([2], np.ones((1, 4), np.float32))
    except embedrock.errors.ForkedError:
        os.write(tell, b"f")
        os.close(ask)
        os.read(asked, 1)
        os._exit(0)
    os._exit(1)
os.close(asked)
assert os.read(told, 1) == b"f"
table.put([3], np.ones((1, 4), np.float32))
store.close()
# The child lives on, and the region is free all the same.
store = embedrock.open({str(path)!r}, "4MiB")
assert len(store.table("t")) == 2 and store.table("t").contains([1, 2, 3]).tolist() == [1, 0, 1]
store.close()
os.close(ask)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_second_server_says_which_tables_it_does_not_serve(path: Path) -> None:
    with embedrock.open(path, "16MiB") as store:
        store.table("t", 4, 10, storage="pmem")
        store.table("other", 4, 10, optimizer="none").put([1], np.ones((1, 4), np.float32))
        store.commit(1)
    with serving(path) as first, serving(path) as second:
        rows = embedrock.connect(second.url)["other"].get([1])
        assert rows.tolist() == [[1.0] * 4]
        said = second.stop()
        assert "table 't' is not served: " in said and "another one" in said
        assert "is not served" not in first.stop()
