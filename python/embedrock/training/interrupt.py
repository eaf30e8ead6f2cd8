"""Ctrl-C while training: the first one asks, the second one leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

#: The exit status of a program that ended because of Ctrl-C, by convention of shells.
EXIT_INTERRUPTED = 130
_NOTE = b"\nfinishing the step and committing; Ctrl-C again leaves at once, at the last commit\n"


class Interrupt:
    """While entered, the first SIGINT sets `requested` and gives the second one its default effect:
    the kernel ends the process, wherever it is. A store survives that at its last commit.

    Does nothing outside the main thread, where Python takes no signals.
    """

    def __init__(self) -> None:
        """Changes nothing before it is entered."""
        self.requested = False
        self._before: object = None
        self._entered = False

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._first)
            self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._entered:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]

    def _first(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.write(2, _NOTE)
