"""`embedrock resize STORE TABLE --capacity N`: a table on persistent memory gets another size."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "resize",
        help="change the capacity of a table on persistent memory",
        description=(
            'Gives a table with storage "pmem" room for --capacity rows, while its store is '
            "not open anywhere. Its rows are copied into a new region, which then replaces "
            "the old one, so the disk needs room for both. Only for that storage: embedrock "
            "grow gives a dense table more ids, whatever its storage."
        ),
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument("table", metavar="TABLE", help="the table's name")
    command.add_argument(
        "--capacity",
        type=int,
        required=True,
        metavar="N",
        help="maximum number of rows of the table",
    )
    command.add_argument(
        "--pmem-path",
        type=Path,
        metavar="DIR",
        help="directory of the region, if it was moved",
    )
    command.add_argument(
        "--make-empty",
        action="store_true",
        help="replace a lost region with an empty one; the table has no rows then",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Resizes, and says what the table has."""
    import embedrock
    from embedrock.report import progress

    output.refuse_missing_store(arguments.store)
    with progress.Task(progress.for_terminal(), "resizing") as task:
        done = embedrock.resize(
            arguments.store,
            arguments.table,
            arguments.capacity,
            pmem_path=arguments.pmem_path,
            make_empty=arguments.make_empty,
            progress=task.callback(),
        )
    if arguments.json:
        output.print_json(done)
    else:
        print(
            f"{arguments.table}: {done['rows']:,} rows, room for {done['capacity']:,}, "
            f"{output.human_bytes(done['bytes'])}"
        )
    return 0
