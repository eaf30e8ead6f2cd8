"""Every reader of users' text opens it alike: marks, encodings, ends of lines and of texts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clicklogs import avazu_file, criteo_file
from embedrock import kge
from embedrock.data import DataError, Position, graphs, movielens, sequences
from embedrock.data.avazu import AVAZU
from embedrock.data.criteo import CRITEO
from embedrock.data.csv import Columns, Csv
from embedrock.data.streamed import StreamedDataset, scan
from embedrock.data.text import TextStream, whole_lines
from embedrock.trace import Trace

MARK = b"\xef\xbb\xbf"


def streamed(path: Path, kind: Any) -> Any:
    found = scan(path, kind)
    (batch,) = StreamedDataset(path, kind, scan=found, holdout=0.0).train_batches(999, Position())
    return batch.keys.tolist(), batch.labels.tolist(), batch.next.line


def of_graph(folder: Path, name: str) -> Any:
    if name != "edges.tsv":
        (folder / "edges.tsv").write_text("0\t1\n1\t0\n")
    found = graphs.read(folder)
    labels, features = found.labels, found.features
    return (
        found.edges.tolist(),
        None if labels is None else labels.tolist(),
        None if features is None else features.tolist(),
    )


def of_triples(path: Path) -> Any:
    found = kge.read(path)
    return list(found.entities), list(found.relations), found.train.tolist()


def of_trace(path: Path) -> Any:
    found = Trace.load(path)
    return found.values.tolist(), found.offsets.tolist()


def of_ratings(path: Path) -> Any:
    found = movielens.read(path)
    return found.user.tolist(), found.rating.tolist()


READERS: dict[str, tuple[str, bytes, Callable[[Path], Any]]] = {
    "csv": (
        "a.csv",
        b"click,user\n1,u\n0,v\n",
        lambda path: streamed(path, Csv(path, Columns("click", ("user",)))),
    ),
    "criteo": ("c.tsv", b"", lambda path: streamed(path, CRITEO)),
    "avazu": ("a.csv", b"", lambda path: streamed(path, AVAZU)),
    "triples": ("train.tsv", b"ann\tknows\tbob\nbob\tknows\tann\n", of_triples),
    "ratings": ("u.data", b"1\t5\t4\t100\n2\t5\t3\t101\n", of_ratings),
    "sessions": (
        "s.txt",
        b"a\t1 2 3\nb\t4 5\n",
        lambda path: sequences.read_sessions(path).items.tolist(),
    ),
    "edges": ("edges.tsv", b"0\t1\n1\t2\n", lambda path: of_graph(path.parent, path.name)),
    "labels": ("labels.tsv", b"0\t1\n1\t2\n", lambda path: of_graph(path.parent, path.name)),
    "features": ("features.csv", b"1,2\n3,4\n", lambda path: of_graph(path.parent, path.name)),
    "places": ("features.tsv", b"0\t1\n1\t2\n", lambda path: of_graph(path.parent, path.name)),
    "trace": ("t.txt", b"1 2\n3\n", of_trace),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    name, text, read = READERS[request.param]
    if request.param == "criteo":
        text = criteo_file(tmp_path / name, 20).read_bytes()
    if request.param == "avazu":
        text = avazu_file(tmp_path / name, 20).read_bytes()
    return tmp_path / name, text, read


# A mark became part of the first entity; the first rating was taken for a header, and the first
# row of features was lost.
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_mark_is_no_part_of_a_text(reader: Any, pack: Any) -> None:
    path, text, read = reader
    path.write_bytes(text)
    expected = read(path)
    path.write_bytes(pack(MARK + text))
    assert read(path) == expected


def test_returns_at_the_ends_of_lines_are_no_part_of_them(reader: Any) -> None:
    path, text, read = reader
    path.write_bytes(text)
    expected = read(path)
    path.write_bytes(text.replace(b"\n", b"\r\n"))
    assert read(path) == expected


# A blank last line ended runs on csv and triples.
@pytest.mark.parametrize("more", [b"\n", b"\n\n\n", b"\r\n"])
def test_empty_lines_at_the_end_are_none(reader: Any, more: bytes) -> None:
    path, text, read = reader
    if path.name == "t.txt":
        pytest.skip("a line of a trace without ids is a query that asks for nothing")
    path.write_bytes(text)
    expected = read(path)
    path.write_bytes(text + more)
    assert read(path) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_encoding_is_refused_with_the_way_out(reader: Any, encoding: str) -> None:
    path, text, read = reader
    path.write_bytes(text.decode().encode(encoding))
    said = rf"is {encoding.upper()}, expected UTF-8: run iconv -f {encoding.upper()} -t UTF-8"
    with pytest.raises(DataError, match=said):
        read(path)


def test_an_empty_line_within_is_told_and_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("a\tr\tb\n\nb\tr\ta\n\n")
    with pytest.raises(DataError, match=r"train.tsv, line 2: has 1 fields"):
        kge.read(path)
    assert kge.read(path, skip_bad_lines=True).skipped == {"lines": 1}
    path = tmp_path / "a.csv"
    path.write_text("click,user\n1,u\n\n0,v\n\n")
    with pytest.raises(DataError, match=r"a.csv, line 3: line is empty"):
        streamed(path, Csv(path, Columns("click", ("user",))))


def test_empty_lines_before_the_end_of_a_block_count_where_more_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedrock.data.streamed._BLOCK_BYTES", 4)
    monkeypatch.setattr("embedrock.data.text._BLOCK_BYTES", 4)
    (tmp_path / "a.csv").write_text("click,user\n1,u\n\n\n\n\n0,v\n\n\n\n\n")
    kind = Csv(tmp_path / "a.csv", Columns("click", ("user",)))
    found = scan(tmp_path / "a.csv", kind, skip_bad_lines=True)
    assert (found.samples, found.bad_lines) == (2, 4)
    lines = list(whole_lines(tmp_path / "a.csv"))
    text = b"".join(block for _, block in lines)
    assert text == b"click,user\n1,u\n\n\n\n\n0,v\n"
    assert all(text[: text.index(block)].count(b"\n") + 1 == at for at, block in lines[:2])
    assert lines[-1][0] + lines[-1][1].count(b"\n") - 1 == 7


def test_returns_alone_are_no_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(b"a\tr\tb\rb\tr\ta\r")
    with pytest.raises(DataError, match=r"has carriage returns alone .*: run tr"):
        kge.read(path)


def test_offsets_count_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(MARK + b"click,user\n1,u\n0,v\n")
    data = StreamedDataset(path, Csv(path, Columns("click", ("user",))))
    batches = list(data.train_batches(1, Position()))
    assert [batch.next.offset for batch in batches] == [18, 22]
    (again,) = data.train_batches(1, batches[0].next)
    np.testing.assert_array_equal(again.keys, batches[1].keys)
    with TextStream(path) as stream:
        stream.skip_to(0)
        assert stream.read(5) == b"click"


# The first rating of a file was taken for its header where a space or a sign stood before it.
@pytest.mark.parametrize("first", ["", " ", "+", "-"])
def test_a_first_line_of_numbers_is_no_header(tmp_path: Path, first: str) -> None:
    path = tmp_path / "u.data"
    path.write_text(first + "1\t5\t4\t100\n2\t5\t3\t101\n")
    assert len(movielens.read(path).user) == 2
    path.write_text("user\titem\trating\ttime\n" + first + "1\t5\t4\t100\n")
    assert len(movielens.read(path).user) == 1


def test_ids_of_ratings_beyond_64_bits_are_told(tmp_path: Path) -> None:
    path = tmp_path / "u.data"
    path.write_text(f"1\t5\t4\t100\n{2**63}\t5\t3\t101\n")
    with pytest.raises(DataError, match=r"line 2: id 9223372036854775808 lies outside of 64 bits"):
        movielens.read(path)
