"""``bench schedule``: small epochs with the same losses in all ways, fewer pages, and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedrock.errors import MisuseError
from embedrock_lab.bench.training import schedule
from embedrock_lab.commands.bench import main


def test_a_small_run_has_equal_losses_and_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    small = ["--steps", "96", "--epochs", "1", "--first-epochs", "2", "--loads", "deepfm"]
    small += ["--uses", "1000000", "--rows", "50000", "--json", str(file)]
    assert main(["schedule", *small]) == 0
    report = json.loads(file.read_text())
    assert report["results"]["mismatches"] == 0
    figures = report["figures"]
    assert figures["schedule_vs_memory"] == figures["schedule_vs_memory_deepfm"] > 0
    assert 0 < figures["schedule_pages_deepfm"] < 0.9
    assert 2 < figures["schedule_bytes_per_use"] < 2.2
    assert figures["schedule_uses_per_s"] > 100_000
    assert figures["schedule_memory_bytes"] < 256 << 20
    way = report["results"]["deepfm"]["ways"]["schedule"]
    assert way["loader"]["scheduled"] == 96
    assert way["window"]["schedule_wrong"] == 0


def test_a_load_that_there_is_not_is_named() -> None:
    with pytest.raises(MisuseError, match=r"--loads has .'features'., expected some of deepfm"):
        schedule.run(schedule.Options(loads=["features"]))
