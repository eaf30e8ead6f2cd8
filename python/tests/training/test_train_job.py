from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embedrock
from clicklogs import avazu_file, criteo_file, movielens_folder, shared
from embedrock.data import DataError
from embedrock.errors import (
    EmbedrockError,
    FullError,
    IoError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    PoisonedError,
)
from embedrock.training import stored
from embedrock.training.options import Recipe, TrainOptions
from embedrock.training.trainer import Trainer
from trainings import digests, options_of, stops_after, train


def criteo(tmp_path: Path, store: str = "store", lines: int = 400, **given: Any) -> TrainOptions:
    """Ten steps an epoch, two epochs."""
    data = tmp_path / "clicks.tsv"
    if not data.exists():
        criteo_file(data, lines)
    return options_of("criteo", data, tmp_path / store, {"batch_size": 36, **given})


def avazu(tmp_path: Path, store: str = "store", **given: Any) -> TrainOptions:
    """Ten steps an epoch, two epochs."""
    data = tmp_path / "clicks.csv"
    if not data.exists():
        avazu_file(data, 400)
    return options_of("avazu", data, tmp_path / store, {"batch_size": 36, **given})


def movielens(tmp_path: Path, store: str = "store", **given: Any) -> TrainOptions:
    """About ten steps an epoch, two epochs."""
    data = tmp_path / "ml"
    if not data.exists():
        movielens_folder(data, ratings=700)
    return options_of("movielens", data, tmp_path / store, {"batch_size": 64, **given})


MAKERS = pytest.mark.parametrize("make", [criteo, avazu, movielens])
ONE_SOON = pytest.mark.parametrize(
    "make",
    [criteo, *(pytest.param(make, marks=pytest.mark.long) for make in (avazu, movielens))],
)


@ONE_SOON
@pytest.mark.parametrize("stops", [(4, 10), pytest.param((1, 15), marks=pytest.mark.long)])
def test_a_run_that_was_interrupted_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, stops: tuple[int, ...]
):
    whole = train(make(tmp_path, "whole"))
    for stop in stops:
        options = make(tmp_path, f"stopped-{stop}")
        with monkeypatch.context() as patched:
            stops_after(patched, stop)
            first = train(options)
        assert first["interrupted"]
        assert first["step"] == stop
        assert first["auc"] is None
        second = train(replace(options, resume=True))
        assert not second["interrupted"]
        assert second["step"] == whole["step"]
        assert (second["auc"], second["log_loss"]) == (whole["auc"], whole["log_loss"])
        assert digests(options.store) == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "value", "other", "seen"),
    [
        pytest.param("dtype", "float16", "float32", "float16", marks=pytest.mark.long),
        ("dtype", "bfloat16", "float32", "bfloat16"),
        ("optimizer", "adagrad", "adam", 4),
        pytest.param("optimizer", "rowwise_adagrad", "adam", 1, marks=pytest.mark.long),
        pytest.param("optimizer", "adam", "sgd", 8, marks=pytest.mark.long),
        pytest.param("optimizer", "rowwise_adam", "adam", 5, marks=pytest.mark.long),
        pytest.param("optimizer", "sgd", "adam", 0, marks=pytest.mark.long),
    ],
)
def test_what_tables_are_is_kept_and_resumed_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, other: str, seen: Any
) -> None:
    whole = train(criteo(tmp_path, "whole", **{name: value}))
    assert whole["settings"][name] == value
    options = criteo(tmp_path, "stopped", **{name: value})
    with monkeypatch.context() as patched:
        stops_after(patched, 7)
        train(options)
    with embedrock.open(options.store, "64MiB", create=False) as store:
        of_table = {"dtype": "dtype", "optimizer": "state_words"}[name]
        assert {getattr(table, of_table) for table in store.tables.values()} == {seen}
    with pytest.raises(MismatchError, match=f"{name} is {other}, but the run in .* has {value}"):
        train(criteo(tmp_path, "stopped", resume=True, **{name: other}))
    second = train(replace(options, resume=True, given=frozenset()))
    assert (second["auc"], second["log_loss"]) == (whole["auc"], whole["log_loss"])
    assert digests(options.store) == digests(tmp_path / "whole")


