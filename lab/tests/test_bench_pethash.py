"""The bench of PETHash, small, with the program that it starts and with one that is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from embedrock_lab.bench import pethash
from embedrock_lab.commands.bench import main

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PLACES = [TARGET / "debug/embedrock-hashbench", ROOT / pethash.PROGRAM]
SMALL = ["--keys", "20000", "--look-ups", "10000", "--probe-keys", "20000", "--rows", "20000"]
SMALL += ["--pushes", "3", "--rounds", "2", "--patience", "0"]
SHM = Path("/dev/shm")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    programs = [place for place in PLACES if place.exists()]
    if not programs:
        pytest.skip("embedrock-hashbench is not built: make peers, or cargo test")
    place = tmp_path_factory.mktemp("bench")
    arguments = ["pethash", *SMALL, "--program", str(programs[0]), "--dir", str(place)]
    # Elsewhere each put waits for the disk.
    arguments += ["--tmpfs", str(SHM if SHM.is_dir() else tmp_path_factory.mktemp("tmpfs"))]
    assert main([*arguments, "--json", str(place / "pethash.json")]) == 0
    assert [left.name for left in place.iterdir()] == ["pethash.json"]
    found: dict = json.loads((place / "pethash.json").read_text(encoding="utf-8"))
    return found


def test_every_figure_is_measured_and_every_row_verified(report: dict) -> None:
    assert set(report["figures"]) == set(pethash.FIGURES)
    assert None not in report["figures"].values()
    assert report["results"]["mismatches"] == 0
    # Two counts of each order and turnover, a verified pass of each map, and the rows of regions.
    counted = (len(pethash.ORDERS) + 2) * 2 * 20_000
    opened = 2 * 2 * 500 + 2 * 4 * 500
    passes = len(pethash.PEERS) + 2
    assert report["results"]["rows_verified"] == counted + passes * 10_000 + opened


def test_figures_are_the_worst_order_of_keys_and_the_best_other_map(report: dict) -> None:
    results, figures = report["results"], report["figures"]
    assert set(results["probes"]) == set(pethash.ORDERS)
    hits = [one["hit"] for one in results["probes"].values()]
    assert figures["pethash_hit_probes"] == max(hits) < 1.1
    assert figures["pethash_within_three"] > 0.99
    turned = results["turnover"]
    assert figures["pethash_turned_miss_probes"] == turned["re-homing"]["miss"]
    assert turned["re-homing"]["miss"] < turned["re-homing"]["miss_before_last_pass"]
    assert turned["re-homing"]["miss_before_last_pass"] < turned["without"]["miss"]
    ratios = [results["look_ups"][peer]["pethash_vs_it"] for peer in pethash.CONCURRENT]
    assert figures["lookups_vs_best"] == min(ratios)


def test_regions_are_opened_in_two_sizes_and_after_a_kill(report: dict) -> None:
    assert set(report["results"]["reopen"]) == {"2,000 rows", "20,000 rows", "killed"}
    killed = report["results"]["reopen"]["killed"]
    assert killed["slots_looked_up"] >= 500
    assert killed["first_put_ms"] > 0
    assert killed["first_pull_ms"] >= killed["open_ms"] > 0


def test_without_the_program_the_figures_are_missing_and_it_says_how(tmp_path: Path) -> None:
    file = tmp_path / "pethash.json"
    assert main(["pethash", "--program", str(tmp_path / "none"), "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["figures"] == dict.fromkeys(pethash.FIGURES)
    assert all("make peers" in note for note in found["notes"])


def test_fewer_keys_where_memory_is_short_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [place for place in PLACES if place.exists()]
    if not programs:
        pytest.skip("embedrock-hashbench is not built: make peers, or cargo test")
    monkeypatch.setattr(pethash.machine, "available_memory_bytes", lambda: 6000 * 180)
    arguments = ["pethash", *SMALL, "--program", str(programs[0]), "--dir", str(tmp_path)]
    arguments += ["--parts", "look-ups"]
    file = tmp_path / "pethash.json"
    assert main([*arguments, "--tmpfs", str(tmp_path), "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["results"]["look_up_keys"] == 5000
    missing = {name for name, value in found["figures"].items() if value is None}
    assert missing == set(pethash.FIGURES) - set(pethash.LOOK_UPS)
    assert any("look-ups are of 5,000 keys: 20,000 need" in note for note in found["notes"])
