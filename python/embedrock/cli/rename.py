"""`embedrock rename STORE TABLE NEW`: a table gets another name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "rename",
        help="rename a table",
        description=(
            "Renames a table, in a commit of its own, with the step, meta and state of the "
            "last one; rows and initial rows stay the same. The store must not be open for "
            "writing; a trainer uses store.rename."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("table", metavar="TABLE", help="the table's name")
    command.add_argument("new", metavar="NEW", help="its new name")
    output.add_writing(command)
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Renames, and says what."""
    with output.opened_to_write(arguments) as store:
        store.rename(arguments.table, arguments.new)
        commit = store._commit_again()
    if arguments.json:
        renamed = {"table": arguments.new, "before": arguments.table, "step": commit.step}
        output.print_json(renamed)
    else:
        print(f"{arguments.table}: its name is {arguments.new} now")
    return 0
