"""Tables of int8 and int4: rows of a scale, a zero point and codes, as freeze writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock
from embedrock import cli, weights
from embedrock.errors import CorruptError, MismatchError, MisuseError, NonFiniteError

QUANTIZED = ("int8", "int4")
ROWS, DIM = 3_000, 16

Rows = npt.NDArray[np.float32]


def rounded(values: Any, dtype: str) -> Rows:
    """The values as the dtype has them, by the definition of ``docs/formats/page.md``."""
    rows = np.asarray(values, np.float32).astype(np.float64)
    last, fraction = (255, 64) if dtype == "int8" else (15, 1024)
    least, greatest = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    low, high = np.minimum(least, 0), np.maximum(greatest, 0)
    bits = ((high - low) / last).astype(np.float32).view(np.uint32)
    scale = (bits + 0x1FFF + (bits >> 14 & 1) & np.uint32(0x7FFFC000)).view(np.float32)
    steps = 1 / np.where(scale > 0, scale, 1).astype(np.float64)
    most = float(last * fraction)
    zero = np.where(high > 0, np.minimum(np.rint(-low * steps * fraction), most), most) / fraction
    codes = np.rint(rows * steps + zero)
    decoded = (codes - zero) * scale
    alike = codes.min(1, keepdims=True) == codes.max(1, keepdims=True)
    small = scale < 2.0**-112
    decoded = np.where(small, 0, np.where(alike, (least + greatest) / 2, decoded))
    exact: Rows = np.where(least == greatest, least, decoded).astype(np.float32)
    return exact


def numbers(rows: int, dim: int, seed: int = 0) -> Rows:
    """Rows of different magnitudes, some of one sign, some alike, some zero."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, dim)) * 10.0 ** rng.integers(-9, 9, (rows, 1))
    values[0::7] = np.abs(values[0::7])
    values[1::7] = -np.abs(values[1::7])
    values[2::7] = values[2::7, :1]
    values[3::7] *= rng.random((len(values[3::7]), dim)) < 0.3
    values[4::49] = 0
    return values.astype(np.float32)


