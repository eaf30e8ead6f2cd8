"""The command `embedrock`: what runs in a terminal.

Each command is a module here with `add(subparsers)`, which sets `run` on the parsed arguments:
arguments in, exit status out. Commands import what they need when they run, so that `--help` and
`info` do not wait for PyTorch.

Exit status: 0 fine, 1 damage found by `check`, a store that failed `torture` or a run of it in
which some fault, event or branch never came, 2 an error (one line on standard error, a traceback
only with --debug), 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from embedrock import __version__
from embedrock._optional import missing
from embedrock.cli import (
    check,
    copy,
    drop,
    follow,
    freeze,
    grow,
    info,
    laboratory,
    logs,
    pin,
    place,
    pull,
    push,
    rename,
    reshard,
    resize,
    serve,
    torture,
    trace,
    train,
    unpin,
)
from embedrock.cli.wording import one_line
from embedrock.errors import EmbedrockError
from embedrock.training.interrupt import EXIT_INTERRUPTED

EXIT_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in laboratory.COMMANDS and not laboratory.is_installed():
        print(f"embedrock: error: {laboratory.missing(given[0])}", file=sys.stderr)
        return EXIT_ERROR
    arguments = parser().parse_args(given)
    warnings.showwarning = functools.partial(_show_warning, arguments)
    try:
        with logs.lines(getattr(arguments, "log_level", None)):
            status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except (EmbedrockError, OSError, ModuleNotFoundError) as error:
        if arguments.debug:
            raise
        said = _without_torch(error, arguments.command)
        print(f"embedrock: error: {one_line(said, arguments)}", file=sys.stderr)
        return EXIT_ERROR


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="embedrock",
        description="Embedding tables larger than memory, on a slice of DRAM and an ordinary SSD.",
        epilog="embedrock COMMAND --help tells more about a command",
    )
    top.add_argument("--version", action="version", version=f"embedrock {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    own = {
        "train": train.add,
        "follow": follow.add,
        "demo": laboratory.add_demo,
        "info": info.add,
        "check": check.add,
        "copy": copy.add,
        "reshard": reshard.add,
        "pin": pin.add,
        "unpin": unpin.add,
        "push": push.add,
        "pull": pull.add,
        "grow": grow.add,
        "rename": rename.add,
        "drop": drop.add,
        "resize": resize.add,
        "trace": trace.add,
        "place": place.add,
        "freeze": freeze.add,
        "serve": serve.add,
        "bench": laboratory.add_bench,
        "torture": torture.add,
    }
    for name, add in own.items():
        added = add(commands)
        added.set_defaults(command=name)
        added.add_argument(
            "--debug",
            action="store_true",
            help="show the traceback of an error, not only its message",
        )
    return top


def _without_torch(error: BaseException, command: str) -> BaseException | str:
    """The missing package and how to get it, after an import of PyTorch that failed."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name.split(".")[0] == "torch" and "needs PyTorch" not in str(error):
        return missing(f"embedrock {command}", "PyTorch", "torch")
    return error


def _show_warning(
    arguments: argparse.Namespace, message: Warning | str, *_: Any, **__: Any
) -> None:
    """Warnings as one line, without the source line that raised them."""
    print(f"embedrock: warning: {one_line(message, arguments)}", file=sys.stderr)
