"""`embedrock torture`: random stores on a simulated device, with faults, beside a plain map."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from embedrock.cli import output
from embedrock.training.interrupt import EXIT_INTERRUPTED

_EXIT_FAILED = 1
# Between the first seeds of two runs, one second apart: more than a second can run.
_SEEDS_PER_SECOND = 10_000
# Options that the run itself reads.
_PASSED_ON = (
    "minutes",
    "seeds",
    "faults",
    "without",
    "operations",
    "tables",
    "only",
    "jobs",
    "max-failures",
)


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "torture",
        help="run random stores through faults of a simulated device",
        description=(
            "Runs stores on a simulated device, in memory: random settings, random verbs, "
            "commits, readers, reopenings, and faults in between. Each seed is one life, "
            "compared bit for bit with a plain map. Nothing on disk is touched."
        ),
        epilog=(
            "Exit status 0 if every store held, 1 if one did not: its seed is printed, and the "
            "command that replays it. Also 1 if some fault, event or rare branch never occurred "
            "in a run of 2,000 seeds or more that excludes nothing. 130 if Ctrl-C ended it "
            "before anything was found."
        ),
    )
    length = command.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="M", help="duration (default: 1)")
    length.add_argument("--seeds", type=output.positive, metavar="N", help="number of lives")
    command.add_argument(
        "--seed", type=_seed, metavar="S", help="the first seed (default: from the clock)"
    )
    command.add_argument(
        "--faults",
        metavar="LIST",
        help=(
            "all, none, or names separated by commas: power, read, short, write, sync, full, "
            "full-write, latency, flip, lost, misdirected, stale; -NAME excludes one "
            "(--faults=-sync)"
        ),
    )
    command.add_argument(
        "--without",
        metavar="LIST",
        help=(
            "what to exclude: back, readers, ahead, beside, late, catalog, bounds, tight, pins, "
            "meddling"
        ),
    )
    command.add_argument(
        "--operations", type=output.positive, metavar="N", help="operations per life (300)"
    )
    command.add_argument(
        "--tables", type=output.positive, metavar="N", help=("maximum number of tables (6)")
    )
    command.add_argument(
        "--only",
        metavar="LIST",
        nargs="?",
        const="",
        help="operations to perform, by number; none if nothing follows",
    )
    command.add_argument(
        "--jobs", type=output.positive, metavar="J", help="parallel lives (default: one per core)"
    )
    command.add_argument(
        "--max-failures",
        type=output.positive,
        metavar="N",
        help="number of failing seeds at which the run ends (1)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the counts as JSON")
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs, and prints what was counted and found."""
    options: list[str] = []
    for name in _PASSED_ON:
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None:
            options += [f"--{name}", str(value)]
    seed = arguments.seed
    if seed is None:
        seed = int(time.time()) * _SEEDS_PER_SECOND
    if arguments.json is None:
        return _run(options, seed, None)
    # Opened before the run: an unwritable path would otherwise lose all findings. The old content
    # goes only for a report.
    with open(arguments.json, "a", encoding="utf-8") as file:
        return _run(options, seed, file)


def _run(options: list[str], seed: int, file: TextIO | None) -> int:
    from embedrock import _core

    print(f"first seed {seed}", flush=True)
    line = _Line()
    report = _core.torture(options, seed, line.show)
    line.end()
    print(report.pop("text"), end="")
    for failure in report.pop("failure_texts"):
        print(f"\n{failure}", end="")
    sys.stdout.flush()
    if file is not None:
        file.truncate(0)
        file.write(json.dumps(report, indent=2) + "\n")
    if report["stopped"] and not report["failures"]:
        return EXIT_INTERRUPTED
    return 0 if report["good"] else _EXIT_FAILED


def _seed(text: str) -> int:
    """A whole number from 0, below 2**64. For argparse's `type`."""
    value = output.natural(text)
    if value >= 2**64:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: they are below 2**64")
    return value


class _Line:
    """One line that is written again and again on a terminal, and seldom elsewhere."""

    _EVERY_S = 10.0

    def __init__(self) -> None:
        self._next = time.monotonic() + self._EVERY_S
        self._terminal = sys.stderr.isatty()

    def show(self, line: str) -> None:
        """Shows how far the run is."""
        if self._terminal:
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + self._EVERY_S
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Makes room for what is printed next."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
