"""`embedrock trace`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedrock import cli
from embedrock.report import progress
from embedrock.trace import Trace


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{i} {i + 1} 7\n" for i in range(1000)))
    return path


def test_logs_become_one_trace_and_a_held_out_part(log: Path, tmp_path: Path, capsys) -> None:
    out, held = tmp_path / "trace.npz", tmp_path / "held.npz"
    command = ["trace", str(log), str(log), "--table", "items", "--out", str(out)]
    assert cli.main([*command, "--split", "0.8", "--held-out", str(held)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}: 1,600 queries, 4,800 keys\n{held}: 400 queries, 1,200 keys\n"
    assert said.err == ""
    first, others = Trace.load(out), Trace.load(held)
    assert list(first.tables) == list(others.tables) == ["items"]
    whole = np.concatenate([first.values, others.values])
    np.testing.assert_array_equal(whole, np.tile(Trace.load(log).values, 2))


def test_a_sample_is_that_of_the_package(log: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "trace.txt.gz"
    assert cli.main(["trace", str(log), "--out", str(out), "--sample", "0.1", "--seed", "3"]) == 0
    expected = Trace.load(log).sample(0.1, seed=3)
    np.testing.assert_array_equal(Trace.load(out).values, expected.values)
    assert capsys.readouterr().out == f"{out}: {expected.queries} queries, {expected.keys} keys\n"


def test_figures_of_a_trace_are_printed(log: Path, tmp_path: Path, capsys) -> None:
    assert cli.main(["trace", "--stats", str(log)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[-1] == ["1,000", "3,000", "1,001", "3.0", "3", "34.0%"]
    both = tmp_path / "both.npz"
    Trace({"a": ([1, 2], [0, 1, 2]), "b": ([5], [0, 0, 1])}).save(both)
    assert cli.main(["trace", "--stats", str(both)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:1] + lines[2:]] == ["table", "all", "a", "b"]
    assert cli.main(["trace", "--stats", "--json", str(both), "--table", "a"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["traces"]
    assert found == {"path": None, **Trace.load(both).only("a").stats()}


def test_parquet_is_read_by_its_column(tmp_path: Path, capsys) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"a": [[1, 2]], "b": [[3]]})
    parquet.write_table(table, tmp_path / "log")
    command = ["trace", str(tmp_path / "log"), "--out", str(tmp_path / "t.txt")]
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "log: has the list columns a, b, name the one to read (column, --column)" in said
    assert cli.main([*command, "--column", "b"]) == 0
    assert (tmp_path / "t.txt").read_text() == "3\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to do: expected --out FILE, or --stats"),
        (["--out", "t.npz", "--split", "0.8"], "--split and --held-out go together"),
        (["--out", "t.npz", "--held-out", "h.npz"], "--split and --held-out go together"),
        (["--stats", "--split", "0.8", "--held-out", "h.npz"], "expected --out FILE"),
        (["--out", "t.npz", "--split", "0.8", "--held-out", "./t.npz"], "are both t.npz"),
        (
            ["--out", "t.npz", "--split", "1", "--held-out", "h.npz"],
            "--split is 1, expected a share",
        ),
        (["--out", "t.npz", "--sample", "0"], "--sample is 0, expected a share"),
        (["--out", "t.csv"], "t.csv is no name of a trace"),
        (["--out", "t.npz", "--column", "ids"], "is no Parquet file and has no column 'ids'"),
    ],
)
def test_options_that_do_not_fit_are_an_error(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["trace", str(log), *options]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_a_bad_line_ends_the_command_with_its_place(log: Path, tmp_path: Path, capsys) -> None:
    log.write_text("1 2\n3 four\n")
    assert cli.main(["trace", str(log), "--out", str(tmp_path / "t.npz")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"embedrock: error: {log}, line 2: 'four' is no id, expected ids")
    assert said.count("\n") == 1 and not (tmp_path / "t.npz").exists()


def test_reading_shows_how_far_it_is(log: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_LINE_INTERVAL_SECONDS", 0.0)
    assert cli.main(["trace", "--stats", str(log)]) == 0
    assert "reading: 100%" in capsys.readouterr().err