@ONE_SOON
@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_a_run_that_died_resumes_at_its_last_commit_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
):
    whole = train(make(tmp_path, "whole"))
    options = make(tmp_path, "died")
    steps = 0
    step = Trainer.step

    def dies(self: Trainer, batch: Any) -> float:
        nonlocal steps
        steps += 1
        if steps == 9:
            raise RuntimeError("power cut")
        return step(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", dies)
        with pytest.raises(RuntimeError, match=r"power cut"):
            train(options)
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == 6
    second = train(replace(options, resume=True))
    assert second["step"] == whole["step"]
    assert second["log_loss"] == whole["log_loss"]
    assert digests(options.store) == digests(tmp_path / "whole")


@pytest.mark.long
def test_results_do_not_depend_on_the_memory_budget(tmp_path: Path):
    small = train(criteo(tmp_path, "small", lines=2000, memory="4MiB", embedding_dim=64))
    large = train(criteo(tmp_path, "large", lines=2000, memory="100%", embedding_dim=64))
    assert small["log_loss"] == large["log_loss"]
    assert digests(tmp_path / "small") == digests(tmp_path / "large")


def test_the_result_is_json_and_says_how_well_the_model_predicts(tmp_path: Path):
    result = train(movielens(tmp_path, epochs=4, lr=0.1))
    assert json.loads(json.dumps(result))["test_samples"] == 70
    assert result["auc"] > 0.55
    assert result["step"] == 4 * 10
    assert result["stats"]["commits"]["step"] == result["step"]


def test_a_finished_run_that_is_resumed_only_evaluates(tmp_path: Path):
    first = train(criteo(tmp_path))
    again = train(criteo(tmp_path, resume=True))
    assert again["samples"] == 0
    assert again["log_loss"] == first["log_loss"]


def test_a_resumed_run_may_have_more_epochs(tmp_path: Path):
    train(criteo(tmp_path, "short", epochs=1))
    train(criteo(tmp_path, "short", epochs=2, resume=True))
    train(criteo(tmp_path, "long", epochs=2))
    assert digests(tmp_path / "short") == digests(tmp_path / "long")


def test_resume_without_a_run_starts_one(tmp_path: Path):
    assert train(criteo(tmp_path, resume=True))["step"] == 20


def test_a_store_with_a_run_is_not_trained_on_by_accident(tmp_path: Path):
    train(criteo(tmp_path))
    with pytest.raises(MisuseError, match=r"holds a run at step 20; add --resume"):
        train(criteo(tmp_path))


def test_a_run_is_not_resumed_with_other_settings(tmp_path: Path):
    train(criteo(tmp_path))
    with pytest.raises(MismatchError, match=r"batch_size is 50, but the run in .* has 36"):
        train(criteo(tmp_path, batch_size=50, resume=True))


ODD = {"epochs": 3, "lr": 0.3, "dense_lr": 0.2, "lr_decay": 0.5, "batch_size": 50, "bottom": (4,)}


@ONE_SOON
def test_a_resumed_run_has_the_recipe_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, make: Any
):
    # Rates that were not repeated fell back to the format's, without a word.
    whole = train(make(tmp_path, "whole", **ODD))
    with monkeypatch.context() as patched:
        stops_after(patched, 9)
        train(make(tmp_path, "stopped", **ODD))
    capsys.readouterr()
    second = train(make(tmp_path, "stopped", resume=True, given=frozenset()))
    assert (second["step"], second["log_loss"]) == (whole["step"], whole["log_loss"])
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")
    assert "from here on" not in capsys.readouterr().err


def without_progress(said: str) -> list[str]:
    """The lines of a run but those of how far it is, which it says where it takes a while."""
    return [line for line in said.splitlines() if not line.startswith("training: ")]


def test_rates_that_are_given_to_a_resumed_run_override_and_are_told(tmp_path: Path, capsys):
    train(criteo(tmp_path, "one", epochs=1, lr=0.3))
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    for store, given, told in (
        ("one", frozenset({"epochs"}), ["epochs is 2 from here on, it was 1"]),
        (
            "other",
            frozenset({"epochs", "lr"}),
            ["epochs is 2 from here on, it was 1", "lr is 0.7 from here on, it was 0.3"],
        ),
    ):
        train(criteo(tmp_path, store, epochs=2, lr=0.7, resume=True, given=given))
        assert without_progress(capsys.readouterr().err) == told
    assert digests(tmp_path / "one") != digests(tmp_path / "other")
    train(criteo(tmp_path, "other", resume=True, given=frozenset()))
    assert without_progress(capsys.readouterr().err) == []
    with embedrock.open(tmp_path / "other", "64MiB") as store:
        assert store.meta["changeable"]["lr"] == 0.7


