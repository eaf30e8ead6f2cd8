"""`embedrock drop STORE TABLE`: a table goes with all its rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "drop",
        help="drop a table with all its rows",
        description=(
            "Drops a table with all its rows, in a commit of its own, with the step, meta "
            "and state of the last one. Kept and pinned commits still have the table; its "
            "space is freed once none of them does. The store must not be open for writing; "
            "a trainer uses store.drop."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("table", metavar="TABLE", help="the table's name")
    output.add_writing(command)
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Drops, and says what is gone."""
    with output.opened_to_write(arguments) as store:
        rows = len(store.table(arguments.table))
        store.drop(arguments.table)
        commit = store._commit_again()
        left = list(store.tables)
    if arguments.json:
        dropped = {"table": arguments.table, "rows": rows, "step": commit.step, "tables": left}
        output.print_json(dropped)
    else:
        names = ", ".join(left) or "none"
        print(f"{arguments.table}: dropped with {rows:,} rows; tables left: {names}")
    return 0
