"""``bench lookahead``: its optimum, and a small run with real stores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedrock.observe.optimum import horizon_hits, optimal_hits
from embedrock_lab.bench.replay.trace import synthetic
from embedrock_lab.commands.bench import main


def test_a_longer_horizon_hits_more_and_the_longest_is_the_optimum():
    trace = synthetic(600, 0.8, 120, 64, seed=2).distinct()
    for capacity in (60, 150):
        found = [int(horizon_hits(trace, capacity, n).sum()) for n in (1, 8, 40, 120)]
        assert found == sorted(found) and found[0] < found[-1]
        best = int(optimal_hits(trace, capacity).sum())
        # Rows of one next use are worth the same; which of them leave differs.
        assert found[-1] == pytest.approx(best, rel=0.01)
        assert found[-1] <= best


def test_a_small_run_loads_fewer_pages_than_without_and_verifies_every_row(tmp_path: Path):
    report = tmp_path / "report.json"
    command = ["lookahead", "--rows", "60000", "--dim", "16", "--batches", "60", "--batch", "256"]
    command += ["--lookahead", "24", "--window-group", "8", "--memory", "40"]
    command += ["--device-slice", "0.05", "--patience", "0", "--no-training"]
    command += ["--dir", str(tmp_path / "bench"), "--json", str(report)]
    assert main(command) == 0
    found = json.loads(report.read_text())
    assert found["results"]["mismatches"] == 0
    ahead = found["results"]["engines"]["embedrock-ahead"]
    assert ahead["rows_verified"] == 60_000 and ahead["batches"] == 60
    assert ahead["window"]["rows_loaded"] > 0 and ahead["window"]["failed"] == 0
    assert found["figures"]["pages_once_share"] == 1
    assert 0 < found["results"]["window"]["loads_per_row"] < 1
    assert found["results"]["window"]["announced_ahead"] > 10
    assert np.isfinite(found["figures"]["hit_vs_optimum"])
    assert not list((tmp_path / "bench").iterdir())
