"""``LogWriter``: appends records to a log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from pathlib import Path
from typing import Any

import numpy as np

from embedrock._arguments import file_errors, named_path, text
from embedrock._arrays import Keys
from embedrock._durable import sync
from embedrock._memory import size_of
from embedrock._verbs import Floats
from embedrock.errors import (
    ClosedError,
    CorruptError,
    ForkedError,
    IoError,
    LockedError,
    PoisonedError,
)
from embedrock.follow.reader import LogReader
from embedrock.follow.records import RecordWriter
from embedrock.follow.segment import Header, encoded, segment_path, segments
from embedrock.follow.source import Kind

__all__ = ["LogWriter"]


class LogWriter(RecordWriter):
    """Appends batches to a log, the directory ``directory``, which is made if it is not there.

    One process writes to a log at a time, from any of its threads. A log that is there is
    continued: what a writer that was killed has left of an unfinished record, which no reader has
    applied, is cut off (``cut_bytes``). A record behind ``segment_bytes`` begins the next segment.
    A put, update or delete that raises has appended nothing; Ctrl-C may come behind its record.
    Segments that every follower is past may be deleted, lowest numbers first; the last one stays.

    Errors: ``LockedError`` when another writer has the log; ``CorruptError`` when the last segment
    is damaged; ``ForkedError`` in a process that was forked since; ``IoError``. After an
    ``IoError`` of a write that could not be undone, of a sync, or behind the end of a segment, the
    writer refuses further ones with ``PoisonedError``: open the log again.

    Blocking: each record is handed to the operating system in the call. Opening reads the last
    segment.

    Durability: a killed process loses nothing that was appended; a power cut loses what came after
    the last :meth:`sync`. A follower may have applied that already, and finds then that the log is
    not what it was: call ``sync`` after each batch where that matters.

    >>> with embedrock.follow.LogWriter("ads.log") as log:
    ...     log.put("ads", [7, 8], np.ones((2, 4), np.float32))
    ...     log.update("ads", [7], np.ones((1, 4), np.float32), lr=0.1)
    ...     log.delete("ads", [8])
    ...     log.sync()
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, segment_bytes: int | str = "256MiB"
    ) -> None:
        """Opens the log, or makes one."""
        self._directory = named_path("directory", directory).absolute()
        self._segment_bytes = size_of("segment_bytes", segment_bytes, 1)
        self._file = -1
        self._lock = -1
        self._broken = False
        self._cut_bytes = 0
        self._offset = self._number = self._chain = self._records = 0
        self._pid = os.getpid()
        self._appending = threading.RLock()  # over the chain of records; fsync is called under it
        with file_errors(f"log {self._directory}"):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            try:
                self._open_last()
            except BaseException:
                self._release()
                raise

    @property
    def directory(self) -> Path:
        """The directory of the log, absolute."""
        return self._directory

    @property
    def log(self) -> str:
        """Identity of the log: 32 hexadecimal digits, chosen when it was made."""
        return self._log

    @property
    def records(self) -> int:
        """Number of records that the log has had since it was made."""
        return self._records

    @property
    def cut_bytes(self) -> int:
        """Bytes of an unfinished record that were cut off when the log was opened."""
        return self._cut_bytes

    def sync(self) -> None:
        """Waits until the disk has every record so far."""
        with self._appending, file_errors(f"log {self._directory}"):
            self._check()
            try:
                os.fsync(self._file)
            except OSError:
                self._broken = True  # a second fsync does not report data that a failed one dropped
                raise

    def rotate(self) -> None:
        """Ends the segment, durably, and begins the next one."""
        with self._appending, file_errors(f"log {self._directory}"):
            self._check()
            parts, checksum = encoded(None, "", np.empty(0, np.uint64), None, {}, self._chain)
            self._write(parts, checksum, 0)  # refuses further writes until the next one is there
            os.fsync(self._file)
            self._create(self._number + 1, self._chain)

    def close(self) -> None:
        """Syncs and closes the log; a second call does nothing."""
        with self._appending:
            if self._lock < 0:
                return
            try:
                if not self._broken and self._pid == os.getpid():
                    self.sync()
            finally:
                self._release()

    def __enter__(self) -> LogWriter:
        """The writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the log."""
        self.close()

    def __del__(self) -> None:
        """Gives up the lock of a writer that was left open."""
        if getattr(self, "_lock", -1) >= 0:
            self._release()

    def __repr__(self) -> str:
        state = "closed" if self._lock < 0 else f"{self._records} records"
        return f"<embedrock.follow.LogWriter {str(self._directory)!r} {state}>"

    def _append(
        self, kind: Kind, table: str, keys: Keys, rows: Floats | None, options: dict[str, Any]
    ) -> None:
        name = text("table", table)
        with self._appending, file_errors(f"log {self._directory}"):
            self._check()
            if self._offset >= self._segment_bytes:
                self.rotate()  # before the record: one that raises is not in the log
            parts, checksum = encoded(kind, name, keys.flat, rows, options, self._chain)
            self._write(parts, checksum, 1)

    def _write(self, parts: list[Any], checksum: int, records: int) -> None:
        """Appends the parts, all or none of them. Behind those without records none may follow."""
        self._broken = True  # until all of it is done: Ctrl-C may come anywhere
        written, total = 0, sum(map(len, parts))
        try:
            written = os.writev(self._file, parts)
            if written < total:
                rest = memoryview(b"".join(parts))
                while written < total:
                    written += os.write(self._file, rest[written:])
        except OSError:
            os.ftruncate(self._file, self._offset)
            self._broken = False
            raise
        self._offset += total
        self._chain = checksum
        self._records += records
        self._broken = records == 0

    def _check(self) -> None:
        if self._lock < 0:
            raise ClosedError(f"log {self._directory} was closed")
        if self._pid != os.getpid():
            raise ForkedError(
                f"log {self._directory} was opened before this process was forked: write to it in "
                f"the process that opened it"
            )
        if self._broken:
            raise PoisonedError(
                f"an earlier write to log {self._directory} failed; open a new LogWriter, which "
                f"goes on behind the last whole record"
            )

    def _take_lock(self) -> None:
        path = self._directory / "lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release()
            raise LockedError(
                f"log {self._directory} has a writer already; close that one, or give each writer "
                f"a log of its own"
            ) from None

    def _open_last(self) -> None:
        for left in self._directory.glob("*.new"):
            left.unlink()
        numbers = segments(self._directory)
        if not numbers:
            self._log, self._records, self._chain = secrets.token_hex(16), 0, 0
            self._create(1, 0)
            sync(self._directory.parent)
            return
        reader = LogReader(self._directory)
        try:
            reader.end()
        except CorruptError as error:
            raise CorruptError(
                f"{error}; to give up what follows, cut the file to {reader.position['offset']} "
                f"bytes and open the log again"
            ) from error
        position = reader.position
        self._log, self._records = position["log"], position["records"]
        self._number, self._chain = position["segment"], position["checksum"]
        self._offset = position["offset"]
        path = segment_path(self._directory, self._number)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._cut_bytes = os.fstat(self._file).st_size - self._offset
        if self._cut_bytes:
            os.ftruncate(self._file, self._offset)
            os.fsync(self._file)
        if reader.at_end_of_segment():
            self._create(self._number + 1, self._chain)
        reader.close()

    def _create(self, number: int, previous: int) -> None:
        """Makes the segment of this number, whole or not at all, and goes on in it."""
        path = segment_path(self._directory, number)
        header = Header(self._log, number, self._records, previous).encode()
        new = path.with_suffix(".new")
        self._broken = True
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        file = os.open(new, flags, 0o644)
        try:
            if os.write(file, header) < len(header):
                raise IoError(f"{new}: the header could not be written whole")
            os.fsync(file)
            os.rename(new, path)
            sync(self._directory)
        except BaseException:
            os.close(file)
            raise
        before, self._file = self._file, file
        if before >= 0:
            os.close(before)
        self._number, self._offset = number, len(header)
        self._chain = int.from_bytes(header[-4:], "little")
        self._broken = False

    def _release(self) -> None:
        for file in (self._file, self._lock):
            if file >= 0:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._file = self._lock = -1
