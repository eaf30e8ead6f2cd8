"""`embedrock unpin STORE NAME`: a pinned commit may go."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "unpin",
        help="remove the pin of a commit",
        description=(
            "Removes the name of a pin. A commit without a name is dropped, unless it is "
            "one of the last, or a reader has it open. The store must not be open for "
            "writing; a trainer uses store.unpin."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("name", metavar="NAME", help="the name")
    output.add_writing(command)
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Unpins, and says what is left."""
    with output.opened_to_write(arguments) as store:
        store.unpin(arguments.name)
        pins = store.pins()
    if arguments.json:
        output.print_json({"pins": pins})
    else:
        left = ", ".join(f"{name} (step {step})" for name, step in pins.items()) or "none"
        print(f"{arguments.store}: {arguments.name!r} is unpinned; pinned are: {left}")
    return 0
