"""The command `embedrock torture`: what it prints, writes and returns."""

import json
import subprocess
import sys


def torture(*arguments):
    command = [sys.executable, "-m", "embedrock.cli", "torture", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_short_run_holds_and_says_what_it_did(tmp_path):
    report = tmp_path / "report.json"
    ran = torture("--seeds", "6", "--seed", "3", "--json", str(report))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "first seed 3" in ran.stdout
    assert "every store held" in ran.stdout
    assert json.loads(report.read_text())["seeds"] == 6


def test_the_same_seed_is_the_same_life():
    counts = [torture("--seeds", "2", "--seed", "11").stdout.split("\n2 seeds,")[0] for _ in "ab"]
    assert counts[0] == counts[1]
    assert "rare branches" in counts[0]


def test_options_that_make_no_sense_are_named():
    ran = torture("--seeds", "1", "--faults", "flood")
    assert ran.returncode == 2
    assert "flood" in ran.stderr + ran.stdout
