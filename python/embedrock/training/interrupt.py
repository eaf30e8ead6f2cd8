"""Signals amid work: the first one asks for an end, a second one leaves at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType

#: The exit status of a program that ended because of Ctrl-C, by convention of shells.
EXIT_INTERRUPTED = 130
_NOTE = b"\nfinishing the step and committing; Ctrl-C again leaves at once, at the last commit\n"
_ENDS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, the first SIGINT (Ctrl-C), SIGTERM or SIGHUP (the terminal was closed) sets
    `requested`, and gives a second SIGINT or SIGTERM its default effect: the kernel ends the
    process, wherever it is. A store survives that at its last commit. `number` is that of the
    signal that came first. Of a terminal that is closed several SIGHUP may come: they leave nothing
    at once. One that was ignored, as by `nohup`, stays so.

    Does nothing outside the main thread, where Python takes no signals.
    """

    def __init__(self) -> None:
        """Changes nothing before it is entered."""
        self.requested = False
        self.number: int | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (*_ENDS, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
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
        if self.requested:  # another SIGHUP
            return
        self.requested, self.number = True, number
        for taken in _ENDS:
            signal.signal(taken, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # nobody reads it where the terminal is gone
            os.write(2, _NOTE)
