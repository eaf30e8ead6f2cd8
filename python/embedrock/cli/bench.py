"""`embedrock bench NAME`: the project's own benchmarks, which live in `embedrock.bench`."""

from __future__ import annotations

import argparse
from typing import Any

from embedrock.errors import MisuseError

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
    from embedrock import bench
    from embedrock.bench.__main__ import main

    if arguments.name is not None:
        if arguments.name not in bench.BENCHES:
            known = ", ".join(bench.BENCHES)
            raise MisuseError(f"no benchmark {arguments.name!r}, expected one of {known}")
        return main([arguments.name, *arguments.options], _PROG)
    if arguments.all:
        return max(main([name, "--all"], _PROG) for name in bench.BENCHES)
    for name, purpose in bench.BENCHES.items():
        print(f"{name:10} {purpose}")
    return 0
