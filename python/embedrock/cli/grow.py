"""`embedrock grow STORE TABLE N`: a dense table gets more ids."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "grow",
        help="give a dense table more ids",
        description=(
            "Gives a dense table N ids in total, in a commit of its own, with the step, "
            "meta and state of the last one. Existing rows stay as they are, new ids have "
            "initial rows. The store must not be open for writing; a trainer uses "
            "table.grow."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("table", metavar="TABLE", help="the table's name")
    command.add_argument("num_embeddings", type=int, metavar="N", help="its new number of ids")
    output.add_writing(command)
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Grows, and says from what to what."""
    with output.opened_to_write(arguments) as store:
        table = store.table(arguments.table)
        before = table.num_embeddings
        table.grow(arguments.num_embeddings)
        commit = store._commit_again()
    if arguments.json:
        now = arguments.num_embeddings
        output.print_json({"table": table.name, "before": before, "now": now, "step": commit.step})
    else:
        print(f"{table.name}: {before:,} ids before, {arguments.num_embeddings:,} now")
    return 0
