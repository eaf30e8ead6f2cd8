"""`embedrock copy STORE DEST`: one commit of a store, which may be in use, as a new store."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "copy",
        help="copy a commit of a store that may be in use",
        description=(
            "Copies the last commit of a store, or that of --step, to a new store. A "
            "trainer may keep writing to the source meanwhile."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("destination", type=Path, metavar="DEST", help="the new store's directory")
    command.add_argument(
        "--step",
        type=output.step_or_pin,
        metavar="N",
        help="the commit of this step, or pinned under this name (the last)",
    )
    command.add_argument(
        "--memory",
        default="256MiB",
        help="memory for each of the two stores: the index must fit (256MiB)",
    )
    command.add_argument(
        "--storage",
        choices=["log", "lsm", "pmem"],
        help="storage of all tables in the copy (that of each table)",
    )
    command.add_argument(
        "--cold-directory",
        type=Path,
        metavar="DIR",
        help="directory for the partitions of the copy's lsm tables (in DEST)",
    )
    command.add_argument(
        "--pmem-path",
        type=Path,
        metavar="DIR",
        help="directory for the regions of the copy's pmem tables (in DEST)",
    )
    command.add_argument(
        "--capacity",
        type=int,
        metavar="N",
        help="capacity of each region, in rows (all ids, or as before, or twice the rows)",
    )
    command.add_argument(
        "--buckets",
        metavar="A-B",
        help=(
            "copy only keys of these of the 1,024 buckets, for one server of several: 0-340,800 "
            "(all)"
        ),
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Copies, and says what."""
    import embedrock
    from embedrock.report import progress

    output.refuse_missing_store(arguments.store)
    with progress.Task(progress.for_terminal(), "copying") as task:
        done = embedrock.copy(
            arguments.store,
            arguments.destination,
            step=arguments.step,
            memory=arguments.memory,
            storage=arguments.storage,
            cold_directory=arguments.cold_directory,
            pmem_path=arguments.pmem_path,
            capacity=arguments.capacity,
            buckets=arguments.buckets,
            progress=task.callback(),
        )
    if arguments.json:
        output.print_json(done)
    else:
        print(
            f"{arguments.destination}: commit at step {done['commit']['step']}, "
            f"{done['rows']:,} rows, {output.human_bytes(done['disk_bytes'])}"
        )
    return 0
