"""Runs one piece of the demo in a child process and shows its progress as ours."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedrock import progress
from embedrock.errors import EmbedrockError

_SHOWN_LINES = 20


class ChildError(EmbedrockError):
    """A child process of the demo ended without a result."""


class Locked:
    """A sink that children running at the same time may share."""

    def __init__(self, sink: progress.Sink) -> None:
        """Shares `sink`."""
        self._sink = sink
        self._lock = threading.Lock()

    def show(self, name: str, done: int, total: int, note: str) -> None:
        """See `Sink`."""
        with self._lock:
            self._sink.show(name, done, total, note)

    def finish(self, name: str, note: str, outcome: str) -> None:
        """See `Sink`."""
        with self._lock:
            self._sink.finish(name, note, outcome)


def run_together(names: list[str], settings: Path, sink: progress.Sink) -> list[dict[str, Any]]:
    """Runs the named pieces at the same time; results in the order of the names.

    Errors: ChildError with what the first failing child said. No child outlives this call.
    """
    shared = Locked(sink)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_child(name, settings)) for name in names]
        results: list[dict[str, Any] | None] = [None] * len(names)

        def follow(place: int) -> None:
            for line in children[place].stdout:
                message = progress.forward(line, shared)
                if message is not None:
                    results[place] = message

        threads = [threading.Thread(target=follow, args=(i,)) for i in range(1, len(names))]
        for thread in threads:
            thread.start()
        follow(0)
        for thread in threads:
            thread.join()
        return [
            _result(name, child, message)
            for name, child, message in zip(names, children, results, strict=True)
        ]


class _Child:
    def __init__(self, process: subprocess.Popen[str], errors: Any) -> None:
        self.process = process
        self.stdout = process.stdout or iter(())
        self.errors = errors


@contextlib.contextmanager
def _child(name: str, settings: Path) -> Iterator[_Child]:
    command = [sys.executable, "-m", "embedrock.demo", name, str(settings)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield _Child(process, errors)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _result(name: str, child: _Child, message: dict[str, Any] | None) -> dict[str, Any]:
    status = child.process.wait()
    if status == 0 and message is not None and "result" in message:
        result: dict[str, Any] = message["result"]
        return result
    if message is not None and "error" in message:
        raise ChildError(f"{name}: {message['error']}")
    child.errors.seek(0)
    said = "".join(child.errors.readlines()[-_SHOWN_LINES:]).strip()
    raise ChildError(f"{name}: child process ended with status {status}: {said or 'no message'}")
