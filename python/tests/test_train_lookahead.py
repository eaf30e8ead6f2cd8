"""`embedrock train` reads ahead: the same bits with and without, and commits that know nothing of
the batches that were drawn ahead."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from clicklogs import criteo_file
from embedrock import cli
from embedrock.errors import FullError, MisuseError
from embedrock.progress import Lines
from embedrock.training import batches, job
from embedrock.training.options import Recipe, TrainOptions
from embedrock.training.trainer import Trainer

#: 24 steps an epoch, two epochs, of rows that do not fit into memory.
LINES, BATCH, STEPS = 1200, 45, 48
MODES: dict[str, dict[str, Any]] = {
    "plain": {"lookahead_depth": 0},
    "one ahead": {"lookahead_depth": 1},
    "look-ahead": {},
    "pipeline": {"lookahead_depth": 0, "pipeline": True},
    "both": {"pipeline": True},
}


def options_of(folder: Path, store: str, **given: Any) -> TrainOptions:
    data = folder / "clicks.tsv"
    if not data.exists():
        criteo_file(data, LINES, tokens_per_field=400)
    shape = {"batch_size": BATCH, "embedding_dim": 32, "bottom": (8,), "top": (8,)}
    recipe = Recipe.of_format("criteo", {"epochs": 2, **shape})
    chosen = {"commit_every": 5, "threads": 1, "memory": "3MiB", **given}
    return TrainOptions(data, "criteo", folder / store, recipe, **chosen)


def digests(path: Path) -> dict[str, int]:
    with embedrock.open(path, "64MiB", create=False) as store:
        return {table.name: table.digest() for table in store.tables.values()}


def trained(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[float]]:
    """The result, and the loss of every step."""
    losses: list[float] = []
    step = Trainer.step

    def noted(self: Trainer, batch: Any) -> float:
        losses.append(step(self, batch))
        return losses[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", noted)
        return job.train(options, Lines()), losses


class After:
    """Stands for `Interrupt`: asks to stop after some steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    @property
    def requested(self) -> bool:
        self.left -= 1
        return self.left < 0

    def __enter__(self) -> After:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that reads nothing ahead comes to."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as monkeypatch:
        result, losses = trained(options_of(folder, "store", lookahead_depth=0), monkeypatch)
    assert result["stats"]["misses"] > 1000, "rows must leave memory"
    assert result["window"]["batches"] == 0
    return {"result": result, "losses": losses, "digests": digests(folder / "store")}


@pytest.mark.parametrize("mode", list(MODES)[1:])
def test_losses_and_rows_have_the_same_bits_however_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: dict[str, Any], mode: str
) -> None:
    result, losses = trained(options_of(tmp_path, "store", **MODES[mode]), monkeypatch)
    assert len(losses) == STEPS
    np.testing.assert_array_equal(losses, plain["losses"])
    assert result["log_loss"] == plain["result"]["log_loss"]
    assert digests(tmp_path / "store") == plain["digests"]
    assert result["window"]["rows_loaded"] > 1000


def test_a_cache_without_room_for_rows_to_wait_reads_nothing_ahead_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batches, "_BATCHES_IN_CACHE_MIN", 1000)
    without = job.train(options_of(tmp_path, "without"), Lines())
    assert without["window"]["batches"] == 0
    assert re.search(r"no look-ahead: the cache holds the rows of \d+\.\d batches", said(capsys))
    told = job.train(options_of(tmp_path, "told", lookahead_depth=512), Lines())
    assert told["window"]["batches"] == STEPS
    assert "no look-ahead" not in said(capsys)
    assert digests(tmp_path / "without") == digests(tmp_path / "told")


def test_a_cache_that_holds_all_rows_is_large_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A cache is no larger than the rows of all tables, here those of fewer than four batches.
    criteo_file(tmp_path / "clicks.tsv", LINES, tokens_per_field=50)
    result = job.train(options_of(tmp_path, "store", memory="64MiB"), Lines())
    assert result["window"]["batches"] == STEPS
    assert "no look-ahead" not in said(capsys)


def test_the_cache_is_foreseen_as_it_is_when_the_tables_have_grown(tmp_path: Path) -> None:
    options = options_of(tmp_path, "store", lookahead_depth=0)
    foreseen: list[float] = []
    with pytest.MonkeyPatch.context() as patched:
        step = Trainer.step

        def noted(self: Trainer, batch: Any) -> float:
            foreseen.append(batches._cache_rows(self.model.embeddings.collection.store)[0])
            return step(self, batch)

        patched.setattr(Trainer, "step", noted)
        result = job.train(options, Lines())
    (one,) = result["stats"]["classes"]
    assert foreseen[0] == pytest.approx(one["cache_capacity"], rel=0.2)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


