"""`embedrock train` reads ahead: the same bits with and without, and commits that know nothing of
the batches that were drawn ahead."""

from __future__ import annotations

import functools
import json
import math
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import withtorch
from clicklogs import criteo_file
from embedrock import cli
from embedrock.errors import FullError, MisuseError
from embedrock.training import batches, job
from embedrock.training.options import TrainOptions
from embedrock.training.trainer import Trainer
from trainings import digests, options_of, stops_after, train

#: 24 steps an epoch, two epochs, of rows that do not fit into memory.
LINES, BATCH, STEPS = 1200, 45, 48
#: Memory whose cache holds fewer rows than one batch of so many samples has.
NO_ROOM: dict[str, Any] = {"memory": "1MiB", "batch_size": 300}
WINDOW_BYTES, WINDOW_GROUP = 1 << 20, 1
MODES: dict[str, dict[str, Any]] = {
    "plain": {"lookahead_depth": 0},
    "one ahead": {"lookahead_depth": 1},
    "look-ahead": {},
    "schedule": {"schedule": True},
    "schedule and pipeline": {"schedule": True, "pipeline": True},
    "pipeline": {"lookahead_depth": 0, "pipeline": True},
    "both": {"pipeline": True},
    "all settings": {
        "pipeline": True,
        "read_ahead": 3,
        "window_bytes": WINDOW_BYTES,
        "window_group": WINDOW_GROUP,
    },
}
SOON = ("schedule and pipeline",)
"""Those that `make test` tries: another test sees that the settings of a window arrive."""


def run_of(folder: Path, store: str, **given: Any) -> TrainOptions:
    data = folder / "clicks.tsv"
    if not data.exists():
        criteo_file(data, LINES, tokens_per_field=400)
    chosen = {"batch_size": BATCH, "embedding_dim": 32, "commit_every": 5, "memory": "3MiB"}
    return options_of("criteo", data, folder / store, {**chosen, **given})


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
        return train(options), losses


