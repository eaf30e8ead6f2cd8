"""`embedrock train` as a user has it: a process, a terminal, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedrock
import withtorch
from clicklogs import movielens_folder
from embedrock import cli
from trainings import digests

TIMEOUT_S = 300


class Terminal:
    """A child process on a terminal of its own; what it writes is read as it comes."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = withtorch.Process(command, terminal=theirs)
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Returns once `text` was written; fails when the process ends without it."""
        while text not in self.seen:
            if not self._read():
                raise AssertionError(f"ended without {text!r}: {self.seen}")

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def end(self) -> int:
        """The exit status, negative for a signal."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def arguments(folder: Path, store: str, *more: str) -> list[str]:
    data = folder / "ml"
    if not data.exists():
        movielens_folder(data, ratings=1500)
    command = [
        "train",
        "--data",
        str(data),
        "--format",
        "movielens",
        "--store",
        str(folder / store),
    ]
    command += ["--memory", "64MiB", "--embedding-dim", "4", "--bottom", "8", "--top", "8"]
    return [*command, "--threads", "1", "--commit-every", "50", *more]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return withtorch.run(["-m", "embedrock", *command])


def test_ctrl_c_commits_the_step_and_the_resumed_run_ends_with_the_same_bits(
    tmp_path: Path, terminals: list[Terminal], capsys: pytest.CaptureFixture[str]
):
    command = ["-m", "embedrock"]
    terminal = Terminal([*command, *arguments(tmp_path, "stopped", "--epochs", "100000")])
    terminals.append(terminal)
    terminal.wait_for("training: ")
    terminal.press_ctrl_c()
    assert terminal.end() == 130, terminal.seen
    assert "finishing the step and committing" in terminal.seen
    assert "stopped and committed" in terminal.seen
    assert "training: stopped at step" in terminal.seen and "training: done" not in terminal.seen
    assert "Traceback" not in terminal.seen

    with embedrock.open(tmp_path / "stopped", "64MiB", create=False) as store:
        step, epoch = store.step, store.meta["position"]["epoch"]
    assert step is not None and step > 0
    epochs = str(epoch + 1)
    assert cli.main(arguments(tmp_path, "stopped", "--epochs", epochs, "--resume", "--json")) == 0
    one = json.loads(capsys.readouterr().out)
    assert cli.main(arguments(tmp_path, "whole", "--epochs", epochs, "--json")) == 0
    other = json.loads(capsys.readouterr().out)
    assert one["step"] == other["step"] >= step
    assert (one["auc"], one["log_loss"]) == (other["auc"], other["log_loss"])
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")


def test_a_resumed_run_goes_on_at_the_rates_of_the_first_command(tmp_path: Path, capsys):
    # They were those of the format unless they were repeated.
    rates = ["--lr", "0.3", "--dense-lr", "0.02", "--lr-decay", "0.5"]
    assert cli.main(arguments(tmp_path, "whole", "--epochs", "2", *rates)) == 0
    assert cli.main(arguments(tmp_path, "parts", "--epochs", "1", *rates)) == 0
    capsys.readouterr()
    assert cli.main(arguments(tmp_path, "parts", "--epochs", "2", "--resume")) == 0
    assert "epochs is 2 from here on, it was 1\n" in capsys.readouterr().err
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")


