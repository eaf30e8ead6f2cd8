"""Click logs in Parquet: their own columns alone, and values that mean what they mean in text."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.data import Batch, DataError, Position
from embedrock.data.csv import Columns
from embedrock.data.formats import parts_of, streamed_format
from embedrock.data.parquet_log import ParquetLog
from embedrock.data.streamed import StreamedDataset, scan

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(path: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def read(path: Path, columns: Columns, **more: Any) -> tuple[StreamedDataset, list[Batch]]:
    kind = streamed_format("csv", path, columns)
    found = scan(path, kind, **more)
    data = StreamedDataset(path, kind, scan=found, holdout=0.0, **more)
    return data, list(data.train_batches(5, Position()))


def all_of(batches: list[Batch]) -> tuple[Any, Any, Any]:
    return tuple(
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("labels", "keys", "dense")
    )


# Lists, structures, bytes and texts with line breaks ended runs, though nobody had named them.
@pytest.mark.parametrize(
    "other",
    [[[1, 2]] * 20, [{"a": 1}] * 20, ["two\nlines"] * 20, [b'"\n\xff'] * 20, [None] * 20],
    ids=["list", "struct", "lines", "bytes", "null"],
)
def test_columns_that_nobody_names_do_not_matter(tmp_path: Path, other: Any) -> None:
    path = written(tmp_path / "a", click=[0, 1] * 10, user=list(range(20)), other=other)
    _, batches = read(path, Columns("click", ("user",)))
    labels, keys, _ = all_of(batches)
    assert labels.tolist() == [0, 1] * 10
    assert keys.tolist() == embedrock.hash_keys([str(n) for n in range(20)]).tolist()


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([7, -3, None], ["7", "-3", ""]),
        ([7.0, 0.1, 1e16, None], ["7.0", "0.1", "1e+16", ""]),
        (pyarrow.array([0.1, None, 7], pyarrow.float32()), ["0.1", "", "7.0"]),
        ([True, False, None], ["true", "false", ""]),
        (["a", 'say "x",', "two\nlines", None], ["a", 'say "x",', "two\nlines", ""]),
        ([b"\xff\n", None], [b"\xff\n", ""]),
        (pyarrow.array(["b", "a", None, "b"]).dictionary_encode(), ["b", "a", "", "b"]),
        ([datetime.date(2026, 11, 28)], ["2026-11-28"]),
        ([decimal.Decimal("7.50")], ["7.50"]),
        (pyarrow.array([2**64 - 1], pyarrow.uint64()), [str(2**64 - 1)]),
    ],
)
def test_a_key_is_that_of_the_text_of_a_value(tmp_path: Path, values: Any, texts: Any) -> None:
    path = written(tmp_path / "a", y=[0] * len(texts), x=values)
    _, batches = read(path, Columns("y", ("x",)))
    assert all_of(batches)[1].tolist() == embedrock.hash_keys(texts).tolist()


# Booleans were refused: "line 2, y: 'false' is not 0 or 1".
@pytest.mark.parametrize(
    "labels",
    [[True, False], [1, 0], [1.0, 0.0], ["1", "0"], ["true", "False"], ["1.0", "0.0"]],
)
def test_labels_are_zero_or_one_however_they_are_stored(tmp_path: Path, labels: Any) -> None:
    path = written(tmp_path / "a", y=labels, x=[5, 6])
    assert all_of(read(path, Columns("y", ("x",)))[1])[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("y", [0, 2], r"a, row 2, y: 2 is not 0 or 1"),
        ("y", [0, None], r"a, row 2, y: a null is not 0 or 1"),
        ("y", [0.0, math.nan], r"a, row 2, y: nan is not 0 or 1"),
        ("d", [0.5, math.nan], r"a, row 2, d: nan is not a finite number"),
        ("d", ["0.5", "cheap"], r"a, row 2, d: 'cheap' is not a finite number"),
    ],
)
def test_a_row_that_is_wrong_is_told_by_its_number(
    tmp_path: Path, name: str, values: Any, said: str
) -> None:
    columns = {"y": [0, 1], "x": [1, 2], "d": [0.5, 1.5], name: values}
    path = written(tmp_path / "a", **columns)
    with pytest.raises(DataError, match=said):
        read(path, Columns("y", ("x",), ("d",)))
    data, (batch,) = read(path, Columns("y", ("x",), ("d",)), skip_bad_lines=True)
    assert len(batch) == 1 and data.bad_lines.count == 1


def test_numbers_and_booleans_are_dense(tmp_path: Path) -> None:
    dense = {"i": [1, -7], "f": [None, 2.5], "b": [True, False], "t": ["3", ""]}
    dense["h"] = pyarrow.array(np.array([1, 2], np.float16))
    path = written(tmp_path / "a", y=[0, 1], x=[1, 2], **dense)
    found = all_of(read(path, Columns("y", ("x",), tuple(dense)))[1])[2]
    expected = np.array([[1, 0, 1, 3, 1], [-7, 2.5, 0, 0, 2]])
    expected = np.sign(expected) * np.log1p(np.abs(expected))
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_a_column_that_its_role_has_no_use_for_is_refused(tmp_path: Path) -> None:
    day, moment = datetime.date(2026, 11, 28), datetime.datetime(2026, 11, 28)
    path = written(tmp_path / "a", y=[0], x=[[1]], s=[{"a": 1}], k=[1], d=[day], t=[moment])
    for columns, said in [
        (Columns("x", ("k",)), r"column 'x' is list<.*, expected one value in a row"),
        (Columns("y", ("k",), ("x",)), r"column 'x' is list<.*, expected one value in a row"),
        (Columns("y", ("s",)), r"column 's' is struct<.*, expected one value in a row, or a list"),
        (Columns("y", ("k",), ("d",)), r"column 'd' is date32.*, expected numbers: as numbers, B"),
        (Columns("y", ("t",)), r"column 't' is timestamp.*, expected values that come again; take"),
        (Columns("d", ("k",)), r"column 'd' is date32\[day\], expected 0 or 1: as numbers"),
    ]:
        with pytest.raises(DataError, match=said):
            ParquetLog(path, columns)
    with pytest.raises(DataError, match=r"column 'z' is not there; the columns are y, x"):
        ParquetLog(path, Columns("y", ("z",)))


def test_lists_are_bags(tmp_path: Path) -> None:
    rows = [[1, 2], [], None, [3], [None, 4]] * 7
    path = written(tmp_path / "a", y=[0, 1, 0, 1, 0] * 7, x=rows, z=list(range(35)))
    data, batches = read(path, Columns("y", ("x", "z")))
    assert [feature.expected_rows for feature in data.features] == [5, 35]
    texts = [["" if one is None else str(one) for one in row or []] for row in rows]
    for place, batch in enumerate(batches):
        some = texts[place * 5 : place * 5 + 5]
        flat = [text for bag in some for text in bag]
        flat += [str(place * 5 + row) for row in range(5)]
        assert batch.keys.tolist() == embedrock.hash_keys(flat).tolist()
        sizes = [*map(len, some), 1, 1, 1, 1, 1]
        assert batch.offsets.tolist() == [0, *np.cumsum(sizes)]
        if place:
            (again, *_) = data.train_batches(5, batches[place - 1].next)
            assert again.keys.tolist() == batch.keys.tolist()


# Statistics of a group with NaN may say that it holds what it does not.
def test_rows_of_groups_with_nan_are_all_read(tmp_path: Path) -> None:
    values = [math.nan if row % 7 == 3 else float(row) for row in range(70)]
    path = written(tmp_path / "a", y=[0, 1] * 35, x=pyarrow.array(values, from_pandas=False))
    _, batches = read(path, Columns("y", ("x",)))
    assert all_of(batches)[1].tolist() == embedrock.hash_keys(list(map(str, values))).tolist()


def test_a_log_of_several_files_is_one_after_another(tmp_path: Path) -> None:
    columns = Columns("y", ("x",), ("d",))
    paths = []
    for part in range(3):
        rows = {"y": [part % 2] * 9, "x": [f"{part}-{k}" for k in range(9)], "d": list(range(9))}
        path = tmp_path / f"part-{part}"
        if part == 1:  # text among Parquet, its columns in another order
            lines = [f"{k},{x},{y}\n" for k, x, y in zip(*(rows[n] for n in "dxy"), strict=True)]
            path.write_text("d,x,y\n" + "".join(lines))
        else:
            written(path, **rows)
        paths.append(path)
    first, *more = parts_of("csv", paths, columns)
    found = scan(first.path, first.kind, more=more)
    assert found.samples == 27
    data = StreamedDataset(first.path, first.kind, more=more, scan=found, holdout=0.3)
    batches = list(data.train_batches(4, Position()))
    held = list(data.test_batches(4))
    _, keys, dense = all_of([*batches, *held])
    expected = [f"{part}-{k}" for part in range(3) for k in range(9)]
    assert keys.tolist() == embedrock.hash_keys(expected).tolist()
    logs = np.tile(np.log1p(np.arange(9)).astype(np.float32), 3)
    np.testing.assert_array_equal(dense[:, 0], logs)
    assert sum(map(len, held)) == 8
    for place, batch in enumerate(batches[:-1]):
        again = next(data.train_batches(4, batch.next))
        np.testing.assert_array_equal(again.keys, batches[place + 1].keys)
    assert [batch.next.part for batch in batches] == [0, 0, 1, 1, 2]


def test_equal_numbers_of_two_types_are_not_taken_for_two_values(tmp_path: Path) -> None:
    one = written(tmp_path / "1", y=[0], x=[7])
    other = written(tmp_path / "2", y=[0], x=[7.0])
    with pytest.raises(DataError, match=r"2: column 'x' is double, but int64 in .*1: equal numb"):
        parts_of("csv", [one, other], Columns("y", ("x",)))
    third = written(tmp_path / "3", y=[True], x=pyarrow.array([7], pyarrow.int8()))
    assert len(parts_of("csv", [one, third], Columns("y", ("x",)))) == 2


def test_runs_of_older_versions_read_the_text_of_parquet(tmp_path: Path) -> None:
    path = written(tmp_path / "a", click=[0, 1], user=[7.0, 8.0])
    old = streamed_format("csv", path, Columns("click", ("user",)), rules=1)
    (batch,) = StreamedDataset(path, old).train_batches(9, Position())
    assert batch.keys.tolist() == embedrock.hash_keys(["7", "8"]).tolist()
