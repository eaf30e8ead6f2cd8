"""Files of traces: every format there and back, and what is said of bad ones."""

from __future__ import annotations

import gzip
import importlib.util
import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedrock.data import DataError, query_logs
from embedrock.data.text import zstd_module
from embedrock.errors import EmbedrockError, IoError, MisuseError
from embedrock.trace import Trace, parquet, text

NAMES = ["t.npz", "t.txt", "t.txt.gz", "t.txt.zst", "t.parquet"]
EXTREMES = [0, 9, 10, 2**63 - 1, 2**63, 10**19 - 1, 10**19, 2**64 - 1]


def needs(name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if name.endswith(".zst") and zstd_module() is None:
        pytest.skip("zstd is not installed")


def random_trace(queries: int = 1000, table: str = "") -> Trace:
    random = np.random.default_rng(3)
    lengths = random.integers(0, 9, queries)
    lengths[-1] = 5
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = random.integers(0, 2**64, offsets[-1], np.uint64)
    values[: len(EXTREMES)] = EXTREMES
    return Trace({table: (values, offsets)})


def assert_equal(one: Trace, other: Trace) -> None:
    assert list(one.tables) == list(other.tables)
    for name, queries in one.tables.items():
        assert queries.values.dtype == np.uint64 and queries.offsets.dtype == np.int64
        np.testing.assert_array_equal(queries.values, other.tables[name].values)
        np.testing.assert_array_equal(queries.offsets, other.tables[name].offsets)


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_the_same_there_and_back(tmp_path: Path, name: str) -> None:
    needs(name)
    trace = random_trace()
    trace.save(tmp_path / name)
    assert_equal(Trace.load(tmp_path / name), trace)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_say_what_a_file_is_and_not_its_name(tmp_path: Path, name: str) -> None:
    needs(name)
    trace = random_trace(30)
    trace.save(tmp_path / name)
    (tmp_path / name).rename(tmp_path / "log.dat")
    assert_equal(Trace.load(tmp_path / "log.dat"), trace)


@pytest.mark.parametrize("name", NAMES)
def test_equal_traces_are_equal_files(tmp_path: Path, name: str) -> None:
    needs(name)
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        random_trace(50).save(tmp_path / folder / name)
    if not name.endswith(".npz"):  # a zip archive has times
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


# Blocks of text and batches of rows meet within queries.
@pytest.mark.parametrize("name", NAMES[1:])
def test_parts_of_a_file_make_the_whole(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(name)
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", 101)
    monkeypatch.setattr(text, "_LINES", 7)
    monkeypatch.setattr(parquet, "_KEYS", 40)
    monkeypatch.setattr(parquet, "_ROWS", 30)
    trace = random_trace(200)
    trace.save(tmp_path / name)
    assert_equal(Trace.load(tmp_path / name), trace)
    half = Trace.load(tmp_path / name, sample=0.5, seed=4)
    assert_equal(half, trace.sample(0.5, seed=4))
    both = Trace.load([tmp_path / name, tmp_path / name], sample=0.5, seed=4)
    twice = Trace(
        {"": (np.tile(trace.values, 2), np.append(trace.offsets, trace.offsets[1:] + trace.keys))}
    )
    assert_equal(both, twice.sample(0.5, seed=4))


def test_tables_stay_apart_in_npz(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    trace = Trace({"items": ([1, 2, 3], [0, 2, 2, 3]), "a/b": ([-1], [0, 0, 1, 1])})
    trace.save(path)
    found = Trace.load(path)
    assert_equal(found, trace)
    assert found.tables["a/b"].values.tolist() == [2**64 - 1]
    assert_equal(Trace.load(path, table="a/b"), trace.only("a/b"))
    with np.load(path) as arrays:
        assert sorted(arrays.files) == [
            "a/b/offsets",
            "a/b/values",
            "items/offsets",
            "items/values",
        ]
    with pytest.raises(DataError, match=r"t.npz: has no table 'users'; it has 'items', 'a/b'"):
        Trace.load(path, table="users")
    with pytest.raises(MisuseError, match="can hold one table, and the trace has 'items', 'a/b'"):
        trace.save(tmp_path / "t.txt")


# Processes that record the same store are not all asked for every table.
def test_files_that_follow_each_other_may_lack_tables(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.npz", "b.npz", "c.npz")]
    Trace({"one": ([1, 2], [0, 1, 2])}).save(paths[0])
    Trace({"two": ([3], [0, 0, 1])}).save(paths[1])
    Trace({"one": ([4], [0, 1]), "two": ([5], [0, 1])}).save(paths[2])
    found = Trace.load(paths)
    assert_equal(
        found,
        Trace({"one": ([1, 2, 4], [0, 1, 2, 2, 2, 3]), "two": ([3, 5], [0, 0, 0, 0, 1, 2])}),
    )
    assert_equal(Trace.load(paths, sample=0.7, seed=2), found.sample(0.7, seed=2))
    (tmp_path / "log").write_text("7\n")
    said = "log: has a table without a name, and what came before has tables 'one': name the table"
    with pytest.raises(DataError, match=said):
        Trace.load([paths[0], tmp_path / "log"])


def test_numpy_alone_makes_an_npz(tmp_path: Path) -> None:
    sessions = [[7, 8], [], [-1]]
    np.savez_compressed(
        tmp_path / "t.npz",
        values=np.concatenate(sessions).astype(np.int64),
        offsets=np.cumsum([0, *map(len, sessions)]).astype(np.int32),
    )
    found = Trace.load(tmp_path / "t.npz", table="items")
    assert found.tables["items"].values.tolist() == [7, 8, 2**64 - 1]
    assert found.offsets.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("written", "values", "offsets"),
    [
        (b"1 2\n3", [1, 2, 3], [0, 2, 3]),
        (b"\xef\xbb\xbf1 2\r\n\r\n\t3  4 \r\n", [1, 2, 3, 4], [0, 2, 2, 4]),
        (b"\n\n5\n\n", [5], [0, 0, 0, 1, 1]),
        (b"-1 -9223372036854775808 0 -0", [2**64 - 1, 2**63, 0, 0], [0, 4]),
        (b"18446744073709551615 00000000000000000007", [2**64 - 1, 7], [0, 2]),
        (b"10000000000000000000 9999999999999999999", [10**19, 10**19 - 1], [0, 2]),
    ],
)
def test_text_is_read_as_people_write_it(
    tmp_path: Path, written: bytes, values: list[int], offsets: list[int]
) -> None:
    (tmp_path / "log").write_bytes(written)
    found = Trace.load(tmp_path / "log")
    assert (found.values.tolist(), found.offsets.tolist()) == (values, offsets)


@pytest.mark.parametrize("signed", [False, True])
def test_random_text_is_read_as_python_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", 500)
    random = np.random.default_rng(5)
    lines = []
    for _ in range(800):
        words = [str(random.integers(0, 10 ** random.integers(1, 19))) for _ in range(5)]
        words = [f"-{word}" if signed and random.random() < 0.3 else word for word in words]
        words = words[: random.integers(0, 6)]
        gaps = [" " * int(random.integers(1, 3)) + "\t" * int(random.integers(2)) for _ in words]
        lines.append("".join(gap + word for gap, word in zip(gaps, words, strict=True)) + " " * 2)
    (tmp_path / "log").write_text("\n".join(lines))
    found = Trace.load(tmp_path / "log", format="ids")
    expected = [[int(word) % 2**64 for word in line.split()] for line in lines]
    assert found.values.tolist() == [key for query in expected for key in query]
    assert np.diff(found.offsets).tolist() == [len(query) for query in expected]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"1 2\n3 x7 4\n", "line 2: 'x7' is no id, expected ids .* keys=\"words\" makes keys"),
        (b"1,2,3\n", "line 1: '1,2,3' is no id, expected ids as whole numbers .* with spaces"),
        (b"1\n\n2 1.5\n", "line 3: '1.5' is no whole number, expected ids"),
        (b"1 - 2\n", "line 1: '-' is no whole number"),
        (b"1 --2\n", "line 1: '--2' is no whole number"),
        (b"1 2-3\n", "line 1: '2-3' is no whole number"),
        (b"18446744073709551616\n", "line 1: '18446744073709551616' lies outside of 64 bits"),
        (b"29999999999999999999\n", "line 1: '29999999999999999999' lies outside of 64 bits"),
        (b"19999999999999999999\n", "line 1: '19999999999999999999' lies outside of 64 bits"),
        (b"1 123456789012345678901\n", "line 1: '123456789012345678901' lies outside of 64 bits"),
        (b"-9223372036854775809\n", "line 1: '-9223372036854775809' lies outside of 64 bits"),
        (b"1\x002\n", r"line 1: '1\\x002' is no id"),
        (b"", "holds no query, expected one at least"),
        (b"\n\n", "holds no key in 2 queries, expected one at least"),
        (b"PK\x03\x04 no archive", "cannot be read as an .npz file: "),
        (b"PAR1 no table", "cannot be read as Parquet: "),
        (b"\x1f\x8b no gzip", "compressed data ends or breaks after 0 bytes of text"),
    ],
)
def test_a_bad_file_is_told_with_its_place(tmp_path: Path, written: bytes, said: str) -> None:
    if written.startswith(b"PAR1"):
        pytest.importorskip("pyarrow")
    path = tmp_path / "log"
    path.write_bytes(written)
    with pytest.raises(DataError, match=f"{path}(, |: ){said}"):
        Trace.load(path)