def test_a_run_of_a_store_without_rates_and_data_goes_on_with_those_given(tmp_path: Path):
    # Stores were made without them.
    options = criteo(tmp_path, epochs=1)
    train(options)
    with embedrock.open(options.store, "64MiB") as store:
        state, meta = store.state(), store.meta
        del meta["changeable"], meta["files"]
        store.commit(store.step, meta, state)
    train(criteo(tmp_path, epochs=2, resume=True))
    train(criteo(tmp_path, "long", epochs=2))
    assert digests(options.store) == digests(tmp_path / "long")


@MAKERS
def test_a_run_does_not_go_on_with_other_data(tmp_path: Path, make: Any):
    options = make(tmp_path, epochs=1)
    train(options)
    other = tmp_path / "other"
    if options.format == "criteo":
        criteo_file(other, 400, seed=1)
    elif options.format == "avazu":
        avazu_file(other, 400, seed=1)
    else:
        movielens_folder(other, 700, seed=1)
    said = r"other\S* is not what the run in .*store has read, .*; pass the"
    with pytest.raises(MisuseError, match=said):
        train(replace(options, data=other, resume=True))


def test_a_run_goes_on_with_the_same_data_packed_otherwise(tmp_path: Path):
    options = criteo(tmp_path, epochs=1)
    train(options)
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(options.data.read_bytes()))
    assert train(replace(criteo(tmp_path, resume=True), data=packed))["step"] == 20


def test_a_store_of_another_program_is_not_resumed(tmp_path: Path):
    options = criteo(tmp_path, resume=True)
    with embedrock.open(options.store, "64MiB") as store:
        store.table("mine", 4)
        store.commit(1)
    with pytest.raises(MismatchError, match=r"was not written by embedrock train"):
        train(options)


def test_a_malformed_line_ends_the_run_before_a_store_is_made(tmp_path: Path):
    options = criteo(tmp_path)
    with options.data.open("a") as file:
        file.write("broken\n")
    with pytest.raises(DataError, match=r"clicks.tsv, line 401"):
        train(options)
    assert not options.store.exists()


def test_skipped_lines_are_counted_and_change_nothing_else(tmp_path: Path, capsys):
    clean = train(criteo(tmp_path, "clean"))
    options = criteo(tmp_path, "dirty", skip_bad_lines=True)
    lines = options.data.read_text().splitlines()
    options.data.write_text("\n".join([lines[0], "broken", *lines[1:], "x\ty"]) + "\n")
    dirty = train(options)
    assert dirty["bad_lines"] == 2
    assert dirty["log_loss"] == clean["log_loss"]
    assert digests(tmp_path / "clean") == digests(tmp_path / "dirty")
    assert "2 malformed lines skipped, the first: " in capsys.readouterr().err


def test_skipped_lines_of_ratings_users_and_items_are_counted(tmp_path: Path, capsys):
    options = movielens(tmp_path, skip_bad_lines=True)
    for name, broken in (("u.data", "1\t2\tgood\t4"), ("u.user", "7"), ("u.item", "8|")):
        with (options.data / name).open("a") as file:
            file.write(f"{broken}\n")
    assert train(options)["bad_lines"] == 3
    assert "3 malformed lines skipped, the first: " in capsys.readouterr().err
    assert train(replace(options, resume=True))["bad_lines"] == 3


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_a_full_disk_ends_the_run_at_a_commit_and_with_more_room_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(embedrock, "open", partial(embedrock.open, page_bytes=4096))
    criteo_file(tmp_path / "clicks.tsv", 3000, tokens_per_field=3000)
    given = {"batch_size": 100, "embedding_dim": 16, "memory": "3MiB", "commit_every": 10_000}
    whole = train(criteo(tmp_path, "whole", **given))
    room = int(whole["stats"]["disk_bytes"] * 0.73)
    message = r"3 commits have not .* committed at step \d+: with more room, --resume goes on"

    def fails(_: Trainer, batch: Any) -> FullError | None:
        return FullError("no room") if batch.next.batch >= 20 else None

    # The bound makes the store ask for commits by itself; how often they release enough hangs on
    # the order in which rows leave memory, so what no commit helps against comes from outside.
    with monkeypatch.context() as patched, pytest.raises(FullError, match=message):
        failing(patched, fails)
        train(criteo(tmp_path, "full", max_disk_bytes=room, **given))
    assert "to release copies (3 of at most 3 times)" in capsys.readouterr().err
    with embedrock.open(tmp_path / "full", "3MiB", create=False) as store:
        assert 0 < (store.step or 0) < whole["step"]
    second = train(criteo(tmp_path, "full", resume=True, **given))
    assert second["log_loss"] == whole["log_loss"]
    assert digests(tmp_path / "full") == digests(tmp_path / "whole")


