"""Records of the package and of its engine, in Python's `logging`.

Everything is below the logger ``embedrock``, which has no handler of its own: a program that wants
lines sets `logging` up, as for any library. Loggers of the package have the names of its groups;
those of the engine are ``embedrock.store``, ``.recovery``, ``.commit``, ``.reader``, ``.space``,
``.merge``, ``.window`` and ``.sweep``.

Records of the engine come when a call comes back from it (`crates/python/src/logs.rs` says why):
in order, with the time and the name of the thread that made them.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Sequence

from embedrock import _core

__all__ = ["LEVELS", "Limit", "flush", "of"]

LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
"""Levels as the commands name them."""

_Record = tuple[int, str, str, float, str, str, int]
"""Level, logger, message, time, thread, file and line of a record of the engine."""


def of(group: str) -> logging.Logger:
    """The logger of a group of modules: ``embedrock.<group>``."""
    return logging.getLogger(f"embedrock.{group}")


class Limit:
    """Lets one line a second through of what may come often, and counts the others."""

    def __init__(self) -> None:
        self._next = -1.0
        self._left_out = 0

    def log(self, logger: logging.Logger, level: int, message: str, *arguments: object) -> None:
        """Logs, unless a line like this came within the last second."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        self._next, left_out, self._left_out = now + 1.0, self._left_out, 0
        if left_out:
            message, arguments = f"{message} (and %d like this since)", (*arguments, left_out)
        logger.log(level, message, *arguments)


def flush() -> None:
    """Takes over what the engine has logged and no call has brought yet."""
    _core.hand_over_logs()


def _receive(records: Sequence[_Record], left_out: int) -> None:
    """Logs records of the engine. Any call of the engine may call it.

    Exceptions of filters and handlers go to ``sys.unraisablehook``; an exception of a signal
    handler is raised again once the engine's call has returned.
    """
    for level, name, message, created, thread, path, line in records:
        logger = logging.getLogger(name)
        if logger.isEnabledFor(level):
            record = logger.makeRecord(name, level, path, line, message, (), None)
            began = record.created - record.relativeCreated / 1000
            record.created = created
            record.msecs = created % 1 * 1000
            record.relativeCreated = (created - began) * 1000
            record.threadName = thread or record.threadName
            logger.handle(record)
    if left_out:
        of("store").warning("%d records of the engine were left out", left_out)


logging.getLogger("embedrock").addHandler(logging.NullHandler())
_core.set_log_receiver(_receive)
# Stores are closed at the end by what is registered later, and so runs earlier.
atexit.register(_core.hand_over_logs, is_last=True)
