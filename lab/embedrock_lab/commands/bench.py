"""`embedrock bench NAME`: runs a benchmark and prints its report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from embedrock.errors import MisuseError
from embedrock_lab.bench import BENCHES, load
from embedrock_lab.bench.common import render, write_json
from embedrock_lab.bench.options import add_options, of_arguments

__all__ = ["add", "main"]

_PROG = "embedrock bench"


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="run a benchmark",
        description=(
            "Runs a benchmark with the settings of its definition, at most five minutes (loops: "
            "half an hour; place with all logs: twenty minutes). Every row read is verified, not "
            "timed; exit status 1 when one was wrong. Without NAME the benchmarks are "
            "listed; embedrock bench NAME --help shows the options of one."
        ),
    )
    command.add_argument("--all", action="store_true", help="without NAME: run them all")
    command.add_argument("name", nargs="?", metavar="NAME", help="the benchmark")
    command.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="its own options, --json FILE, --all",
    )
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark that was named, or all, or lists them."""
    if arguments.name is not None:
        if arguments.name not in BENCHES:
            known = ", ".join(BENCHES)
            raise MisuseError(f"no benchmark {arguments.name!r}, expected one of {known}")
        return main([arguments.name, *arguments.options])
    if arguments.all:
        return max(main([name, "--all"]) for name in BENCHES)
    for name, purpose in BENCHES.items():
        print(f"{name:10} {purpose}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs the bench that the arguments name; 0 unless a row was read wrongly."""
    parser = argparse.ArgumentParser(prog=_PROG, description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, purpose in BENCHES.items():
        kind = load(name).Options
        one = names.add_parser(
            name, help=purpose, description=purpose, formatter_class=kind.FORMATTER
        )
        add_options(one, kind)
    given = parser.parse_args(arguments)
    bench = load(given.name)
    options = of_arguments(bench.Options, given)
    report = bench.run(options)
    print(getattr(bench, "render", render)(report))
    if options.json is not None:
        write_json(options.json, report)
    return 1 if report["results"]["mismatches"] else 0