@pytest.fixture
def announces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs announce all batches, whether that pays or not."""
    monkeypatch.setattr(batches, "_Loader", functools.partial(batches._Loader, announce=True))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Result of a run that reads nothing ahead."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as monkeypatch:
        result, losses = trained(run_of(folder, "store", lookahead_depth=0), monkeypatch)
    assert result["stats"]["misses"] > 1000, "rows must leave memory"
    assert result["window"]["batches"] == 0
    return {"result": result, "losses": losses, "digests": digests(folder / "store")}


@pytest.mark.usefixtures("announces")
@pytest.mark.parametrize(
    "mode",
    [one if one in SOON else pytest.param(one, marks=pytest.mark.long) for one in [*MODES][1:]],
)
def test_losses_and_rows_have_the_same_bits_however_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: dict[str, Any], mode: str
) -> None:
    result, losses = trained(run_of(tmp_path, "store", **MODES[mode]), monkeypatch)
    assert len(losses) == STEPS
    np.testing.assert_array_equal(losses, plain["losses"])
    assert result["log_loss"] == plain["result"]["log_loss"]
    assert digests(tmp_path / "store") == plain["digests"]
    if "schedule" in mode:
        assert result["lookahead"]["scheduled"] == STEPS
    window = result["window"]
    # Other programs may have all cores: then the loop reads by itself.
    assert window["rows_loaded"] > 1000 or window["starved"], window


@pytest.mark.alone
@pytest.mark.usefixtures("announces")
def test_settings_of_look_ahead_and_pipeline_reach_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    class Noted(embedrock.Pipeline[Any]):
        def __init__(self, *given: Any, read_ahead: int | None, **named: Any) -> None:
            asked.append(read_ahead)
            super().__init__(*given, read_ahead=read_ahead, **named)

    monkeypatch.setattr(embedrock, "Pipeline", Noted)
    result = train(run_of(tmp_path, "store", **MODES["all settings"]))
    assert asked == [3]
    window = result["window"]
    assert 0 < window["memory_bytes"] <= window["most_bytes"] == WINDOW_BYTES
    assert 0 < window["group_batches"] <= WINDOW_GROUP * window["groups"]
    assert MODES["all settings"].items() <= result["settings"].items()


@pytest.mark.alone
@pytest.mark.usefixtures("announces")
def test_memory_without_room_for_rows_to_wait_reads_nothing_ahead_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(run_of(tmp_path, "store", **NO_ROOM))
    assert result["lookahead"]["handed_out"] == result["window"]["skipped"] == 8
    assert result["window"]["rows_loaded"] == result["stats"]["memory"]["window_bytes"] == 0
    (note,) = result["notes"]
    assert re.fullmatch(
        r"look-ahead has passed over \d+ of \d+ batches: one has about [\d,]+ distinct rows, and "
        r"memory of 1 MiB holds [\d,]+, expected [\d,]+, which leaves a window its share; "
        r"[\d,]+ KiB, or batches of \d+ % of the size, would do",
        note,
    )
    assert capsys.readouterr().err.splitlines().count(note) == 1
    train(run_of(tmp_path, "plain", **NO_ROOM, lookahead_depth=0))
    assert digests(tmp_path / "store") == digests(tmp_path / "plain")


def test_a_run_of_which_all_rows_are_in_memory_is_told_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A cache is no larger than the rows of all tables, here those of few batches.
    criteo_file(tmp_path / "clicks.tsv", LINES, tokens_per_field=50)
    result = train(run_of(tmp_path, "store", memory="64MiB"))
    assert result["window"]["batches"] == result["stats"]["memory"]["window_bytes"] == 0
    assert result["lookahead"]["resident"] == STEPS
    assert result["notes"] == []
    assert "look-ahead" not in capsys.readouterr().err


@pytest.mark.alone
def test_counters_of_look_ahead_and_pipeline_are_part_of_result_report_and_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_of(run_of(tmp_path, "store"), "--pipeline")
    report = tmp_path / "report.json"
    assert cli.main([*command, "--report", str(report), "--holdout", "0"]) == 0
    found = json.loads(report.read_text())["results"]["training"]
    steps = found["pipeline"]["batches"]
    assert steps == found["lookahead"]["handed_out"] == 2 * math.ceil(LINES / BATCH)
    overlapped = found["pipeline"]["overlapped"]
    assert 0 < overlapped <= steps
    said = capsys.readouterr().out
    assert (
        f"pipeline: {overlapped} of {steps} batches overlapped ({overlapped / steps:.0%})" in said
    )


@pytest.mark.usefixtures("announces")
@pytest.mark.parametrize(
    ("first", "then"),
    [("look-ahead", "both"), pytest.param("both", "look-ahead", marks=pytest.mark.long)],
)
@pytest.mark.parametrize(
    "stop", [pytest.param(3, marks=pytest.mark.long), 24, pytest.param(31, marks=pytest.mark.long)]
)
def test_a_commit_knows_nothing_of_batches_drawn_ahead(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain: dict[str, Any],
    first: str,
    then: str,
    stop: int,
) -> None:
    options = run_of(tmp_path, "store", **MODES[first])
    with monkeypatch.context() as patched:
        stops_after(patched, stop)
        stopped, losses = trained(options, monkeypatch)
    assert stopped["interrupted"]
    # Fewer only where the window had no room, because nobody had looked at those before.
    window = stopped["window"]
    least = stop + 2 if window["refused"] else stop + 8
    # Others may have left the window's threads no core.
    told = window["batches"] > least or window["starved"]
    assert told, "batches must have been announced ahead"
    with embedrock.open(options.store, "64MiB", create=False) as store:
        assert store.step == stop
        place = store.meta["position"]
        assert (place["epoch"], place["batch"]) == (stop // 24, stop % 24)
    again = run_of(tmp_path, "store", resume=True, **MODES[then])
    result, rest = trained(again, monkeypatch)
    np.testing.assert_array_equal(losses + rest, plain["losses"])
    assert result["log_loss"] == plain["result"]["log_loss"]
    assert digests(options.store) == plain["digests"]


#: A trainer whose 30th step is committed: killed in the middle of a later one, with batches drawn
#: ahead and steps in flight, or as soon as that commit is begun.
TROUBLED = """
import os, signal, sys
import embedrock
from embedrock.cli import main
from embedrock.training.trainer import Trainer
trouble, *command = sys.argv[1:]
step, save, made, pending = Trainer.step, embedrock.save, [], []
def noted_step(self, batch):
    made.append(step(self, batch))
    if len(made) == 33 and trouble == "killed":
        pending[-1].wait()
        os.kill(os.getpid(), signal.SIGKILL)
    return made[-1]
