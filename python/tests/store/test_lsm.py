"""Tables whose storage is an lsm, beside those in a log: equal bits, whatever is done to both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock
from embedrock import cli
from embedrock.errors import KeyRangeError

DIM = 6
ROWS = 20_000
#: A page holds some ten rows of 512 bytes, and the budget a small part of them: merges are many.
OPTIONS: dict[str, Any] = {"page_bytes": 512, "seed": 5}
BUDGET = "1MiB"
KINDS: tuple[Any, Any] = ("log", "lsm")
DENSE_AND_DTYPES = pytest.mark.parametrize(
    ("dense", "dtype"),
    [
        pytest.param(True, "bfloat16", id="dense-bfloat16"),
        pytest.param(False, "float32", id="growing-float32"),
        *(
            pytest.param(dense, dtype, marks=pytest.mark.long, id=f"{name}-{dtype}")
            for name, dense, dtype in [
                ("dense", True, "float32"),
                ("dense", True, "float16"),
                ("growing", False, "bfloat16"),
                ("growing", False, "float16"),
            ]
        ),
    ],
)

Both = dict[Any, embedrock.Store]


def opened(path: Path, budget: str = BUDGET, **more: Any) -> Any:
    return embedrock.open(path, budget, **{**OPTIONS, **more})


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    """A store for each kind."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(opened(tmp_path / kind)) for kind in KINDS}


def keys_of(rng: np.random.Generator, dense: bool, count: int) -> npt.NDArray[np.int64]:
    ids = rng.integers(0, ROWS, count)
    return ids if dense else ids * 0x9E3779B97F4A7C1 - 2**62


def add(stores: Both, name: str, dense: bool, **more: Any) -> None:
    for kind, store in stores.items():
        rows: dict[str, Any] = {"num_embeddings": ROWS} if dense else {"expected_rows": ROWS}
        store.table(name, DIM, **rows, storage=kind, **more)


def assert_equal(stores: Both, name: str, dense: bool) -> None:
    log, lsm = (stores[kind].table(name) for kind in KINDS)
    assert (log.storage, lsm.storage) == KINDS
    assert len(log) == len(lsm)
    assert log.digest() == lsm.digest()
    keys = keys_of(np.random.default_rng(1), dense, 4000)
    np.testing.assert_array_equal(log.contains(keys), lsm.contains(keys))
    for a, b in zip(log.get(keys, state=True), lsm.get(keys, state=True), strict=True):
        np.testing.assert_array_equal(a, b)


@DENSE_AND_DTYPES
def test_verbs_have_the_bits_of_a_log(both: Both, dense: bool, dtype: str) -> None:
    add(both, "t", dense, dtype=dtype, optimizer="adagrad")
    for store in both.values():
        rng = np.random.default_rng(3)
        table = store.table("t")
        for step in range(60):
            keys = keys_of(rng, dense, 1000)
            gradients = rng.standard_normal((1000, DIM), np.float32)
            table.update(keys, gradients, lr=0.1)
            if step % 4 == 1:
                table.delete(keys_of(rng, dense, 200))
            if step % 5 == 2:
                some = np.unique(keys_of(rng, dense, 300))
                table.put(some, rng.standard_normal((len(some), DIM), np.float32))
            if step % 7 == 3:
                table.modify(keys[:50], lambda values, state: values * 0.5)
            if step % 10 == 9:
                store.commit(step)
    assert_equal(both, "t", dense)
    log, lsm = (
        {
            int(key): row.tobytes()
            for keys, rows in both[kind].table("t").items(1000)
            for key, row in zip(keys, rows, strict=True)
        }
        for kind in KINDS
    )
    assert log == lsm and len(log) > ROWS // 2


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
@pytest.mark.parametrize(
    "dense", [pytest.param(True, marks=pytest.mark.long), False], ids=["dense", "growing"]
)
def test_a_store_comes_back_as_it_was_committed(tmp_path: Path, dense: bool) -> None:
    rngs = {kind: np.random.default_rng(7) for kind in KINDS}
    for life in range(4):
        with ExitStack() as stack:
            stores = {kind: stack.enter_context(opened(tmp_path / kind)) for kind in KINDS}
            add(stores, "t", dense)
            assert_equal(stores, "t", dense)
            for kind, store in stores.items():
                rng, table = rngs[kind], store.table("t")
                for step in range(12):
                    keys = keys_of(rng, dense, 1500)
                    table.update(keys, rng.standard_normal((1500, DIM), np.float32), lr=0.1)
                    table.delete(keys_of(rng, dense, 100))
                    if step % 4 == 3:
                        store.commit(100 * life + step)
                # Not committed, so the next life does not have it.
                table.put(keys_of(rng, dense, 1)[:1], np.ones((1, DIM), np.float32))
    for kind in KINDS:
        report = embedrock.check(tmp_path / kind)
        assert report["problem_count"] == 0, report
    with ExitStack() as stack:
        # The commit before the last.
        stores = {kind: stack.enter_context(opened(tmp_path / kind, step=307)) for kind in KINDS}
        assert_equal(stores, "t", dense)
        for store in stores.values():
            store.table("t").put([5], np.ones((1, DIM), np.float32))
            store.commit(500)
        assert_equal(stores, "t", dense)