def trained(path: Path, values: Rows) -> Path:
    """A store with a dense and a growing table that have state of an optimizer."""
    with embedrock.open(path, memory="16MiB") as store:
        ids = np.arange(len(values))
        for name, count in (("dense", len(values) + 10), ("growing", None)):
            table = store.table(name, values.shape[1], count, expected_rows=len(values))
            table.put(ids, values)
        store.commit(step=3)
    return path


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_frozen_rows_are_what_the_format_says_and_the_report_tells_their_error(
    tmp_path: Path, dtype: Any
) -> None:
    values = numbers(ROWS, DIM)
    source = trained(tmp_path / "source", values)
    done = embedrock.freeze(source, tmp_path / "served", dtype=dtype)
    want, ids = rounded(values, dtype), np.arange(ROWS)
    with embedrock.open(tmp_path / "served", memory="2MiB", read_only=True) as served:
        for table in served.tables.values():
            assert table.dtype == dtype and dtype in repr(table)
            assert table.row_bytes == {"int8": 20, "int4": 12}[dtype]
            np.testing.assert_array_equal(table.get(ids), want)
            for some, rows in table.items(700):
                np.testing.assert_array_equal(rows, want[some])
        alike = (values == values[:, :1]).all(1)
        assert alike.sum() > ROWS / 8
        np.testing.assert_array_equal(want[alike], values[alike])
    off, largest = np.abs(want.astype(np.float64) - values), np.abs(values).max(1, keepdims=True)
    shares = (off[largest[:, 0] > 0] / largest[largest > 0][:, None]).astype(np.float64)
    assert [one["table"] for one in done["errors"]] == ["dense", "growing"]
    for one in done["errors"]:
        assert (one["dtype"], one["rows"]) == (dtype, ROWS)
        assert one["error_max"] == pytest.approx(off.max())
        assert one["relative_error_max"] == pytest.approx(shares.max(), rel=1e-5)
        assert one["relative_error_mean"] == pytest.approx(shares.mean(), rel=1e-5)
        # Half a step, one 255th or one 15th of twice the largest value at most.
        assert one["relative_error_max"] <= {"int8": 1.001 / 255, "int4": 1.001 / 15}[dtype]
    assert done["error_max"] == done["errors"][0]["error_max"]
    assert embedrock.check(tmp_path / "served")["problems"] == []


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_rows_of_every_dim_are_what_the_format_says(tmp_path: Path, dtype: str) -> None:
    with embedrock.open(tmp_path / "store", memory="64MiB", check_disk=False) as store:
        for dim in range(1, 68):
            values = numbers(60, dim, seed=dim)
            table = store.table(f"t{dim}", dim, expected_rows=60, dtype=dtype, optimizer="none")
            assert table.row_bytes == 4 + -(-dim * (8 if dtype == "int8" else 4) // 32) * 4
            table.put(np.arange(60), values)
            got = table.get(np.arange(60))
            np.testing.assert_array_equal(got, rounded(values, dtype), f"dim {dim}")
            # Rows that are read and put back do not change.
            table.put(np.arange(60), got)
            np.testing.assert_array_equal(table.get(np.arange(60)), got)
        store.commit(step=1)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_writes_on_top_are_quantised_and_folded_in(tmp_path: Path, dtype: Any) -> None:
    values = numbers(ROWS, DIM)
    embedrock.freeze(trained(tmp_path / "source", values), tmp_path / "served", dtype=dtype)
    changed = numbers(100, DIM, seed=5)
    want = rounded(values, dtype)
    want[200:300] = rounded(changed, dtype)
    want[7] = rounded(want[7:8] * np.float32(0.3), dtype)[0]
    with embedrock.open(tmp_path / "served", memory="4MiB") as store:
        table = store.table("dense")
        table.put(np.arange(200, 300), changed)
        with pytest.raises(MisuseError, match="takes no updates"):
            table.update([1], np.ones((1, DIM), np.float32), lr=0.1)

        def shrink(rows: Rows, _: Rows) -> None:
            rows *= np.float32(0.3)

        table.modify([7], shrink)
        np.testing.assert_array_equal(table.get(np.arange(ROWS)), want)
        store.commit(step=4)
        digest = table.digest()
    done = embedrock.freeze(tmp_path / "served")
    assert done["errors"] == [] and done["error_max"] == 0
    embedrock.copy(tmp_path / "served", tmp_path / "copy", memory="8MiB")
    for path in ("served", "copy"):
        with embedrock.open(tmp_path / path, memory="4MiB", read_only=True) as store:
            np.testing.assert_array_equal(store.table("dense").get(np.arange(ROWS)), want)
            assert store.table("dense").digest() == digest
            assert store.table("dense").dtype == dtype
    # And back to float32, which is exact.
    back = embedrock.freeze(tmp_path / "served", tmp_path / "wide", dtype="float32")
    assert back["error_max"] == 0 and len(back["errors"]) == 2
    with embedrock.open(tmp_path / "wide", memory="4MiB", read_only=True) as store:
        np.testing.assert_array_equal(store.table("dense").get(np.arange(ROWS)), want)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e38])
def test_what_has_no_code_is_refused_with_its_table_and_key(tmp_path: Path, bad: float) -> None:
    values = numbers(50, DIM)
    values[17, 3] = bad
    with embedrock.open(tmp_path / "source", memory="16MiB") as store:
        table = store.table("clicks", DIM, 100)
        table.put(np.arange(50), values, non_finite="apply")
        eight = store.table("eight", DIM, 100, dtype="int8", optimizer="none")
        for policy in ("refuse", "apply"):
            says = r"'eight'.*range of int8, the first for key 17"
            with pytest.raises(NonFiniteError, match=says):
                eight.put(np.arange(50), values, non_finite=policy)  # type: ignore[arg-type]
        assert not eight.contains(np.arange(50)).any()
        eight.put(np.arange(50), values, non_finite="skip")
        assert eight.contains(np.arange(50)).sum() == 49
        store.commit(step=2)
    for dtype in QUANTIZED:
        why = (
            f"the row spans more than {dtype} holds"
            if np.isfinite(bad)
            else "a value is -?(NaN|inf)"
        )
        says = f"table 'clicks': key 17: {why}"
        frozen: Any = {"dtype": dtype}
        with pytest.raises(MisuseError, match=says):
            embedrock.freeze(tmp_path / "source", tmp_path / "served", **frozen)


