"""Messages for users of commands: they name options instead of Python's arguments.

Errors of the engine name the way out as a Python argument. One without a matching option stays as
it is.
"""

from __future__ import annotations

import argparse
import re

from embedrock.errors import BudgetError, BudgetWarning

__all__ = ["one_line"]

_MEMORY = re.compile(r'\bmemory="?([^"\s;,]+)"?')
"""A budget as messages name it."""
_ARGUMENT = re.compile(r"\b(step|pmem_path|cold_directory|capacity|max_disk_bytes)=(\w*)")
"""Other arguments that messages tell to give, with a value or without."""
_CHOICE = re.compile(r'\b(format|keys|unknown|grown)="(\w+)"')
"""Arguments of which messages name a choice."""
_CALLS = {
    "embedrock.objects.list": "embedrock pull --list URL",
    "embedrock.objects.prune": "embedrock push --keep N",
}
"""Calls of Python that messages name, as commands."""
_READ_ONLY = re.compile(r"(, or|; to read the store,) open (it )?with read_only=True")


def one_line(
    said: Warning | BaseException | str, arguments: argparse.Namespace | None = None
) -> str:
    """A message as one line, with the options of the command that was given these arguments."""
    line = " ".join(str(said).split()) or type(said).__name__
    # Also of a child of the demo, whose message its error has.
    if isinstance(said, (BudgetError, BudgetWarning)) or "at least memory=" in line:
        line = _MEMORY.sub(r"--memory \1", line)
        line = line.replace(
            "give expected_rows=, or memory in bytes", "give --memory in bytes, such as 2GiB"
        )
    if arguments is None:
        return line
    for call, command in _CALLS.items():
        line = line.replace(call, command)
    # Only a server chooses between reading and writing.
    reads = r"\1 leave --writable out" if getattr(arguments, "writable", False) else ""
    if hasattr(arguments, "map_ids"):
        line = line.replace("map_ids=True", "--map-ids")
    line = _READ_ONLY.sub(reads, line)

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        name = "max_disk" if name == "max_disk_bytes" else name
        if not hasattr(arguments, name):
            return found.group()
        return f"--{name.replace('_', '-')} {value}".rstrip()

    return _ARGUMENT.sub(option, _CHOICE.sub(option, line))
