"""Runs a function in a process of its own, so that its memory and CPU time are its own.

``call("package.module:function", **arguments)`` starts an interpreter that runs
``function(**arguments)`` and gives back what it returns; both travel as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["ChildError", "call", "call_within"]


class ChildError(RuntimeError):
    """A child process failed; its own message went to standard error."""


def call(function: str, /, **arguments: Any) -> Any:
    """Calls ``function(**arguments)`` in a child process and returns its result. The child ends
    with this process."""
    return call_within(function, None, **arguments)


def call_within(function: str, limit_s: float | None, /, **arguments: Any) -> Any:
    """The same, for so many seconds at most. Errors: ``ChildError`` where it takes longer."""
    with tempfile.TemporaryDirectory(prefix="embedrock-child-") as directory:
        answer = Path(directory) / "answer.json"
        command = [sys.executable, "-m", __name__, function, str(answer), str(os.getpid())]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        try:
            child.communicate(json.dumps(arguments), timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{function} took longer than {limit_s:g} s") from error
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode != 0:
            raise ChildError(f"the child process of {function} ended with {child.returncode}")
        return json.loads(answer.read_text(encoding="utf-8"))


def _serve(function: str, answer: str) -> None:
    module, _, name = function.partition(":")
    arguments = json.loads(sys.stdin.read())
    returned = getattr(importlib.import_module(module), name)(**arguments)
    Path(answer).write_text(json.dumps(returned), encoding="utf-8")


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
