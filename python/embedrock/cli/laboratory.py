"""`embedrock bench` and `embedrock demo`: commands of the laboratory, a package of its own.

Benchmarks and the demo are part of the repository (the folder ``lab``), not of the installed
package. If the package ``embedrock_lab`` is installed, its commands are added to the command line;
otherwise they are listed, and say how to get it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from typing import Any

__all__ = ["COMMANDS", "add_bench", "add_demo", "is_installed", "missing"]

COMMANDS = {
    "demo": "train at a tenth of the memory, beside plain PyTorch, in two minutes",
    "bench": "run a benchmark",
}
"""The laboratory's commands by name, and what each does."""

_PACKAGE = "embedrock_lab"


def add_bench(commands: Any) -> argparse.ArgumentParser:
    """Adds `embedrock bench`."""
    return _add(commands, "bench")


def add_demo(commands: Any) -> argparse.ArgumentParser:
    """Adds `embedrock demo`."""
    return _add(commands, "demo")


def is_installed() -> bool:
    """Whether the laboratory's package can be imported; it is not imported for that."""
    return importlib.util.find_spec(_PACKAGE) is not None


def missing(name: str) -> str:
    """How to get a command of the laboratory where it is not installed."""
    return (
        f"embedrock {name} needs the package {_PACKAGE}, the folder lab of the repository, which "
        "is not installed: git clone https://github.com/embedrock/embedrock, and make setup there "
        "(or pip install ./lab there into this environment)"
    )


def _add(commands: Any, name: str) -> argparse.ArgumentParser:
    """The laboratory's command of that name; where there is none, an entry in the list of them."""
    if is_installed():
        module = importlib.import_module(f"{_PACKAGE}.commands.{name}")
        added: argparse.ArgumentParser = module.add(commands)
        return added
    listed: argparse.ArgumentParser = commands.add_parser(
        name, help=f"{COMMANDS[name]} (in a checkout of the repository)"
    )
    return listed