def noted_save(store, model, optimizers, step, **more):
    pending.append(save(store, model, optimizers, step, **more))
    if step == 30 and trouble == "killed while a commit is pending":
        under_way = not pending[-1].done
        os.kill(os.getpid(), signal.SIGKILL if under_way else signal.SIGABRT)
    return pending[-1]
Trainer.step, embedrock.save = noted_step, noted_save
sys.exit(main(command))
"""


def command_of(options: TrainOptions, *more: str) -> list[str]:
    command = ["train", "--data", str(options.data), "--format", "criteo", "--memory", "3MiB"]
    command += ["--store", str(options.store), "--batch-size", str(BATCH), "--embedding-dim", "32"]
    command += ["--bottom", "8", "--top", "8", "--epochs", "2", "--threads", "1"]
    return [*command, "--commit-every", "5", *more]


def troubled(trouble: str, options: TrainOptions, *more: str) -> subprocess.CompletedProcess[str]:
    return withtorch.run(["-c", TROUBLED, trouble, *command_of(options, *more)])


@pytest.mark.parametrize(
    ("trouble", "more"),
    [
        ("killed", []),
        pytest.param("killed", ["--pipeline"], marks=pytest.mark.long),
        pytest.param("killed while a commit is pending", [], marks=pytest.mark.alone),
    ],
)
def test_a_killed_run_resumes_at_its_last_commit_with_the_same_bits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain: dict[str, Any],
    trouble: str,
    more: list[str],
) -> None:
    options = run_of(tmp_path, "store")
    done = troubled(trouble, options, *more)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with embedrock.open(options.store, "64MiB", create=False) as store:
        # A commit that nobody has waited for is durable or is not.
        assert store.step in ([30] if trouble == "killed" else [25, 30])
        first = store.step
    again = replace(options, resume=True, pipeline=bool(more))
    result, rest = trained(again, monkeypatch)
    np.testing.assert_array_equal(rest, plain["losses"][first:])
    assert result["log_loss"] == plain["result"]["log_loss"]
    assert digests(options.store) == plain["digests"]


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_a_failed_step_of_a_pipeline_ends_the_run_at_its_last_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plain: dict[str, Any],
) -> None:
    options = run_of(tmp_path, "store", pipeline=True)
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
            train(options)
    said = capsys.readouterr().err
    assert "the last commit is of step 25: --resume goes on there\n" in said
    assert "to release copies" not in said
    _, rest = trained(replace(options, resume=True), monkeypatch)
    np.testing.assert_array_equal(rest, plain["losses"][25:])
    assert digests(options.store) == plain["digests"]


def test_a_staleness_bound_is_kept_by_a_resumed_run_and_told_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = run_of(tmp_path, "store", pipeline=True, staleness_bound=math.inf)
    with monkeypatch.context() as patched:
        stops_after(patched, 7)
        stopped = train(options)
    assert stopped["settings"]["staleness_bound"] == "inf"
    bare = run_of(tmp_path, "store", resume=True, given=frozenset())
    with monkeypatch.context() as patched:
        stops_after(patched, 3)
        resumed = train(bare)
    assert resumed["step"] == 10
    assert resumed["settings"]["staleness_bound"] == "inf"
    assert resumed["settings"]["pipeline"] is True
    with monkeypatch.context() as patched:
        stops_after(patched, 2)
        asked = train(replace(bare, given=frozenset({"pipeline"}), pipeline=True))
    assert asked["settings"]["staleness_bound"] == "inf"
    assert "from here on" not in capsys.readouterr().err
    with monkeypatch.context() as patched:
        stops_after(patched, 2)
        asked = train(replace(bare, given=frozenset({"staleness_bound"})))
    assert (asked["settings"]["pipeline"], asked["settings"]["staleness_bound"]) == (True, 0)
    assert "staleness_bound is 0 from here on, it was inf\n" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        stops_after(patched, 2)
        given = frozenset({"staleness_bound"})
        train(replace(bare, given=given, staleness_bound=math.inf, pipeline=True))
    capsys.readouterr()
    last = train(replace(bare, given=frozenset({"pipeline"})))
    assert last["step"] == STEPS
    assert last["settings"]["staleness_bound"] == 0
    assert "staleness_bound is 0 from here on, it was inf\n" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_pipeline_and_is_told_of_a_disk_bound_that_it_does_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = run_of(tmp_path, "store", pipeline=True, max_disk_bytes=1 << 30)
    with monkeypatch.context() as patched:
        stops_after(patched, 7)
        train(options)
    capsys.readouterr()
    with monkeypatch.context() as patched:
        stops_after(patched, 3)
        bare = run_of(tmp_path, "store", resume=True, given=frozenset(), read_ahead=3)
        resumed = train(bare)
    assert resumed["settings"]["pipeline"] is True
    said = capsys.readouterr().err
    assert f"nothing bounds the disk from here on, it was --max-disk {1 << 30}\n" in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lookahead_depth": -1}, "lookahead_depth is -1, expected 0 or more"),
        ({"pipeline": True, "staleness_bound": -1}, "staleness_bound is -1, expected 0"),
        ({"staleness_bound": 2}, "staleness_bound is 2 without a pipeline"),
        ({"read_ahead": 3}, "read_ahead is 3 without a pipeline"),
        ({"pipeline": True, "read_ahead": 0}, "read_ahead is 0, expected 1 or more"),
        ({"window_group": 0}, "window_group is 0, expected 1 or more"),
        ({"window_bytes": 0}, "window_bytes is 0, expected 1 or more"),
        ({"lookahead_depth": 0, "window_bytes": 9}, "window_bytes is 9, but lookahead_depth is 0"),
        ({"lookahead_depth": 0, "window_group": 9}, "window_group is 9, but lookahead_depth is 0"),
    ],
)
def test_unusable_options_are_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        train(run_of(tmp_path, "store", **given))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {}),
        (["--lookahead-depth", "0", "--pipeline"], {"lookahead_depth": 0, "pipeline": True}),
        (
            ["--lookahead-depth", "64", "--staleness-bound", "4"],
            {"lookahead_depth": 64, "pipeline": True, "staleness_bound": 4},
        ),
        (
            ["--staleness-bound", "inf", "--pipeline"],
            {"pipeline": True, "staleness_bound": math.inf},
        ),
        (["--no-pipeline", "--staleness-bound", "0"], {}),
        (
            ["--window-bytes", "1MiB", "--window-group", "8", "--read-ahead", "3", "--pipeline"],
            {"window_bytes": 1 << 20, "window_group": 8, "read_ahead": 3, "pipeline": True},
        ),
    ],
)
def test_the_command_takes_what_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], expected: dict[str, Any]
) -> None:
    seen: list[TrainOptions] = []

    class Enough(Exception):
        pass

    def train(options: TrainOptions, _: object) -> None:
        seen.append(options)
        raise Enough

    monkeypatch.setattr(job, "train", train)
    data = tmp_path / "log"
    data.write_text("")
    command = ["train", "--data", str(data), "--format", "criteo", "--store", str(tmp_path / "s")]
    with pytest.raises(Enough):
        cli.main([*command, *given])
    (options,) = seen
    usual = {"lookahead_depth": 512, "window_bytes": None, "window_group": None}
    usual |= {"pipeline": False, "read_ahead": None, "staleness_bound": 0}
    assert {name: getattr(options, name) for name in usual} == usual | expected
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
