"""`embedrock reshard OLD… NEW --ranks M`: the stores of another number of ranks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock._ranks import ranks_of
from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "reshard",
        help="convert the stores of a run of ranks for a different number of ranks",
        description=(
            "Makes stores for a different number of ranks from those of a run, which must "
            "not be training meanwhile and are not changed. Rows, optimizer state and "
            "counters keep every bit. If interrupted, repeat the command to continue; if "
            "everything is done, it says so."
        ),
    )
    command.add_argument(
        "old", type=Path, nargs="+", metavar="OLD", help="folders of the ranks' stores, or stores"
    )
    command.add_argument("new", type=Path, metavar="NEW", help="the new folder")
    command.add_argument(
        "--ranks", type=output.positive, metavar="M", required=True, help="the number of ranks"
    )
    command.add_argument(
        "--step",
        type=output.natural,
        metavar="N",
        help="the commit of this step (the newest that all stores have)",
    )
    command.add_argument(
        "--memory",
        default="256MiB",
        help="memory for each of the two stores that are open: the index must fit (256MiB)",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Makes the stores, and says which."""
    from embedrock.distributed.resharding import reshard
    from embedrock.report import progress

    with progress.Task(progress.for_terminal(), "copying") as task:
        done = reshard(
            arguments.old,
            arguments.new,
            arguments.ranks,
            step=arguments.step,
            memory=arguments.memory,
            progress=task.callback(),
        )
    if arguments.json:
        output.print_json(done)
        return 0
    for store in done["stores"]:
        print(
            f"{store['path']}: buckets {store['buckets']}, {store['rows']:,} rows, "
            f"{output.human_bytes(store['bytes'])}"
        )
    was_there = "" if done["is_new"] else "done: "
    print(f"{was_there}run {done['run']} at step {done['step']} for {ranks_of(done['ranks'])}")
    return 0
