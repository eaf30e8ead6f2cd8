"""Runs systems, each in a process of its own and under a memory limit of its own.

A system is a program that takes ``load`` and ``run`` (``python -m embedrock_lab.bench.replay``
describes both); the peers are one such program (``make peers``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from embedrock_lab.bench.replay.limit import MemoryLimit
from embedrock_lab.measure.machine import forget_pages

__all__ = ["OURS", "PEERS", "SystemFailed", "describe", "load", "run"]

PEERS = Path(".cache/peers/embedrock-peers")
"""The program of ``make peers``."""
OURS = [sys.executable, "-m", "embedrock_lab.bench.replay"]
SLACK_BYTES = 8 << 20
"""Memory of a limited process beside start-up and budget: stacks, its kernel's buffers, free lists
of its threads' allocators, verifying. Less than the rule for memory allows."""


class SystemFailed(RuntimeError):
    """A system could not run; the message is its own."""


def describe(program: Path) -> dict[str, Any]:
    """Engines of the peers' program: engine to version, available, reason, settings."""
    done = subprocess.run([program, "list"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemFailed(f"{program} list: {_last_line(done.stderr)}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def load(command: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Fills a system's store, without a limit; none of it stays in the page cache."""
    done = subprocess.run(
        [*command, "load"],
        input=json.dumps(settings) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemFailed(_last_line(done.stderr))
    for file in Path(settings["place"]).rglob("*"):
        if file.is_file():
            forget_pages(file)  # page cache that loading left would be charged to nobody
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run(command: list[str], settings: dict[str, Any], *, limited: bool) -> dict[str, Any]:
    """Runs a system. With ``limited`` its memory is budget and start-up size, page cache
    included, where control groups can be had; ``limit_bytes`` in the answer says what held.
    """
    limit = MemoryLimit.create("embedrock-race") if limited else None
    with tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(
            [*command, "run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=None if limit is None else _enter(limit),
        )
        try:
            text, limit_bytes = _talk(program, settings, limit)
            if program.wait() != 0:
                errors.seek(0)
                killed = f"ended by signal {-program.returncode}, its memory limit or another"
                said = _last_line(errors.read())
                raise SystemFailed(said or (killed if program.returncode < 0 else "no message"))
            answer: dict[str, Any] = json.loads(text)
            answer["limit_bytes"] = limit_bytes
            answer["peak_group_bytes"] = limit.peak_bytes() if limit else None
            return answer
        finally:
            if program.poll() is None:
                program.kill()
                program.wait()
            if limit is not None:
                limit.close()


def _talk(
    program: subprocess.Popen[str], settings: dict[str, Any], limit: MemoryLimit | None
) -> tuple[str, int | None]:
    """Gives the settings, limits the memory when the program is ready; what it answers."""
    assert program.stdin is not None and program.stdout is not None
    limit_bytes = None
    try:
        program.stdin.write(json.dumps(settings) + "\n")
        program.stdin.flush()
        if program.stdout.readline().strip() == "ready":
            if limit is not None:
                limit_bytes = limit.anonymous_bytes() + int(settings["memory_bytes"]) + SLACK_BYTES
                limit.set_bytes(limit_bytes)
            program.stdin.write("go\n")
            program.stdin.flush()
    except BrokenPipeError:
        pass  # It ended; its status and message say why.
    return program.stdout.read(), limit_bytes


def _enter(limit: MemoryLimit) -> Any:
    def enter() -> None:
        limit.add(os.getpid())

    return enter


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
