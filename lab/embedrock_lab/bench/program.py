"""A program that measures, built by ``make peers``: one line of JSON in, one line out."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedrock_lab.measure.noise import WAIT_SHARE_MAX, Timed

__all__ = ["Program", "ProgramError", "quietest", "timed_of"]

TRIES_MAX = 5
"""Runs of a system in a round until one is quiet."""


class ProgramError(RuntimeError):
    """The program that measures refused or failed; the message is its own."""


class Program:
    """The program that measures, while it runs."""

    def __init__(self, program: Path, environment: dict[str, str] | None = None) -> None:
        """Starts it, with this environment instead of one's own."""
        self._child = subprocess.Popen(
            [program.resolve()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Program:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills it."""
        self.kill()

    def kill(self) -> None:
        """Kills it (``SIGKILL``), whatever it does, and waits until it is gone."""
        self._child.kill()
        self._child.communicate()

    def tell(self, settings: dict[str, Any]) -> None:
        """Sends one line. :meth:`listen` returns the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(settings) + "\n")
        self._child.stdin.flush()

    def listen(self) -> dict[str, Any]:
        """Its next line. Errors: ``ProgramError`` with what it says."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise ProgramError(f"the program ended with status {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProgramError(answer["error"])
        return answer

    def ask(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Its answer. Errors: ``ProgramError`` with what it says."""
        self.tell(settings)
        return self.listen()


def quietest(one_round: Callable[[], Timed], deadline: float) -> Timed:
    """A short run. One that was disturbed is repeated at once until the deadline (of
    ``time.monotonic``), and the quietest counts.
    """
    tried = [one_round()]
    while len(tried) < TRIES_MAX and time.monotonic() < deadline:
        if (tried[-1].wait_share or 0.0) <= WAIT_SHARE_MAX:
            break
        tried.append(one_round())
    return min(tried, key=lambda one: one.wait_share or 0.0)


def timed_of(answer: dict[str, Any], work: str) -> Timed:
    """The time that a program has measured itself, with so much work done in it."""
    timed = Timed()
    timed.seconds, timed.work = answer["seconds"], answer[work]
    timed.known = answer["waited"] is not None
    timed.waited = answer["waited"] or 0.0
    return timed
