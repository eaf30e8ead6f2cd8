"""The bench in Criteo's shape, small: the same code with few rows, with all processes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from demos import demo_shows
from embedrock import cli, report
from embedrock.errors import FullError, MisuseError
from embedrock.report.progress import Lines
from embedrock_lab.bench.demo import shaped
from embedrock_lab.demo import ShapedSettings, comparison, folder, paths, shaped_recipe
from embedrock_lab.demo.settings import Settings


def shaped_settings(tmp_path: Path, **given: Any) -> ShapedSettings:
    return ShapedSettings(folder=str(tmp_path), recipe=shaped_recipe(given.pop("dim", 8)), **given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bench's command, and what it left behind."""
    folder = tmp_path_factory.mktemp("shaped")
    command = ["bench", "demo", "--criteo-shaped", "--rows", "120,000"]
    command += ["--samples", "12288", "--embedding-dim", "8"]
    command += ["--optimizer", "adagrad", "--memory", "20%", "--threads", "1", "--seed", "3"]
    command += ["--cache-dir", str(folder / "cache"), "--report", str(folder / "report.json")]
    shown = demo_shows(command)
    left = [path.name for path in (folder / "cache").iterdir()]
    return {
        "report": json.loads((folder / "report.json").read_text()),
        "shown": shown,
        "left": left,
    }


def test_all_systems_learn_the_same_and_less_than_the_planted_model_knows(
    finished: dict[str, Any],
):
    found = finished["report"]["figures"]
    assert found["bits_equal"] == 1
    assert found["auc_out_of_core"] == found["auc_whole_budget"]
    assert abs(found["auc_plain_torch"] - found["auc_out_of_core"]) < 1e-3
    assert 0.55 < found["auc_out_of_core"] < found["auc_planted"] < 0.9


def test_the_report_has_the_shape_that_all_benchmarks_share(finished: dict[str, Any]):
    whole = finished["report"]
    assert tuple(whole) == ("bench", *report.KEYS)
    assert whole["settings"]["rows"] == sum(whole["results"]["tables"]) == 120_000
    systems = whole["results"]["contest"]["contestants"]
    assert list(systems) == ["look ahead", "out of core", "whole budget", "plain torch"]
    for one in systems.values():
        assert len(one["turns"]) == 3
        assert one["steps"] == len(one["losses"]) >= 12
        assert sum(point["steps"] for point in one["history"]) == one["steps"]