def test_tables_of_equal_rows_may_differ_in_storage(tmp_path: Path) -> None:
    with opened(tmp_path / "s", "4MiB") as store:
        tables = [store.table(f"{kind}-{i}", DIM, storage=kind) for i in (0, 1) for kind in KINDS]
        classes = store.stats()["classes"]
        assert sorted(of_class["storage"] for of_class in classes) == ["log", "lsm"]
        assert len({of_class["row_bytes"] for of_class in classes}) == 1
        rng = np.random.default_rng(2)
        for step in range(30):
            keys = keys_of(rng, False, 1000)
            gradients = rng.standard_normal((1000, DIM), np.float32)
            store.update([(table, keys, gradients) for table in tables], lr=0.1)
            store.commit(step)
    with opened(tmp_path / "s", "4MiB", read_only=True) as store:
        found = [store.table(f"{kind}-{i}") for i in (0, 1) for kind in KINDS]
        assert [table.storage for table in found] == [*KINDS, *KINDS]
        keys = keys_of(np.random.default_rng(2), False, 1000)
        written = found[0].contains(keys)
        assert written.all()
        for table in found[1:]:
            assert len(table) == len(found[0])
            np.testing.assert_array_equal(table.contains(keys), written)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "growing"])
def test_copies_go_both_ways(tmp_path: Path, dense: bool) -> None:
    for kind, other in (KINDS, KINDS[::-1]):
        with opened(tmp_path / kind) as store:
            rows: dict[str, Any] = {"num_embeddings": ROWS} if dense else {"expected_rows": ROWS}
            table = store.table("t", DIM, **rows, storage=kind)
            rng = np.random.default_rng(4)
            for _ in range(20):
                keys = keys_of(rng, dense, 1000)
                table.update(keys, rng.standard_normal((1000, DIM), np.float32), lr=0.1)
            table.delete(keys_of(rng, dense, 500))
            store.commit(1)
            digest, count = table.digest(), len(table)
        embedrock.copy(tmp_path / kind, tmp_path / f"{kind}-same", memory="4MiB")
        embedrock.copy(tmp_path / kind, tmp_path / f"{kind}-{other}", memory="4MiB", storage=other)
        for name, storage in ((f"{kind}-same", kind), (f"{kind}-{other}", other)):
            with embedrock.open(tmp_path / name, "4MiB") as store:
                table = store.table("t")
                assert (table.storage, len(table), table.digest()) == (storage, count, digest)


