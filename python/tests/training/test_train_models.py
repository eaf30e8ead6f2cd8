"""`embedrock train --model`: models with several targets, and with histories."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from clicklogs import criteo_file, movielens_folder
from embedrock import cli
from embedrock.data.csv import Columns
from embedrock.errors import MismatchError, MisuseError
from embedrock.training import batches
from embedrock.training.options import Recipe, TrainOptions
from trainings import digests, stops_after, train

SMALL = {"mmoe": {"experts": 2, "expert": "8", "tower": "4"}, "dien": {"hidden": "8"}}
COLUMNS = Columns(("click", "buy"), ("user", "item"), ("price",))


def shop(path: Path, lines: int = 300) -> Path:
    """A csv in which some items are clicked and others bought."""
    if not path.exists():
        random = np.random.default_rng(0)
        rows = ["user,item,price,click,buy"]
        for _ in range(lines):
            user, item = random.integers(0, 20), random.integers(0, 30)
            click, buy = (int(random.random() < (0.1 + 0.8 * (item % d == 0))) for d in (2, 3))
            rows.append(f"u{user},i{item},{random.random():.3f},{click},{buy}")
        path.write_text("\n".join(rows) + "\n")
    return path


def sessions(path: Path, count: int = 120) -> Path:
    """Sessions that walk through items of a kind."""
    if not path.exists():
        random = np.random.default_rng(0)
        with path.open("w") as file:
            for session in range(count):
                kind = random.integers(0, 4)
                items = 4 * random.integers(0, 8, random.integers(1, 7)) + kind
                file.write(f"s{session}\t{' '.join(map(str, items))}\n")
    return path


def options(tmp_path: Path, which: str, store: str, **more: Any) -> TrainOptions:
    model = "mmoe" if which.startswith("mmoe") else "dien"
    data_format = {"mmoe-csv": "csv", "dien-sessions": "sessions"}.get(which, "movielens")
    if data_format == "csv":
        data = shop(tmp_path / "shop.csv")
    elif data_format == "sessions":
        data = sessions(tmp_path / "sessions.txt")
    else:
        data = tmp_path / "ml"
        if not data.exists():
            movielens_folder(data, ratings=500)
    given = {"model": model, "model_options": SMALL[model], "epochs": 2, "embedding_dim": 4}
    recipe = Recipe.of_format(data_format, {**given, "batch_size": 64, "lr": 0.1})
    return TrainOptions(
        data=data,
        format=data_format,
        store=tmp_path / store,
        recipe=recipe,
        columns=COLUMNS if data_format == "csv" else None,
        **{"given": frozenset(given), "commit_every": 3, "memory": "64MiB", "threads": 1, **more},
    )


@pytest.mark.parametrize(
    "which",
    [
        "mmoe-csv",
        pytest.param("mmoe-movielens", marks=pytest.mark.long),
        "dien-sessions",
        pytest.param("dien-movielens", marks=pytest.mark.long),
    ],
)
def test_a_run_is_resumed_with_the_same_bits_and_scored_by_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    whole = train(options(tmp_path, which, "whole"))
    targets = {"mmoe-csv": ["click", "buy"], "mmoe-movielens": ["liked", "not_disliked"]}
    assert list(whole["targets"]) == targets.get(which, ["click"])
    for figure in ("auc", "log_loss"):
        mean = np.mean([one[figure] for one in whole["targets"].values()])
        assert whole[figure] == pytest.approx(mean)
    assert whole["auc"] > 0.5 or which.startswith("dien")  # seven steps, to learn from histories
    with monkeypatch.context() as patched:
        stops_after(patched, 4)
        train(options(tmp_path, which, "stopped"))
    # Options that are not given are those of the run, the model too.
    told = options(tmp_path, which, "stopped", resume=True)
    plain = replace(told, recipe=Recipe.of_format(told.format, {}), given=frozenset())
    second = train(plain)
    assert second["settings"]["model_options"] == whole["settings"]["model_options"]
    assert (second["auc"], second["log_loss"]) == (whole["auc"], whole["log_loss"])
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")
    assert ("item" in digests(tmp_path / "whole")) and "history" not in digests(tmp_path / "whole")
    if which == "dien-sessions":
        other = replace(told, recipe=replace(told.recipe, model_options={"max_history": 9}))
        with pytest.raises(MismatchError, match="model_options is"):
            train(replace(other, given=frozenset({"model", "model_options"})))


@pytest.mark.parametrize("which", ["dien-sessions", "mmoe-csv"])
def test_an_epoch_over_data_in_memory_that_waits_for_rows_has_the_others_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(batches, "_WAITED", 0.0)
    monkeypatch.setattr(batches.ReadAhead, "_exceeds_caches", lambda _: True)
    result = {}
    for store, schedule in (("plain", False), ("tried", None)):
        run = options(tmp_path, which, store, schedule=schedule)
        run = replace(run, recipe=replace(run.recipe, epochs=4))
        result[store] = train(run)
    assert digests(tmp_path / "tried") == digests(tmp_path / "plain")
    ahead, steps = result["tried"]["lookahead"], result["tried"]["step"]
    assert ahead["handed_out"] == steps
    # A log would have to be read once more.
    assert ahead["scheduled"] == (0 if which == "mmoe-csv" else steps * 3 // 4)


@pytest.mark.parametrize("name", ["dcn_v2", "deepfm", "pnn", "wide_deep"])
def test_a_model_is_trained_from_a_terminal(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, store = criteo_file(tmp_path / "clicks.tsv", 300), tmp_path / "store"
    command = ["train", "--model", name, "--model-option", "hidden=8", "--data", str(data)]
    command += ["--format", "criteo", "--store", str(store), "--memory", "64MiB", "--json"]
    assert cli.main([*command, "--embedding-dim", "4", "--threads", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    settings = result["settings"]
    assert settings["model"] == name and settings["model_options"]["hidden"] == [8]
    assert "bottom" not in settings
    with embedrock.open(store, "64MiB", create=False) as opened:
        extra = 1 if name in ("deepfm", "wide_deep") else 0
        assert {table.embedding_dim for table in opened.tables.values()} == {4 + extra}


def test_targets_are_printed_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = shop(tmp_path / "shop.csv")
    command = ["train", "--model", "mmoe", "--model-option", "expert=8", "--data", str(data)]
    command += ["--model-option", "tower=4", "--format", "csv", "--label", "click,buy"]
    command += ["--categorical", "user,item", "--store", str(tmp_path / "store")]
    assert cli.main([*command, "--memory", "64MiB", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "\n  click: AUC 0." in said and "\n  buy: AUC 0." in said


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--model", "dien", "--format", "criteo"], "reads histories, which format criteo has not"),
        (["--format", "sessions"], "is for models that read histories, and dlrm is none"),
        (["--model", "mmoe", "--format", "avazu"], "mmoe predicts several targets, .* has one"),
        (
            ["--format", "csv", "--label", "a,b", "--categorical", "c"],
            "label names 2 columns, and model dlrm predicts one",
        ),
        (["--model", "pnn", "--format", "avazu", "--top", "8"], "top is given, but model is pnn"),
        (
            ["--model", "pnn", "--format", "avazu", "--model-option", "layers=8"],
            "model pnn has no option 'layers'; it has product=inner, hidden=512-256",
        ),
    ],
)
def test_data_that_do_not_fit_a_model_are_refused_before_they_are_read(
    tmp_path: Path, given: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--data", str(tmp_path / "none"), "--store", str(tmp_path / "store")]
    assert cli.main([*command, *given]) == 2
    said = capsys.readouterr().err
    assert re.search(expected, said), said
    assert not (tmp_path / "store").exists()


def test_an_unknown_model_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--model", "fm", "--format", "csv", "--data", "a", "--store", "b"])
    said = capsys.readouterr().err
    assert "wide_deep" in said and "dien" in said
    with pytest.raises(MisuseError, match="expected one of dlrm, dcn_v2"):
        Recipe.of_format("csv", {"model": "fm"})