@pytest.mark.parametrize(("first", "then"), [("look-ahead", "both"), ("both", "look-ahead")])
@pytest.mark.parametrize("stop", [3, 24, 31])
def test_a_commit_knows_nothing_of_batches_drawn_ahead(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain: dict[str, Any],
    first: str,
    then: str,
    stop: int,
) -> None:
    options = options_of(tmp_path, "store", **MODES[first])
    with monkeypatch.context() as patched:
        patched.setattr(job, "Interrupt", lambda: After(stop))
        stopped, losses = trained(options, monkeypatch)
    assert stopped["interrupted"]
    assert stopped["window"]["batches"] > stop + 8, "batches must have been announced ahead"
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == stop
        place = store.meta["position"]
        assert (place["epoch"], place["batch"]) == (stop // 24, stop % 24)
    again = options_of(tmp_path, "store", resume=True, **MODES[then])
    result, rest = trained(again, monkeypatch)
    np.testing.assert_array_equal(losses + rest, plain["losses"])
    assert result["log_loss"] == plain["result"]["log_loss"]
    assert digests(options.store) == plain["digests"]


#: A trainer that is killed in the middle of a step, with batches drawn ahead and steps in flight.
KILLED = """
import os, signal, sys
from embedrock.cli import main
from embedrock.training.trainer import Trainer
step, made = Trainer.step, []
def killed(self, batch):
    made.append(step(self, batch))
    if len(made) == 33:
        os.kill(os.getpid(), signal.SIGKILL)
    return made[-1]
Trainer.step = killed
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("more", [[], ["--pipeline"]])
def test_a_killed_run_resumes_at_its_last_commit_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: dict[str, Any], more: list[str]
) -> None:
    options = options_of(tmp_path, "store")
    command = ["train", "--data", str(options.data), "--format", "criteo", "--memory", "3MiB"]
    command += ["--store", str(options.store), "--batch-size", str(BATCH), "--embedding-dim", "32"]
    command += ["--bottom", "8", "--top", "8", "--epochs", "2", "--threads", "1"]
    command += ["--commit-every", "5", *more]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command], capture_output=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == 30
    again = replace(options, resume=True, pipeline=bool(more))
    result, rest = trained(again, monkeypatch)
    np.testing.assert_array_equal(rest, plain["losses"][30:])
    assert result["log_loss"] == plain["result"]["log_loss"]
    assert digests(options.store) == plain["digests"]


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_a_failed_step_of_a_pipeline_ends_the_run_at_its_last_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plain: dict[str, Any],
) -> None:
    options = options_of(tmp_path, "store", pipeline=True)
    step = Trainer.step
    made = 0

    def fails(self: Trainer, batch: Any) -> float:
        nonlocal made
        made += 1
        if made == 28:
            raise FullError("no room")
        return step(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", fails)
        with pytest.raises(FullError, match=r"^no room$"):
            job.train(options, Lines())
    said = capsys.readouterr().err
    assert "the last commit is of step 25: --resume goes on there\n" in said
    assert "to release copies" not in said
    _, rest = trained(replace(options, resume=True), monkeypatch)
    np.testing.assert_array_equal(rest, plain["losses"][25:])
    assert digests(options.store) == plain["digests"]


def test_a_staleness_bound_is_kept_by_a_resumed_run_and_told_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_of(tmp_path, "store", pipeline=True, staleness_bound=math.inf)
    with monkeypatch.context() as patched:
        patched.setattr(job, "Interrupt", lambda: After(7))
        stopped = job.train(options, Lines())
    assert stopped["settings"]["staleness_bound"] == "inf"
    bare = options_of(tmp_path, "store", resume=True, given=frozenset())
    with monkeypatch.context() as patched:
        patched.setattr(job, "Interrupt", lambda: After(3))
        resumed = job.train(bare, Lines())
    assert resumed["step"] == 10
    assert resumed["settings"]["staleness_bound"] == "inf"
    assert resumed["settings"]["pipeline"] is True
    assert "from here on" not in capsys.readouterr().err
    last = job.train(replace(bare, given=frozenset({"pipeline"})), Lines())
    assert last["step"] == STEPS
    assert last["settings"]["staleness_bound"] == 0
    assert "staleness_bound is 0 from here on, it was inf\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lookahead_depth": -1}, "lookahead_depth is -1, expected 0 or more"),
        ({"pipeline": True, "staleness_bound": -1}, "staleness_bound is -1, expected 0"),
        ({"staleness_bound": 2}, "staleness_bound is 2 without a pipeline"),
    ],
)
def test_unusable_options_are_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        job.train(options_of(tmp_path, "store", **given), Lines())
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], (None, False, 0)),
        (["--lookahead-depth", "0", "--pipeline"], (0, True, 0)),
        (["--lookahead-depth", "64", "--staleness-bound", "4"], (64, True, 4)),
        (["--staleness-bound", "inf", "--pipeline"], (None, True, math.inf)),
        (["--no-pipeline", "--staleness-bound", "0"], (None, False, 0)),
    ],
)
def test_the_command_takes_what_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], expected: tuple[Any, ...]
) -> None:
    seen: list[TrainOptions] = []

    class Enough(Exception):
        pass

    def train(options: TrainOptions, _: object) -> None:
        seen.append(options)
        raise Enough

    monkeypatch.setattr(job, "train", train)
    command = ["train", "--data", "x", "--format", "criteo", "--store", str(tmp_path / "store")]
    with pytest.raises(Enough):
        cli.main([*command, *given])
    (options,) = seen
    found = (options.lookahead_depth, options.pipeline, options.staleness_bound)
    assert found == expected
    named = {"pipeline", "staleness_bound"} & options.given
    assert named == {option[2:].replace("-", "_").removeprefix("no_") for option in given} & {
        "pipeline",
        "staleness_bound",
    }


@pytest.mark.parametrize("bound", ["-1", "half", "1.5"])
def test_a_staleness_bound_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], bound: str
) -> None:
    command = ["train", "--data", "x", "--format", "criteo", "--store", "s"]
    with pytest.raises(SystemExit):
        cli.main([*command, f"--staleness-bound={bound}"])
    assert f"'{bound}' is no whole number" in capsys.readouterr().err
