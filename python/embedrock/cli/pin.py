"""`embedrock pin STORE NAME`: a name keeps a commit beyond the last ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "pin",
        help="keep a commit of a store under a name",
        description=(
            "Pins the last commit of a store, or that of --step, under a name: the commit "
            "stays until embedrock unpin. A name of another commit moves to this one. The "
            "store must not be open for writing; a trainer uses store.pin."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("name", metavar="NAME", help="the name")
    command.add_argument("--step", type=int, metavar="N", help="the commit of this step (the last)")
    output.add_writing(command)
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Pins, and says what."""
    from embedrock.errors import NotFoundError

    with output.opened_to_write(arguments) as store:
        step = store.step if arguments.step is None else arguments.step
        if step is None:
            raise NotFoundError(f"{arguments.store} has no commit to pin")
        store.pin(step, arguments.name)
        pins = store.stats()["pins"]
    found = next(pin for pin in pins if pin["name"] == arguments.name)
    if arguments.json:
        output.print_json(found)
    else:
        print(f"{arguments.store}: commit at step {found['step']} is pinned as {found['name']!r}")
    return 0