#: A step, and a commit, that never ends once Ctrl-C was pressed, as if it waited for a broken disk.
STUCK = """
import sys, time
from embedrock.cli import main
from embedrock.training import job
from embedrock.training.interrupt import Interrupt
interrupts = []
class Seen(Interrupt):
    def __init__(self):
        super().__init__()
        interrupts.append(self)
job.Interrupt = Seen
step, commit = job.Trainer.step, job._Run.commit
def stuck():
    while interrupts and interrupts[-1].requested:
        time.sleep(1)
def step_and_wait(self, batch):
    loss = step(self, batch)
    stuck()
    return loss
def wait_and_commit(self, **how):
    stuck()
    return commit(self, **how)
job.Trainer.step, job._Run.commit = step_and_wait, wait_and_commit
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_a_second_ctrl_c_leaves_at_once_at_the_last_commit(
    tmp_path: Path, terminals: list[Terminal]
):
    command = ["-c", STUCK]
    more = ["--epochs", "100000", "--commit-every", "1"]
    terminal = Terminal([*command, *arguments(tmp_path, "store", *more)])
    terminals.append(terminal)
    terminal.wait_for("training: ")
    terminal.press_ctrl_c()
    terminal.wait_for("finishing the step")
    terminal.press_ctrl_c()
    assert terminal.end() == -signal.SIGINT, terminal.seen
    with embedrock.open(tmp_path / "store", "64MiB", create=False) as store:
        assert store.step is not None and store.step > 0


def test_errors_are_one_line_and_exit_status_2(tmp_path: Path):
    done = run(*arguments(tmp_path, "store", "--memory", "1KiB"))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("embedrock: error: ")


def test_a_malformed_line_is_reported_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = arguments(tmp_path, "store")
    with (tmp_path / "ml" / "u.data").open("a") as file:
        file.write("1\t2\tgood\t4\n")
    assert "Traceback" in run(*command, "--debug").stderr
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "u.data, line 1501: " in said
    assert "Traceback" not in said
    assert cli.main([*command, "--skip-bad-lines", "--epochs", "1"]) == 0
    assert "1 malformed line skipped, the first: " in capsys.readouterr().err


# Two files for one part, or a report of another name, were told after seconds of importing PyTorch.
# One program for all: most of the time of each would be the start of an interpreter.
def test_options_and_files_are_looked_at_before_pytorch(tmp_path: Path) -> None:
    tried = [
        (["--format", "csv", "--label", "y", "--categorical", "u"], "none.csv: cannot be opened"),
        (["--format", "criteo", "--holdout", "0", "--lookahead-depth", "0"], "cannot be opened"),
        (["--model", "complex"], "none.csv: cannot be opened"),
        (["--model", "gat"], "expected the folder with edges.tsv"),
        (["--format", "csv", "--label", "y", "--categorical", "y"], "is named twice"),
        (["--format", "criteo", "--report", "no/r.html"], "no"),
    ]
    program = """
import json, sys
from embedrock import cli
for options in json.loads(sys.argv[1]):
    status = cli.main(["train", "--data", "none.csv", "--store", "s", *options])
    assert status == 2, (options, status)
    assert "torch" not in sys.modules, f"torch was imported for {options}"
    print("end of one", file=sys.stderr)
"""
    command = [sys.executable, "-c", program, json.dumps([options for options, _ in tried])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *told, rest = done.stderr.split("end of one\n")
    assert rest == "" and len(told) == len(tried)
    for (options, said), one in zip(tried, told, strict=True):
        assert one.startswith("embedrock: error: ") and said in one, (options, one)


def test_a_log_of_several_files_is_trained_and_grows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() sets it
    Path("log").mkdir()
    for part in (2, 10):
        lines = [f"{k % 2},{part}-{k % 7}\n" for k in range(60)]
        Path("log", f"part-{part}.csv").write_text("click,user\n" + "".join(lines))
    named = ["--format", "csv", "--label", "click", "--categorical", "user", "--batch-size", "20"]
    command = ["train", "--store", "s", "--memory", "8MiB", "--embedding-dim", "4", *named]
    assert cli.main([*command, "--data", "log/part-*.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 108
    Path("log", "part-11.csv").write_text("click,user\n" + "1,new\n" * 80)
    again = [*command, "--data", "log", "--resume", "--epochs", "2"]
    assert cli.main(again) == 2
    said = capsys.readouterr().err
    assert "log/part-11.csv has come since" in said and "--grown train goes on with" in said
    assert cli.main([*again, "--grown", "train"]) == 0
    said = capsys.readouterr().out
    assert "on 20 held-out samples" in said
    assert "keys of its tables: embedrock.hash_keys of the text of each value" in said
    graph = ["train", "--model", "gat", "--data", "log", "s", "--store", "t"]
    assert cli.main(graph) == 2
    assert "--data names 2 files, and data of graphs are one" in capsys.readouterr().err
