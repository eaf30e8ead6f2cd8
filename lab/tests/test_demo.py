"""The two parts of the demo, small: the same code with few rows, all of its processes included."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import withtorch
from clicklogs import movielens_folder
from embedrock import cli, report
from embedrock_lab import demo
from embedrock_lab.demo import children, comparison, limits, summary
from embedrock_lab.measure.noise import Timed, interleave

ROWS = 40_000
LINES_MAX = 8


def started(command: list[str], **how: Any) -> Any:
    """A child of the demo. Those that train are forked where PyTorch was imported once."""
    if "memory" in command:  # measures a process that has no PyTorch
        return subprocess.Popen(command, **how)
    return withtorch.Process(command[1:], env=how["env"], errors=how["stderr"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The demo's command on generated ratings and a small stream, and what it left behind."""
    folder = tmp_path_factory.mktemp("demo")
    movielens_folder(folder / "ml", ratings=1500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_ROWS", ROWS)
        patch.setattr(demo, "_STEPS_BEFORE", 6)
        patch.setattr(demo, "_STEPS_OF_ROUND", 3)
        patch.setattr(demo, "_ROUNDS", 2)
        programs = SimpleNamespace(Popen=started, PIPE=subprocess.PIPE)
        patch.setattr(children, "subprocess", programs)
        # Other tests run beside this one: turns on a quiet machine would be waited for in vain.
        patch.setattr(comparison, "_PATIENCE_S_MAX", 0.0)
        command = ["demo", "--data", str(folder / "ml"), "--format", "movielens"]
        command += [
            "--epochs",
            "3",
            "--cache-dir",
            str(folder / "cache"),
            "--report",
            str(folder / "report.json"),
        ]
        assert cli.main(command) == 0
    yield {
        "report": json.loads((folder / "report.json").read_text()),
        "page": (folder / "report.html").read_text(),
        "left": [path.name for path in (folder / "cache").iterdir()],
    }


def test_results_agree_with_pytorch_and_with_all_memory(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    assert found["bits_equal"] == 1
    assert found["auc_difference"] <= limits.AUC_DIFFERENCE_MAX
    assert found["auc_out_of_core"] > 0.55
    assert abs(found["log_loss_out_of_core"] - found["log_loss_in_memory"]) < 1e-3
    assert found["embedding_memory_within_limit"] == 1


def test_speed_is_the_median_of_the_turns_that_the_report_counts(finished: dict[str, Any]):
    found, results = finished["report"]["figures"], finished["report"]["results"]
    systems = results["speed"]["contestants"]
    assert list(systems) == ["Embedrock", "plain torch"]
    ours, torch = ([t["samples"] / t["seconds"] for t in c["turns"]] for c in systems.values())
    assert len(ours) == len(torch) == found["turns"] >= 1
    ratios = sorted(one / other for one, other in zip(ours, torch, strict=True))
    assert found["speed_vs_torch"] == pytest.approx((ratios[0] + ratios[-1]) / 2) or (
        found["speed_vs_torch"] == pytest.approx(ratios[len(ratios) // 2])
    )
    assert found["steps_per_turn"] == 3
    assert systems["Embedrock"]["steps"] - systems["plain torch"]["steps"] == 6 - 10


def test_rows_came_from_storage(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    assert found["rows"] == ROWS and found["table_bytes"] == ROWS * 64 * 8
    assert found["embedding_budget_bytes"] == pytest.approx(found["table_bytes"] / 10, rel=0.01)
    assert found["pages_read_per_batch"] > 100


def test_the_terminal_has_a_short_table_and_a_sentence(finished: dict[str, Any]):
    whole = finished["report"]
    table = summary.rows(whole)
    assert len(table) <= LINES_MAX
    assert {len(row) for row in table} == {3}
    rounds = whole["figures"]["turns"]
    assert any(f"{rounds} round" in row[0] for row in table)
    verdict = whole["results"]["headline"]["verdict"]
    assert verdict.count(". ") == 0 and verdict.endswith(".")
    quiet = whole["figures"]["speed_vs_torch_of_quiet_turns"]
    said = "too busy to measure" if quiet is None else f"{quiet:.2f} of PyTorch's speed."
    assert said in verdict


def test_the_verdict_says_what_was_not_equal_and_that_the_machine_was_busy(
    finished: dict[str, Any],
):
    figures = {**finished["report"]["figures"], "bits_equal": 0, "auc_difference": 0.1}
    figures |= {"turns": 3, "quiet_turns": 0, "speed_vs_torch_of_quiet_turns": None}
    said = summary.verdict(figures, "10%")
    assert "learned something else" in said and "OTHER bits than with all" in said
    assert "on a machine too busy to measure its speed" in said and "of PyTorch's" not in said
    tiles = summary.headline(figures, "10%")["tiles"]
    assert "other bits" in [tile["value"] for tile in tiles]
    assert tiles[0]["value"] == "not measured" and "the machine was busy" in tiles[0]["note"]
    # The tile of the budget has more than the budget, and why.
    assert "with all that a process takes beside them" in tiles[1]["note"]


def test_the_headline_is_of_quiet_turns_alone(finished: dict[str, Any]):
    """A single turn on a busy machine said 1.98 of PyTorch's speed, in large letters."""
    figures = {**finished["report"]["figures"], "speed_vs_torch": 1.98}
    figures |= {"turns": 3, "quiet_turns": 2, "speed_vs_torch_of_quiet_turns": 0.91}
    assert "trained at 0.91 of PyTorch's speed." in summary.verdict(figures, "10%")
    (tile, *_) = summary.headline(figures, "10%")["tiles"]
    assert tile["value"] == "0.91 x" and tile["note"].startswith("in 2 of 3 rounds")
    whole = {
        **figures,
        "turns": 2,
        "samples_per_s_out_of_core": 5.0,
        "samples_per_s_in_memory": 6.0,
    }
    (tile, *_) = summary.headline(whole, "10%")["tiles"]
    assert tile["note"] == "5 samples/s, in memory 6"


def test_the_page_shows_the_speed_of_the_turns_and_not_of_runs_that_shared_the_machine(
    finished: dict[str, Any],
):
    assert tuple(finished["report"]) == report.KEYS
    assert finished["report"]["results"]["untimed"] == ["quality"]
    parts = re.split(r"<h2>", finished["page"])
    heads = [part.partition("<")[0] for part in parts[1:]]
    assert heads[:2] == ["Speed", "Quality"] and heads[-1].startswith("What to know")
    assert "<svg" in parts[1] and "Samples per second" in parts[1]
    assert "Hit rate beside the best possible" in parts[2]
    assert "Samples per second" not in parts[2]


def test_nothing_is_left_behind(finished: dict[str, Any]):
    assert finished["left"] == []


class _Round(Timed):
    """A round that took a while, quiet or not."""

    def __init__(self, clock: list[float], seconds: float, waited: float = 0.0) -> None:
        super().__init__()
        clock[0] += seconds
        self.work, self.seconds, self.waited = 1.0, seconds, waited


@pytest.mark.parametrize(
    ("limit_s", "rounds"), [(None, 3), (100.0, 3), (25.0, 2), (0.0, 1), (-5.0, 1)]
)
def test_no_round_begins_after_the_limit_but_the_first(
    limit_s: float | None, rounds: int, monkeypatch: pytest.MonkeyPatch
):
    clock = [1000.0]
    monkeypatch.setattr("embedrock_lab.measure.noise.time.monotonic", lambda: clock[0])
    found = interleave([lambda: _Round(clock, 10.0)] * 2, 3, 0.0, limit_s)
    assert (len(found.counted), found.notes) == (rounds, [])


def test_rounds_that_were_cut_short_and_disturbed_are_counted_as_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = [1000.0]
    monkeypatch.setattr("embedrock_lab.measure.noise.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("embedrock_lab.measure.noise.time.sleep", lambda _: None)
    found = interleave([lambda: _Round(clock, 10.0, 5.0)], 3, 0.0, 15.0)
    assert len(found.counted) == 2
    assert "2 of 2 rounds waited for a core" in found.notes[0]
