"""``LogReader``: reads records of a log while it is written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedrock._arguments import file_errors, named_path, shown
from embedrock.errors import ClosedError, CorruptError, MismatchError, MisuseError, NotFoundError
from embedrock.follow.segment import (
    END,
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Damage,
    decoded,
    header_of,
    parsed,
    segment_path,
    segments,
)
from embedrock.follow.source import Position, Record

__all__ = ["LogReader"]

_POLL_BYTES = 4 << 20
"""Bytes of one read: large enough for the device, small beside a store's memory."""
_NUMBERS = ("segment", "offset", "checksum", "records")


class _Place(NamedTuple):
    """The position of a reader in its segment: one value, so that it changes atomically."""

    offset: int
    chain: int
    """Checksum of the header before: of the last record, or of the segment."""
    records: int
    """Number of records before it in the log."""
    last: int | None
    """Offset of that header; None where a position does not say it."""


class LogReader:
    """Records of the log in ``directory``, for a :class:`Follower`; a :class:`Source`.

    It takes no lock, writes nothing, and may run beside the writer and other readers. Of a record
    at the end of the log that is not whole yet it waits for the rest. Bytes before the end that are
    not those of a record are an error that names file and offset.

    A log begins at its first segment, ``segment-0000000001.log``.

    Errors: ``NotFoundError`` when there is no log. ``CorruptError`` and ``UnsupportedError`` name
    file and offset.

    >>> with embedrock.follow.LogWriter("ads.log") as log:
    ...     log.put("ads", [7, 8], np.ones((2, 4), np.float32))
    >>> with embedrock.follow.LogReader("ads.log") as reader:
    ...     for record in reader.poll():
    ...         print(record.kind, record.table, record.keys, record.place)
    put ads [7 8] segment-0000000001.log, offset 64
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Opens the log, at the first segment that is there."""
        self._directory = named_path("directory", directory).absolute()
        self._file = -1
        self._closed = False
        self._number: int
        self._place: _Place
        self._torn: tuple[int, _Place, int] | None = None
        with file_errors(f"log {self._directory}"):
            numbers = self._numbers()
            self._open_segment(numbers[0])
            self._log = self._header.log

    @property
    def directory(self) -> Path:
        """The directory of the log, absolute."""
        return self._directory

    @property
    def log(self) -> str:
        """Identity of the log: 32 hexadecimal digits, chosen when it was made."""
        return self._log

    @property
    def position(self) -> dict[str, Any]:
        """The position behind all records that ``poll`` has returned.

        ``log`` is the log's identity, ``segment`` and ``offset`` are the place, ``records`` how
        many lie before it, ``last`` is the offset of the last of them, and ``checksum`` is that of
        what lies before it.
        """
        return self._position_at(self._place)

    def begin(self) -> None:
        """Goes to the first record. Errors: ``NotFoundError`` when segment 1 was deleted."""
        with file_errors(f"log {self._directory}"):
            first = self._numbers()[0]
            if first != 1:
                raise NotFoundError(
                    f"log {self._directory} begins with segment {first}, those before it were "
                    f"deleted; begin with a copy of a store that has followed that far, or at the "
                    f"log's end"
                )
            self._open_segment(1)

    def end(self) -> None:
        """Goes behind the last whole record. Blocking: reads the last segment."""
        with file_errors(f"log {self._directory}"):
            self._open_segment(self._numbers()[-1])
            while self.poll():
                pass

    def seek(self, position: Position) -> None:
        """Goes to a position of this log.

        Errors: ``MismatchError`` for one of another log, ``NotFoundError`` when its segment was
        deleted, ``CorruptError`` when the log is shorter than that, or has another record there.
        """
        if not _is_position(position):
            raise MisuseError(f"position is {shown(position)}, expected one of a LogReader")
        if position["log"] != self._log:
            raise MismatchError(
                f"the position is of log {position['log']}, and {self._directory} is log "
                f"{self._log}; follow the log that the store followed before"
            )
        segment, offset, checksum, records = (position[name] for name in _NUMBERS)
        with file_errors(f"log {self._directory}"):
            path = segment_path(self._directory, segment)
            if not path.exists():
                self._seek_behind(segment, checksum)
                return
            self._open_segment(segment)
            size = os.fstat(self._file).st_size
            if not HEADER_BYTES <= offset <= size:
                raise CorruptError(
                    f"{path} has {size} bytes, and the position is at offset {offset}: the log has "
                    f"lost records that were followed"
                )
            last = 0 if offset == HEADER_BYTES else position.get("last")
            self._place = _Place(offset, checksum, records, last)
            if last is not None:
                self._check_last(last)

    def poll(self) -> list[Record]:
        """Some of the next records; none where there are none yet, or no whole one.

        Errors: ``CorruptError`` naming file and offset.
        """
        if self._closed:
            raise ClosedError(f"the reader of log {self._directory} was closed")
        with file_errors(f"log {self._directory}"):
            least = _POLL_BYTES
            while True:
                # Looked for before the read: a segment has its end before the next one begins.
                later = segment_path(self._directory, self._number + 1).exists()
                data = self._read(least)
                records, wanted = self._records_of(data, later)
                if records:
                    return records
                if wanted > len(data) and self._size() - self._place.offset >= wanted:
                    least = wanted  # a record larger than a read, or one that grew meanwhile
                    continue
                if not later:
                    return []
                if not self.at_end_of_segment():
                    raise self._corrupt("the segment ends without its end, though a later one is")
                self._open_next(self._number + 1)
                least = _POLL_BYTES

    def lag_bytes(self) -> int:
        """Bytes from the position to the end of the log, those of an unfinished record included."""
        total = 0
        for number in self._numbers():
            if number >= self._number:
                with contextlib.suppress(FileNotFoundError):
                    total += segment_path(self._directory, number).stat().st_size
        return max(total - self._place.offset, 0)

    def at_end_of_segment(self) -> bool:
        """Whether the position is behind the mark that ends its segment."""
        place = self._place.offset - RECORD_HEADER_BYTES
        if place < HEADER_BYTES:
            return False
        mark = os.pread(self._file, RECORD_HEADER_BYTES, place)
        code = int.from_bytes(mark[8:12], "little")
        return code == END and mark[-4:] == self._place.chain.to_bytes(4, "little")

    def close(self) -> None:
        """Closes the file that is read; a second call does nothing."""
        self._closed = True
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> LogReader:
        """The reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        """Closes a reader that was left open."""
        if getattr(self, "_file", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        place = "closed" if self._closed else f"segment={self._number} offset={self._place.offset}"
        return f"<embedrock.follow.LogReader {str(self._directory)!r} {place}>"

    def _records_of(self, data: memoryview, later: bool) -> tuple[list[Record], int]:
        """The whole records that ``data`` begins with, and how many bytes the next one needs.

        Goes behind them. Stops at the end of a segment.
        """
        records: list[Record] = []
        at, wanted, place = 0, 0, self._place
        path = segment_path(self._directory, self._number)
        while True:
            rest = data[at:]
            try:
                raw = parsed(rest, place.chain)
            except Damage as damage:
                if records:
                    break  # the next call says it
                if self._may_be_torn(damage, rest, later):
                    return [], 0
                raise self._corrupt(str(damage)) from damage
            if isinstance(raw, int):
                wanted = raw
                break
            begin = place.offset
            is_end = raw.code == END
            count = place.records + (not is_end)
            place = _Place(begin + raw.total, raw.checksum, count, begin)
            at += raw.total
            if is_end:
                break
            said = f"{path.name}, offset {begin}"
            records.append(decoded(raw, said, self._position_at(place)))
        self._place = place  # at once: Ctrl-C before this loses none of the records
        return records, wanted

    def _position_at(self, place: _Place) -> dict[str, Any]:
        position: dict[str, Any] = {
            "log": self._log,
            "segment": self._number,
            "offset": place.offset,
            "checksum": place.chain,
            "records": place.records,
        }
        return position if place.last is None else {**position, "last": place.last}

    def _check_last(self, last: int) -> None:
        """Refuses a position that is not behind the header, at this offset, with its checksum."""
        end = last + (RECORD_HEADER_BYTES if last else HEADER_BYTES)
        if os.pread(self._file, 4, end - 4) != self._place.chain.to_bytes(4, "little"):
            raise self._corrupt(f"another record, or none, is before it at offset {last}")

    def _may_be_torn(self, damage: Damage, rest: memoryview, later: bool) -> bool:
        """Whether damaged bytes may be those of a record that is not written to its end.

        A power cut may leave a file longer than what was written to it, with zeros at its end.
        """
        size = self._size()
        if later:
            return False
        if damage.end is not None:
            return damage.end >= size - self._place.offset
        seen = (self._number, self._place, size)
        if self._torn == seen:
            return True  # whoever waits asks often, and the zeros may be many
        if np.frombuffer(rest, np.uint8)[RECORD_HEADER_BYTES:].any():
            return False
        at = self._place.offset + len(rest)
        while at < size:
            piece = os.pread(self._file, min(_POLL_BYTES, size - at), at)
            if np.frombuffer(piece, np.uint8).any():
                return False
            if not piece:
                break  # cut meanwhile by a writer that began anew
            at += len(piece)
        self._torn = seen
        return True

    def _read(self, least: int) -> memoryview:
        """Bytes at the position: a read of this size, less at the end of the file."""
        count = min(least, max(self._size() - self._place.offset, 0))
        buffer = np.empty(count, np.uint8).data
        done = 0
        while done < count:
            more = os.preadv(self._file, [buffer[done:]], self._place.offset + done)
            if more == 0:
                break  # cut meanwhile by a writer that began anew
            done += more
        return buffer[:done]

    def _size(self) -> int:
        return os.fstat(self._file).st_size

    def _numbers(self) -> list[int]:
        try:
            found = segments(self._directory)
        except FileNotFoundError:
            found = []
        if not found:
            raise NotFoundError(
                f"{self._directory} holds no log: it has no file segment-….log; "
                f"embedrock.follow.LogWriter makes one"
            )
        return found

    def _open_segment(self, number: int) -> None:
        """Goes to the first record of a segment."""
        path = segment_path(self._directory, number)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header, checksum = header_of(os.pread(file, HEADER_BYTES, 0), path)
            log = getattr(self, "_log", header.log)
            if header.number != number or header.log != log:
                raise CorruptError(
                    f"{path}: the header at offset 0 is of segment {header.number} of log "
                    f"{header.log}, expected segment {number} of log {log}"
                )
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._header, self._number = file, header, number
        self._place = _Place(HEADER_BYTES, checksum, header.records, 0)

    def _open_next(self, number: int) -> None:
        """Goes on in the next segment, which continues this one."""
        chain, records = self._place.chain, self._place.records
        self._open_segment(number)
        if self._header.previous != chain or self._header.records != records:
            raise CorruptError(
                f"{segment_path(self._directory, number)}: the header at offset 0 does not "
                f"continue segment {number - 1}"
            )

    def _seek_behind(self, segment: int, checksum: int) -> None:
        """Goes to the next segment in place of a deleted one, if that was read to its end."""
        if segment_path(self._directory, segment + 1).exists():
            self._open_segment(segment + 1)
            if self._header.previous == checksum:
                return
        raise NotFoundError(
            f"{segment_path(self._directory, segment)} is not there, and the store has not "
            f"followed it to its end; bring it back, or go on with a copy of a store that has"
        )

    def _corrupt(self, what: str) -> CorruptError:
        path, offset = segment_path(self._directory, self._number), self._place.offset
        return CorruptError(
            f"{path} is damaged at offset {offset}, or is not what was followed before: "
            f"{what}; restore the file from a copy"
        )


def _is_position(given: Any) -> bool:
    """Whether it has the parts of a position, within their bounds."""
    if not isinstance(given, Mapping) or not isinstance(given.get("log"), str):
        return False
    numbers: list[Any] = [given.get(name) for name in _NUMBERS]
    bounds = (2**64, 2**63, 2**32, 2**64)
    last = given.get("last", 0)
    return (
        all(type(one) is int and 0 <= one < most for one, most in zip(numbers, bounds, strict=True))
        and type(last) is int
        and 0 <= last < numbers[1]
    )
