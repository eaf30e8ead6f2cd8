"""`embedrock check STORE`: reads and verifies every page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from embedrock.cli import output

_EXIT_DAMAGED = 1


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="read and verify every page of a store",
        description=(
            "Reads every page of every kept commit and compares it with its checksum and the "
            "index. Exit status 0 when all is well, 1 when something is wrong: file, page and "
            "table are printed."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Checks, and prints what is wrong."""
    import embedrock
    from embedrock.errors import CorruptError
    from embedrock.report import progress

    try:
        output.refuse_missing_store(arguments.store)
        with progress.Task(progress.for_terminal(), "checking") as task:
            found = embedrock.check(arguments.store, task.callback())
    except CorruptError as error:
        problem = {"step": None, "message": str(error)}
        found = {"commits": 0, "pages": 0, "rows": 0, "problems": [problem], "problem_count": 1}
    if arguments.json:
        output.print_json(found)
    else:
        for problem in found["problems"]:
            at = "" if problem["step"] is None else f"commit at step {problem['step']}: "
            print(f"{at}{problem['message']}", file=sys.stderr)
        hidden = found["problem_count"] - len(found["problems"])
        if hidden:
            print(f"and {hidden:,} more", file=sys.stderr)
        outcome = (
            f"{found['problem_count']:,} problems" if found["problem_count"] else "all is well"
        )
        print(
            f"{arguments.store}: {found['commits']} commits, {found['pages']:,} pages, "
            f"{found['rows']:,} rows: {outcome}"
        )
    return _EXIT_DAMAGED if found["problem_count"] else 0
