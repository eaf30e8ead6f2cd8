"""`embedrock pull URL STORE`: a commit that was pushed to object storage, as a store or a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "pull",
        help="make a store from a pushed commit",
        description=(
            "Makes a store from the newest commit that was pushed to a URL, or that of "
            "--step, and verifies all of it. For a run of ranks it makes the folder with "
            "their stores. An interrupted pull continues when repeated."
        ),
    )
    output.add_url(command)
    command.add_argument("store", type=Path, metavar="STORE", nargs="?", help="the new directory")
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--step",
        type=output.step_or_pin,
        metavar="N",
        help="the commit of this step, or pushed under this name of a pin (the newest)",
    )
    which.add_argument(
        "--number", type=output.positive, metavar="N", help="the push with this number (the newest)"
    )
    which.add_argument("--list", action="store_true", help="only list the pushes")
    command.add_argument(
        "--stores",
        type=output.names,
        metavar="NAMES",
        help="for a run: the stores of this machine, such as buckets-0000-0511,… (all)",
    )
    command.add_argument(
        "--in-flight",
        type=output.positive,
        default=8,
        metavar="N",
        help="pieces received at once (8)",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Pulls or lists, and says what."""
    from embedrock import objects
    from embedrock.errors import MisuseError
    from embedrock.report import progress

    options = output.options_of(arguments)
    if arguments.list:
        return _list(arguments, objects.list(arguments.url, options=options))
    if arguments.store is None:
        raise MisuseError("name the new store's directory, or give --list")
    with progress.Task(progress.for_terminal(), "pulling", resumes=True) as task:
        done = objects.pull(
            arguments.url,
            arguments.store,
            step=arguments.step,
            number=arguments.number,
            stores=arguments.stores,
            options=options,
            in_flight=arguments.in_flight,
            progress=task.callback(),
        )
    if arguments.json:
        output.print_json(done)
    else:
        names = done.get("stores", ())
        stores = f"{len(names)} store{'s' if len(names) > 1 else ''}, " if names else ""
        print(
            f"{arguments.store}: push {done['number']}, commit at step {done['step']}, {stores}"
            f"{done['rows']:,} rows verified, {output.human_bytes(done['received_bytes'])} received"
        )
    return 0


def _list(arguments: argparse.Namespace, pushes: list[dict[str, Any]]) -> int:
    from datetime import datetime, timezone

    if arguments.json:
        output.print_json(pushes)
        return 0
    has_pins = any(push.get("pin") for push in pushes)
    rows = [["push", "step", "pushed (UTC)", "bytes", "sent", *["pin"] * has_pins]]
    for push in pushes:
        when = datetime.fromtimestamp(push["pushed"], timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        sizes = [output.human_bytes(push[name]) for name in ("bytes", "sent_bytes")]
        names = [push.get("pin") or ""] * has_pins
        rows.append([str(push["number"]), str(push["step"]), when, *sizes, *names])
    output.print_table(rows)
    return 0
