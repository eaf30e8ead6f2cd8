"""The bench of replacement, small, with the program that it starts and with one that misbehaves."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from embedrock_lab.bench import cache
from embedrock_lab.bench.program import ProgramError
from embedrock_lab.commands.bench import main

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PLACES = [TARGET / "debug/embedrock-cachebench", ROOT / cache.PROGRAM]
SMALL = ["--split-ids", "20000", "--zipf-ids", "20000", "--batch", "1000", "--rounds", "1"]
SMALL += ["--patience", "0"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    programs = [place for place in PLACES if place.exists()]
    if not programs:
        pytest.skip("embedrock-cachebench is not built: make peers, or cargo test")
    place = tmp_path_factory.mktemp("bench")
    arguments = ["cache", *SMALL, "--program", str(programs[0]), "--dir", str(place)]
    arguments += ["--png", str(place / "cache.png"), "--json", str(place / "cache.json")]
    assert main(arguments) == 0
    assert (place / "cache.png").read_bytes().startswith(b"\x89PNG")
    found: dict = json.loads((place / "cache.json").read_text(encoding="utf-8"))
    return found


def test_every_system_is_timed_on_every_workload_and_verified(report: dict) -> None:
    names = {f"{one}-{policy}" for one in cache.TIMED for policy in cache.POLICIES}
    for workload in ("split", "split_drift", "zipf", "zipf_drift"):
        table = report["results"][workload]
        assert set(table["ns_1"]) == set(table["ns_2"]) == names
        assert min(table["ns_1"].values()) > 0
        assert set(table["hit_rate"]) > names
        late = {f"{one}-{policy}" for one in cache.LATE for policy in cache.POLICIES}
        assert set(table.get("hit_rate_late", late)) == late
        assert ("hit_rate_late" in table) == workload.endswith("_drift")
    assert report["results"]["mismatches"] == 0
    assert report["results"]["rows_verified"] > 100_000
    assert set(report["figures"]) == set(cache.FIGURES)
    assert None not in report["figures"].values()


def test_lists_hit_a_little_more_often_and_take_more_memory(report: dict) -> None:
    table = report["results"]["split"]
    for policy in cache.POLICIES:
        hits = table["hit_rate"]
        assert hits[f"list-{policy}"] == hits[f"list-64-{policy}"]
        assert 0 <= hits[f"list-{policy}"] - hits[f"sets-32-{policy}"] < 0.03
        assert hits[f"sets-8-{policy}"] < hits[f"sets-32-{policy}"]
        assert abs(hits[f"model-32-{policy}"] - hits[f"sets-32-{policy}"]) < 0.02
        beside = table["beside_bytes"]
        assert beside[f"sets-32-{policy}"] == 8 < beside[f"list-{policy}"]


def test_without_the_program_the_figures_are_missing_and_it_says_how(tmp_path: Path) -> None:
    file = tmp_path / "cache.json"
    assert main(["cache", "--program", str(tmp_path / "none"), "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["figures"] == dict.fromkeys(cache.FIGURES)
    assert all("make peers" in note for note in found["notes"])


def stand_in(tmp_path: Path, answer: str) -> list[str]:
    """Arguments for a program that answers each line with this expression."""
    program = tmp_path / "program"
    body = (
        f"import json, sys\nfor line in sys.stdin:\n    print(json.dumps({answer}), flush=True)\n"
    )
    program.write_text(f"#!{sys.executable}\n{body}", encoding="utf-8")
    program.chmod(0o755)
    return ["cache", *SMALL, "--program", str(program), "--dir", str(tmp_path)]


def test_a_wrong_row_fails_the_bench(tmp_path: Path) -> None:
    answer = {"accesses": 10, "hits": 5, "seconds": 1.0, "waited": 0.0, "distinct": 9}
    answer |= {"capacity": 3, "bytes_beside_row": 8.0, "rows_verified": 10, "mismatches": 1}
    assert main(stand_in(tmp_path, repr(answer))) == 1
    assert main(stand_in(tmp_path, repr({**answer, "mismatches": 0}))) == 0


def test_what_the_program_says_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such cache"):
        main(stand_in(tmp_path, "{'error': 'no such cache'}"))
    with pytest.raises(ProgramError, match="ended with status 3"):
        main(stand_in(tmp_path, "sys.exit(3)"))
