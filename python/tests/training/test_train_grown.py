"""Runs whose data have changed between two processes: known again, told, or gone on with."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from clicklogs import movielens_folder
from embedrock.data import DataError
from embedrock.data.csv import Columns
from embedrock.data.text import Head
from embedrock.errors import MisuseError
from embedrock.training.options import TrainOptions
from trainings import digests, options_of, stops_after, train

COLUMNS = Columns("click", ("user",))


def lines(count: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    pairs = zip(random.integers(0, 2, count), random.integers(0, 30, count), strict=True)
    return "".join(f"{click},u{user}\n" for click, user in pairs)


def csv(data: Path, store: Path, **given: Any) -> TrainOptions:
    return options_of("csv", data, store, {"batch_size": 36, "columns": COLUMNS, **given})


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainOptions:
    """A run on 400 samples that stopped after five steps of ten, and one that did not."""
    (tmp_path / "log.csv").write_text("click,user\n" + lines(400, 0))
    whole = csv(tmp_path / "log.csv", tmp_path / "whole")
    train(whole)
    options = replace(whole, store=tmp_path / "s")
    with monkeypatch.context() as patched:
        stops_after(patched, 5)
        assert train(options)["step"] == 5
    return options


def append(path: Path, count: int) -> None:
    with path.open("a") as file:
        file.write(lines(count, 1))


# The old part was trained again, and everything new was held out.
def test_a_log_that_has_grown_is_a_question(tmp_path: Path, begun: TrainOptions) -> None:
    append(begun.data, 600)
    again = replace(begun, resume=True)
    said = r'log.csv has grown since .*grown="train" goes on with all.*grown="ignore" goes on with'
    with pytest.raises(MisuseError, match=said):
        train(again)
    ignoring = train(replace(again, grown="ignore"))
    assert (ignoring["step"], ignoring["test_samples"]) == (20, 40)
    assert digests(tmp_path / "s") == digests(tmp_path / "whole")
    with pytest.raises(MisuseError, match=r"grown is 'yes', expected one of train, ignore"):
        train(replace(again, grown="yes"))


def test_a_run_goes_on_with_what_came(begun: TrainOptions, capsys: Any) -> None:
    append(begun.data, 600)
    again = replace(begun, resume=True, grown="train")
    found = train(again)
    # Of 1,000 samples 100 are held out; the first epoch goes on to the 900th.
    assert found["step"] == 2 * 25 and found["test_samples"] == 100
    assert found["samples"] == 1800 - 5 * 36
    assert train(replace(begun, resume=True))["step"] == 50  # it is the run's own log now
    append(begun.data, 200)
    assert train(again)["step"] == 50
    assert "with --epochs 3 it trains on the new part" in capsys.readouterr().err
    longer = replace(again, recipe=replace(begun.recipe, epochs=3))
    assert train(longer)["step"] == 50 + 30


def test_a_file_more_is_more_of_the_log(tmp_path: Path, begun: TrainOptions) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    begun.data.rename(folder / "part-1.csv")
    (folder / "part-2.csv").write_text("user,click\n" + "u1,1\n" * 100)
    again = replace(begun, resume=True, data=folder)
    with pytest.raises(MisuseError, match=r"part-2.csv has come since the run"):
        train(again)
    assert train(replace(again, grown="train"))["test_samples"] == 50
    with pytest.raises(MisuseError, match=r"has 1 files, but the run in .* has read 2, the next"):
        train(replace(begun, resume=True, data=folder / "part-1.csv"))


def test_what_changed_is_refused(begun: TrainOptions) -> None:
    text = begun.data.read_text()
    begun.data.write_text(text[:-3] + "9\n" if text[-3] != "9" else text[:-3] + "8\n")
    with pytest.raises(MisuseError, match=r"log.csv is not what the run in .* has read, .*log.csv"):
        train(replace(begun, resume=True, grown="train"))


def test_a_run_of_an_older_version_counts_its_samples(begun: TrainOptions, tmp_path: Path) -> None:
    with embedrock.open(begun.store, "64MiB") as store:
        state, meta = store.state(), store.meta
        del meta["files"], meta["rules"]
        text = begun.data.read_bytes()[:1000]
        begun.data.write_bytes(text + begun.data.read_bytes()[1000:])
        head = asdict(Head.of(begun.data, 1000))
        store.commit(store.step, {**meta, "data": {"path": "log.csv", **head}}, state)
    whole = begun.data.read_text()
    append(begun.data, 60)
    again = replace(begun, resume=True)
    with pytest.raises(MisuseError, match=r"has grown from 400 samples to 460 since the run"):
        train(again)
    begun.data.write_text("".join(whole.splitlines(keepends=True)[:-3]))
    with pytest.raises(MisuseError, match=r"has 397 samples, but the run in .* has read 400"):
        train(again)
    begun.data.write_text(whole)
    train(again)
    assert digests(begun.store) == digests(tmp_path / "whole")


def test_ratings_that_have_grown_are_another_run(tmp_path: Path) -> None:
    options = options_of(
        "movielens", movielens_folder(tmp_path / "ml", 300), tmp_path / "s", {"epochs": 1}
    )
    train(options)
    with (tmp_path / "ml" / "u.user").open("a") as file:
        file.write("9999|30|M|writer|12345\n")
    with pytest.raises(MisuseError, match=r"u.user has more in it than what the run in "):
        train(replace(options, resume=True, grown="train"))


def test_a_format_of_one_file_takes_no_others(tmp_path: Path) -> None:
    folder = movielens_folder(tmp_path / "ml", 300)
    options = options_of("movielens", folder, tmp_path / "s", {"more": (folder,)})
    with pytest.raises(MisuseError, match=r"data names 2 files, and format movielens is one file"):
        train(options)
    with pytest.raises(DataError, match=r"none.csv: cannot be opened"):
        train(csv(tmp_path / "none.csv", tmp_path / "s"))


# Older versions left out the first rating behind a space: the samples of their runs are others.
def test_an_older_run_that_left_a_rating_out_says_why_it_ends(tmp_path: Path) -> None:
    folder = movielens_folder(tmp_path / "ml", 300)
    ratings = folder / "u.data"
    ratings.write_text(" " + ratings.read_text())
    options = options_of("movielens", folder, tmp_path / "s", {"epochs": 1})
    train(options)
    with embedrock.open(options.store, "64MiB") as store:
        state, meta = store.state(), store.meta
        del meta["files"], meta["rules"]
        store.commit(store.step, meta, state)
    with pytest.raises(MisuseError, match=r"older version, which took the first rating of .*u.dat"):
        train(replace(options, resume=True))