def test_the_command_copies_to_an_lsm(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        store.table("t", DIM).put(np.arange(500), np.ones((500, DIM), np.float32))
        store.commit(1)
        digest = store.table("t").digest()
    assert cli.main(["copy", str(tmp_path / "a"), str(tmp_path / "b"), "--storage", "lsm"]) == 0
    with embedrock.open(tmp_path / "b", "4MiB", read_only=True) as store:
        assert store.table("t").storage == "lsm"
        assert store.table("t").digest() == digest


def test_its_index_takes_less_memory(tmp_path: Path) -> None:
    index = {}
    for kind in KINDS:
        with opened(tmp_path / kind, "4MiB") as store:
            table = store.table("t", 1, optimizer="none", storage=kind)
            for begin in range(0, 200_000, 5000):
                keys = np.arange(begin, begin + 5000)
                table.put(keys, np.ones((5000, 1), np.float32))
            store.commit(1)
            (of_class,) = store.stats()["classes"]
            index[kind] = of_class["index_bytes"]
    assert index["lsm"] < index["log"] / 2


class TestModules:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @DENSE_AND_DTYPES
    def test_a_bag_trains_to_the_bits_of_a_log(
        self, tmp_path: Path, dense: bool, dtype: str
    ) -> None:
        import torch

        losses: dict[str, list[float]] = {kind: [] for kind in KINDS}
        digests = {}
        for kind in KINDS:
            for life in range(2):
                with opened(tmp_path / kind) as store:
                    bag = embedrock.nn.EmbeddingBag(
                        ROWS if dense else None,
                        DIM,
                        mode="sum",
                        store=store,
                        name="t",
                        expected_rows=None if dense else ROWS,
                        dtype=getattr(torch, dtype),
                        output_dtype=torch.float32,
                        storage=kind,
                    )
                    assert bag.table.storage == kind
                    optimizer = embedrock.optim.RowWiseAdagrad(bag, lr=0.05)
                    rng = np.random.default_rng(life)
                    for step in range(25):
                        ids = torch.from_numpy(keys_of(rng, dense, 1200).reshape(300, 4))
                        loss = (bag(ids) - 1).square().mean()
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                        losses[kind].append(loss.item())
                        if step % 8 == 7:
                            bag.table.delete(ids[:20].numpy())
                            store.commit(100 * life + step)
                    store.commit(100 * life + 99)
                    digests[kind] = bag.table.digest()
        assert losses["log"] == losses["lsm"]
        assert digests["log"] == digests["lsm"]


def test_a_table_of_very_many_ids_has_room_for_the_rows_that_are_expected(tmp_path: Path) -> None:
    ids, rng = 2**40, np.random.default_rng(2)
    batches = [np.unique(rng.integers(0, ids, 10_000)) for _ in range(10)]
    batches[3][-1] = ids - 1

    def values(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return (keys[:, None] % 65_537 + np.arange(DIM)).astype(np.float32)

    with embedrock.open(tmp_path / "s", "3MiB") as store:
        table = store.table("t", DIM, ids, storage="lsm", expected_rows=100_000)
        assert table.num_embeddings == ids
        for step, keys in enumerate(batches, 1):
            table.put(keys, values(keys))
            store.commit(step)
        with pytest.raises(KeyRangeError, match=str(ids)):
            table.get([ids])
    with embedrock.open(tmp_path / "s", "3MiB") as store:
        table = store.table("t")
        every = np.unique(np.concatenate(batches))
        assert (len(table), table.num_embeddings) == (len(every), ids)
        for keys in batches:
            np.testing.assert_array_equal(table.get(keys), values(keys))
        absent = np.setdiff1d(rng.integers(0, ids, 2000), every)
        assert not table.contains(absent).any()
        assert table.delete(batches[0]) == len(batches[0])
        assert sum(len(keys) for keys, _ in table.items()) == len(every) - len(batches[0])
        store.commit(len(batches) + 1)
    assert cli.main(["check", str(tmp_path / "s")]) == 0
