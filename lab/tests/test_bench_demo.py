"""The bench of the demo, small: the same code on generated data, with all of its processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clicklogs import criteo_file, movielens_folder
from demos import demo_shows
from embedrock import report
from embedrock.report.progress import Lines
from embedrock_lab.demo import DemoSettings, children, demo_recipe, limits

FIGURES = {
    "auc_out_of_core", "auc_in_memory", "auc_difference", "bits_equal", "auc_without_fillers",
    "log_loss_out_of_core", "log_loss_in_memory", "samples_per_s_out_of_core",
    "samples_per_s_in_memory", "keys_written", "keys_seen_once", "peak_rss_bytes_out_of_core",
    "peak_rss_bytes_in_memory", "embedding_budget_bytes", "embedding_memory_bytes",
    "embedding_memory_limit_bytes", "embedding_memory_within_limit", "hit_rate", "read_requests",
    "pages_read", "pages_read_after_first_epoch", "bytes_written_per_batch",
    "device_requests_per_s", "wait_read_s", "computing_s", "updating_s", "demo_s",
    "speed_vs_memory_demo", "speed_vs_memory_demo_without_lookahead", "contest_bound",
    "contest_device_bound", "lookahead_bound", "lookahead_device_bound", "lookahead_wait_share",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bench's command on generated ratings, and what it left behind."""
    folder = tmp_path_factory.mktemp("demo")
    movielens_folder(folder / "ml", ratings=4000)
    command = ["bench", "demo", "--data", str(folder / "ml")]
    command += ["--format", "movielens", "--memory", "4MiB", "--cache-dir", str(folder / "cache")]
    command += ["--report", str(folder / "report.json")]
    shown = demo_shows(command)
    left = [path.name for path in (folder / "cache").iterdir()]
    return {
        "report": json.loads((folder / "report.json").read_text()),
        "shown": shown,
        "left": left,
    }


def test_the_report_has_the_shape_that_all_benchmarks_share(finished: dict[str, Any]):
    whole = finished["report"]
    assert tuple(whole) == ("bench", *report.KEYS)
    assert set(whole["figures"]) >= FIGURES
    assert all(v is None or isinstance(v, (int, float)) for v in whole["figures"].values())
    assert whole["machine"]["cores"] >= 1
    assert whole["device"]["io"]
    assert whole["settings"]["memory"] == "4MiB"


def test_out_of_core_and_in_memory_agree(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    assert found["bits_equal"] == 1
    assert found["auc_difference"] <= limits.AUC_DIFFERENCE_MAX
    assert found["auc_out_of_core"] > 0.55
    assert abs(found["log_loss_out_of_core"] - found["log_loss_in_memory"]) < 1e-3


def test_the_budget_was_smaller_than_the_rows_and_held(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    assert found["embedding_budget_bytes"] == 4 << 20
    assert found["table_bytes"] > 2 * found["embedding_budget_bytes"]
    assert found["embedding_memory_within_limit"] == 1
    assert found["pages_read_after_first_epoch"] > 0
    assert 0 < found["hit_rate"] < 1


def test_fillers_are_counted_and_the_auc_without_them_is_given(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    assert 0 < found["keys_seen_once"] < found["keys_written"]
    assert 0.5 < found["auc_without_fillers"] < 1
    assert any("occur in one training" in note for note in finished["report"]["notes"])


def test_the_terminal_shows_both_runs_side_by_side(finished: dict[str, Any]):
    shown = finished["shown"]
    for text in ("out of core", "in memory", "AUC", "samples/s", "hit rate", "pages read"):
        assert text in shown
    assert "losses and rows of all tables are identical" in shown


def test_speeds_are_compared_with_the_model_and_threads_of_their_definition(
    finished: dict[str, Any],
):
    whole = finished["report"]
    speeds = [
        whole["figures"][f"contest_samples_per_s_{name}"]
        for name in ("out_of_core", "whole_budget", "plain_torch")
    ]
    assert min(speeds) > 0
    assert 0 < whole["figures"]["speed_vs_memory_demo"] < 1.5
    systems = whole["results"]["contest"]["contestants"]
    for one in systems.values():
        # 3,600 training samples: an epoch is four steps, two of them before the clock starts, and a
        # round is two.
        assert {round["steps"] for round in one["turns"]} == {2}
        assert {round["samples"] for round in one["turns"]} == {1024 + 528, 2 * 1024}
    losses = [one["losses"] for one in systems.values()]
    assert losses[0] == losses[1]
    np.testing.assert_allclose(losses[2], losses[0], rtol=2e-3)


def test_nothing_is_left_behind(finished: dict[str, Any]):
    assert finished["left"] == []


def demo_settings(data_format: str, data: Path | str, **given: Any) -> DemoSettings:
    chosen = {"folder": "f", "cache_dir": "c", "recipe": demo_recipe(data_format), **given}
    return DemoSettings(format=data_format, data=str(data), **chosen)


def test_a_child_that_fails_ends_the_demo_with_what_it_said(tmp_path: Path):
    settings = demo_settings("movielens", tmp_path / "nowhere", folder=str(tmp_path))
    settings.save(tmp_path / "settings.json")
    with pytest.raises(children.ChildError, match=r"memory: .*nowhere: cannot be opened"):
        children.run_together(["memory", "memory"], tmp_path / "settings.json", Lines())


def test_children_that_train_have_settings_for_it_unless_somebody_says_otherwise():
    found = children._environment("comparison: look ahead", {"A": "1", "GOMP_SPINCOUNT": "7"})
    assert found["A"] == "1" and found["GOMP_SPINCOUNT"] == "7"
    assert int(found["MALLOC_TRIM_THRESHOLD_"]) > int(found["MALLOC_MMAP_THRESHOLD_"])
    assert children._environment("memory", {"A": "1"}) == {"A": "1"}


def test_settings_survive_the_way_to_a_child(tmp_path: Path):
    settings = demo_settings("criteo", "d", recipe=demo_recipe("criteo", 5))
    settings.save(tmp_path / "settings.json")
    assert DemoSettings.load(tmp_path / "settings.json") == settings
    assert settings.recipe.epochs == 5
    assert settings.recipe.embedding_dim == 16


def test_a_criteo_file_keeps_its_order_and_is_not_shuffled(tmp_path: Path):
    path = criteo_file(tmp_path / "clicks.tsv", 100)
    settings = demo_settings("criteo", path)
    data = settings.dataset()
    labels = [float(line[0]) for line in path.read_text().splitlines()]
    np.testing.assert_array_equal(data.labels, labels)
    assert data.shuffle_seed is None
    assert data.num_test == 10
    assert replace(settings, holdout=0.5).dataset().num_test == 50


def test_what_was_not_reached_is_said():
    good = {
        "auc_difference": 0.0001,
        "bits_equal": 1,
        "embedding_memory_within_limit": 1,
        "embedding_memory_bytes": 2,
        "embedding_memory_limit_bytes": 1,
    }
    assert limits.failures(good) == []
    for name, value in (
        ("auc_difference", 0.001),
        ("auc_difference", None),
        ("bits_equal", 0),
        ("embedding_memory_within_limit", 0),
    ):
        assert len(limits.failures({**good, name: value})) == 1