def test_the_line_of_a_bad_id_is_counted_over_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", 64)
    (tmp_path / "log").write_text("1 22 333\n" * 1000 + "4 five\n")
    with pytest.raises(DataError, match="line 1001: 'five'") as told:
        Trace.load(tmp_path / "log")
    assert told.value.line == 1001 and told.value.path == tmp_path / "log"


def test_a_line_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(query_logs, "_LINE_BYTES_MAX", 1000)
    (tmp_path / "log").write_text("1\n" + "2 " * 2000)
    with pytest.raises(DataError, match="line 2: has more than 1,000 bytes and no end"):
        Trace.load(tmp_path / "log")


@pytest.mark.parametrize("name", ["t.npz", "t.txt.gz", "t.txt.zst", "t.parquet"])
def test_a_file_that_was_cut_off_is_no_trace(tmp_path: Path, name: str) -> None:
    needs(name)
    path = tmp_path / name
    random_trace(5000).save(path)
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 20):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=str(path)):
            Trace.load(path)


@pytest.mark.parametrize("name", ["t.npz", "t.txt.gz"])
def test_a_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    random_trace(5000).save(path)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 4
    path.write_bytes(whole)
    with pytest.raises(DataError, match=str(path)):
        Trace.load(path)


Arrays = dict[str, object]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"values": [1]}, r"has no array 'offsets', expected np.savez\(file, values="),
        ({"a/values": [1], "a/offsets": [0, 1], "b/values": [1]}, "has no array 'b/offsets'"),
        ({"values": [1], "offsets": [0, 1], "other": [1]}, "has the array 'other', expected"),
        (
            {"values": [1], "offsets": [0, 1], "a/values": [1], "a/offsets": [0, 1]},
            "has arrays of a table without a name beside 'a'",
        ),
        ({"values": [1.5], "offsets": [0, 1]}, r"values is float64 of shape \(1,\), expected"),
        ({"values": [[1]], "offsets": [0, 1]}, r"values is int64 of shape \(1, 1\), expected"),
        ({"values": [1], "offsets": [0.0, 1.0]}, "offsets is float64 of shape"),
        ({"values": [1], "offsets": []}, "offsets is float64|offsets has 0 entries"),
        ({"values": [1], "offsets": np.zeros(1, int)}, "offsets has 1 entries, so there are no"),
        ({"values": [1, 2], "offsets": [1, 2]}, "offsets begins with 1, expected 0"),
        (
            {"values": [1, 2], "offsets": [0, 2, 1, 2]},
            "offsets: entry 1 is 2 and entry 2 is 1, exp",
        ),
        ({"values": [1, 2], "offsets": [0, 1]}, "offsets ends at 1, expected 2"),
        ({"values": [1, 2], "offsets": [0, 3]}, "offsets ends at 3, expected 2"),
        (
            {"values": [1, 2], "offsets": np.array([0, 2**64 - 1, 2], np.uint64)},
            "offsets: entry 1 is 18446744073709551615 and entry 2 is 2",
        ),
        ({"a/values": [1], "a/offsets": [0, 2]}, "offsets of table 'a' ends at 2, expected 1"),
        (
            {"a/values": [1], "a/offsets": [0, 1], "b/values": [1], "b/offsets": [0, 0, 1]},
            "has queries 1 of 'a', 2 of 'b': expected as many of each table",
        ),
        ({"values": np.zeros(0, int), "offsets": [0, 0, 0]}, "holds no key in 2 queries"),
        ({"values": np.array([None]), "offsets": [0, 1]}, "cannot be read as an .npz file: Object"),
        ({}, "has no arrays, expected"),
    ],
)
def test_bad_arrays_are_told_apart(tmp_path: Path, arrays: Arrays, said: str) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **{name: np.asarray(one) for name, one in arrays.items()})
    with pytest.raises(DataError, match=f"{path}: {said}"):
        Trace.load(path)


