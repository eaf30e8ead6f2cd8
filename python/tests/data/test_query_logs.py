"""Logs of queries: what a line may be, and that a line which may be two things is never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock import cli
from embedrock.data import DataError, query_logs, sequences
from embedrock.errors import MisuseError
from embedrock.trace import Trace


def lists(trace: Trace) -> list[list[int]]:
    return [q.tolist() for q in np.split(trace.values, trace.offsets[1:-1])]


# The session was taken for an item, so that plans were learnt from garbage.
def test_a_session_is_no_item(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("0\t1 2\n1\t3 4 5\nuser 7\t6\n")
    assert lists(Trace.load(path, format="sessions")) == [[1, 2], [3, 4, 5], [6]]
    with pytest.raises(DataError) as caught:
        Trace.load(path)
    assert str(caught.value) == (
        f"{path}, line 1: may be ids with a tab between them (0, 1, 2), or the ids of a session "
        f'that is called 0 (1, 2): say which, format="ids" or format="sessions"'
    )
    path.write_text("0\t1 2\n1\t3 4 5 6 7\n")
    assert lists(Trace.load(path, format="ids")) == [[0, 1, 2], [1, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize(
    "line", ["1 2 3", "\t1 2", "1 2\t", "1\t2\t3", "1 2\t3", "7\t", "", " \t "]
)
def test_a_line_of_one_reading_needs_no_format(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"9 8\n{line}\n")
    assert lists(Trace.load(path)) == [[9, 8], [int(word) for word in line.split()]]


@pytest.mark.parametrize("line", ["1\t2", "1\t2 3", " 1 \t2", "1\t 2 3 4 5"])
def test_a_line_of_two_readings_is_refused_wherever_it_stands(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.txt"
    path.write_text("9 8\n" * 20 + line + "\n")
    with pytest.raises(DataError, match=r"log.txt, line 21: may be ids"):
        Trace.load(path)
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", 16)
    with pytest.raises(DataError, match=r"log.txt, line 21: may be ids"):
        Trace.load(path)


def test_one_log_is_the_same_for_training_and_for_traces(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("a b\t7 8 x\n1\t9 7\n")
    trained = sequences.read_sessions(path)
    trace = Trace.load(path, format="sessions", keys="words")
    assert trace.values.view(np.int64).tolist() == trained.items.tolist()
    assert trace.offsets.tolist() == trained.offsets.tolist()
    expected = embedrock.hash_keys(["7", "8", "x", "9", "7"])
    assert trace.values.view(np.int64).tolist() == expected.tolist()
    with pytest.raises(DataError, match=r"line 1: 'x' is no id, .*keys=\"words\" makes keys"):
        Trace.load(path, format="sessions")


@pytest.mark.parametrize("block_bytes", [7, 64, 1 << 20])
def test_random_sessions_are_read_as_python_reads_them(
    tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_logs, "_BLOCK_BYTES", block_bytes)
    random = np.random.default_rng(block_bytes)
    lines, expected = [], []
    for _ in range(200):
        ids = random.integers(-(2**63), 2**63, random.integers(1, 6)).tolist()
        name = random.choice(["7", "u 1", "x", ""])
        lines.append(f"{name}\t" + "  ".join(map(str, ids)) + random.choice(["", " ", "\r"]))
        expected.append([key % 2**64 for key in ids])
    (tmp_path / "log").write_bytes("\n".join(lines).encode())
    assert lists(Trace.load(tmp_path / "log", format="sessions")) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 2", "1 tab-separated fields, expected 2: session, its items"),
        ("a\t1\t2", "3 tab-separated fields, expected 2: session, its items"),
        ("a\t", "session has no items"),
        ("a\t5 x", "'x' is no id, expected ids"),
    ],
)
def test_what_is_no_session_is_told(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"a\t1\n{line}\nb\t2\n")
    with pytest.raises(DataError, match=f"log.txt, line 2: {said}"):
        Trace.load(path, format="sessions")


def test_words_of_parquet_are_keys_too(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, rows in (("words", [["7", "x"], []]), ("numbers", [[7, 8], []])):
        parquet.write_table(pyarrow.table({"q": rows}), tmp_path / name)
        found = Trace.load(tmp_path / name, keys="words")
        expected = embedrock.hash_keys([str(one) for one in rows[0]])
        assert found.values.view(np.int64).tolist() == expected.tolist()
    with pytest.raises(DataError, match=r"is no text, which alone has a format"):
        Trace.load(tmp_path / "words", format="ids")
    with pytest.raises(MisuseError, match="format is 'lines', expected"):
        Trace.load(tmp_path / "words", format="lines")  # type: ignore[arg-type]


def test_the_command_names_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.txt"
    path.write_text("0\t1 2\n1\t3 4\n")
    command = ["trace", str(path), "--table", "items", "--out", str(tmp_path / "t.npz")]
    assert cli.main(command) == 2
    assert "say which, --format ids or --format sessions" in capsys.readouterr().err
    assert cli.main([*command, "--format", "sessions"]) == 0
    assert capsys.readouterr().out.endswith("t.npz: 2 queries, 4 keys\n")
