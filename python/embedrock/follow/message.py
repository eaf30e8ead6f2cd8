"""Records of a Kafka topic: frames and single rows, as ``docs/formats/kafka.md`` has them.

Nothing here talks to a broker. A record without a key is a frame, the bytes of a record of a log;
one with a key is a row of its own: those that follow each other are put together in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from embedrock._verbs import Floats
from embedrock.follow.segment import Damage, decoded, encoded, parsed
from embedrock.follow.source import Kind, Position, Record

__all__ = ["Batches", "Next", "Spot", "frame"]

_KEYS = 1 << 64
_DIGITS_MAX = 20
_ROWS = np.dtype("<f4")


class Next(NamedTuple):
    """The next read position of a partition."""

    offset: int
    epoch: int | None
    """Of the partition's leader when the record before was written; None where it is not known."""


class Spot(NamedTuple):
    """The position of a record in a topic."""

    partition: int
    offset: int
    epoch: int | None


class _Row(NamedTuple):
    """A record that is a single row, and where it is."""

    key: int
    value: bytes | None
    spot: Spot


def frame(
    kind: Kind, table: str, keys: Any, rows: Floats | None, options: Mapping[str, Any]
) -> bytes:
    """The value of a record that is a frame."""
    return b"".join(encoded(kind, table, keys, rows, options, 0)[0])


class Batches:
    """Makes batches of the records of a topic, in the order in which they are added.

    ``offsets`` is what lies behind the records that were added, of each partition; ``position``
    makes a position of it.
    """

    def __init__(
        self,
        topic: str,
        offsets: Mapping[int, Next],
        position: Callable[[Mapping[int, Next]], Position],
    ) -> None:
        """No records yet, and where they begin."""
        self.offsets = dict(offsets)
        self._topic = topic
        self._position = position
        self._found: list[Record] = []
        self._rows: list[_Row] = []
        self._alike: tuple[str, int] | None = None
        """Table, and bytes of a value, of the rows that wait; -1 bytes for a delete."""

    def add(self, key: bytes | None, value: bytes | None, spot: Spot) -> None:
        """One record."""
        if key is None:
            self._single(_of_frame(value, self._place(spot)), spot)
            return
        table, number = _named(key)
        size = -1 if value is None else len(value)
        if table is None or number is None or (size > 0 and size % _ROWS.itemsize):
            fault = f"its key is {key[:60]!r}, expected table:key, such as user:42"
            if number is not None:
                fault = f"its value has {size} bytes, expected float32 numbers of 4 bytes each"
            self._single(_unreadable(fault, self._place(spot)), spot)
            return
        if self._alike != (table, size):
            self._end_run()
            self._alike = (table, size)
        self._rows.append(_Row(number, value, spot))

    def pass_over(self, spot: Spot) -> None:
        """Advances to this offset, past entries that are no records, such as ends of
        transactions."""
        self._end_run()
        before = self.offsets[spot.partition]
        self.offsets[spot.partition] = Next(max(before.offset, spot.offset), before.epoch)

    def all(self) -> list[Record]:
        """The batches of all that was added."""
        self._end_run()
        return self._found

    def _single(self, record: Record, spot: Spot) -> None:
        self._end_run()
        _go_behind(self.offsets, spot)
        self._found.append(replace(record, position=self._position(self.offsets)))

    def _end_run(self) -> None:
        if self._alike is None:
            return
        table, rows, offsets = self._alike[0], self._rows, dict(self.offsets)
        self._rows, self._alike = [], None
        for row in rows:
            _go_behind(self.offsets, row.spot)
        first, last = rows[0].spot, rows[-1].spot
        place = self._place(first)
        if last.partition != first.partition:
            place += f", to partition {last.partition}, offset {last.offset}"
        elif last != first:
            place += f" to {last.offset}"

        def parts() -> list[Record]:
            found = []
            for row in rows:
                _go_behind(offsets, row.spot)
                place, position = self._place(row.spot), self._position(offsets)
                found.append(_of_rows(table, [row], place, position))
            return found

        record = _of_rows(table, rows, place, self._position(self.offsets))
        self._found.append(replace(record, parts=parts) if len(rows) > 1 else record)

    def _place(self, spot: Spot) -> str:
        return f"topic {self._topic}, partition {spot.partition}, offset {spot.offset}"


def _go_behind(offsets: dict[int, Next], spot: Spot) -> None:
    offsets[spot.partition] = Next(spot.offset + 1, spot.epoch)


def _of_rows(table: str, rows: Sequence[_Row], place: str, position: Position) -> Record:
    """A put or delete of rows of one table, whose values have equally many bytes."""
    keys, count = np.array([row.key for row in rows], np.uint64), len(rows)
    if rows[0].value is None:
        return Record("delete", table, keys, None, {}, place, position, "", count)
    content = b"".join(row.value for row in rows if row.value is not None)
    width = len(rows[0].value) // _ROWS.itemsize
    values = np.frombuffer(content, _ROWS).reshape(count, width)
    return Record("put", table, keys, values, {}, place, position, "", count)


def _of_frame(value: bytes | None, place: str) -> Record:
    """The contents of a frame; its position is not known here."""
    content = memoryview(value or b"")
    try:
        raw = parsed(content, 0)
    except Damage as damage:
        return _unreadable(f"it has no key and is no frame: {damage}", place)
    expected = raw if isinstance(raw, int) else raw.total
    if isinstance(raw, int) or expected != len(content):
        fault = f"it has no key and is no frame: it has {len(content)} bytes, expected {expected}"
        return _unreadable(fault, place)
    return decoded(raw, place, {})


def _unreadable(fault: str, place: str) -> Record:
    return Record(None, "", np.empty(0, np.uint64), None, {}, place, {}, fault)


def _named(key: bytes) -> tuple[str | None, int | None]:
    """Table and key of ``table:key``; None for what is none.

    A negative key is that with the same 64 bits.
    """
    table, colon, digits = key.rpartition(b":")
    if not colon or len(digits) > _DIGITS_MAX or not digits.removeprefix(b"-").isdigit():
        return None, None
    number = int(digits)
    if not -_KEYS // 2 <= number < _KEYS:
        return None, None
    try:
        return table.decode(), number % _KEYS
    except UnicodeDecodeError:
        return None, None
