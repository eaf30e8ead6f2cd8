"""Rows to and from Parquet, Arrow's files, and streams of other libraries."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

import embedrock  # noqa: E402
from embedrock import weights  # noqa: E402
from embedrock.errors import (  # noqa: E402
    CorruptError,
    EmbedrockError,
    FullError,
    IoError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NotFoundError,
)
from embedrock.weights import blocks  # noqa: E402

N, DIM = 100, 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 8 * DIM * 4)  # 8 rows, 4 with as much state


def trained(store: embedrock.Store, dtype: str = "float32", **options: Any) -> embedrock.Table:
    """A table whose rows have values and state."""
    table = store.table("source", DIM, optimizer="adagrad", dtype=dtype, **options)
    random = np.random.default_rng(1)
    table.put(np.arange(N), random.standard_normal((N, DIM), np.float32))
    table.update(np.arange(0, N, 3), random.standard_normal((34, DIM), np.float32), lr=0.1)
    return table


def frame(keys: Any, values: Any, **more: Any) -> Any:
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    rows = pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pyarrow.table({"key": keys, "embedding": rows, **more})


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_table_goes_out_and_comes_in_with_its_state(
    store: embedrock.Store, tmp_path: Path, suffix: str, grows: bool, dtype: str
) -> None:
    options = {} if grows else {"num_embeddings": N}
    table = trained(store, dtype, **options)
    store.commit(17)
    path = tmp_path / f"rows{suffix}"
    told: list[tuple[int, int]] = []
    assert weights.export(table, path, state=True, progress=lambda *p: told.append(p)) == N
    assert told[0] == (4, N) and told[-1] == (N, N) and len(told) == 25
    other = store.table("other", DIM, optimizer="adagrad", dtype=dtype, **options)
    assert weights.load(other, path, state=True) == N
    assert other.digest() == table.digest()
    # Without state, that begins anew.
    plain = store.table("plain", DIM, optimizer="adagrad", dtype=dtype, **options)
    assert weights.load(plain, path) == N
    values, states = plain.get(np.arange(N), state=True)
    assert (values == table.get(np.arange(N))).all() and (states == 0).all()


def test_others_find_what_they_expect_in_a_file(store: embedrock.Store, tmp_path: Path) -> None:
    table = trained(store)
    store.commit(17)
    weights.export(table, tmp_path / "a.parquet", name="vector", state=True)
    file = parquet.ParquetFile(tmp_path / "a.parquet")
    kinds = [field.type for field in file.schema_arrow]
    assert kinds[0] == pyarrow.int64()
    for kind in kinds[1:]:
        assert (kind.list_size, kind.value_type) == (DIM, pyarrow.float32())
    assert file.schema_arrow.names == ["key", "vector", "state"]
    metadata = {k.decode(): v.decode() for k, v in file.schema_arrow.metadata.items()}
    assert metadata["embedrock.table"] == "source" and metadata["embedrock.step"] == "17"
    assert (metadata["embedrock.dtype"], metadata["embedrock.optimizer"]) == ("float32", "adagrad")
    assert file.metadata.num_row_groups == 25  # one for each block of four rows
    found = file.read()
    keys = found["key"].to_numpy()
    flat = np.stack(found["vector"].to_numpy())
    assert sorted(keys) == [*range(N)] and (flat == table.get(keys)).all()


def test_never_written_rows_of_a_dense_table_go_out_as_they_read(
    store: embedrock.Store, tmp_path: Path
) -> None:
    table = store.table("dense", DIM, num_embeddings=N, optimizer="adagrad")
    table.put([3], np.ones((1, DIM), np.float32))
    found = weights.to_arrow(table, state=True).read_all()
    assert found["key"].to_pylist() == [*range(N)]
    assert (np.stack(found["embedding"].to_numpy()) == table.get(np.arange(N))).all()


def test_streams_are_read_and_written_in_blocks(store: embedrock.Store) -> None:
    table = trained(store)
    reader = weights.to_arrow(table)
    assert [len(batch) for batch in reader] == [8] * 12 + [4]
    whole = weights.to_arrow(table).read_all().combine_chunks()
    other = store.table("other", DIM)
    engine = mock.Mock(wraps=store._core)
    with mock.patch.object(store, "_core", engine):
        assert weights.load(other, whole) == N
    assert engine.put.call_count == 13
    assert (other.get(np.arange(N)) == table.get(np.arange(N))).all()


@pytest.mark.parametrize("library", ["pyarrow", "reader", "polars", "pandas", "duckdb"])
def test_frames_of_other_libraries_go_both_ways(store: embedrock.Store, library: str) -> None:
    table = trained(store)
    reader = weights.to_arrow(table)
    if library == "pyarrow":
        source: Any = reader.read_all()
    elif library == "reader":
        source = reader
    elif library == "polars":
        source = pytest.importorskip("polars").from_arrow(reader.read_all())
        assert str(source.schema["embedding"]).startswith("Array(Float32")
    elif library == "pandas":
        pytest.importorskip("pandas")
        source = reader.read_all().to_pandas()
    else:
        duckdb = pytest.importorskip("duckdb")
        source = duckdb.sql("SELECT * FROM reader WHERE key >= 0")
    other = store.table("other", DIM)
    assert weights.load(other, source) == N
    assert (other.get(np.arange(N)) == table.get(np.arange(N))).all()


def test_keys_of_every_kind_arrive(store: embedrock.Store) -> None:
    rows = np.arange(3 * DIM, dtype=np.float64).reshape(3, DIM)
    table = store.table("t", DIM)
    for keys in (
        pyarrow.array([1, 2, 3], pyarrow.int32()),
        pyarrow.array([2**64 - 1, 7, 2**63], pyarrow.uint64()),
        pyarrow.array([-1, 7, -(2**63)], pyarrow.int64()),
    ):
        assert weights.load(table, frame(keys, rows)) == 3
        assert (table.get(keys.to_numpy()) == rows).all()
    lists = pyarrow.array([[*map(float, row)] for row in rows])
    assert weights.load(table, pyarrow.table({"key": [4, 5, 6], "vector": lists})) == 3
    assert (table.get([4, 5, 6]) == rows).all()
    dense = store.table("dense", DIM, num_embeddings=3)
    assert weights.load(dense, frame([0, 1, 2], rows).drop_columns("key")) == 3
    assert (dense.get([0, 1, 2]) == rows).all()


def test_what_does_not_fit_is_named(store: embedrock.Store, tmp_path: Path) -> None:
    table = store.table("t", DIM)
    dense = store.table("dense", DIM, num_embeddings=3, optimizer="adagrad")
    rows = np.ones((2, DIM), np.float32)
    good = frame([1, 2], rows)
    holes = pyarrow.table({"key": [1, 2], "embedding": pyarrow.array([[1.0] * DIM, None])})
    hole = pyarrow.table({"key": [1], "embedding": pyarrow.array([[1.0, None, 1.0, 1.0]])})
    short = pyarrow.table({"key": [1, 2], "embedding": pyarrow.array([[1.0] * DIM, [1.0]])})
    both = frame([1, 2], rows, other=good["embedding"]).rename_columns(["key", "a", "b"])
    cases: list[tuple[type[Exception], str, Any, Any, dict[str, Any]]] = [
        (MismatchError, "lists of 5, table 't' has embedding_dim=4", table,
         frame([1], np.ones((1, 5), np.float32)), {}),
        (MismatchError, 'has no column "key"; its columns are', table,
         good.drop_columns("key"), {}),
        (MismatchError, "2 rows without keys", dense, good.drop_columns("key"), {}),
        (KeyRangeError, "5", dense, frame([1, 5], rows), {}),
        (MisuseError, r"'embedding' of source \(Table\), row 1: null", table, holes, {}),
        (MisuseError, "row 0: a null among its values", table, hole, {}),
        (MismatchError, "row 1: 1 values, expected 4", table, short, {}),
        (MisuseError, "2 columns of lists of floating-point values, expected one, or name=",
         table, both, {}),
        (NotFoundError, "has no column 'c'", table, both, {"name": "c"}),
        (MisuseError, r"'key' of source \(Table\) is int64, expected lists", table, good,
         {"name": "key"}),
        (MismatchError, 'has no column "state"', dense, good, {"state": True}),
        (MisuseError, r'column "key" of source \(Table\) is double', table,
         frame([1.5, 2.0], rows), {}),
        (MisuseError, "leave keys= out", table, good, {"keys": [1, 2]}),
        (MisuseError, "this source has none", dense, np.ones((3, DIM), np.float32),
         {"state": True}),
    ]  # fmt: skip
    for error, message, into, source, options in cases:
        with pytest.raises(error, match=message):
            weights.load(into, source, **options)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but not really")
    (tmp_path / "bad.arrow").write_bytes(b"ARROW1 but not really")
    for name in ("bad.parquet", "bad.arrow"):
        with pytest.raises(CorruptError, match=f"{name} cannot be read as"):
            weights.load(table, tmp_path / name)
    with pytest.raises(NotFoundError, match="does not exist"):
        weights.load(table, tmp_path / "none.parquet")


def test_a_damaged_page_of_a_file_is_reported(store: embedrock.Store, tmp_path: Path) -> None:
    table = trained(store)
    path = tmp_path / "a.parquet"
    weights.export(table, path)
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = b"\0" * (len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"a\.parquet cannot be read as parquet"):
        weights.load(store.table("other", DIM), path)


def test_an_export_that_fails_leaves_nothing(store: embedrock.Store, tmp_path: Path) -> None:
    table = trained(store)

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(KeyboardInterrupt):
            weights.export(table, tmp_path / name, progress=fail)
    with (
        mock.patch.object(blocks, "_contents", lambda *_: iter([])),
        pytest.raises(EmbedrockError, match="100 rows when its export began"),
    ):
        weights.export(table, tmp_path / "a.parquet")
    with pytest.raises(MisuseError, match="has no place for state"):
        weights.export(table, tmp_path / "a.npy", state=True)
    with pytest.raises(MisuseError, match="has no optimizer state"):
        weights.export(store.table("s", 2, optimizer="sgd"), tmp_path / "a.parquet", state=True)
    with pytest.raises(MisuseError, match="the name of another column"):
        weights.export(table, tmp_path / "a.parquet", name="key")
    assert [path.name for path in tmp_path.iterdir()] == ["test.store"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_full_disk_is_told_with_the_path_and_leaves_nothing(
    store: embedrock.Store, tmp_path: Path, suffix: str
) -> None:
    """It was told as pyarrow raises it, by the end of a file that could not be ended."""
    table = store.table("many", DIM)
    table.put(np.arange(3000), np.ones((3000, DIM), np.float32))  # more than a buffer of the file
    path = tmp_path / f"a{suffix}"
    path.with_name(f".{path.name}.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(FullError, match=rf"writing .*a\{suffix}: .*No space.*make room there"):
        weights.export(table, path)
    assert [path.name for path in tmp_path.iterdir()] == ["test.store"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_what_the_system_refuses_to_read_is_not_called_damaged(
    store: embedrock.Store, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = trained(store)
    path = tmp_path / f"a{suffix}"
    weights.export(table, path)

    def fails(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", fails)
    monkeypatch.setattr("pyarrow.memory_map", fails)
    expected = rf"reading .*a\{suffix}: .*Permission denied; see to its rights"
    with pytest.raises(IoError, match=expected) as caught:
        weights.load(table, path)
    assert caught.value.errno == errno.EACCES


def test_without_pyarrow_it_says_what_to_install(
    store: embedrock.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = trained(store)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for call in (
        lambda: weights.export(table, tmp_path / "a.parquet"),
        lambda: weights.load(table, tmp_path / "a.arrow"),
        lambda: weights.to_arrow(table),
    ):
        with pytest.raises(ModuleNotFoundError, match="needs pyarrow: pip install pyarrow"):
            call()


def lists_of_every_kind(values: Any) -> dict[str, Any]:
    """Columns with the same rows ``(N, DIM)``."""
    flat = pyarrow.array(values.reshape(-1))
    fixed = pyarrow.FixedSizeListArray.from_arrays(flat, DIM)
    count = len(values)
    # Views may come in any order, and share what they see.
    turned = pyarrow.array(np.ascontiguousarray(values[::-1]).reshape(-1))
    begins = np.arange(count - 1, -1, -1) * DIM
    sizes = np.full(count, DIM)
    tensor = pyarrow.fixed_shape_tensor(flat.type, [DIM])
    squares = pyarrow.fixed_shape_tensor(flat.type, [2, DIM // 2])
    return {
        "fixed": fixed,
        "list": fixed.cast(pyarrow.list_(flat.type)),
        "large list": fixed.cast(pyarrow.large_list(flat.type)),
        "view": pyarrow.ListViewArray.from_arrays(
            pyarrow.array(begins, pyarrow.int32()), pyarrow.array(sizes, pyarrow.int32()), turned
        ),
        "large view": pyarrow.LargeListViewArray.from_arrays(
            pyarrow.array(begins), pyarrow.array(sizes), turned
        ),
        "tensor": pyarrow.ExtensionArray.from_storage(tensor, fixed),
        "squares": pyarrow.ExtensionArray.from_storage(squares, fixed),
    }


@pytest.mark.parametrize("way", ["stream", ".parquet", ".arrow"])
def test_lists_of_every_kind_are_rows(store: embedrock.Store, tmp_path: Path, way: str) -> None:
    """Tensors of one shape, and views, were no columns of lists."""
    values = np.random.default_rng(2).standard_normal((N, DIM), np.float32)
    for kind, column in lists_of_every_kind(values).items():
        if way == ".parquet" and "view" in kind:
            continue  # Parquet has no views
        source: Any = pyarrow.table({"key": np.arange(N), "embedding": column})
        if way == ".parquet":
            parquet.write_table(source, tmp_path / "rows.parquet")
            source = tmp_path / "rows.parquet"
        elif way == ".arrow":
            with pyarrow.ipc.new_file(str(tmp_path / "rows.arrow"), source.schema) as writer:
                writer.write_table(source)
            source = tmp_path / "rows.arrow"
        table = store.table(kind, DIM)
        assert weights.load(table, source) == N
        assert np.array_equal(table.get(np.arange(N)), values), kind


def test_lists_that_are_no_rows_are_named(store: embedrock.Store) -> None:
    table = store.table("t", DIM)
    values = np.zeros((N, DIM), np.float32)
    columns = lists_of_every_kind(values)
    keys = pyarrow.array(np.arange(N))
    turned = pyarrow.fixed_shape_tensor(pyarrow.float32(), [2, 2], permutation=[1, 0])
    other = pyarrow.ExtensionArray.from_storage(turned, columns["fixed"])
    with pytest.raises(MisuseError, match="values lie in another order"):
        weights.load(table, pyarrow.table({"key": keys, "embedding": other}))
    wide = pyarrow.fixed_shape_tensor(pyarrow.float32(), [2 * DIM])
    pairs = pyarrow.FixedSizeListArray.from_arrays(columns["fixed"].flatten(), 2 * DIM)
    rows = pyarrow.ExtensionArray.from_storage(wide, pairs)
    with pytest.raises(MismatchError, match="has lists of 8"):
        weights.load(table, pyarrow.table({"key": keys[: N // 2], "embedding": rows}))
    short = pyarrow.array([[1.0, 2.0, 3.0, 4.0], [1.0]], pyarrow.list_view(pyarrow.float32()))
    with pytest.raises(MismatchError, match="row 1: 1 values, expected 4"):
        weights.load(table, pyarrow.table({"key": [1, 2], "embedding": short}))
    null = pyarrow.array([[1.0] * 4, None], pyarrow.list_view(pyarrow.float32()))
    with pytest.raises(MisuseError, match="row 1: null"):
        weights.load(table, pyarrow.table({"key": [1, 2], "embedding": null}))


def test_what_arrow_raises_comes_as_ours(store: embedrock.Store) -> None:
    table = store.table("t", DIM)
    with pytest.raises(MisuseError, match="gives no stream of rows with columns"):
        weights.load(table, pyarrow.chunked_array([[1.0, 2.0]]))

    def breaks_off() -> Any:
        yield from frame(np.arange(8), np.ones((8, DIM), np.float32)).to_batches()
        raise KeyError("lost")

    schema = frame(np.arange(1), np.ones((1, DIM), np.float32)).schema
    reader = pyarrow.RecordBatchReader.from_batches(schema, breaks_off())
    with pytest.raises(
        IoError, match=r"RecordBatchReader\) ended in the middle of its rows.*lost"
    ) as caught:
        weights.load(table, reader)
    assert isinstance(caught.value.__cause__, pyarrow.ArrowException)
    assert len(table) == 8  # earlier blocks are written


def test_half_precision_is_widened_for_who_has_none(store: embedrock.Store) -> None:
    table = trained(store, "float16")
    as_it_is, widened = weights.to_arrow(table), weights.to_arrow(table, dtype="float32")
    assert as_it_is.schema.field("embedding").type.value_type == pyarrow.float16()
    assert widened.schema.field("embedding").type.value_type == pyarrow.float32()
    other = store.table("other", DIM, dtype="float16", optimizer="adagrad")
    assert weights.load(other, widened) == N
    assert np.array_equal(other.get(np.arange(N)), table.get(np.arange(N)))
    with pytest.raises(MisuseError, match="dtype is 'float64', expected 'float32' or None"):
        weights.to_arrow(table, dtype="float64")
    duckdb = pytest.importorskip("duckdb")
    reader = weights.to_arrow(table, dtype="float32")  # noqa: F841  DuckDB finds it by name
    found = duckdb.sql("SELECT key, embedding FROM reader WHERE key % 2 = 0")
    half = store.table("half", DIM, dtype="float16", optimizer="adagrad")
    assert weights.load(half, found) == N // 2
    assert np.array_equal(half.get([0, 4]), table.get([0, 4]))