def failing(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """Steps for which `fails(trainer, batch)` gives an error end with it, after their forward."""
    step = Trainer.step

    def made(self: Trainer, batch: Any) -> float:
        error = fails(self, batch)
        if error is None:
            return step(self, batch)
        embeddings = self.model.embeddings
        embeddings(torch.from_numpy(batch.keys), torch.from_numpy(batch.offsets)).sum().backward()
        raise error

    monkeypatch.setattr(Trainer, "step", made)


def test_a_full_disk_that_takes_no_commit_says_where_the_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any, **__: Any) -> None:
        raise FullError("state does not fit")

    train(criteo(tmp_path, epochs=1))
    failing(monkeypatch, lambda *_: FullError("no room"))
    monkeypatch.setattr(embedrock, "save", full)
    message = r"^state does not fit; the last commit is of step 10: with more room, --resume"
    with pytest.raises(FullError, match=message):
        train(criteo(tmp_path, resume=True))


def test_a_full_disk_is_met_with_commits_until_older_ones_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # One commit was made, and none when the step was committed already: a resumed run never got
    # any room. Copies that only the last commit needs go with the second commit after it.
    whole = train(criteo(tmp_path, "whole"))
    options = criteo(tmp_path, "full", epochs=1)
    train(options)
    released_at: list[int] = []

    def fails(trainer: Trainer, batch: Any) -> FullError | None:
        store = trainer.model.embeddings.collection.store
        sequence = store.commits()[-1].sequence
        if batch.next.batch in (1, 5) and (not released_at or sequence < released_at[-1]):
            released_at[:] = released_at or [sequence + 3]
            return FullError("no room")
        if released_at and sequence >= released_at[-1]:
            released_at.clear()
            seen.append((batch.next.batch, [commit.step for commit in store.commits()]))
        return None

    seen: list[tuple[int, list[int]]] = []
    with monkeypatch.context() as patched:
        failing(patched, fails)
        second = train(criteo(tmp_path, "full", resume=True))
    assert seen == [(1, [10, 10]), (5, [14, 14])]
    assert second["log_loss"] == whole["log_loss"]
    assert digests(options.store) == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    "error",
    [
        NonFiniteError("a gradient is NaN"),
        pytest.param(KeyRangeError("key 9"), marks=pytest.mark.long),
    ],
)
def test_a_step_that_fails_leaves_the_steps_before_it_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, error: EmbedrockError
):
    whole = train(criteo(tmp_path, "whole"))
    options = criteo(tmp_path, "failed")
    with monkeypatch.context() as patched:
        failing(patched, lambda _, batch: error if batch.next.batch == 6 else None)
        with pytest.raises(type(error), match=str(error)):
            train(options)
    assert "the run is committed at step 5\n" in capsys.readouterr().err
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == 5
    second = train(replace(options, resume=True))
    assert second["log_loss"] == whole["log_loss"]
    assert digests(options.store) == digests(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_a_step_that_fails_half_done_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    def fails(trainer: Trainer, batch: Any) -> IoError | None:
        if batch.next.batch != 6:
            return None
        table = trainer.model.embeddings.collection.tables[0]
        table.put([1], np.ones((1, table.embedding_dim), np.float32))
        return IoError("a broken disk")

    options = criteo(tmp_path, "failed")
    failing(monkeypatch, fails)
    with pytest.raises(IoError, match=r"a broken disk"):
        train(options)
    assert "is committed at" not in capsys.readouterr().err
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == 3


def test_steps_go_on_during_a_commit_and_one_is_under_way_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    events: list[tuple[str, int]] = []
    step, save, wait = Trainer.step, embedrock.save, embedrock.PendingCommit.wait

    def noted_step(self: Trainer, batch: Any) -> float:
        events.append(("step", sum(name == "step" for name, _ in events) + 1))
        return step(self, batch)

    def noted_save(*given: Any, **more: Any) -> Any:
        events.append(("save", given[3]))
        return save(*given, **more)

    def noted_wait(self: embedrock.PendingCommit) -> Any:
        made = wait(self)
        events.append(("durable", self.step))
        return made

    monkeypatch.setattr(Trainer, "step", noted_step)
    monkeypatch.setattr(embedrock, "save", noted_save)
    monkeypatch.setattr(embedrock.PendingCommit, "wait", noted_wait)
    train(criteo(tmp_path, epochs=1))
    commits = [event for event in events if event[0] != "step"]
    expected = [(name, at) for at in (3, 6, 9, 10) for name in ("save", "durable")]
    assert commits == expected
    assert events.index(("durable", 3)) > events.index(("step", 6))
    assert events[-1] == ("durable", 10)


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
@pytest.mark.parametrize("seen_by", ["the next commit", "the next step", "the end"])
@pytest.mark.parametrize("pipeline", [False, True])
def test_a_commit_that_fails_while_training_goes_on_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, seen_by: str, pipeline: bool
):
    options = criteo(tmp_path, epochs=1, pipeline=pipeline)
    failed, last = (10, 9) if seen_by == "the end" else (6, 3)
    saved: list[int] = []
    save = embedrock.save

    def noted_save(*given: Any, **more: Any) -> Any:
        saved.append(given[3])
        # The store is left as a failed commit leaves it: at the one before.
        return save(*given, **more) if given[3] != failed else Failed()

    class Failed:
        step = failed

        def wait(self) -> None:
            raise IoError("a broken disk")

    monkeypatch.setattr(embedrock, "save", noted_save)
    if seen_by == "the next step":
        failing(monkeypatch, lambda *_: PoisonedError("no more") if failed in saved else None)
    with pytest.raises(IoError, match=r"^a broken disk$"):
        train(options)
    assert saved[-1] == failed
    told = f"the last commit is of step {last}: --resume goes on there\n"
    assert capsys.readouterr().err.endswith(told)
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == last