@pytest.mark.parametrize("keys", [10, 10**15])
def test_an_array_that_says_it_has_more_than_there_is_is_refused(tmp_path: Path, keys: int) -> None:
    path, head, offsets = tmp_path / "t.npz", io.BytesIO(), io.BytesIO()
    shape = {"descr": "<u8", "fortran_order": False, "shape": (keys,)}
    np.lib.format.write_array_header_1_0(head, shape)
    np.save(offsets, np.array([0, 9]))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("values.npy", head.getvalue() + bytes(9 * 8))
        file.writestr("offsets.npy", offsets.getvalue())
    with pytest.raises(DataError, match=f"{path}: cannot be read as an .npz file"):
        Trace.load(path)


def test_what_is_no_file_of_a_trace_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(DataError, match=r"one.npy: is a single NumPy array, expected np.savez"):
        Trace.load(tmp_path / "one.npy")
    with pytest.raises(DataError, match=r"none.txt: cannot be opened: No such file"):
        Trace.load(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot be opened: Is a directory"):
        Trace.load(tmp_path)
    (tmp_path / "t.txt").write_text("1 2\n")
    with pytest.raises(DataError, match=r"t.txt: is no Parquet file and has no column 'items'"):
        Trace.load(tmp_path / "t.txt", column="items")
    with pytest.raises(MisuseError, match=r"t.csv is no name of a trace, expected one of \*.npz, "):
        random_trace(9).save(tmp_path / "t.csv")
    with pytest.raises(IoError, match="writing "):
        random_trace(9).save(tmp_path / "no folder" / "t.npz")


def test_a_trace_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_trace(9).save(tmp_path / "t.txt")
    before = (tmp_path / "t.txt").read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(text, "_LINES", 5)
    monkeypatch.setattr("embedrock.trace.queries.Queries.between", fail)
    with pytest.raises(IoError, match="No space left"):
        random_trace(20).save(tmp_path / "t.txt")
    assert (tmp_path / "t.txt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


def test_a_sample_of_a_large_log_takes_the_memory_of_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", 1 << 16)
    (tmp_path / "log").write_bytes(b"1234567 7654321 1111111\n" * 400_000)
    tracemalloc.start()
    try:
        found = Trace.load(tmp_path / "log", sample=0.01)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 3500 < found.queries < 4500
    assert peak < 4 << 20  # the log has 9.6 MB, and 9.6 MB of keys


def test_rows_of_parquet_are_read_by_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet, "_KEYS", 1000)
    queries = Trace({"": (np.arange(20_000), np.arange(0, 20_001, 100))})  # in one group of rows
    queries.save(tmp_path / "t.parquet")
    seen: list[tuple[int, int]] = []
    parts = parquet.parts(tmp_path / "t.parquet", None, lambda *done: seen.append(done))
    assert [len(keys) for keys, _ in parts] == [1000] * 20
    assert seen == [(rows, 200) for rows in range(10, 201, 10)]


def test_progress_ends_at_the_bytes_of_all_files(tmp_path: Path) -> None:
    trace = random_trace(3000)
    paths = [
        tmp_path / name
        for name in NAMES
        if importlib.util.find_spec("pyarrow") or "par" not in name
    ]
    paths = [path for path in paths if zstd_module() or path.suffix != ".zst"]
    for path in paths:
        trace.save(path)
    seen: list[tuple[int, int]] = []
    Trace.load(paths, progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in paths)
    assert seen[-1] == (total, total) and len(seen) >= 2 * len(paths) - 1
    assert seen == sorted(seen)


# Parquet


def table_of(**columns: object) -> Callable[[Path], Path]:
    pyarrow = pytest.importorskip("pyarrow")

    def write(path: Path) -> Path:
        from pyarrow import parquet as files

        files.write_table(pyarrow.table(columns), path)
        return path

    return write


@pytest.mark.parametrize("kind", ["list", "large", "fixed", "int32"])
def test_parquet_has_a_query_per_row(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    kinds = {
        "list": pyarrow.list_(pyarrow.int64()),
        "large": pyarrow.large_list(pyarrow.uint64()),
        "fixed": pyarrow.list_(pyarrow.int64(), 2),
        "int32": pyarrow.list_(pyarrow.int32()),
    }
    lists = pyarrow.array([[1, 2], [3, 4]], kinds[kind])
    path = table_of(user=pyarrow.array(["a", "b"]), ids=lists)(tmp_path / "log")
    found = Trace.load(path)
    assert (found.values.tolist(), found.offsets.tolist()) == ([1, 2, 3, 4], [0, 2, 4])
    assert Trace.load(path, column="ids", table="items").tables["items"].values.tolist() == [
        1,
        2,
        3,
        4,
    ]


def test_a_column_of_parquet_is_named_where_there_are_several(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = table_of(
        a=pyarrow.array([[1]]),
        b=pyarrow.array([[-1, 5]]),
        c=pyarrow.array([3]),
        d=pyarrow.array([["w"]]),
    )(tmp_path / "log")
    assert Trace.load(path, column="b").values.tolist() == [2**64 - 1, 5]
    for column, said in [
        (None, r"has the list columns a, b, d, name the one to read \(column, --column\)"),
        ("e", "has no column 'e'; its columns are 'a' list<"),
        ("c", "column 'c' is int64, expected a list of whole numbers .* in each row: gather"),
        ("d", "column 'd' holds lists of string, expected .*; keys=\"words\" makes keys"),
    ]:
        with pytest.raises(DataError, match=f"{path}: {said}"):
            Trace.load(path, column=column)
    only = table_of(c=pyarrow.array([3]))(tmp_path / "other")
    with pytest.raises(
        DataError, match="has no column of lists, expected one; its columns are 'c'"
    ):
        Trace.load(only)


def test_nulls_and_nan_in_parquet_are_told_with_their_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet, "_ROWS", 2)
    good = [[1], [], [2]]
    for rows, said in [
        ([*good, None], "column 'ids', row 4 has null in place of a list, expected"),
        ([*good, [5], [3, None]], "column 'ids', row 5 has null among its ids, expected"),
        ([*good, [0.5, float("nan")]], "column 'ids' holds lists of double, .* NaN is in row 4"),
        ([*good, [0.5]], "column 'ids' holds lists of double, expected .* large ids$"),
    ]:
        path = table_of(ids=pyarrow.array(rows))(tmp_path / "log")
        with pytest.raises(DataError, match=f"{path}: {said}"):
            Trace.load(path)


def test_without_their_libraries_formats_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("embedrock.data.text.zstd_module", lambda: None)
    monkeypatch.setattr(text, "zstd_module", lambda: None)
    (tmp_path / "parquet").write_bytes(b"PAR1....")
    (tmp_path / "zstd").write_bytes(b"\x28\xb5\x2f\xfd....")
    for name, said in [("parquet", "pip install pyarrow"), ("zstd", "pip install zstandard")]:
        with pytest.raises(EmbedrockError, match=f"{tmp_path / name}: .*{said}"):
            Trace.load(tmp_path / name)
    for name, said in [
        ("t.parquet", "pip install pyarrow"),
        ("t.txt.zst", "pip install zstandard"),
    ]:
        with pytest.raises(EmbedrockError, match=f"{name}.*: .*{said}"):
            random_trace(9).save(tmp_path / name)


def test_a_log_of_a_service_is_read_while_it_is_unpacked(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "log", "wt") as first:
        first.write("1 2\n")
    with gzip.open(tmp_path / "log", "at") as second:  # members one after another
        second.write("3\n")
    assert Trace.load(tmp_path / "log").values.tolist() == [1, 2, 3]
