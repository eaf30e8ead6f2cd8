"""Import and export of rows: every value arrives, in blocks, under names that appear whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import weights
from embedrock.errors import (
    CorruptError,
    FullError,
    IoError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
)
from embedrock.weights import blocks, files

N, DIM = 100, 4


@pytest.fixture
def rows() -> Any:
    return np.random.default_rng(6).normal(size=(N, DIM)).astype(np.float32)


@pytest.fixture
def dense(store: embedrock.Store) -> embedrock.Table:
    return store.table("dense", DIM, num_embeddings=N, optimizer="adagrad")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 7 * DIM * 4)  # 15 blocks, the last one short


def write_safetensors(path: Path, arrays: dict[str, tuple[str, Any]]) -> Path:
    header: dict[str, Any] = {"__metadata__": {"by": "hand"}}
    data = b""
    for name, (dtype, array) in arrays.items():
        content = array.tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_array_and_file_of_every_kind_arrive(
    dense: embedrock.Table, rows: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows))
    safe = write_safetensors(tmp_path / "a.safetensors", {"emb.weight": ("F32", rows)})
    for source in (rows, rows.tolist(), tmp_path / "rows.npy", str(tmp_path / "columns.npy"), safe):
        dense.put(np.arange(N), np.zeros((N, DIM), np.float32))
        assert weights.load(dense, source) == N
        assert np.array_equal(dense.get(np.arange(N)), rows)


@pytest.mark.parametrize("kind", ["F16", "F64", "BF16"])
def test_other_float_types_become_float32(
    dense: embedrock.Table, rows: Any, tmp_path: Path, kind: str
) -> None:
    if kind == "BF16":
        bits = (rows.view(np.uint32) >> 16).astype(np.uint16)
        stored, expected = bits, (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        stored = rows.astype({"F16": np.float16, "F64": np.float64}[kind])
        expected = stored.astype(np.float32)
    weights.load(dense, write_safetensors(tmp_path / "a.safetensors", {"w": (kind, stored)}))
    assert np.array_equal(dense.get(np.arange(N)), expected)


def test_torchs_modules_and_tensors_arrive(dense: embedrock.Table) -> None:
    torch = pytest.importorskip("torch")
    for source in (
        torch.nn.Embedding(N, DIM),
        torch.nn.EmbeddingBag(N, DIM),
        torch.randn(N, DIM),
        torch.randn(DIM, N).t().to(torch.bfloat16),
    ):
        weights.load(dense, source)
        expected = getattr(source, "weight", source).detach().float().numpy()
        assert np.array_equal(dense.get(np.arange(N)), expected)


def test_loaded_rows_have_initial_state(dense: embedrock.Table, rows: Any) -> None:
    dense.update([3], np.ones((1, DIM), np.float32), lr=0.1)
    weights.load(dense, rows)
    assert not dense.get([3], state=True)[1].any()


def test_rows_get_the_keys_they_are_given(table: embedrock.Table, rows: Any) -> None:
    keys = np.arange(N) * -(2**40)
    assert weights.load(table, rows, keys=keys) == N
    assert np.array_equal(table.get(keys), rows)
    assert len(table) == N


def test_progress_counts_rows(dense: embedrock.Table, rows: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    weights.load(dense, rows, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (7, N) and seen[-1] == (N, N) and len(seen) == 15
    exported: list[tuple[int, int]] = []
    weights.export(
        dense, tmp_path / "a.npy", progress=lambda done, total: exported.append((done, total))
    )
    assert exported == seen


def test_dense_table_is_exported_with_its_initial_rows(
    dense: embedrock.Table, tmp_path: Path
) -> None:
    dense.put([5], np.full((1, DIM), 9.0, np.float32))
    assert weights.export(dense, tmp_path / "a.npy") == N
    exported = np.load(tmp_path / "a.npy")
    assert exported.dtype == np.float32
    assert np.array_equal(exported, dense.get(np.arange(N)))
    assert len(dense) == 1


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_growing_table_comes_back_from_its_export(
    store: embedrock.Store, table: embedrock.Table, rows: Any, tmp_path: Path, suffix: str
) -> None:
    keys = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, N)
    table.put(keys, rows)
    path = tmp_path / f"ads{suffix}"
    assert weights.export(table, path) == N
    other = store.table("other", DIM, optimizer="sgd")
    assert weights.load(other, path) == N
    assert np.array_equal(other.get(keys), rows)
    assert len(other) == N


# All of its ids were written, until the disk was full.
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_table_of_very_many_ids_is_exported_with_the_keys_of_its_rows(
    store: embedrock.Store, tmp_path: Path, suffix: str
) -> None:
    def made(name: str) -> embedrock.Table:
        return store.table(name, DIM, 2**40, storage="lsm", expected_rows=50, optimizer="sgd")

    table, keys = made("ids"), [2**40 - 1, 5, 2**33]
    table.put(keys, np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM))
    path = tmp_path / f"ids{suffix}"
    counted: list[tuple[int, int]] = []

    def count(done: int, total: int) -> None:
        assert total == 3, "ids without rows are exported"
        counted.append((done, total))

    assert weights.export(table, path, progress=count) == 3
    assert counted[-1] == (3, 3)
    other = made("other")
    assert weights.load(other, path) == 3
    assert sorted(np.concatenate([found for found, _ in other.items()])) == sorted(keys)
    assert other.digest() == table.digest()


def test_a_table_of_which_a_third_of_the_ids_is_expected_is_exported_by_id(
    store: embedrock.Store, tmp_path: Path
) -> None:
    table = store.table("ids", DIM, N, storage="lsm", expected_rows=N - 1)
    table.put([7, 3], np.ones((2, DIM), np.float32))
    assert [key for keys, _ in table.items() for key in keys] == [3, 7]
    assert weights.export(table, tmp_path / "ids.npy") == N
    assert not (tmp_path / "ids.keys.npy").exists()
    assert np.array_equal(np.load(tmp_path / "ids.npy"), table.get(np.arange(N)))


def test_empty_table_is_exported(table: embedrock.Table, tmp_path: Path) -> None:
    for name in ("a.npy", "a.safetensors"):
        assert weights.export(table, tmp_path / name) == 0
        assert weights.load(table, tmp_path / name) == 0


def test_exported_safetensors_are_read_by_the_library(
    dense: embedrock.Table, table: embedrock.Table, rows: Any, tmp_path: Path
) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    weights.load(dense, rows)
    weights.export(dense, tmp_path / "dense.safetensors", name="emb.weight")
    found = numpy.load_file(tmp_path / "dense.safetensors")
    assert list(found) == ["emb.weight"] and np.array_equal(found["emb.weight"], rows)
    table.put(np.arange(N), rows)
    weights.export(table, tmp_path / "grown.safetensors")
    found = numpy.load_file(tmp_path / "grown.safetensors")
    assert sorted(found) == ["keys", "weight"]
    assert np.array_equal(found["weight"][np.argsort(found["keys"])], rows)


def test_safetensors_of_the_library_are_read(
    dense: embedrock.Table, rows: Any, tmp_path: Path
) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    numpy.save_file({"bias": np.ones(3, np.float32), "emb.weight": rows}, path)
    weights.load(dense, path, name="emb.weight")
    assert np.array_equal(dense.get(np.arange(N)), rows)
    with pytest.raises(MisuseError, match=r"2 arrays.*name="):
        weights.load(dense, path)
    with pytest.raises(NotFoundError, match="no array 'other': it has 'bias'"):
        weights.load(dense, path, name="other")


def test_failed_export_leaves_the_old_file_and_no_draft(
    dense: embedrock.Table, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"old")

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.export(dense, path, progress=fail)
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "test.store"]


def test_table_that_changes_during_its_export_is_reported(
    table: embedrock.Table, rows: Any, tmp_path: Path
) -> None:
    table.put(np.arange(N), rows)
    other = blocks._contents

    def shrunk(table: embedrock.Table, total: int, state: bool) -> Any:
        return list(other(table, total, state))[:-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_contents", shrunk)
        with pytest.raises(embedrock.EmbedrockError, match="100 rows when its export began"):
            weights.export(table, tmp_path / "a.npy")
    assert not (tmp_path / "a.npy").exists()


@pytest.mark.parametrize("shape", [(N, DIM + 1), (N - 1, DIM), (N * DIM,)])
def test_source_of_another_shape_is_refused(dense: embedrock.Table, shape: Any) -> None:
    with pytest.raises(MismatchError, match=r"table 'dense' takes \(100, 4\)"):
        weights.load(dense, np.zeros(shape, np.float32))
    assert len(dense) == 0


def test_sources_that_are_no_rows_are_refused(
    dense: embedrock.Table, rows: Any, tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match="int64"):
        weights.load(dense, np.zeros((N, DIM), np.int64))
    with pytest.raises(MismatchError, match="3 keys for 100 rows"):
        weights.load(dense, rows, keys=[1, 2, 3])
    with pytest.raises(MisuseError, match=r"'\.txt'"):
        weights.load(dense, tmp_path / "rows.txt")
    with pytest.raises(MisuseError, match=r"'\.txt'"):
        weights.export(dense, tmp_path / "rows.txt")
    with pytest.raises(NonFiniteError):
        weights.load(dense, np.full((N, DIM), np.nan, np.float32))


def test_damaged_files_are_reported(dense: embedrock.Table, rows: Any, tmp_path: Path) -> None:
    good = write_safetensors(tmp_path / "good.safetensors", {"w": ("F32", rows)}).read_bytes()
    bad = tmp_path / "bad.safetensors"
    for content in (
        b"",
        good[:50],
        good[:-1],
        b"\xff" * 100,
        good.replace(b"[100, 4]", b"[900, 4]"),
    ):
        bad.write_bytes(content)
        with pytest.raises(CorruptError, match=r"bad\.safetensors"):
            weights.load(dense, bad)
    (tmp_path / "bad.npy").write_bytes(b"garbage")
    with pytest.raises(CorruptError, match=r"bad\.npy"):
        weights.load(dense, tmp_path / "bad.npy")


def test_dense_table_becomes_a_torch_module(dense: embedrock.Table, rows: Any) -> None:
    torch = pytest.importorskip("torch")
    weights.load(dense, rows)
    module = weights.to_torch(dense, padding_idx=1)
    assert torch.equal(module.weight.detach(), torch.from_numpy(rows))
    assert module.weight.requires_grad and module.padding_idx == 1


def test_growing_table_cannot_become_a_torch_module(table: embedrock.Table) -> None:
    pytest.importorskip("torch")
    with pytest.raises(MisuseError, match="grows and has arbitrary keys"):
        weights.to_torch(table)


def test_table_larger_than_free_memory_cannot_become_a_torch_module(
    dense: embedrock.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(files, "_free_memory_bytes", lambda: 1000)
    with pytest.raises(embedrock.errors.BudgetError, match="takes 1600 bytes as a tensor, 1000"):
        weights.to_torch(dense)


# An error of the operating system that the caller's own function raises is the caller's.
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_what_progress_raises_reaches_the_caller_as_it_is(
    dense: embedrock.Table, tmp_path: Path, suffix: str
) -> None:
    raised = BrokenPipeError("the caller's own")

    def progress(done: int, total: int) -> None:
        raise raised

    with pytest.raises(BrokenPipeError) as caught:
        weights.export(dense, tmp_path / f"rows{suffix}", progress=progress)
    assert caught.value is raised
    assert list(tmp_path.glob("*rows*")) == []


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_errors_of_the_file_are_told_and_leave_nothing(
    dense: embedrock.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    suffix: str,
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(errno.EIO, "no answer")

    path = tmp_path / f"rows{suffix}"
    if call == "open":
        path = tmp_path / "absent" / path.name
    elif call == "write":
        fill_the_disk_under(path)
    else:
        monkeypatch.setattr(os, call, fails)
    is_full = call == "write"
    expected = (FullError, "No space.*make room there") if is_full else (IoError, "")
    with pytest.raises(expected[0], match=rf"writing .*rows.*{expected[1]}") as caught:
        weights.export(dense, path)
    if not is_full:
        assert caught.value.errno == (errno.ENOENT if call == "open" else errno.EIO)
    assert list(tmp_path.glob("*rows*")) == []


def fill_the_disk_under(path: Path) -> None:
    """Makes the file that becomes this one lie on a device without room."""
    path.with_name(f".{path.name}.{os.getpid()}.part").symlink_to("/dev/full")
