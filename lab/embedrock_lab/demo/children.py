"""Runs pieces of a demo in child processes and shows their progress as ours."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any, TypeVar

from embedrock.errors import EmbedrockError
from embedrock.report import progress

_SHOWN_LINES = 20
#: Defaults of the environment of a training process. A waiting thread of PyTorch's pool (libgomp)
#: sleeps after spinning for about a millisecond instead of ten, so that cores are free while the
#: engine looks rows up or changes them. And the allocator (glibc) keeps memory that a step frees:
#: otherwise the layout of blocks decides whether it goes back to the system and is faulted in again
#: by the next step. With all rows in memory neither matters.
_TRAINING = {
    "GOMP_SPINCOUNT": "20000",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
#: The piece that measures memory, in a process that does not train.
_MEMORY = "memory"
_T = TypeVar("_T")


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


class Child:
    """A child process that runs one piece, and may be asked for more until it gives its result."""

    def __init__(
        self, name: str, process: subprocess.Popen[str], errors: IO[str], sink: progress.Sink
    ) -> None:
        """Made by `children`."""
        self.name = name
        self._process = process
        self._errors = errors
        self._sink = sink

    def tell(self, command: str) -> None:
        """Sends a line. Errors: ChildError when the child is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._next("answer")

    def answer(self) -> dict[str, Any]:
        """The next answer. Errors: ChildError with what the child said instead."""
        return self._next("answer")

    def result(self) -> dict[str, Any]:
        """The result, when the piece is over. Errors: ChildError with what the child said."""
        result = self._next("result")
        if self._process.wait() != 0:
            raise self._failure(None)
        return result

    def stop(self) -> None:
        """Ends the child, wherever it is."""
        if self._process.poll() is None:
            self._process.terminate()

    def _next(self, kind: str) -> dict[str, Any]:
        last = None
        for line in self._process.stdout or ():
            last = progress.forward(line, self._sink) or last
            if last is not None and kind in last:
                found: dict[str, Any] = last[kind]
                return found
        self._process.wait()
        raise self._failure(last)

    def _failure(self, message: dict[str, Any] | None) -> ChildError:
        if message is not None and "error" in message:
            return ChildError(f"{self.name}: {message['error']}")
        self._errors.seek(0)
        said = "".join(self._errors.readlines()[-_SHOWN_LINES:]).strip()
        status = self._process.returncode
        return ChildError(
            f"{self.name}: child process ended with status {status}: {said or 'no message'}"
        )


@contextlib.contextmanager
def children(names: Sequence[str], settings: Path, sink: progress.Sink) -> Iterator[list[Child]]:
    """Child processes for the named pieces, running from here on; none outlives the block."""
    shared = Locked(sink)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_child(name, settings, shared)) for name in names]


def together(started: Sequence[Child], call: Callable[[Child], _T]) -> list[_T]:
    """Calls for all children at the same time, each in a thread; results in their order.

    Errors: that of the first child that failed; the others are stopped.
    """
    with ThreadPoolExecutor(max(len(started), 1)) as pool:
        futures = [pool.submit(call, child) for child in started]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((one for one in done if one.exception() is not None), None)
        if failed is not None:
            for child in started:
                child.stop()
            failed.result()
    return [future.result() for future in futures]


def run_together(names: list[str], settings: Path, sink: progress.Sink) -> list[dict[str, Any]]:
    """Runs the named pieces at the same time; results in the order of the names.

    Errors: ChildError with what the first failing child said. No child outlives this call.
    """
    with children(names, settings, sink) as started:
        return together(started, Child.result)


def _environment(name: str, ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of the child for a piece."""
    return {**ours} if name == _MEMORY else {**_TRAINING, **ours}


@contextlib.contextmanager
def _child(name: str, settings: Path, sink: progress.Sink) -> Iterator[Child]:
    command = [sys.executable, "-m", "embedrock_lab.demo", name, str(settings)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(name, os.environ),
        )
        try:
            yield Child(name, process, errors, sink)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
