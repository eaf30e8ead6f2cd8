"""Ranks as processes of this machine, which run beside others when they are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from embedrock_lab.bench.child import ChildError

__all__ = ["Team"]

START_S, TURN_S = 300.0, 300.0
"""Time limits of the ranks for the start, and for one round."""


class Team:
    """Ranks that are asked together, on as many cores as they are."""

    def __init__(
        self, size: int, folder: Path, cores: Sequence[int], settings: dict[str, Any]
    ) -> None:
        """Starts ``size`` ranks with their stores below ``folder``.

        Errors: ``ChildError`` where one does not start; its own message is on standard error.
        """
        self.size = size
        self._meeting = tempfile.TemporaryDirectory(prefix="meet-", dir=folder)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(size):
            told = {
                "rank": rank,
                "world": size,
                "cores": [*cores[:size]],
                "meeting": str(Path(self._meeting.name).resolve() / "ranks"),
                "store": str(folder / f"rank-{rank}-of-{size}.store"),
                **settings,
            }
            command = [sys.executable, "-m", "embedrock_lab.bench.ranks.member", json.dumps(told)]
            self._ranks.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        try:
            self._listen(START_S)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Team:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kills the ranks."""
        self.kill()

    def ask(self, verb: str, **arguments: Any) -> list[dict[str, Any]]:
        """Answers of all ranks. Errors: ``ChildError`` if one ends or takes too long."""
        for child in self._ranks:
            assert child.stdin is not None
            child.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
            child.stdin.flush()
        return self._listen(TURN_S)

    def kill(self) -> None:
        """Kills all ranks, and waits until they are gone."""
        for child in self._ranks:
            child.kill()
        for child in self._ranks:
            child.communicate()
        self._meeting.cleanup()

    def _give_up(self) -> None:
        for child in self._ranks:
            child.kill()

    def _listen(self, limit_s: float) -> list[dict[str, Any]]:
        """A line of each; those that are late are killed, whose lines are empty then."""
        late = threading.Timer(limit_s, self._give_up)
        late.start()
        try:
            lines = []
            for child in self._ranks:
                assert child.stdout is not None
                lines.append(child.stdout.readline())
        finally:
            late.cancel()
        if not all(lines):
            ended = [rank for rank, line in enumerate(lines) if not line]
            raise ChildError(f"rank {ended[0]} of {self.size} ended, or took over {limit_s:g} s")
        return [json.loads(line) for line in lines]
