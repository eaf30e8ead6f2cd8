"""`embedrock push STORE URL`: one commit of a store, which may be in use, to object storage."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "push",
        help="send a commit of a store that may be in use to S3, GCS, Azure or a folder",
        description=(
            "Sends what object storage lacks of the last commit of a store, or of that of --step. "
            "A trainer may go on writing to the store meanwhile."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    output.add_url(command)
    command.add_argument(
        "--step",
        type=output.step_or_pin,
        metavar="N",
        help="the commit of this step, or pinned under this name (the last)",
    )
    command.add_argument(
        "--in-flight",
        type=output.positive,
        default=8,
        metavar="N",
        help="pieces read and sent at once (8)",
    )
    command.add_argument(
        "--keep",
        type=output.positive,
        metavar="N",
        help="afterwards remove all pushes but the last N, and pieces that these do not name",
    )
    command.add_argument(
        "--cold-directory",
        type=Path,
        metavar="DIR",
        help="where the partitions of lsm tables are, if they were moved",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Pushes, and says what."""
    from embedrock import objects
    from embedrock.report import progress

    output.refuse_missing_store(arguments.store)
    options = output.options_of(arguments)
    with progress.Task(progress.for_terminal(), "pushing") as task:
        done = objects.push(
            arguments.store,
            arguments.url,
            step=arguments.step,
            options=options,
            in_flight=arguments.in_flight,
            cold_directory=arguments.cold_directory,
            progress=task.callback(),
        )
    if arguments.keep is not None:
        with progress.Task(progress.for_terminal(), "pruning") as task:
            done["pruned"] = objects.prune(
                arguments.url, arguments.keep, options=options, progress=task.callback()
            )
    if arguments.json:
        output.print_json(done)
        return 0
    what = "sent" if done["is_new"] else "nothing new; sent"
    print(
        f"{arguments.url}: push {done['number']}, commit at step {done['step']}, "
        f"{output.human_bytes(done['bytes'])}, {what} {output.human_bytes(done['sent_bytes'])}"
    )
    if "pruned" in done:
        gone = done["pruned"]
        print(
            f"{gone['pruned']} pushes pruned, {output.human_bytes(gone['removed_bytes'])} removed, "
            f"{output.human_bytes(gone['waiting_bytes'])} too young to go"
        )
        if gone["missing"]:
            print(f"{len(gone['missing'])} pieces are missing there: {gone['missing'][0]}")
    return 0
