"""Progress of anything longer than a second: a bar on a terminal, plain lines elsewhere.

Progress goes to standard error, results to standard output. A child process sends its progress as
JSON lines to the parent, which shows it as its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, TextIO

#: Nothing is shown before; what is done by then needs no bar.
_QUIET_SECONDS = 1.0
_BAR_INTERVAL_SECONDS = 0.1
_LINE_INTERVAL_SECONDS = 10.0


class Sink(Protocol):
    """A receiver of progress. `total` is 0 while it is not known."""

    def show(self, name: str, done: int, total: int, note: str) -> None:
        """Takes the state of a piece of work; called often, must be cheap."""
        ...

    def finish(self, name: str, note: str, outcome: str) -> None:
        """The piece of work is over, with the outcome "done" or "stopped" and where."""
        ...


def text(name: str, done: int, total: int, note: str) -> str:
    """One line: name, per cent or count, note."""
    amount = f"{min(done / total, 1):4.0%}" if total > 0 else f"{done:,}"
    return f"{name}: {amount}" + (f", {note}" if note else "")


def _last_line(name: str, took: float, note: str, outcome: str) -> str:
    preposition = "in" if outcome == "done" else "after"
    return f"{name}: {outcome} {preposition} {took:.1f} s" + (f", {note}" if note else "")


def tell(stream: TextIO | None, said: str) -> None:
    """Writes to whoever reads the stream. That nobody does any more, as when a terminal was closed,
    is no failure of the work: what follows is written nowhere. Nor is that there never was one."""
    if stream is None:
        return
    try:
        stream.write(said)
        stream.flush()
    except OSError:
        # The text is in a buffer still, and would fail the end of the process.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class Lines:
    """A plain line every ten seconds, and one at the end of what took longer than a second."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Writes to `stream`, standard error by default."""
        self._stream = stream
        self._started: dict[str, float] = {}
        self._shown = 0.0

    def show(self, name: str, done: int, total: int, note: str) -> None:
        """See `Sink`."""
        now = monotonic()
        started = self._started.setdefault(name, now)
        if now - max(started, self._shown) >= _LINE_INTERVAL_SECONDS:
            self._print(text(name, done, total, note))
            self._shown = now

    def finish(self, name: str, note: str, outcome: str) -> None:
        """See `Sink`."""
        now = monotonic()
        took = now - self._started.pop(name, now)
        if took >= _QUIET_SECONDS:
            self._print(_last_line(name, took, note, outcome))

    def _print(self, line: str) -> None:
        tell(self._stream or sys.stderr, f"{line}\n")


class Bar:
    """One bar that is redrawn in place, and a plain line when the work is over."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Draws on `stream`, standard error by default."""
        self._stream = stream or sys.stderr
        self._started: dict[str, float] = {}
        self._drawn = 0.0
        self._dirty = False

    def show(self, name: str, done: int, total: int, note: str) -> None:
        """See `Sink`."""
        now = monotonic()
        started = self._started.setdefault(name, now)
        if now - started < _QUIET_SECONDS or now - self._drawn < _BAR_INTERVAL_SECONDS:
            return
        columns = shutil.get_terminal_size().columns
        tail = text(name, done, total, note)
        room = columns - len(tail) - 4
        if total > 0 and room >= 10:
            width = min(room, 40)
            filled = int(width * min(done / total, 1))
            tail = f"[{'#' * filled}{'.' * (width - filled)}] {tail}"
        tell(self._stream, "\r\x1b[K" + tail[: columns - 1])
        self._drawn = now
        self._dirty = True

    def finish(self, name: str, note: str, outcome: str) -> None:
        """See `Sink`."""
        now = monotonic()
        took = now - self._started.pop(name, now)
        line = "\r\x1b[K" if self._dirty else ""
        self._dirty = False
        if took >= _QUIET_SECONDS:
            line += _last_line(name, took, note, outcome) + "\n"
        tell(self._stream, line)


class JsonLines:
    """Progress for a parent process, at most ten lines a second."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Writes to `stream`, standard output by default."""
        self._stream = stream or sys.stdout
        self._sent = 0.0

    def show(self, name: str, done: int, total: int, note: str) -> None:
        """See `Sink`."""
        now = monotonic()
        if now - self._sent >= _BAR_INTERVAL_SECONDS:
            self._sent = now
            self.send({"progress": [name, done, total, note]})

    def finish(self, name: str, note: str, outcome: str) -> None:
        """See `Sink`."""
        self.send({"finished": [name, note, outcome]})

    def send(self, message: dict[str, Any]) -> None:
        """Any other message to the parent, as one line."""
        print(json.dumps(message), file=self._stream, flush=True)


def forward(line: str, sink: Sink) -> dict[str, Any] | None:
    """Shows a line of a child's `JsonLines` on `sink`; others are returned."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict):
        return None
    if "progress" in message:
        sink.show(*message["progress"])
    elif "finished" in message:
        sink.finish(*message["finished"])
    else:
        return message
    return None


def for_terminal(stream: TextIO | None = None) -> Sink:
    """A bar when standard error is a terminal, plain lines when not."""
    target = stream or sys.stderr
    return Bar(target) if target.isatty() else Lines(stream)


class Task:
    """A piece of work with a name: `advance` it, set a note, finish it by leaving the block."""

    def __init__(self, sink: Sink, name: str, total: int = 0, *, resumes: bool = False) -> None:
        """Work of `total` units, 0 when that is not known, shown on `sink`. `resumes` says that
        the same command goes on with it after Ctrl-C."""
        self._sink, self._resumes = sink, resumes
        self.name = name
        self.total = total
        self.done = 0
        self.note = ""
        #: How it ends, for the line that says so; an error makes it "stopped".
        self.outcome = "done"

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        """So much more is done."""
        self.to(self.done + amount, note)

    def to(self, done: int, note: str | None = None) -> None:
        """So much is done in all."""
        self.done = done
        self.note = self.note if note is None else note
        self._sink.show(self.name, self.done, self.total, self.note)

    def callback(self) -> Callable[[int, int], None]:
        """For the engine's progress callbacks: (done, total)."""

        def report(done: int, total: int) -> None:
            self.total = total
            self.to(done)

        return report

    def __enter__(self) -> Task:
        self._sink.show(self.name, 0, self.total, "")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.outcome, self.note = "stopped", ""
            if self._resumes and isinstance(error, KeyboardInterrupt):
                self.note = "the same command goes on where it was"
        self._sink.finish(self.name, self.note, self.outcome)
