"""Log lines of commands, on standard error: time in UTC, level, where from, what happened.

`embedrock serve` has those of its engine written in Rust, by the thread that has something to say;
all others come through Python's `logging`. Both look the same. Nobody who reads standard error is
waited for: what cannot be written is dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator

from embedrock import _core, _logs
from embedrock.report.progress import tell

_NAMES = {number: name for name, number in _logs.LEVELS.items()}


def add(command: argparse.ArgumentParser, usual: str, of: str) -> None:
    """The option that says how much is logged; ``of`` says of what."""
    command.add_argument(
        "--log-level",
        choices=tuple(_logs.LEVELS),
        default=usual,
        help=f"least level of log lines on standard error, {of} ({usual})",
    )


@contextlib.contextmanager
def lines(level: str | None) -> Iterator[None]:
    """Has what the package logs of this level and worse written, for as long as the block runs."""
    logger = logging.getLogger("embedrock")
    if level is None or sys.stderr is None:
        yield
        return
    before, handler = logger.level, _Lines()
    logger.addHandler(handler)
    logger.setLevel(_logs.LEVELS[level])
    try:
        yield
    finally:
        _logs.flush()
        logger.removeHandler(handler)
        logger.setLevel(before)


def from_engine(level: str) -> None:
    """Has the engine write its lines itself, at once, from now to the end of the process."""
    # A process that was started without standard error gives its number to a file of the store.
    if sys.__stderr__ is not None:
        _core.log_to_stderr(level)


class _Lines(logging.Handler):
    """Lines as the engine writes them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one, if anybody reads it."""
        try:
            level = _NAMES.get(record.levelno, "debug")
            said = _core.log_line(level, record.name, record.getMessage(), record.created)
            tell(sys.stderr, said)
        except Exception:
            self.handleError(record)