def test_the_ratio_is_that_of_the_turns_to_the_fastest_other(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    rates = {
        name: sorted(round["samples"] / round["seconds"] for round in one["turns"])[1]
        for name, one in finished["report"]["results"]["contest"]["contestants"].items()
    }
    assert found["contest_samples_per_s_plain_torch"] == pytest.approx(rates["plain torch"])
    assert found["contest_samples_per_s_out_of_core"] == pytest.approx(rates["out of core"])
    assert 0 < found[shaped.RATIO] < 1.5


def test_rows_came_from_storage_and_memory_stayed_within_the_budget(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    assert found["table_bytes"] == 120_000 * 8 * 8
    assert found["embedding_budget_bytes"] == pytest.approx(found["table_bytes"] / 5, rel=0.01)
    assert found["contest_pages_per_batch"] > 100
    assert found["contest_bytes_written_per_batch"] > 0
    assert 0 < found["contest_hit_rate"] < 1
    assert found["embedding_memory_within_limit"] == 1


def test_batches_were_announced_and_none_failed(finished: dict[str, Any]):
    window = finished["report"]["results"]["contest"]["contestants"]["look ahead"]["window"]
    assert window["batches"] > 0 and window["batches"] + window["refused"] >= 12
    assert window["failed"] == 0
    # A quarter of 1.5 MB holds no batch of 26 x 1,024 keys.
    assert window["rows_loaded"] > 0 or window["skipped"] > 0 or window["refused"] > 0


def test_the_device_bound_follows_from_requests_and_rate(finished: dict[str, Any]):
    found = finished["report"]["figures"]
    systems = finished["report"]["results"]["contest"]["contestants"]
    for name, prefix in (("out of core", "contest"), ("look ahead", "lookahead")):
        rounds = systems[name]["turns"]
        steps = sum(round["steps"] for round in rounds)
        expected = 1e3 * sum(round["device_least_s"] for round in rounds) / steps
        assert found[f"{prefix}_device_ms_per_batch"] == pytest.approx(expected)
        bound = min(found["compute_ms_per_batch"] / expected, 1)
        assert found[f"{prefix}_bound"] == pytest.approx(bound)
        assert found[f"{prefix}_device_bound"] == int(bound < 1)
    assert any("device-bound" in note for note in finished["report"]["notes"])


def test_the_terminal_shows_the_systems_side_by_side_and_nothing_is_left(
    finished: dict[str, Any],
):
    for text in ("out of core", "whole budget", "plain torch", "samples/s", shaped.RATIO):
        assert text in finished["shown"]
    assert "AUC of the planted model" in finished["shown"]
    assert finished["left"] == []


def test_look_ahead_and_pipeline_leave_the_bits_as_they_are_where_all_rows_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(comparison, "_PATIENCE_S_MAX", 0.0)  # other tests run beside this one
    settings = shaped_settings(tmp_path, rows=60_000, samples=8192, rounds=2, threads=1)
    names = (paths.WHOLE_BUDGET, paths.WHOLE_AHEAD)
    held = comparison.compare(settings, names, tmp_path / "settings.json", Lines(io.StringIO()))
    assert held.same_losses(*names)
    assert held.results[names[0]]["digests"] == held.results[names[1]]["digests"]
    assert held.rate(paths.WHOLE_AHEAD) > 0


def test_a_budget_that_cannot_work_ends_the_demo_with_the_bytes_that_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["bench", "demo", "--criteo-shaped", "--rows", "20000", "--samples", "6144"]
    command += ["--memory", "256KiB"]
    assert cli.main([*command, "--embedding-dim", "8", "--cache-dir", str(tmp_path)]) != 0
    said = capsys.readouterr().err
    system = "comparison: (look ahead|out of core): "  # the first to fail
    assert re.search(f"{system}.*--memory 256KiB is too little here", said)
    assert re.search("give at least --memory [0-9.]+[KM]iB", said)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = type("usage", (), {"free": 2 << 30})
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(FullError, match=r"2,147,483,648 bytes free, 3 stores of 4,000,000 rows"):
        shaped.run(shaped_settings(tmp_path, dim=64), Lines())
    assert list(tmp_path.iterdir()) == []


def test_who_does_not_fit_into_memory_is_left_out_and_the_ratio_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shaped, "available_memory_bytes", lambda: 1 << 30)
    names, left_out = shaped._systems(shaped_settings(tmp_path, optimizer="adagrad"))
    assert names == [paths.LOOK_AHEAD, paths.OUT_OF_CORE]
    assert [note.split(" was")[0] for note in left_out] == ["whole budget", "plain torch"]


def test_with_row_wise_state_plain_torch_does_not_run(tmp_path: Path):
    names, left_out = shaped._systems(shaped_settings(tmp_path, rows=120_000))
    assert (names, left_out) == ([paths.LOOK_AHEAD, paths.OUT_OF_CORE, paths.WHOLE_BUDGET], [])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rows": 10}, "rows is 10, expected 16727 to 33762577"),
        ({"samples": 1000}, "samples is 1000, expected 6144 or more"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, given: dict[str, int], problem: str):
    with pytest.raises(MisuseError, match=problem):
        shaped.run(shaped_settings(tmp_path, **given), Lines())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--criteo-shaped", "--epochs", "2"], "--epochs means nothing with --criteo-shaped"),
        (["--criteo-shaped", "--data", "f"], "--data means nothing with --criteo-shaped"),
        (["--rows", "100000"], "--rows means nothing without --criteo-shaped"),
        (["--optimizer", "adagrad"], "--optimizer means nothing without --criteo-shaped"),
    ],
)
def test_an_option_of_the_other_demo_is_refused(
    option: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["bench", "demo", *option]) != 0
    assert said in capsys.readouterr().err


def test_settings_survive_the_way_to_a_child(tmp_path: Path):
    settings = shaped_settings(tmp_path, rows=50_000, optimizer="adagrad", memory="64MiB")
    settings.save(tmp_path / "settings.json")
    assert Settings.load(tmp_path / "settings.json") == settings