def test_a_real_click_log_is_learned_from(tmp_path: Path):
    data = shared("criteo-kaggle/train_first8k_raw.tsv.gz")
    given = {"epochs": 1, "batch_size": 64, "embedding_dim": 8, "commit_every": 1000}
    result = train(options_of("criteo", data, tmp_path / "store", given))
    assert result["test_samples"] == 800
    assert result["auc"] > 0.65


def test_without_a_holdout_everything_is_trained_on(tmp_path: Path):
    result = train(criteo(tmp_path, holdout=0.0))
    assert result["samples"] == 800
    assert result["auc"] is None
    assert result["test_samples"] == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", 0, "epochs is 0, expected 1 or more"),
        ("batch_size", -1, "batch_size is -1"),
        ("lr", float("nan"), "lr is nan, expected a finite number, 0 or more"),
        ("dense_lr", -3.0, r"dense_lr is -3\.0"),
        ("eps", -1.0, r"eps is -1\.0"),
        ("lr_decay", float("inf"), "lr_decay is inf"),
        ("optimizer", "ftrl", "optimizer is 'ftrl', expected one of adagrad, rowwise_adagrad,"),
        ("commit_every", 0, "commit_every is 0, expected 1 or more"),
        ("holdout", 1.0, r"holdout is 1\.0, expected 0 to less than 1"),
    ],
)
def test_unusable_options_are_named(tmp_path: Path, name: str, value: Any, message: str):
    with pytest.raises(MisuseError, match=message):
        train(criteo(tmp_path, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("memory", "10 parsecs", 'memory is "10 parsecs": unit "parsecs" is none of'),
        ("seed", -1, "seed is -1, expected 0 or more"),
        ("store", "file/store", "file/store cannot be made: .*/file is no directory"),
    ],
)
def test_what_keeps_a_store_from_being_made_is_said_before_data_are_read(
    tmp_path: Path, name: str, value: Any, message: str
):
    (tmp_path / "file").write_text("")
    given = {name: tmp_path / value if name == "store" else value}
    options = replace(criteo(tmp_path), data=tmp_path / "none", **given)
    with pytest.raises(MisuseError, match=message):
        train(options)


@pytest.mark.parametrize("writable", [True, False])
def test_a_store_is_made_in_an_empty_directory_that_may_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
):
    options = criteo(tmp_path)
    options.store.mkdir()
    monkeypatch.setattr(
        stored.os, "access", lambda place, _: (Path(place) == options.store) == writable
    )
    if writable:
        train(options)
    else:
        with pytest.raises(MisuseError, match=r"store cannot be made: .*store is no"):
            train(options)


def test_sgd_takes_no_epsilon():
    with pytest.raises(MisuseError, match="but optimizer is sgd, which has none"):
        Recipe.of_format("criteo", {"optimizer": "sgd", "eps": 0.5})


def test_an_unknown_format_is_named():
    expected = "format is 'tsv', expected one of criteo, avazu, movielens, csv"
    with pytest.raises(MisuseError, match=expected):
        Recipe.of_format("tsv")
