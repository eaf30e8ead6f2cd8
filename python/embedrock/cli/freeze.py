"""`embedrock freeze STORE --plan PLAN --out SERVED`: a commit as pages in the order of a plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "freeze",
        help="write a commit as pages for serving, in the order of a plan",
        description=(
            "Writes the last commit of a store, or that of --step, as a new store for "
            "serving: values without optimizer state, in pages that hold rows requested "
            "together, some of them with replicas. A trainer may keep writing to the source "
            "meanwhile. Without --out, a store of such pages is frozen again in place: "
            "changes on top of its pages go into new ones."
        ),
        epilog=(
            "example: embedrock freeze trained --plan plan.npz --out served\n"
            "docs/how-to/serving.md shows the way from a trace to a served store"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument(
        "--plan", type=Path, metavar="FILE", help="the plan that `embedrock place` made (none)"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="the new store's directory")
    command.add_argument("--step", type=int, metavar="N", help="the commit of this step (the last)")
    command.add_argument(
        "--memory",
        default="256MiB",
        help="memory for each of the two stores: the index must fit (256MiB)",
    )
    command.add_argument(
        "--sort-mib",
        type=output.natural,
        default=256,
        metavar="N",
        help="MiB of memory for sorting rows (256)",
    )
    command.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16", "int8", "int4"],
        help="type of the frozen values; int8 and int4 have a scale per row (as each table's)",
    )
    command.add_argument(
        "--unknown",
        choices=["initial", "zeros"],
        default="initial",
        help="value of keys without a row: the row that training would begin with, or zeros",
    )
    command.add_argument(
        "--candidates",
        type=output.natural,
        default=10,
        metavar="N",
        help="number of pages from which a row may be read, at most (10)",
    )
    command.add_argument(
        "--page-bytes",
        type=output.natural,
        metavar="N",
        help="bytes of a page (as the plan needs; measured)",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Freezes, and says what."""
    import embedrock
    from embedrock.report import progress

    output.refuse_missing_store(arguments.store)
    with progress.Task(progress.for_terminal(), "freezing") as task:
        done = embedrock.freeze(
            arguments.store,
            arguments.out,
            plan=arguments.plan,
            step=arguments.step,
            memory=arguments.memory,
            sort_bytes=arguments.sort_mib << 20,
            dtype=arguments.dtype,
            unknown=arguments.unknown,
            candidates=arguments.candidates,
            page_bytes=arguments.page_bytes,
            progress=task.callback(),
        )
    if arguments.json:
        output.print_json(done)
        return 0
    print(
        f"{arguments.out or arguments.store}: commit at step {done['commit']['step']}, "
        f"{done['rows']:,} rows in {done['pages']:,} pages, "
        f"{output.human_bytes(done['disk_bytes'])}"
    )
    if arguments.plan is not None:
        print(
            f"placed by the plan: {done['placed']:,} rows; "
            f"{done['missing']:,} of the plan are not in the store"
        )
    for error in done["errors"]:
        print(
            f"table '{error['table']}' as {error['dtype']}: values differ by up to "
            f"{error['error_max']:.3g}; as a share of the row's largest value by up to "
            f"{error['relative_error_max']:.3g}, {error['relative_error_mean']:.3g} in the mean"
        )
    return 0
