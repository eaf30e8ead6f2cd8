"""`embedrock push STORE URL`: one commit of a store or a run, in use or not, to object storage."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "push",
        help="send a commit of a store, even one in use, to S3, GCS, Azure or a folder",
        description=(
            "Sends the last commit of a store, or that of --step, as far as object storage "
            "lacks it. A trainer may keep writing to the store meanwhile. The folder of a "
            "run of ranks is pushed as a whole, at a commit that all of its stores have. An "
            "interrupted push continues when repeated."
        ),
    )
    command.add_argument(
        "store", type=Path, metavar="STORE", help="the store's directory, or a run's"
    )
    output.add_url(command)
    command.add_argument(
        "--step",
        type=output.step_or_pin,
        metavar="N",
        help=(
            "the commit of this step, or pinned under this name (the last); required if other "
            "machines push other stores of the run"
        ),
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
        help="afterwards remove all pushes but the last N, and pieces that these do not refer to",
    )
    command.add_argument(
        "--cold-directory",
        type=Path,
        metavar="DIR",
        help="directory of the partitions of lsm tables, if they were moved",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Pushes, and says what."""
    from embedrock import objects
    from embedrock.report import progress

    if not output.stores_of_ranks(arguments.store):
        output.refuse_missing_store(arguments.store)
    options = output.options_of(arguments)
    with progress.Task(progress.for_terminal(), "pushing", resumes=True) as task:
        done = objects.push(
            arguments.store,
            arguments.url,
            step=arguments.step,
            options=options,
            in_flight=arguments.in_flight,
            cold_directory=arguments.cold_directory,
            progress=task.callback(),
        )
    if not arguments.json:
        print(f"{arguments.url}: {_told(done)}", flush=True)
    if arguments.keep is not None:
        with progress.Task(progress.for_terminal(), "pruning") as task:
            done["pruned"] = objects.prune(
                arguments.url, arguments.keep, options=options, progress=task.callback()
            )
    if arguments.json:
        output.print_json(done)
    elif "pruned" in done:
        gone = done["pruned"]
        print(
            f"{_count(gone['pruned'], 'push', 'pushes')} pruned, "
            f"{output.human_bytes(gone['removed_bytes'])} removed, "
            f"{output.human_bytes(gone['waiting_bytes'])} too young to go"
        )
        if gone["damaged"]:
            print(f"no pieces removed, for damaged manifests: {', '.join(gone['damaged'])}")
        if gone["missing"]:
            lost = gone["missing"]
            is_one = len(lost) == 1
            print(
                f"{_count(len(lost), 'piece', 'pieces')} {'is' if is_one else 'are'} missing "
                f"there: {lost[0]}"
            )
    return 0


def _told(done: dict[str, Any]) -> str:
    """The result of a push, as one line."""
    stores = f", {_count(len(done['stores']), 'store', 'stores')}" if "stores" in done else ""
    missing = done.get("waiting_for")
    what = "sent" if done["is_new"] or missing else "nothing new; sent"
    line = (
        f"commit at step {done['step']}{stores}, {output.human_bytes(done['bytes'])}, {what} "
        f"{output.human_bytes(done['sent_bytes'])}"
    )
    if not missing:
        return f"push {done['number']}, {line}"
    return (
        f"{line}; no push yet: the stores of the buckets {', '.join(missing)} are lacking; run "
        f"the same command, with the same --step, where they are"
    )


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
