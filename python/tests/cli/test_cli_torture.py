"""The command `embedrock torture`: what it prints, writes and returns."""

import json
import os
import signal
import subprocess
import sys

import pytest

from embedrock import _core
from embedrock.cli import main


def torture(*arguments):
    command = [sys.executable, "-m", "embedrock", "torture", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_short_run_holds_and_says_what_it_did(tmp_path):
    report = tmp_path / "report.json"
    ran = torture("--seeds", "6", "--seed", "3", "--json", str(report))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "first seed 3" in ran.stdout
    assert "every store held" in ran.stdout
    assert json.loads(report.read_text())["seeds"] == 6


def test_the_same_seed_is_the_same_life():
    counts = [
        torture("--seeds", "2", "--seed", "11", "--operations", "100").stdout.split("\n2 seeds,")[0]
        for _ in "ab"
    ]
    assert counts[0] == counts[1]
    assert "rare branches" in counts[0]


def test_options_that_make_no_sense_are_named():
    ran = torture("--seeds", "1", "--faults", "flood")
    assert ran.returncode == 2
    assert "flood" in ran.stderr + ran.stdout


def test_a_seed_that_the_engine_cannot_take_is_a_wrong_argument():
    for seed in (2**64, 10**30):
        ran = torture("--seeds", "1", "--seed", str(seed))
        assert ran.returncode == 2
        assert f"argument --seed: '{seed}' is no seed: they are below 2**64" in ran.stderr
    ran = torture("--seeds", "1", "--seed", str(2**64 - 1), "--faults", "none")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("only", [["--only", ""], ["--only="], ["--only"]])
def test_a_life_without_operations_is_a_life(only):
    ran = torture("--seed", "5", "--seeds", "1", "--faults", "none", *only)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 seeds, 0 operations" in ran.stdout


def test_a_report_that_cannot_be_written_is_said_before_the_run(tmp_path):
    ran = torture("--seeds", "1", "--json", str(tmp_path / "absent" / "report.json"))
    assert ran.returncode == 2
    assert "absent" in ran.stderr and "Traceback" not in ran.stderr
    assert "first seed" not in ran.stdout


def test_what_was_found_is_printed_though_the_report_has_no_room():
    ran = torture("--seeds", "1", "--seed", "3", "--operations", "50", "--json", "/dev/full")
    assert ran.returncode == 2
    assert "every store held" in ran.stdout


def test_a_run_that_is_interrupted_tells_what_it_counted():
    talkative = "from embedrock.cli import main, torture; torture._Line._EVERY_S = 0; exit(main())"
    command = [sys.executable, "-c", talkative, "torture", "--minutes", "5", "--jobs", "1"]
    command += ["--seed", "11", "--operations", "50"]  # lives that are soon over
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.readline().startswith("first seed ")
    assert running.stderr.readline()  # it has counted something
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=120)
    assert running.returncode == 130, printed
    assert "ended early, and nothing was found" in printed


FOUND = {
    "text": "faults that struck\n2 seeds, 80 operations in 0.1 s: 1 failed\n",
    "failure_texts": ["seed 7 fails\nreplay: embedrock torture --seed 7 --seeds 1\n"],
    "seeds": 2,
    "failures": [{"seed": 7}],
    "dormant": [],
    "good": False,
}
"""Result of a run in which a life has failed, shortened."""


@pytest.mark.parametrize("stopped", [False, True], ids=["ended", "interrupted"])
@pytest.mark.parametrize("room", [False, True], ids=["full", "room"])
def test_a_failure_is_status_1_and_a_line_to_replay_it(
    monkeypatch, capsys, tmp_path, stopped, room
):
    monkeypatch.setattr(_core, "torture", lambda *_: {**FOUND, "stopped": stopped})
    report = tmp_path / "report.json"
    if not room:
        report.symlink_to("/dev/full")
    status = main(["torture", "--seed", "6", "--seeds", "2", "--json", str(report)])
    printed = capsys.readouterr().out
    assert status == (1 if room else 2)
    assert printed.startswith("first seed 6\n")
    assert printed.endswith("\nseed 7 fails\nreplay: embedrock torture --seed 7 --seeds 1\n")
    if room:
        assert json.loads(report.read_text())["failures"] == [{"seed": 7}]


@pytest.mark.parametrize(("stopped", "status"), [(False, 1), (True, 130)])
def test_what_never_came_is_status_1(monkeypatch, stopped, status):
    dormant = {"text": "", "failure_texts": [], "failures": [], "dormant": ["flip"]}
    monkeypatch.setattr(_core, "torture", lambda *_: {**dormant, "good": False, "stopped": stopped})
    assert main(["torture", "--seeds", "200"]) == status


# An exception of a signal handler within progress ended the run like an error, and its findings
# were lost.
def test_a_signal_that_comes_while_progress_is_told_ends_the_run_with_its_report():
    def progress(line):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

    report = _core.torture(["--seeds", "100000", "--seed", "11", "--operations", "50"], 1, progress)
    assert report["stopped"] and report["seeds"] < 100000
