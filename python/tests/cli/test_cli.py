from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock import cli
from embedrock.cli import output
from embedrock.cli.wording import one_line
from embedrock.report import progress


@pytest.fixture
def filled_store(tmp_path: Path) -> Path:
    """A committed store of two tables."""
    path = tmp_path / "my.store"
    keys = np.arange(5000)
    with embedrock.open(path, "64MiB") as store:
        ads = store.table("ads", 16, optimizer="adagrad")
        ads.put(keys, np.ones((5000, 16), np.float32))
        users = store.table("users", 4, num_embeddings=100, optimizer="sgd")
        users.put(keys[:100], np.ones((100, 4), np.float32))
        store.commit(7, {"note": "made by a test"})
    return path


def test_info_shows_tables_commits_disk_memory_and_io(filled_store: Path, capsys):
    assert cli.main(["info", str(filled_store)]) == 0
    shown = capsys.readouterr().out
    for text in ("ads", "5,000", "growing", "adagrad", "users", "commit at step", "disk", "io"):
        assert text in shown


# A column "of" stood beside "rows", and rates of the device among what is in the store.
def test_info_names_capacity_and_keeps_rates_for_verbose(filled_store: Path, capsys):
    assert cli.main(["info", str(filled_store)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[2].split()[:4] == ["table", "rows", "capacity", "dim"]
    assert "memory of this command" in shown and "random reads" not in shown
    curve = json.loads(_shown(capsys, ["info", str(filled_store), "--json"]))["stats"]["device"]
    verbose = _shown(capsys, ["info", str(filled_store), "--verbose"])
    assert ("random reads of" in verbose) is (curve["curve"] is not None)


def test_info_says_how_the_budget_is_divided(filled_store: Path, capsys):
    shown = _shown(capsys, ["info", str(filled_store)])
    budget = json.loads(_shown(capsys, ["info", str(filled_store), "--json"]))["stats"]["budget"]
    lines = [line.split() for line in shown.splitlines()]
    parts = [line[0] for line in lines if line and f"{line[0]}_bytes" in budget]
    assert parts == ["rows", "lines", "index", "buffer", "staging", "window", "rest"]
    (rows,) = (line for line in lines if line[:1] == ["rows"] and line[-2:] == ["of", "it"])
    assert 0 < budget["rows_share"] < 1 and f"{budget['rows_share']:.1%}" in rows


def _shown(capsys, command: list[str]) -> str:
    assert cli.main(command) == 0
    return capsys.readouterr().out


def _run(*command: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, after some Python."""
    script = f"import sys\n{before}\nfrom embedrock.cli import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, timeout=120
    )


# "No module named 'torch'" was all that train said.
def test_without_torch_train_says_what_to_install():
    command = ["train", "--data", "a", "--format", "criteo", "--store", "s"]
    done = _run(*command, before="sys.modules['torch'] = None")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "embedrock: error: embedrock train needs PyTorch: pip install torch\n"


def test_the_package_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "embedrock", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"embedrock {embedrock.__version__}\n")


def test_info_as_json_holds_everything(filled_store: Path, capsys):
    assert cli.main(["info", str(filled_store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"]["ads"]["rows"] == 5000
    assert found["tables"]["users"]["num_embeddings"] == 100
    assert [commit["step"] for commit in found["commits"]] == [7]
    assert found["stats"]["device"]["io"]
    assert found["stats"]["disk_bytes"] > 5000 * 128


# Room that is kept for commits was in no line: the sum was less than the disk had lost.
def test_info_names_every_kind_of_file_and_their_sum_is_that_of_du(filled_store: Path, capsys):
    files = json.loads(_shown(capsys, ["info", str(filled_store), "--json"]))["files"]
    assert list(files) == ["rows-0", "rows-1", "journal", "spare", "other"]
    assert files["spare"] == (filled_store / "spare").stat().st_blocks * 512 > 0
    said = subprocess.run(["du", "-s", "-B1", filled_store], capture_output=True, text=True)
    assert sum(files.values()) == int(said.stdout.split()[0])
    shown = _shown(capsys, ["info", str(filled_store)])
    lines = dict(re.findall(r"^(disk|  \S.*?)  +(\S.*)$", shown, re.MULTILINE))
    assert lines["  spare, for commits"] == output.human_bytes(files["spare"])
    assert lines["disk"] == output.human_bytes(sum(files.values()))


def test_info_changes_nothing_and_works_beside_a_writer(filled_store: Path, capsys):
    with embedrock.open(filled_store, "64MiB") as store:
        assert cli.main(["info", str(filled_store), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["commits"][-1]["step"] == 7
        store.commit(8)


def test_check_of_a_good_store_says_so(filled_store: Path, capsys):
    assert cli.main(["check", str(filled_store)]) == 0
    assert "5,100 rows: all is well" in capsys.readouterr().out


def test_check_of_a_damaged_store_names_the_place_and_exits_with_1(filled_store: Path, capsys):
    rows = max(filled_store.glob("rows-*"), key=lambda path: path.stat().st_size)
    damaged = bytearray(rows.read_bytes())
    # Somewhere in the middle of what holds data.
    place = int(np.flatnonzero(np.frombuffer(damaged, np.uint8))[3000])
    damaged[place] ^= 0x40
    rows.write_bytes(damaged)
    assert cli.main(["check", str(filled_store)]) == 1
    said = capsys.readouterr()
    assert rows.name in said.err
    assert "page" in said.err
    assert cli.main(["check", str(filled_store), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problem_count"] >= 1


def test_copy_makes_an_equal_store(filled_store: Path, tmp_path: Path, capsys):
    target = tmp_path / "copy.store"
    assert cli.main(["copy", str(filled_store), str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5100
    digests = []
    for path in (filled_store, target):
        with embedrock.open(path, "64MiB", create=False) as store:
            digests.append({name: table.digest() for name, table in store.tables.items()})
            assert store.step == 7
            assert store.meta == {"note": "made by a test"}
    assert digests[0] == digests[1]


def test_copy_works_within_the_memory_that_it_is_given(filled_store: Path, tmp_path: Path, capsys):
    for memory, status in (("64KiB", 2), ("32MiB", 0)):
        target = str(tmp_path / f"copy-{memory}.store")
        assert cli.main(["copy", str(filled_store), target, "--memory", memory]) == status
        assert ("--memory 65536 is too little" in capsys.readouterr().err) == (status == 2)


WAIT = "store s is written to by another process (5); wait for it or stop it"
LOCKED = f"{WAIT}, or open with read_only=True"


@pytest.mark.parametrize(
    ("given", "said", "shown"),
    [
        (["serve", "s", "--writable"], LOCKED, f"{WAIT}, or leave --writable out"),
        (["resize", "s", "t", "--capacity", "9"], LOCKED, WAIT),
        (["serve", "s"], "open with step=, one of [1, 2]", "open with --step, one of [1, 2]"),
        (["check", "s"], "open with step=3, its newest", "open with step=3, its newest"),
        (["copy", "s", "d"], "with cold_directory= and", "with --cold-directory and"),
        (["train", "--data", "d", "--store", "s"], "of max_disk_bytes=9; x", "of --max-disk 9; x"),
    ],
)
def test_messages_name_the_options_of_the_command(given: list[str], said: str, shown: str):
    """They named arguments of Python to those who had run a command."""
    assert one_line(said, cli.parser().parse_args(given)) == shown


@pytest.mark.parametrize("left", ["journal-00000001", "rows-0"])
def test_check_of_a_store_without_its_superblock_names_the_file_and_exits_with_1(
    filled_store: Path, tmp_path: Path, capsys, left: str
):
    for file in filled_store.iterdir():
        if file.name != left:
            file.unlink()
    superblock = filled_store / "superblock"
    assert cli.main(["check", str(filled_store)]) == 1
    assert f"{superblock} is missing, though {left} is there" in capsys.readouterr().err
    assert cli.main(["check", str(filled_store), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problem_count"] == 1
    for command in (["info"], ["copy"]):
        more = [str(tmp_path / "copy")] if command == ["copy"] else []
        assert cli.main([*command, str(filled_store), *more]) == 2
        assert "superblock is missing" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["info"], ["check"], ["copy"]])
def test_a_folder_without_a_store_is_named_and_left_alone(tmp_path: Path, capsys, command):
    more = [str(tmp_path / "copy")] if command == ["copy"] else []
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli.main([*command, str(empty), *more]) == 2
    said = capsys.readouterr()
    assert (
        said.err == f"embedrock: error: {empty} holds no store (it has no file named superblock)\n"
    )
    assert list(empty.iterdir()) == []


def test_every_command_has_help(capsys):
    for command in ("train", "info", "check", "copy", "serve", "place"):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        assert f"usage: embedrock {command}" in capsys.readouterr().out


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"embedrock {embedrock.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["bench", "gather", "--help"], marks=pytest.mark.long),
        ["demo", "--memory", "5%"],
    ],
)
def test_without_the_laboratory_its_commands_say_how_to_get_it(command: list[str]):
    done = _run(*command, before="sys.modules['embedrock_lab'] = None")
    said = f"embedrock: error: embedrock {command[0]} needs the package embedrock_lab"
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(said) and "pip install ./lab" in done.stderr
    listed = _run("--help", before="sys.modules['embedrock_lab'] = None")
    assert listed.returncode == 0 and "(in a checkout of the repository)" in listed.stdout


def test_keyboard_interrupt_is_exit_status_130(monkeypatch):
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedrock.cli.info.run", interrupted)
    assert cli.main(["info", "somewhere"]) == 130


SIZES = [("1000", 1000), ("1KiB", 1024), ("1.5 MiB", 1572864), ("2GB", 2 * 10**9), ("7b", 7)]
SIZES += [
    ("2G", 2 << 30),
    ("512M", 512 << 20),
    (" 64k ", 64 << 10),
    ("1t", 1 << 40),
    (".5gIb", 1 << 29),
]


# `--max-disk 2G` was refused where `--memory 2G` worked: there was a second grammar.
@pytest.mark.parametrize(("text", "count"), SIZES)
def test_sizes_are_read(text: str, count: int):
    assert output.size(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "0",
        "0.5",
        "1XB",
        "1kx",
        "1ki",
        "1.2.3",
        "1e3",
        "10%",
        "nan",
        "inf",
        "9" * 400,
    ],
)
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="is no size; examples: 512MB, 2GiB, 2G"):
        output.size(text)


def test_each_option_that_is_a_size_reads_it_as_memory_is_read(capsys: pytest.CaptureFixture[str]):
    parser = cli.parser()
    needed = ["train", "--data", "a.csv", "--store", "s"]
    train = parser.parse_args([*needed, "--max-disk", "2G", "--window-bytes", "64k"])
    assert (train.max_disk, train.window_bytes) == (2 << 30, 64 << 10)
    limits = ["--client-memory", "1G", "--max-request-bytes", "8M", "--max-reply-bytes", "512KiB"]
    serve = parser.parse_args(["serve", "s", *limits])
    assert serve.client_memory == 1 << 30
    assert (serve.max_request_bytes, serve.max_reply_bytes) == (8 << 20, 512 << 10)
    with pytest.raises(SystemExit):
        parser.parse_args([*needed, "--max-disk", "2X"])
    assert "argument --max-disk: '2X' is no size" in capsys.readouterr().err


def test_layers_shares_and_counts_are_read_or_refused():
    assert output.layer_sizes("512-256-64") == (512, 256, 64)
    assert output.share("10%") == 0.1
    assert output.share("0") == 0.0
    assert output.positive("3") == 3
    for parse, text in (
        (output.layer_sizes, "a-b"),
        (output.share, "100%"),
        (output.positive, "0"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


def test_json_has_no_nan(capsys):
    output.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": (1, 2)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [1, 2]}


class Clock:
    """Time for progress displays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress, "monotonic", lambda: self.now)


def test_off_a_terminal_progress_is_plain_lines_of_what_takes_long(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    sink = progress.Lines(stream)
    with progress.Task(sink, "short", 10) as task:
        task.advance(5)
        clock.now += 0.5
    assert stream.getvalue() == ""
    with progress.Task(sink, "long", 100) as task:
        for _ in range(25):
            clock.now += 1
            task.advance(4, "all well")
    lines = stream.getvalue().splitlines()
    assert lines == [
        "long:  40%, all well",
        "long:  80%, all well",
        "long: done in 25.0 s, all well",
    ]


@pytest.mark.parametrize("make", [progress.Lines, progress.Bar])
def test_what_was_stopped_is_not_called_done(monkeypatch, make):
    clock, stream = Clock(monkeypatch), io.StringIO()
    with progress.Task(make(stream), "training", 100) as task:
        task.advance(34, "loss 0.5")
        clock.now += 3
        task.outcome = "stopped at step 17"
    with pytest.raises(KeyError), progress.Task(make(stream), "reading", 100) as task:
        task.advance(34, "all well")
        clock.now += 3
        raise KeyError
    with (
        pytest.raises(KeyboardInterrupt),
        progress.Task(make(stream), "pushing", 100, resumes=True) as task,
    ):
        clock.now += 3
        raise KeyboardInterrupt
    assert stream.getvalue().splitlines() == [
        "training: stopped at step 17 after 3.0 s, loss 0.5",
        "reading: stopped after 3.0 s",
        "pushing: stopped after 3.0 s, the same command goes on where it was",
    ]


def test_on_a_terminal_progress_is_one_bar_that_is_redrawn(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    sink = progress.Bar(stream)
    with progress.Task(sink, "work", 4) as task:
        for _ in range(4):
            clock.now += 0.6
            task.advance()
    written = stream.getvalue()
    assert "\r\x1b[K[" in written and "work:  50%" in written
    assert written.count("\n") == 1
    assert written.endswith("work: done in 2.4 s\n")


def test_progress_of_a_child_is_shown_by_the_parent(monkeypatch):
    Clock(monkeypatch)
    pipe = io.StringIO()
    child = progress.JsonLines(pipe)
    child._sent = -1.0
    child.show("epoch", 3, 10, "loss 0.5")
    child.finish("epoch", "", "stopped")
    child.send({"result": {"auc": 0.7}})
    seen: list[tuple[object, ...]] = []

    class Parent:
        def show(self, *state: object) -> None:
            seen.append(state)

        def finish(self, *state: object) -> None:
            seen.append(state)

    messages = [progress.forward(line, Parent()) for line in pipe.getvalue().splitlines()]
    assert seen == [("epoch", 3, 10, "loss 0.5"), ("epoch", "", "stopped")]
    assert messages == [None, None, {"result": {"auc": 0.7}}]
    assert progress.forward("a library printed this", Parent()) is None
