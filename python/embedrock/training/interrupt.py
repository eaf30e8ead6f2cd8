"""Ctrl-C amid work: the first one asks, the second one leaves at once."""

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
    the kernel ends the process, wherever it is. A store survives that at its last commit. Other
    signals that are taken do the same; `number` is that of the first that came.

    Does nothing outside the main thread, where Python takes no signals.
    """

    def __init__(self, *also: signal.Signals) -> None:
        """Takes SIGINT, and `also` others. Changes nothing before it is entered."""
        self.requested = False
        self.number: int | None = None
        self._numbers = (signal.SIGINT, *also)
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._first)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _first(self, number: int, _frame: FrameType | None) -> None:
        self.requested, self.number = True, number
        for taken in self._numbers:
            signal.signal(taken, signal.SIG_DFL)
        os.write(2, _NOTE)
