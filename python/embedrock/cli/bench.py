"""`embedrock bench NAME`: the project's own benchmarks, each in its own module."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

from embedrock import report
from embedrock.errors import MisuseError


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command = commands.add_parser(
        "bench",
        help="run a benchmark",
        description=(
            "Runs a benchmark with its standard settings, at most five minutes. Every row read is "
            "verified outside the timed part."
        ),
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="which one; without, list them")
    command.add_argument("--all", action="store_true", help="run the further settings, too")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file")
    command.add_argument(
        "--folder", type=Path, metavar="DIR", help="where stores are made (a temporary folder)"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="change a setting of the benchmark; may be repeated",
    )
    command.set_defaults(run=run)
    return command


def names() -> list[str]:
    """The benchmarks that this installation has."""
    try:
        package = importlib.import_module("embedrock.bench")
    except ModuleNotFoundError:
        return []
    modules = pkgutil.iter_modules(package.__path__)
    return sorted(m.name for m in modules if not m.name.startswith("_"))


def run(arguments: argparse.Namespace) -> int:
    """Runs one benchmark and prints its figures; 1 when rows read were wrong."""
    known = names()
    if arguments.name is None:
        print("\n".join(known))
        return 0
    if arguments.name not in known:
        raise MisuseError(f"no benchmark {arguments.name!r}; there are: {', '.join(known) or 'none'}")
    module = importlib.import_module(f"embedrock.bench.{arguments.name}")
    result = module.run(options(arguments))
    if arguments.json is not None:
        report.write(arguments.json, result)
    for name, value in result["figures"].items():
        print(f"{name:32} {'-' if value is None else f'{value:.6g}'}")
    return 1 if result["figures"].get("mismatches") else 0


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the benchmark's `run` gets: `all`, `folder` where given, and each OPTION=VALUE."""
    chosen: dict[str, Any] = {"all": arguments.all}
    if arguments.folder is not None:
        chosen["folder"] = arguments.folder
    for setting in arguments.set:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise MisuseError(f"--set {setting!r} is not OPTION=VALUE")
        try:
            chosen[name] = json.loads(value)
        except ValueError:
            chosen[name] = value
    return chosen
