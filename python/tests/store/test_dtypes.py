"""Tables whose values are stored in two bytes: what they hold, and what becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock
from embedrock import weights
from embedrock._arrays import BFloat16Rows
from embedrock.errors import MismatchError, MisuseError, NonFiniteError

HALVES = ("float16", "bfloat16")
ONE_SOON = [pytest.param("float16", marks=pytest.mark.long), "bfloat16"]
DIM = 7


def rounded(values: Any, dtype: str) -> npt.NDArray[np.float32]:
    """The values as the dtype has them, nearest, ties to even."""
    values = np.asarray(values, np.float32)
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32)


def numbers(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("num_embeddings", [None, 5000])
def test_put_rounds_to_nearest_and_get_widens(
    store: embedrock.Store, dtype: str, num_embeddings: int | None
) -> None:
    table = store.table("t", DIM, num_embeddings, dtype=dtype)
    assert (table.dtype, table.row_bytes) == (dtype, 16 + 4)
    keys = np.arange(5000)
    values = (numbers(5000, DIM) * 10.0 ** np.arange(-4, 3)).astype(np.float32)
    table.put(keys, values)
    np.testing.assert_array_equal(table.get(keys), rounded(values, dtype))
    mixed = np.random.default_rng(1).integers(0, 5000, 3000)
    np.testing.assert_array_equal(table.get(mixed), rounded(values, dtype)[mixed])
    found, state = table.get(keys[:10], state=True)
    np.testing.assert_array_equal(found, rounded(values[:10], dtype))
    assert state.shape == (10, 1)
    for some, rows in table.items(1000):
        np.testing.assert_array_equal(rows, rounded(values, dtype)[some])


@pytest.mark.parametrize("dtype", HALVES)
def test_initial_rows_are_the_rounded_ones_of_float32(store: embedrock.Store, dtype: str) -> None:
    cut = embedrock.initializers.truncated_normal()
    for name, initializer in (("u", None), ("n", embedrock.initializers.normal()), ("t", cut)):
        rows = {}
        for each in ("float32", dtype):
            # The table's name is part of what initial rows are made of.
            path = store.path.parent / f"{name}.{each}"
            with embedrock.open(path, memory="16MiB", max_disk_bytes=100 << 20) as other:
                table = other.table("t", DIM, initializer=initializer, dtype=each)
                rows[each] = table.get(np.arange(200))
        np.testing.assert_array_equal(rows[dtype], rounded(rows["float32"], dtype))


def test_values_cross_in_the_tables_own_dtype(store: embedrock.Store) -> None:
    values = numbers(20, DIM)
    for dtype in HALVES:
        table = store.table(dtype, DIM, dtype=dtype)
        table.put(np.arange(20), values)
        own = table.get(np.arange(20), dtype=dtype)
        assert own.shape == (20, DIM) and len(own) == 20
        np.testing.assert_array_equal(np.asarray(own, np.float32), rounded(values, dtype))
        pair = table.get([[3], [4]], state=True, dtype=dtype)
        assert pair[0].shape == (2, 1, DIM) and pair[1].shape == (2, 1, 1)
        again = store.table(f"{dtype} again", DIM, dtype=dtype)
        again.put(np.arange(20), own)
        np.testing.assert_array_equal(again.get(np.arange(20)), rounded(values, dtype))
    half = store.table("float16").get([1, 2], dtype=np.float16)
    assert half.dtype == np.float16
    upper = store.table("bfloat16").get([1, 2], dtype="bfloat16")
    assert isinstance(upper, BFloat16Rows)
    np.testing.assert_array_equal(upper[1], rounded(values[2], "bfloat16"))
    assert np.asarray(upper).dtype == np.float32
    out = np.empty((2, DIM), np.float16)
    assert store.table("float16").get([1, 2], out=out) is out
    np.testing.assert_array_equal(out, half)
    mixed = store.get(
        [(store.table("float16"), [1, 2]), (store.table("bfloat16"), [5])], out=[out, None]
    )
    assert mixed[0] is out and mixed[1].dtype == np.float32
    with pytest.raises(MisuseError, match="dtype is float16, table 'bfloat16' gives float32 or bf"):
        store.table("bfloat16").get([1], dtype="float16")
    with pytest.raises(MisuseError, match="out is float16, expected float32 or bfloat16"):
        store.table("bfloat16").get([1, 2], out=out)
    for other in (">f2", ">f4", "f8", "u2"):
        with pytest.raises(MisuseError, match=r"out is .*, expected float32 or float16"):
            store.table("float16").get([1, 2], out=np.empty((2, DIM), other))
    with pytest.raises(MisuseError, match="not both"):
        store.table("float16").get([1, 2], out=out, dtype="float16")
    with pytest.raises(MisuseError, match="dtype is float16, table 'plain' gives float32"):
        store.table("plain", DIM).get([1], dtype="float16")


def test_torch_takes_rows_as_they_are(store: embedrock.Store) -> None:
    torch = pytest.importorskip("torch")
    values = torch.from_numpy(numbers(20, DIM))
    for dtype in HALVES:
        own = getattr(torch, dtype)
        table = store.table(dtype, DIM, dtype=own)
        table.put(torch.arange(20), values.to(own))  # torch rounds as the engine does
        expected = values.to(own)
        tensor = torch.from_dlpack(table.get(torch.arange(20), dtype=own))
        assert tensor.dtype == own
        assert torch.equal(tensor, expected)
        out = torch.zeros(20, DIM, dtype=own)
        assert table.get(torch.arange(20), out=out) is out
        assert torch.equal(out, expected)
        assert torch.equal(torch.from_numpy(table.get(torch.arange(20))), expected.float())
        table.put([3], values[5:6])
        assert torch.equal(tensor, expected), "the tensor has memory of its own"
        again = torch.from_dlpack(table.get([3], dtype=own))
        assert torch.equal(again[0], expected[5])
    with pytest.raises(MisuseError, match=r"out is float16, expected float32 or bfloat16"):
        store.table("bfloat16").get([1], out=torch.zeros(1, DIM, dtype=torch.float16))


def test_a_capsule_outlives_the_rows_that_it_came_from(store: embedrock.Store) -> None:
    torch = pytest.importorskip("torch")
    table = store.table("t", 64, dtype="bfloat16", initializer=embedrock.initializers.normal())
    tensors = [torch.from_dlpack(table.get([key], dtype="bfloat16")) for key in range(200)]
    for key, tensor in enumerate(tensors):
        np.testing.assert_array_equal(tensor[0].float().numpy(), table.get(key))


def train(
    path: Path, memory: str, dtype: str, optimizer: str, *, steps: int = 40, **options: Any
) -> tuple[int, npt.NDArray[np.float32]]:
    """A training of 3000 rows; the digest and some rows at its end."""
    with embedrock.open(path, memory, max_disk_bytes=200 << 20, **options) as store:
        table = store.table("t", 32, 3000, dtype=dtype, optimizer=optimizer)
        rng = np.random.default_rng(3)
        for step in range(steps):
            keys = rng.integers(0, 3000, 500)
            gradients = rng.standard_normal((500, 32), np.float32) * np.float32(1e-3)
            table.update(keys, gradients, lr=0.01)
            if step % 10 == 9:
                store.commit(step)
        return table.digest(), table.get(np.arange(100))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_stochastic_rounding_gives_the_same_bits_at_any_budget(
    tmp_path: Path, dtype: str, optimizer: str
) -> None:
    tight, _ = train(tmp_path / "a", "340KiB", dtype, optimizer, page_bytes=512, policy="lfu")
    roomy, rows = train(tmp_path / "b", "64MiB", dtype, optimizer)
    assert tight == roomy
    with embedrock.open(tmp_path / "a", "64MiB") as store:
        assert store.table("t").digest() == roomy
        stats = store.stats()
    with embedrock.open(tmp_path / "c", "64MiB", seed=1) as store:
        store.table("t", 32, 3000, dtype=dtype, optimizer=optimizer)
        store.commit(1)
    other, _ = train(tmp_path / "c", "64MiB", dtype, optimizer)
    assert other != roomy, "another seed rounds otherwise"
    assert stats["saturated"] == 0
    assert rounded(rows, dtype).tobytes() == rows.tobytes()


def test_a_resumed_run_rounds_as_one_that_never_stopped(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "a", "16MiB", "bfloat16", "sgd")
    with embedrock.open(tmp_path / "b", "16MiB", max_disk_bytes=200 << 20) as store:
        store.table("t", 32, 3000, dtype="bfloat16", optimizer="sgd")
        store.commit(0)
    rng = np.random.default_rng(3)
    for _ in range(4):
        with embedrock.open(tmp_path / "b", "16MiB") as store:
            table = store.table("t")
            for _ in range(10):
                keys = rng.integers(0, 3000, 500)
                gradients = rng.standard_normal((500, 32), np.float32) * np.float32(1e-3)
                table.update(keys, gradients, lr=0.01)
            store.commit(1)
            digest = table.digest()
    assert digest == whole


def test_threads_on_rows_of_their_own_round_as_one_thread_does(tmp_path: Path) -> None:
    digests = []
    for threads in (1, 4):
        with embedrock.open(tmp_path / str(threads), "16MiB", max_disk_bytes=100 << 20) as store:
            tables = [store.table(f"t{i}", 16, 500, dtype="float16") for i in range(4)]

            def work(i: int, tables: list[embedrock.Table] = tables) -> None:
                rng = np.random.default_rng(i)
                for _ in range(50):
                    keys = rng.integers(0, 500, 100)
                    tables[i].update(keys, rng.standard_normal((100, 16), np.float32), lr=1e-3)

            if threads == 1:
                for i in range(4):
                    work(i)
            else:
                workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
            store.commit(1)
            digests.append([table.digest() for table in tables])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("dtype", HALVES)
def test_updates_far_below_a_unit_in_the_last_place_count_on_average(
    store: embedrock.Store, dtype: str
) -> None:
    options = {"optimizer": "sgd", "initializer": 1.0, "dtype": dtype}
    kept = store.table("stochastic", 64, 500, **options)
    lost = store.table("nearest", 64, 500, rounding="nearest", **options)
    unit = 2.0**-10 if dtype == "float16" else 2.0**-7
    gradients = np.full((500, 64), -unit / 50, np.float32)
    for table in (kept, lost):
        for _ in range(100):
            table.update(np.arange(500), gradients, lr=1.0)
    assert (lost.get(np.arange(500)) == 1.0).all()
    rows = kept.get(np.arange(500)).astype(np.float64)
    # 32,000 random walks: one standard error of their mean is below 0.01 units.
    assert abs(rows.mean() - (1 + 2 * unit)) < 0.05 * unit
    # The count of ups of one element is binomial: 100 tries at 1 in 50.
    assert 1.2 < ((rows - 1) / unit).std() < 1.6
    assert kept.rounding == "stochastic" and lost.rounding == "nearest"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "optimizer", ["adagrad", "rowwise_adagrad", "adam", "momentum", "adamw", "rowwise_adam", "ftrl"]
)
def test_every_optimizer_trains_near_float32(
    store: embedrock.Store, dtype: str, optimizer: str
) -> None:
    tables = [
        store.table(each, 8, 50, dtype=each, optimizer=optimizer, initializer=0.0)
        for each in ("float32", dtype)
    ]
    rng = np.random.default_rng(5)
    target = rng.standard_normal((50, 8)).astype(np.float32)
    for _ in range(200):
        keys = rng.integers(0, 50, 30)
        for table in tables:
            table.update(keys, table.get(keys) - target[keys], lr=0.05)
    error = [np.abs(table.get(np.arange(50)) - target).mean() for table in tables]
    assert error[1] < error[0] + 0.02
    # State is float32 whatever the values are.
    assert tables[1].state_words == tables[0].state_words
    assert tables[1].row_bytes == tables[0].row_bytes - 16


def test_values_beyond_float16_are_refused_left_out_or_infinite(store: embedrock.Store) -> None:
    table = store.table("t", 2, dtype="float16", initializer=0.0)
    values = np.array([[1.0, 65519.0], [65520.0, 1.0]], np.float32)
    with pytest.raises(NonFiniteError, match="or beyond the range of float16, the first for key"):
        table.put([1, 2], values)
    assert len(table) == 0
    table.put([1, 2], values, non_finite="skip")
    assert table.get([1, 2]).tolist() == [[1.0, 65504.0], [0.0, 0.0]]
    table.put([1, 2], values, non_finite="apply")
    assert table.get([2]).tolist() == [[np.inf, 1.0]]
    with pytest.raises(NonFiniteError, match="beyond the range of float16; nothing changed"):
        table.modify([1], lambda values, state: values * 2)
    wide = store.table("wide", 2, dtype="bfloat16", initializer=0.0)
    wide.put([1], [[1e38, -3.3e38]])
    with pytest.raises(NonFiniteError):
        wide.put([1], np.array([[np.finfo(np.float32).max, 0.0]], np.float32))


def test_an_update_beyond_float16_stops_at_its_end_and_is_counted(store: embedrock.Store) -> None:
    for rounding in ("stochastic", "nearest"):
        options = {"dtype": "float16", "optimizer": "sgd", "initializer": 60000.0}
        table = store.table(rounding, 2, rounding=rounding, **options)
        gradients = np.array([[-1e4, 0.0], [-1.0, 0.0], [2e5, 0.0]], np.float32)
        report = table.update([1, 2, 3], gradients, lr=1.0)
        assert report == {"rows": 3, "skipped": 0, "saturated": 2}
        assert table.get([1, 3]).tolist() == [[65504.0, 60000.0], [-65504.0, 60000.0]]
        assert table.update([2], gradients[1:2], lr=1.0) == {"rows": 1, "skipped": 0}
    assert store.stats()["saturated"] == 4


def test_initial_values_that_the_dtype_has_not_are_refused(store: embedrock.Store) -> None:
    for initializer in (1e5, embedrock.initializers.normal(std=1e5)):
        with pytest.raises(MisuseError, match="leave the range of float16; use bfloat16"):
            store.table("t", 2, dtype="float16", initializer=initializer)
    store.table("t", 2, dtype="bfloat16", initializer=1e5)


def test_a_table_keeps_its_dtype(store: embedrock.Store) -> None:
    made = store.table("t", DIM, dtype="float16", rounding="nearest")
    for again in (store.table("t"), store.table("t", DIM), store.table("t", DIM, dtype=np.float16)):
        assert (again.dtype, again.rounding) == ("float16", "nearest")
    for other in ({"dtype": "float32"}, {"dtype": "bfloat16"}, {"rounding": "stochastic"}):
        with pytest.raises(MismatchError, match=next(iter(other))):
            store.table("t", DIM, **other)
    assert "x 7 float16" in repr(made)
    for unknown in ("float64", "int16", np.int32, "quarter"):
        with pytest.raises(MisuseError, match="expected one of float32, float16, bfloat16"):
            store.table("other", DIM, dtype=unknown)
    with pytest.raises(MisuseError, match="rounding is 'up'"):
        store.table("other", DIM, dtype="float16", rounding="up")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_in_two_bytes_take_half_the_memory_and_disk(tmp_path: Path, dtype: str) -> None:
    sizes = {}
    for each in ("float32", dtype):
        with embedrock.open(tmp_path / each, "64MiB", max_disk_bytes=200 << 20) as store:
            table = store.table("t", 64, 20_000, dtype=each, optimizer="none")
            table.put(np.arange(20_000), numbers(20_000, 64))
            store.commit(1)
            facts = store.stats()["classes"][0]
            sizes[each] = (facts["row_bytes"], facts["disk_bytes"], facts["cache_bytes"])
            resident = facts["resident_rows"]
            assert resident == 20_000
    assert (sizes["float32"][0], sizes[dtype][0]) == (256, 128)
    assert sizes[dtype][1] < 0.62 * sizes["float32"][1]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_exported_rows_come_back_bit_for_bit(
    store: embedrock.Store, tmp_path: Path, dtype: str, suffix: str
) -> None:
    pytest.importorskip("torch")
    tables = [store.table(f"{n}", DIM, n, dtype=dtype) for n in (30, None)]
    for table in tables:
        table.put(np.arange(30), numbers(30, DIM))
        path = tmp_path / f"rows{table.num_embeddings}{suffix}"
        assert weights.export(table, path) == 30
        again = store.table(f"again {table.name}", DIM, table.num_embeddings, dtype=dtype)
        assert weights.load(again, path) == 30
        np.testing.assert_array_equal(again.get(np.arange(30)), table.get(np.arange(30)))
    file = np.load(tmp_path / "rows30.npy") if suffix == ".npy" else None
    if file is not None:
        assert file.dtype == ("float16" if dtype == "float16" else "float32")
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        loaded = safetensors.load_file(tmp_path / "rows30.safetensors")["weight"]
        assert str(loaded.dtype) == f"torch.{dtype}"
        np.testing.assert_array_equal(loaded.float().numpy(), tables[0].get(np.arange(30)))
    module = weights.to_torch(tables[0])
    assert str(module.weight.dtype) == f"torch.{dtype}"
    np.testing.assert_array_equal(
        module.weight.detach().float().numpy(), tables[0].get(np.arange(30))
    )
    copied = store.table("copied", DIM, 30, dtype=dtype)
    weights.load(copied, module)
    np.testing.assert_array_equal(copied.get(np.arange(30)), tables[0].get(np.arange(30)))


@pytest.mark.parametrize("dtype", ONE_SOON)
def test_copies_and_checks_know_the_dtype(tmp_path: Path, dtype: str) -> None:
    digest, rows = train(tmp_path / "a", "16MiB", dtype, "adagrad")
    assert embedrock.check(tmp_path / "a")["problem_count"] == 0
    embedrock.copy(tmp_path / "a", tmp_path / "b")
    with embedrock.open(tmp_path / "b", "16MiB") as store:
        table = store.table("t")
        assert table.dtype == dtype
        assert table.digest() == digest
        np.testing.assert_array_equal(table.get(np.arange(100)), rows)
        # The count of updates came along, so the copy goes on rounding as the store would.
        table.update([5], np.full((1, 32), 1e-4, np.float32), lr=0.1)
        expected = table.get([5])
        store.commit(100)
    with embedrock.open(tmp_path / "a", "16MiB") as store:
        store.table("t").update([5], np.full((1, 32), 1e-4, np.float32), lr=0.1)
        np.testing.assert_array_equal(store.table("t").get([5]), expected)
        store.commit(100)
    done = subprocess.run(
        [sys.executable, "-m", "embedrock", "info", str(tmp_path / "a"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["tables"]["t"]["dtype"] == dtype


class TestModules:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", HALVES)
    def test_outputs_have_the_dtype_of_the_table_or_another(
        self, store: embedrock.Store, dtype: str
    ) -> None:
        import torch

        own = getattr(torch, dtype)
        embedding = embedrock.nn.Embedding(20, DIM, store=store, name="e", dtype=own)
        bag = embedrock.nn.EmbeddingBag(
            None, DIM, mode="sum", store=store, name="b", dtype=own, output_dtype=torch.float32
        )
        assert embedding.table.dtype == bag.table.dtype == dtype
        ids = torch.tensor([[1, 2], [2, 2]])
        assert embedding(ids).dtype == own
        rows = torch.from_numpy(embedding.table.get(ids))
        assert torch.equal(embedding(ids).float(), rows)
        assert bag(ids).dtype == torch.float32
        expected = torch.from_numpy(bag.table.get(ids)).sum(dim=1)
        torch.testing.assert_close(bag(ids), expected)
        again = embedrock.nn.Embedding(20, DIM, store=store, name="e")
        assert again(ids).dtype == own

    def test_gradients_are_summed_in_float32(self, store: embedrock.Store) -> None:
        import torch

        module = embedrock.nn.Embedding(
            20, DIM, store=store, name="e", optimizer="sgd", initializer=0.0, dtype=torch.bfloat16
        )
        optimizer = embedrock.optim.SGD(module, lr=1.0)
        # 256 ones and a bit more do not fit the eight digits of bfloat16.
        module(torch.ones(257, dtype=torch.int64)).sum().backward()
        (rows,) = module.parameters()
        assert rows.grad.dtype == torch.float32
        assert (rows.grad == 257).all()
        optimizer.step()
        assert set(module.table.get([1]).reshape(-1).tolist()) <= {-256.0, -258.0}

    def test_collections_take_a_dtype_by_table(self, store: embedrock.Store) -> None:
        import torch

        config = embedrock.nn.EmbeddingBagConfig
        bags = embedrock.nn.EmbeddingBagCollection(
            [config("a", 4, dtype=torch.float16), config("b", 4, rounding="nearest")], store=store
        )
        assert [table.dtype for table in bags.tables] == ["float16", "float32"]
        ids = torch.tensor([[1], [2]])
        assert {rows.dtype for rows in bags({"a": ids, "b": ids}).values()} == {torch.float32}
        halves = embedrock.nn.EmbeddingBagCollection(
            [config("a", 4), config("b", 4)], store=store, output_dtype=torch.bfloat16
        )
        assert halves({"a": ids, "b": ids})["b"].dtype == torch.bfloat16

    @pytest.mark.parametrize("dtype", ONE_SOON)
    def test_a_model_of_halves_learns_what_one_of_float32_learns(
        self, store: embedrock.Store, dtype: str
    ) -> None:
        import torch

        losses = []
        for each in ("float32", dtype):
            torch.manual_seed(0)
            generator = torch.Generator().manual_seed(1)
            model = torch.nn.Sequential(
                embedrock.nn.EmbeddingBag(
                    500,
                    16,
                    mode="sum",
                    store=store,
                    name=each,
                    optimizer="adagrad",
                    dtype=getattr(torch, each),
                    output_dtype=torch.float32,
                ),
                torch.nn.Linear(16, 1),
            )
            optimizers = [
                embedrock.optim.Adagrad(model, lr=0.1),
                torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.01),
            ]
            truth = torch.randn(500, generator=generator)
            for _ in range(300):
                ids = torch.randint(0, 500, (64, 3), generator=generator)
                loss = (model(ids)[:, 0] - truth[ids].sum(dim=1)).square().mean()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[1] < 1.1 * losses[0] + 0.02
