"""`embedrock place`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock import cli
from embedrock.placement import Plan
from embedrock.report import progress
from placements import communities, counted


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.npz"
    communities(1000, 1, ("users", "items")).save(path)
    return path


def test_a_plan_is_learned_from_the_first_queries_and_tried_with_the_others(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.npz"
    command = ["place", str(trace), "--rows-per-page", "8", "--replicate", "0.2", "--threads", "2"]
    assert cli.main([*command, "--out", str(out)]) == 0
    learned, held_out = communities(1000, 1, ("users", "items")).split(0.8)
    plan = Plan.load(out)
    expected = embedrock.placement.place(learned, rows_per_page=8, replicate=0.2)
    np.testing.assert_array_equal(plan.groups[0].key, expected.groups[0].key)
    identity, home, replicated = counted(plan, held_out)
    said = capsys.readouterr()
    assert said.err == ""
    head, *_, first, second, third = said.out.splitlines()
    assert head.startswith(f"{out}: {plan.num_rows} rows in {plan.num_pages} pages and ")
    assert head.endswith(" replica pages, learned from 800 queries")
    assert "200 held-out queries of " in said.out
    assert first.split() == ["identity", f"{identity:.3f}"]
    assert second.split() == ["partition", f"{home:.3f}"]
    assert third.split() == ["with", "replicas", f"{replicated:.3f}"]


def test_figures_are_printed_as_json(trace: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "plan.npz"
    command = ["place", str(trace), "--rows-per-page", "8", "--out", str(out), "--json"]
    assert cli.main([*command, "--learn", "1", "--method", "frequency"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = Plan.load(out)
    assert found == {
        "path": str(out),
        "learned_queries": 1000,
        "rows": plan.num_rows,
        "pages": plan.num_pages,
        "replica_pages": 0,
        "held_out": None,
    }
    out.unlink()
    assert cli.main([*command, "--learn", "0.5"]) == 0
    found = json.loads(capsys.readouterr().out)["held_out"]
    assert found["queries"] == 500 and found["pages"] == found["pages_home"]


def test_pages_are_those_of_a_store(
    trace: Path, tmp_path: Path, store: embedrock.Store, capsys
) -> None:
    store.table("items", 16, optimizer="none")
    store.commit(1)
    out = tmp_path / "plan.npz"
    command = ["place", str(trace), "--store", str(store.path), "--out", str(out)]
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "the trace asks for table 'users'" in said and "are 'items'" in said
    assert said.count("\n") == 1 and not out.exists()
    assert cli.main([*command, "--table", "items"]) == 0
    (row_class,) = store.stats()["classes"]
    assert Plan.load(out).groups[0].rows_per_page == row_class["rows_per_page"]
    assert f"{out}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicate", "0.9"], "replicate is 0.9, expected 0 to 0.8"),
        (["--replicate", "-0.1"], "replicate is -0.1, expected 0 to 0.8"),
        (["--learn", "0"], "--learn is 0, expected a share: more than 0, 1 at most"),
        (["--out", "there.npz"], "there.npz exists; move it away, or choose another name (--out)"),
        (["--out", "plan.txt"], "--out is plan.txt, expected a name that ends with .npz"),
        (["--out", "none/plan.npz"], "none is no directory; make it"),
        (["--table", "ads"], "ads"),
        (["--memory", "8kB"], "ask for at least --memory "),
        (["--memory", "much"], "memory is 'much', expected bytes"),
    ],
)
def test_options_that_do_not_fit_are_an_error(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.npz").touch()
    command = ["place", str(trace), "--rows-per-page", "8", "--out", "plan.npz"]
    assert cli.main([*command, *options]) == 2
    found = capsys.readouterr().err
    assert found.startswith("embedrock: error: ") and said in found and found.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.npz", "trace.npz"]


def test_an_empty_trace_and_a_store_that_is_not_there_are_an_error(
    tmp_path: Path, trace: Path, capsys
) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    out = ["--out", str(tmp_path / "plan.npz")]
    assert cli.main(["place", str(empty), "--rows-per-page", "8", *out]) == 2
    assert f"{empty}: holds no query, expected one at least" in capsys.readouterr().err
    assert cli.main(["place", str(trace), "--store", str(tmp_path / "none"), *out]) == 2
    assert "none holds no store" in capsys.readouterr().err
    one = tmp_path / "one.txt"
    one.write_text("1 2 3\n")
    assert cli.main(["place", str(one), "--rows-per-page", "8", *out]) == 2
    assert "the trace has one query, expected two at least" in capsys.readouterr().err
    assert cli.main(["place", str(one), "--rows-per-page", "8", "--learn", "1", *out]) == 0


def test_placing_shows_how_far_it_is_and_what_memory_it_takes(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_LINE_INTERVAL_SECONDS", 0.0)
    command = ["place", str(trace), "--rows-per-page", "8", "--replicate", "0.5"]
    assert cli.main([*command, "--memory", "64MiB", "--out", str(tmp_path / "plan.npz")]) == 0
    lines = capsys.readouterr().err.splitlines()
    placing = [line for line in lines if line.startswith("placing: ")]
    assert any(" left, up to " in line for line in placing)
    assert all("of 64 MiB of memory" in line for line in placing if "up to" in line)
    assert any(line.startswith("trying: done in ") for line in lines)


# A plan that saves nothing was written without a word.
def test_a_useless_plan_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    logs = []
    for name in ("log", "held"):
        queries = [random.choice(4000, 8, replace=False) for _ in range(400)]
        logs.append(tmp_path / f"{name}.txt")
        logs[-1].write_text("\n".join(" ".join(map(str, query)) for query in queries))
    command = ["place", str(logs[0]), "--rows-per-page", "8"]
    assert cli.main([*command, "--out", str(tmp_path / "one.npz")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"this plan saves \d% of the reads: \d.\d\d pages for a held-out", said)
    assert cli.main([*command, "--held-out", str(logs[1]), "--out", str(tmp_path / "2.npz")]) == 0
    said = capsys.readouterr().out
    assert "learned from 400 queries\n400 held-out queries of 8.0 rows" in said
    assert "this plan saves" in said
    assert cli.main([*command, "--learn", "1", "--out", str(tmp_path / "3.npz")]) == 0
    assert "not tried: no query was kept apart" in capsys.readouterr().out
    both = ["--held-out", str(logs[1]), "--learn", "0.5", "--out", str(tmp_path / "4.npz")]
    assert cli.main([*command, *both]) == 2
    assert "--learn and --held-out both say" in capsys.readouterr().err
