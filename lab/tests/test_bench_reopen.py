"""The bench of recovery, small."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedrock_lab.bench import reopen
from embedrock_lab.commands.bench import main

SMALL = ["--rows", "200000", "--keys", "2000", "--uncommitted", "2000000", "--rounds", "2"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    place = tmp_path_factory.mktemp("bench")
    file = place / "reopen.json"
    assert main(["reopen", *SMALL, "--dir", str(place), "--json", str(file)]) == 0
    assert [left.name for left in place.iterdir()] == ["reopen.json"]
    return json.loads(file.read_text(encoding="utf-8"))


def test_what_the_killed_trainer_committed_is_there_and_nothing_else(report: dict) -> None:
    found = report["results"]
    assert found["mismatches"] == 0
    assert found["killed"]["commits"] == 11
    assert found["within_budget"]


def test_the_figure_is_the_median_opening_scaled(report: dict) -> None:
    found = report["results"]
    rounds = list(found["rounds_s"].values())
    assert len(rounds) == 2
    assert min(rounds) > 0
    # The median of two is their mean; 100 M rows are 500 times the 200,000 of the run.
    assert report["figures"]["reopen_s_per_100m"] == pytest.approx(sum(rounds) / 2 * 500)
    assert any("scaled" in note for note in report["notes"])


def test_a_budget_that_is_too_little_is_named_and_the_smallest_is_taken(report: dict) -> None:
    assert any("memory=10% is too little: 640000 bytes, " in note for note in report["notes"])
    assert int(report["results"]["memory"]) > 200_000 * 4


def test_versions_follow_the_blocks_of_the_commits() -> None:
    keys = np.array([0, 1999, 2000, 19_999, 20_000, 199_999])
    assert reopen.version_of(keys, 200_000).tolist() == [1, 1, 2, 10, 0, 0]
