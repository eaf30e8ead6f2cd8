"""`embedrock.data.arrow`: record batches of any library and of any shape as samples."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import embedrock  # noqa: E402
import goldenlogs  # noqa: E402
from embedrock.data import DataError, Position, arrow  # noqa: E402
from embedrock.errors import MisuseError  # noqa: E402
from places import ROOT  # noqa: E402

TABLE = goldenlogs.columns_of_arrow


def all_of(data: Any, size: int = 7) -> list[list[Any]]:
    """Labels, keys by feature, bag sizes by feature, dense of all samples."""
    labels, dense = [], []
    keys: list[list[int]] = [[] for _ in data.features]
    sizes: list[list[int]] = [[] for _ in data.features]
    for batch in data.train_batches(size):
        labels += batch.labels.tolist()
        dense += batch.dense.tolist()
        for feature in range(len(data.features)):
            keys[feature] += batch.feature_keys(feature).tolist()
            own = batch.offsets[feature * len(batch) : (feature + 1) * len(batch) + 1]
            sizes[feature] += np.diff(own).tolist()
    return [labels, keys, sizes, dense]


def lists() -> list[Any]:
    return [[1, 2], [], None, [3], [None, 4], [5, 5, 5]] * 4


def log() -> Any:
    """A table of every type, single and in lists."""
    made = TABLE()
    del made["moment"]
    made["list"] = pa.array(lists())
    made["large_list"] = pa.array(lists(), pa.large_list(pa.int64()))
    words = [None if row is None else [None if n is None else f"w{n}" for n in row]
             for row in lists()]  # fmt: skip
    made["words"] = pa.array(words, pa.list_(pa.string()))
    pairs = [None if row % 5 == 4 else [row, None] for row in range(goldenlogs.ROWS)]
    made["pairs"] = pa.array(pairs, pa.list_(pa.int32(), 2))
    coded = pa.ListArray.from_arrays(
        pa.array(range(goldenlogs.ROWS + 1), pa.int32()),
        pa.array([f"c{row % 3}" for row in range(goldenlogs.ROWS)]).dictionary_encode(),
    )
    made["coded_list"] = coded
    return pa.table(made)


def columns_of(table: Any) -> dict[str, list[str]]:
    dense = [name for name in table.column_names if name.startswith("d_")]
    rest = [name for name in table.column_names if name not in ("click", *dense)]
    return {"dense": dense, "categorical": rest}


def in_batches_of(table: Any, size: int) -> list[Any]:
    """Slices with offsets of their own, an empty one before each."""
    found = []
    for begin in range(0, len(table), size):
        found += table.slice(begin, 0).to_batches() or [table.schema.empty_table().to_batches()]
        found += table.slice(begin, size).combine_chunks().to_batches()
    return [one for one in found if isinstance(one, pa.RecordBatch)]


@pytest.mark.parametrize("size", [1, 2, 5, 24])
def test_samples_do_not_depend_on_the_size_of_batches(size: int) -> None:
    table = log()
    whole = all_of(arrow(table, "click", **columns_of(table)))
    assert all_of(arrow(in_batches_of(table, size), "click", **columns_of(table))) == whole
    sliced = [batch.slice(place, 1) for batch in table.to_batches() for place in range(len(batch))]
    assert all_of(arrow(sliced, "click", **columns_of(table)), 24) == whole


def test_rows_that_are_looked_at_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = log()
    whole = all_of(arrow(table, "click", **columns_of(table)))
    monkeypatch.setattr("embedrock.data.arrow_sources.ROWS", 5)
    data = arrow(table, "click", **columns_of(table))
    rows = [(row, block.num_lines) for row, block in data.parts[0].kind.blocks(3)]
    assert rows == [(3, 2), (5, 5), (10, 5), (15, 5), (20, 4)]
    assert all_of(data) == whole


def test_a_table_gives_what_its_parquet_file_gives(tmp_path: Path) -> None:
    from pyarrow import parquet

    from embedrock.data.csv import Columns
    from embedrock.data.formats import parts_of
    from embedrock.data.streamed import StreamedDataset

    table = log()
    named = columns_of(table)
    parquet.write_table(table, tmp_path / "a", row_group_size=7)
    columns = Columns("click", tuple(named["categorical"]), tuple(named["dense"]))
    (part,) = parts_of("csv", [tmp_path / "a"], columns)
    of_file = all_of(StreamedDataset(part.path, part.kind))
    assert of_file == all_of(arrow(table, "click", **named))


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.string(), ["a", None, "", "ü"], ["a", "", "", "ü"]),
        (pa.large_string(), ["a", None, "x" * 99], ["a", "", "x" * 99]),
        ("string_view", ["a", None, "longer than twelve bytes"], ["a", "", "longer than t"]),
        ("binary_view", [b"\xff", None], [b"\xff", ""]),
        (pa.binary(), [b"\xff\0", None], [b"\xff\0", ""]),
        (pa.binary(2), [b"ab", None], ["ab", ""]),
        (pa.int8(), [-1, None], ["-1", ""]),
        (pa.uint64(), [2**64 - 1, None], [str(2**64 - 1), ""]),
        (pa.float32(), [0.1, None, math.nan], ["0.1", "", "nan"]),
        (pa.float64(), [7.0, 1e16, -0.0, math.inf], ["7.0", "1e+16", "-0.0", "inf"]),
        (pa.float16(), [np.float16(0.1), None], ["0.1", ""]),
        (pa.bool_(), [True, None, False], ["true", "", "false"]),
        (pa.date32(), [datetime.date(2026, 1, 2), None], ["2026-01-02", ""]),
        (pa.decimal128(9, 2), [decimal.Decimal("7.5"), None], ["7.50", ""]),
        (pa.null(), [None, None], ["", ""]),
        (pa.dictionary(pa.int8(), pa.string()), ["b", None, "b"], ["b", "", "b"]),
        (pa.dictionary(pa.uint64(), pa.int64()), [7, None], ["7", ""]),
        (pa.run_end_encoded(pa.int32(), pa.string()), ["b", "b", None], ["b", "b", ""]),
    ],
    ids=str,
)
def test_a_key_is_that_of_the_text_of_a_value(kind: Any, values: Any, texts: Any) -> None:
    if isinstance(kind, str):
        if not hasattr(pa, kind):
            pytest.skip(f"this pyarrow has no {kind}")
        kind = getattr(pa, kind)()
        texts = [one[:13] if isinstance(one, str) else one for one in texts]
        values = [one[:13] if isinstance(one, str) else one for one in values]
    if pa.types.is_run_end_encoded(kind):
        array = pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3], pa.int32()), pa.array(["b", None])
        )
    else:
        array = pa.array(values, kind, from_pandas=False)
    # A slice has an offset, and a validity that begins within a byte.
    padded = pa.concat_arrays([array.slice(0, 1), array, array]).slice(1)
    table = pa.table({"y": [0] * len(padded), "x": padded})
    found = all_of(arrow(table, "y", categorical=["x"]))[1][0]
    assert found == [*embedrock.hash_keys(texts).tolist()] * 2


def test_a_null_is_missing_whatever_its_bytes_are() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 5], np.int32))
    valid = pa.py_buffer(bytes([0b01]))
    odd = pa.Array.from_buffers(pa.string(), 2, [valid, offsets, pa.py_buffer(b"abXYZ")])
    inner = pa.array([1, 2, 3])
    of_lists = pa.Array.from_buffers(
        pa.list_(pa.int64()), 2, [valid, pa.py_buffer(np.array([0, 1, 3], np.int32))], -1,
        children=[inner],
    )  # fmt: skip
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]).slice(1), pa.array(["a", None]))
    table = pa.table({"y": [0, 0], "x": odd, "l": of_lists, "c": coded})
    _, keys, sizes, _ = all_of(arrow(table, "y", categorical=["x", "l", "c"]))
    assert keys[0] == embedrock.hash_keys(["ab", ""]).tolist()
    assert (keys[1], sizes[1]) == (embedrock.hash_keys(["1"]).tolist(), [1, 0])
    assert keys[2] == embedrock.hash_keys(["", ""]).tolist()


def test_whole_numbers_may_be_keys_as_they_are() -> None:
    table = pa.table(
        {
            "y": [0, 1, 0],
            "i": pa.array([7, None, -1], pa.int32()),
            "u": pa.array([2**64 - 1, 0, 5], pa.uint64()),
            "l": pa.array([[1, None], None, [2]], pa.large_list(pa.int16())),
            "c": pa.array([9, 9, None]).dictionary_encode(),
            "x": ["a", "b", "c"],
        }
    )
    data = arrow(table, "y", categorical=["x"], ids=["i", "u", "l", "c"])
    assert [feature.name for feature in data.features] == ["x", "i", "u", "l", "c"]
    missing = int(embedrock.hash_keys([""])[0])
    _, keys, sizes, _ = all_of(data)
    assert keys[1:] == [[7, missing, -1], [-1, 0, 5], [1, missing, 2], [9, 9, missing]]
    assert sizes[3] == [2, 0, 1]
    with pytest.raises(DataError, match=r"'x' is string, expected whole numbers .*or name it as c"):
        arrow(table, "y", ids=["x"])
    with pytest.raises(DataError, match=r"'f' is double, expected whole numbers .*cast it to int"):
        arrow(table.append_column("f", pa.array([1.0, 2.0, None])), "y", ids=["f"])


def test_roles_that_nobody_gives_are_those_of_types() -> None:
    table = pa.table({"y": [0], "f": [0.5], "b": [True], "d": [decimal.Decimal(1)], "i": [1],
                      "s": ["a"], "l": [[1]], "t": [datetime.date(2026, 1, 1)]})  # fmt: skip
    data = arrow(table, "y")
    assert [feature.name for feature in data.features] == ["i", "s", "l", "t"]
    assert data.num_dense == 3
    data = arrow(table, ("y", "b"), ids=["i"])
    assert [feature.name for feature in data.features] == ["s", "l", "t", "i"]
    assert data.targets == ("y", "b")
    assert next(data.train_batches(1)).labels.tolist() == [[0, 1]]
    assert arrow(table, "y", categorical=["i"]).num_dense == 1  # a constant
    for name, values in [("v", [[0.5]]), ("m", [datetime.datetime(2026, 1, 1)]), ("r", [{"a": 1}])]:
        with pytest.raises(MisuseError, match=rf"column '{name}' is .*, of which nothing says wha"):
            arrow(table.append_column(name, pa.array(values)), "y")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"label": "z"}, r"column 'z' is not there; the columns are y, x, t"),
        ({"categorical": "x"}, r"categorical is 'x', expected a list of names: \['x'\]"),
        ({"categorical": ["x"], "ids": ["x"]}, r"column 'x' is named twice among label, categor"),
        ({"categorical": ["t"]}, r"'t' is timestamp\[us\], expected values that come again; take"),
        ({"categorical": ["x"], "dense": ["t"]}, r"'t' is timestamp\[us\], expected numbers: as n"),
        ({"dense": ["x"]}, r"categorical names no column: each that is named becomes a table"),
        ({"label": "t", "categorical": ["x"]}, r"'t' is timestamp\[us\], expected 0 or 1: as num"),
        ({"categorical": ["x"], "holdout": 1}, r"holdout is 1, expected 0 to less than 1"),
    ],
)
def test_what_cannot_be_is_told_by_its_column(given: dict[str, Any], said: str) -> None:
    table = pa.table({"y": [0], "x": [1], "t": [datetime.datetime(2026, 1, 1)]})
    with pytest.raises((DataError, MisuseError), match=said):
        arrow(table, **{"label": "y", **given})


def test_rows_that_are_wrong_are_told_or_counted() -> None:
    table = pa.table({"y": [0, 1, 2, None, 1], "d": [0.5, math.inf, 1, 1, 2], "x": [[1], [2, 2],
                      [3], [4], [5, 6]]})  # fmt: skip
    for batches in (table, [table.slice(0, 1), table.slice(1)]):
        with pytest.raises(DataError, match=r"^row 2, d: inf is not a finite number"):
            all_of(arrow(batches, "y"))
        data = arrow(batches, "y", skip_bad_lines=True)
        labels, keys, sizes, _ = all_of(data)
        assert labels == [0, 1] and data.bad_lines.count == 3 and sizes == [[1, 2]]
        assert keys[0] == embedrock.hash_keys(["1", "5", "6"]).tolist()


class Streams:
    """Exports a stream whenever it is asked to, as frames do; counts how often."""

    def __init__(self, table: Any, times: int = 99) -> None:
        self.table, self.left = table, times

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        self.left -= 1
        table = self.table if self.left >= 0 else self.table.slice(0, 0)
        return table.__arrow_c_stream__(requested_schema)


class Exports:
    """Exports a single batch."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.batch.__arrow_c_array__(requested_schema)


