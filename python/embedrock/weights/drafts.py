"""Files that appear under their name whole and synced, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from embedrock._arguments import file_errors
from embedrock._durable import sync
from embedrock.errors import FullError, IoError

__all__ = ["Draft", "atomic", "writing"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the operating system in the block: ``FullError`` without room, else ``IoError``."""
    try:
        with file_errors(f"writing {path}"):
            yield
    except IoError as error:
        if error.errno not in _FULL:
            raise
        raise FullError(
            f"{error}; make room there or write to another disk, and begin again: {path} is as it "
            f"was before"
        ) from error


class Draft:
    """A file that has no name yet. Its errors are ``FullError`` and ``IoError``."""

    def __init__(self, path: Path) -> None:
        """Makes it, beside where it goes."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        with self._errors():
            self._file: IO[bytes] = self._draft.open("wb")

    def write(self, content: bytes | memoryview, at: int) -> None:
        """Writes at a place."""
        with self._errors():
            self._file.seek(at)
            self._file.write(content)

    @property
    def file(self) -> IO[bytes]:
        """The open file, for writers of their own."""
        return self._file

    def publish(self) -> None:
        """Gives the file its name once its bytes are durable."""
        with self._errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._draft, self._path)
            sync(self._path.parent)

    def discard(self) -> None:
        """Leaves nothing; what has failed before is what is told."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return writing(self._path)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Draft]:
    """A file that gets its name when the block ends well. Errors of the block stay as they are."""
    file = Draft(path)
    try:
        yield file
        file.publish()
    except BaseException:
        file.discard()
        raise