def test_tables_are_made_without_an_optimizer_alone(store: embedrock.Store) -> None:
    with pytest.raises(MisuseError, match=r"'t': rows of int8 .* not trained.*rowwise_adagrad"):
        store.table("t", DIM, dtype="int8")
    table = store.table("t", DIM, dtype=np.int8, optimizer="none", initializer=0.25)
    assert (table.dtype, table.optimizer["kind"]) == ("int8", "none")
    np.testing.assert_array_equal(table.get([5]), 0.25)
    with pytest.raises(MismatchError, match="dtype is int8, asked int4"):
        store.table("t", DIM, dtype="int4", optimizer="none", initializer=0.25)
    for other in ("float16", "bfloat16"):
        with pytest.raises(MisuseError, match=f"dtype is {other}, table 't' gives float32$"):
            table.get([1], dtype=other)
    with pytest.raises(MisuseError, match="dtype is int8, expected one of float32"):
        table.get([1], dtype="int8")
    for array in (np.empty((1, DIM), np.int8), np.empty((1, DIM), np.float16)):
        with pytest.raises(MisuseError, match=r"out is .*, expected float32$"):
            table.get([1], out=array)


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_rows_are_exported_as_float32_and_come_back(
    store: embedrock.Store, tmp_path: Path, dtype: str, suffix: str
) -> None:
    torch = pytest.importorskip("torch")
    table = store.table("t", DIM, 60, dtype=dtype, optimizer="none")
    table.put(np.arange(60), numbers(60, DIM))
    rows = table.get(np.arange(60))
    path = tmp_path / f"rows{suffix}"
    assert weights.export(table, path) == 60
    again = store.table("again", DIM, 60, dtype=dtype, optimizer="none")
    assert weights.load(again, path) == 60
    np.testing.assert_array_equal(again.get(np.arange(60)), rows)
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load(path), rows)
    module = weights.to_torch(table)
    assert module.weight.dtype == torch.float32
    np.testing.assert_array_equal(module.weight.detach().numpy(), rows)
    bag = embedrock.nn.Embedding(60, DIM, store=store, name="t")
    assert bag.output_dtype == torch.float32
    np.testing.assert_array_equal(bag(torch.arange(60)).detach().numpy(), rows)


def test_a_plan_counts_rows_of_a_page_as_they_are_stored(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "store", memory="16MiB", page_bytes=4096) as store:
        for dtype in QUANTIZED:
            table = store.table(dtype, 33, 100, dtype=dtype, optimizer="none")
            table.put(np.arange(100), numbers(100, 33))
        store.commit(step=1)
    for dtype, row_bytes in (("int8", 40), ("int4", 24)):
        trace = embedrock.trace.Trace({dtype: (np.arange(99), np.arange(0, 100, 9))})
        plan = embedrock.placement.place(trace, store=tmp_path / "store")
        assert plan.groups[0].rows_per_page == (4096 - 32) // (row_bytes + 10)
        done = embedrock.freeze(tmp_path / "store", tmp_path / dtype, plan=plan)
        assert done["placed"] == 99


def test_a_flipped_bit_in_a_quantised_page_is_an_error(tmp_path: Path) -> None:
    values = numbers(ROWS, DIM)
    source = trained(tmp_path / "source", values)
    embedrock.freeze(source, tmp_path / "served", dtype="int4", page_bytes=1024)
    (file,) = [one for one in (tmp_path / "served").iterdir() if one.name.startswith("part-0-1")]
    with file.open("r+b") as opened:
        opened.seek(5 * 1024 + 200)
        byte = opened.read(1)
        opened.seek(5 * 1024 + 200)
        opened.write(bytes([byte[0] ^ 16]))
    assert len(embedrock.check(tmp_path / "served")["problems"]) == 1
    want, bad = rounded(values, "int4"), 0
    with embedrock.open(tmp_path / "served", memory="2MiB", read_only=True) as served:
        for table in served.tables.values():
            for ids in np.split(np.arange(ROWS), ROWS // 5):
                try:
                    np.testing.assert_array_equal(table.get(ids), want[ids])
                except CorruptError as error:
                    assert file.name in str(error)
                    bad += 1
    assert bad > 0


def test_the_command_freezes_and_says_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = trained(tmp_path / "source", numbers(300, DIM))

    def run(*arguments: object) -> str:
        status = cli.main([*map(str, arguments)])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out

    said = run("freeze", source, "--out", "served", "--dtype", "int8")
    assert "table 'dense' as int8: values differ by up to" in said
    assert "table 'growing' as int8" in said and "in the mean" in said
    assert "int8" in run("info", "served")
    run("check", "served")
    run("copy", "served", "copied")
    told = json.loads(run("freeze", source, "--out", "other", "--dtype", "int4", "--json"))
    assert [one["dtype"] for one in told["errors"]] == ["int4", "int4"]
    for wrong in ("int2", "uint8", "INT8"):
        with pytest.raises(MisuseError, match=r"dtype is .*expected"):
            embedrock.freeze(source, tmp_path / "wrong", dtype=wrong)  # type: ignore[arg-type]