def dataset_of(table: Any, folder: Path) -> Any:
    from pyarrow import dataset

    dataset.write_dataset(table, folder / "d", format="parquet", max_rows_per_file=9,
                          max_rows_per_group=4)  # fmt: skip
    return dataset.dataset(folder / "d")


SOURCES: dict[str, Callable[[Any, Path], Any]] = {
    "table": lambda table, _: table,
    "chunks": lambda table, _: pa.concat_tables([table.slice(0, 5), table.slice(5)]),
    "batch": lambda table, _: table.to_batches()[0],
    "list": lambda table, _: table.to_batches(max_chunksize=4),
    "tables": lambda table, _: [table.slice(0, 9), table.slice(9)],
    "stream": lambda table, _: Streams(table),
    "array": lambda table, _: Exports(table.to_batches()[0]),
    "streams": lambda table, _: [Streams(table.slice(0, 9)), Streams(table.slice(9))],
    "dataset": dataset_of,
    "scanner": lambda table, folder: dataset_of(table, folder).scanner(),
    "function": lambda table, _: lambda: iter(table.to_batches(max_chunksize=4)),
    "reader function": lambda table, _: table.to_reader,
}
ONCE: dict[str, Callable[[Any], Any]] = {
    "reader": lambda table: table.to_reader(max_chunksize=3),
    "generator": lambda table: (batch for batch in table.to_batches(max_chunksize=3)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_can_be_read_again_is(tmp_path: Path, name: str) -> None:
    table = pa.table({"y": [0, 1] * 12, "x": [f"u{row}" for row in range(24)], "z": [[1]] * 24})
    whole = all_of(arrow(table, "y"))
    data = arrow(SOURCES[name](table, tmp_path), "y", holdout=0.25)
    train, held = all_of(data), [*data.test_batches(5)]
    assert train == all_of(data)
    assert train[0] == whole[0][:18] and train[1][0] == whole[1][0][:18]
    assert [len(batch) for batch in held] == [5, 1] and data.num_train() == 18
    assert np.concatenate([one.feature_keys(0) for one in held]).tolist() == whole[1][0][18:]
    assert [feature.expected_rows for feature in data.features] == [24, 1]


@pytest.mark.parametrize("name", ONCE)
def test_what_can_be_read_once_is_read_once(name: str) -> None:
    table = pa.table({"y": [0, 1] * 12, "x": range(24)})
    data = arrow(ONCE[name](table), "y")
    assert all_of(data) == all_of(arrow(table, "y"))
    with pytest.raises(MisuseError, match=r"can be read once, and was; for another pass give a so"):
        all_of(data)
    with pytest.raises(MisuseError, match=r"holdout is 0.1, for which rows are counted before"):
        arrow(ONCE[name](table), "y", holdout=0.1)


# A query that is read a second time may give nothing: the second epoch would have no samples.
def test_a_stream_that_ends_early_the_second_time_is_told() -> None:
    data = arrow(Streams(pa.table({"y": [0, 1], "x": [1, 2]}), times=1), "y")
    assert len(all_of(data)[0]) == 2
    with pytest.raises(DataError, match=r"gave 2 rows in the pass before and 0 in this one"):
        all_of(data)


def test_positions_are_rows_wherever_batches_end() -> None:
    table = pa.table({"y": [0, 1, 5, 1] * 25, "x": [[row] * (row % 3) for row in range(100)]})
    given = {"categorical": ["x"], "skip_bad_lines": True}
    batches = [*arrow(table, "y", **given).train_batches(8)]
    assert len(batches) == 10 and batches[2].next.offset == 32
    for size in (1, 7, 100):
        data = arrow(table.to_batches(max_chunksize=size), "y", **given)
        for place in (0, 4):
            rest = [*data.train_batches(8, batches[place].next)]
            assert [one.keys.tolist() for one in rest] == [
                one.keys.tolist() for one in batches[place + 1 :]
            ]
    with pytest.raises(DataError, match=r"has 100 rows, reading was to go on at 101"):
        next(data.train_batches(8, Position(0, 1, 101)))


def test_batches_whose_columns_change_are_refused() -> None:
    one, other = pa.table({"y": [0], "x": [7]}), pa.table({"y": [0], "x": [7.0]})
    with pytest.raises(DataError, match=r"^row 2: column 'x' is double from here on, but int64 be"):
        all_of(arrow([one, other], "y", categorical=["x"]))
    with pytest.raises(DataError, match=r"^row 2: column 'x' is not there; the columns are y"):
        all_of(arrow([one, one.select(["y"])], "y"))
    # Other orders, widths and codes are the same values, and a batch of nulls has any type.
    more = [
        pa.table({"x": pa.nulls(1), "y": [1]}),
        pa.table({"y": [1.0], "x": pa.array([7], pa.int8())}),
        pa.table({"y": ["1"], "x": pa.array([7]).dictionary_encode()}),
    ]
    labels, keys, _, _ = all_of(arrow([*more[:1], one, *more[1:]], "y", categorical=["x"]))
    assert labels == [1, 0, 1, 1]
    assert keys == [embedrock.hash_keys(["", "7", "7", "7"]).tolist()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("log.parquet", r"batches is str, expected .*; of files: pyarrow.dataset.dataset\(path\)"),
        ([{"y": 0}], r"batches is list, which gives dict, expected record batches of Arrow"),
        ({"y": [0]}, r"batches is dict, expected record batches of Arrow"),
        (7, r"batches is int, expected record batches"),
        ([], r"batches gives none, which would say what the columns are"),
    ],
)
def test_what_gives_no_batches_is_refused(given: Any, said: str) -> None:
    with pytest.raises((DataError, MisuseError), match=said):
        arrow(given, "y")


def test_errors_of_a_stream_are_of_data_and_others_stay() -> None:
    def breaks(error: Exception) -> Iterator[Any]:
        yield pa.table({"y": [0], "x": [1]})
        raise error

    with pytest.raises(DataError, match=r"batches ended amid its rows: out of"):
        all_of(arrow(breaks(pa.ArrowInvalid("out of bytes")), "y"))
    with pytest.raises(KeyError, match="mine"):
        all_of(arrow(breaks(KeyError("mine")), "y"))


def test_no_more_than_the_batch_under_way_is_kept() -> None:
    size, many = 20_000, 60

    def batches() -> Iterator[Any]:
        for number in range(many):
            keys = pa.array(np.arange(size) + number * size)
            labels = pa.array(np.zeros(size, np.int8))
            yield pa.RecordBatch.from_arrays([labels, keys], ["y", "x"])

    data = arrow(batches, "y")
    most, samples = 0, 0
    for batch in data.train_batches(1024):
        samples += len(batch)
        most = max(most, pa.total_allocated_bytes())
    assert samples == many * size
    assert most < many * size * 8 // 4  # a quarter of the keys alone


PAGE = ROOT / "docs" / "how-to" / "dataframes.md"
WAYS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.split()[1])
def test_the_ways_of_the_page_give_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    library = re.findall(r"^import (\w+)", way, re.MULTILINE)
    for name in library:
        pytest.importorskip(name)
    from pyarrow import csv, parquet

    monkeypatch.chdir(tmp_path)
    users = [None if row % 7 == 0 else f"u{row}" for row in range(300)]
    table = pa.table(
        {
            "click": [row % 2 for row in range(300)],
            "user": users,
            "price": [1.5] * 300,
            "item": range(300),
            "tags": [[row] * (row % 3) for row in range(300)],
        }
    )
    (tmp_path / "log").mkdir()
    parquet.write_table(table.slice(0, 200), "log/part-1.parquet")
    parquet.write_table(table.slice(200), "log/part-2.parquet")
    csv.write_csv(table.drop(["tags"]), "log.csv")
    if library == ["lance"]:
        sys.modules["lance"].write_dataset(table, "log.lance")
    found: dict[str, Any] = {}
    exec(way, found)
    expected = sorted(embedrock.hash_keys([user or "" for user in users]).tolist())
    first, second = all_of(found["data"])[1][0], all_of(found["data"])[1][0]
    assert sorted(first) == sorted(second) == expected


def test_without_pyarrow_it_says_what_to_install_and_csv_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,x\n1,a\n0,b\n")
    program = (
        "import sys; sys.modules['pyarrow'] = None; import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pyarrow' else found(name, *a)\n"
        "from pathlib import Path\n"
        "from embedrock.data import arrow\n"
        "from embedrock.data.csv import Columns\n"
        "from embedrock.data.formats import parts_of\n"
        "from embedrock.data.streamed import StreamedDataset\n"
        "(part,) = parts_of('csv', [Path('a.csv')], Columns('y', ('x',)))\n"
        "print(sum(map(len, StreamedDataset(part.path, part.kind).train_batches(9))))\n"
        "try: arrow([], 'y')\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "2\nembedrock.data.arrow needs pyarrow: pip install pyarrow\n", (
        done.stderr
    )
