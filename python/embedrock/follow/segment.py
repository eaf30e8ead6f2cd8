"""Bytes of a log's segment files: headers and records, as ``docs/formats/update-log.md`` has them.

Nothing here opens files. Every record's header is checksummed from the checksum of the header
before it, so records that are whole are also the next ones of the same log.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embedrock._verbs import Floats
from embedrock.errors import CorruptError, MisuseError, UnsupportedError
from embedrock.follow.source import Kind, Position, Record

__all__ = [
    "END",
    "HEADER_BYTES",
    "KINDS",
    "RECORD_BYTES_MAX",
    "RECORD_HEADER_BYTES",
    "Damage",
    "Header",
    "Raw",
    "decoded",
    "encoded",
    "header_of",
    "parsed",
    "segment_path",
    "segments",
]

_MAGIC = b"EMBRKLOG"
_VERSION = 1
_HEADER = struct.Struct("<8sII16sQQI8x")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_RECORD = struct.Struct("<QIIIHHI")
RECORD_HEADER_BYTES = _RECORD.size + _CHECKSUM.size
RECORD_BYTES_MAX = 256 << 20
"""A record is held in memory whole: this bounds what a follower takes beside its store."""
KINDS: dict[int, Kind] = {1: "put", 2: "update", 3: "delete"}
END = 4
_CODES = {kind: code for code, kind in KINDS.items()}
_NAME = re.compile(r"segment-(\d{10})\.log")
_KEYS = np.dtype("<u8")
_ROWS = np.dtype("<f4")


class Header(NamedTuple):
    """The first bytes of a segment."""

    log: str
    """Identity of the log: 32 hexadecimal digits."""
    number: int
    """Of the segment, from 1."""
    records: int
    """Number of records in the segments before it."""
    previous: int
    """Checksum of the last record header before it; 0 in segment 1."""

    def encode(self) -> bytes:
        """The bytes of the header."""
        fields = _HEADER.pack(
            _MAGIC, _VERSION, 0, bytes.fromhex(self.log), self.number, self.records, self.previous
        )
        return fields + _CHECKSUM.pack(zlib.crc32(fields))


class Raw(NamedTuple):
    """A record whose bytes are those that were written."""

    code: int
    rows: int
    dim: int
    name_bytes: int
    options_bytes: int
    payload: memoryview
    checksum: int
    """Of its header: what the next record's is computed from."""
    total: int
    """Bytes of header and payload."""


class Damage(Exception):
    """Bytes that are not those of a record. ``end`` is where they would end, if that is known."""

    def __init__(self, what: str, end: int | None) -> None:
        """``end`` counts from the beginning of the record."""
        super().__init__(what)
        self.end = end


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"segment-{number:010}.log"


def segments(directory: Path) -> list[int]:
    """Numbers of the segments that are there, lowest first."""
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)


def header_of(content: bytes, path: Path) -> tuple[Header, int]:
    """A segment's header and its checksum.

    Errors: ``CorruptError`` and ``UnsupportedError`` naming the file.
    """
    if len(content) < HEADER_BYTES or content[:8] != _MAGIC:
        raise CorruptError(f"{path} does not begin as a segment of a log does, at offset 0")
    _, version, _, log, number, records, previous = _HEADER.unpack_from(content)
    if version != _VERSION:
        raise UnsupportedError(
            f"{path} has version {version} of the format of logs, this build reads {_VERSION}"
        )
    (checksum,) = _CHECKSUM.unpack_from(content, _HEADER.size)
    if checksum != zlib.crc32(content[: _HEADER.size]):
        raise CorruptError(f"{path}: the header at offset 0 does not have its checksum")
    return Header(log.hex(), number, records, previous), checksum


def encoded(
    kind: Kind | None,
    table: str,
    keys: Any,
    rows: Floats | None,
    options: Mapping[str, Any],
    chain: int,
) -> tuple[list[bytes | memoryview], int]:
    """The parts of a record, and its checksum. ``kind`` None makes the end of a segment."""
    name = table.encode()
    told = json.dumps(options, allow_nan=False).encode() if options else b""
    if max(len(name), len(told)) >= 2**16:
        raise MisuseError(f"the name of table {table[:20]!r}… is too long for a record of a log")
    words = name + told
    words += bytes(-len(words) % 8)
    key_bytes = _bytes_of(keys.astype(_KEYS, copy=False))
    dim = 0 if rows is None else rows.shape[1]
    row_bytes = b"" if rows is None else _bytes_of(rows.astype(_ROWS, copy=False))
    padding = bytes(-len(row_bytes) % 8)
    parts = [words, key_bytes, row_bytes, padding]
    size = sum(map(len, parts))
    if size > RECORD_BYTES_MAX:
        raise MisuseError(
            f"a record of {size} bytes for table {table!r} is larger than a log takes, "
            f"{RECORD_BYTES_MAX}; write fewer rows at a time"
        )
    of_payload = 0
    for part in parts:
        of_payload = zlib.crc32(part, of_payload)
    code = END if kind is None else _CODES[kind]
    fields = _RECORD.pack(size, code, len(keys), dim, len(name), len(told), of_payload)
    checksum = zlib.crc32(fields, chain)
    return [fields + _CHECKSUM.pack(checksum), *(part for part in parts if len(part))], checksum


def parsed(data: memoryview, chain: int) -> Raw | int:
    """The record that ``data`` begins with, or how many bytes are needed to tell more.

    Errors: ``Damage``.
    """
    if len(data) < RECORD_HEADER_BYTES:
        return RECORD_HEADER_BYTES
    fields = data[: _RECORD.size]
    (checksum,) = _CHECKSUM.unpack_from(data, _RECORD.size)
    if checksum != zlib.crc32(fields, chain):
        raise Damage("the header of the record does not have its checksum", None)
    size, code, rows, dim, name_bytes, options_bytes, of_payload = _RECORD.unpack(fields)
    if size > RECORD_BYTES_MAX:
        raise Damage(f"the record says that it has {size} bytes, at most {RECORD_BYTES_MAX}", None)
    total = RECORD_HEADER_BYTES + size
    if len(data) < total:
        return int(total)
    payload = data[RECORD_HEADER_BYTES:total]
    if zlib.crc32(payload) != of_payload:
        raise Damage("the record does not have its checksum", total)
    return Raw(code, rows, dim, name_bytes, options_bytes, payload, checksum, total)


def decoded(raw: Raw, place: str, position: Position) -> Record:
    """Decodes a record. One that cannot be read has a ``fault``, and the log goes on after it."""
    kind, table, fault = KINDS.get(raw.code), "", ""
    options: Any = {}
    words = raw.name_bytes + raw.options_bytes
    keys_at = words + -words % 8
    rows_at = keys_at + raw.rows * 8
    has_rows = kind != "delete"
    row_bytes = raw.rows * raw.dim * 4 if has_rows else 0
    if kind is None:
        fault = f"its kind is {raw.code}, which this build does not know"
    elif rows_at + row_bytes + -row_bytes % 8 != len(raw.payload):
        fault = f"it has {len(raw.payload)} bytes, not those of {raw.rows} rows of {raw.dim} values"
    else:
        try:
            table = bytes(raw.payload[: raw.name_bytes]).decode()
            told = bytes(raw.payload[raw.name_bytes : words])
            options = json.loads(told, parse_constant=_refuse) if told else {}
        except (ValueError, RecursionError) as error:  # the latter of brackets within brackets
            fault = f"its words cannot be read: {error}"
        if not isinstance(options, dict):
            kind_of = type(options).__name__
            fault, options = f"its options are a {kind_of}, expected names and values", {}
    if fault:
        empty = np.empty(0, np.uint64)
        return Record(None, table, empty, None, {}, place, position, fault)
    keys = np.frombuffer(raw.payload, _KEYS, raw.rows, keys_at)
    rows = None
    if has_rows:
        rows = np.frombuffer(raw.payload, _ROWS, raw.rows * raw.dim, rows_at)
        rows = rows.reshape(raw.rows, raw.dim)
    return Record(kind, table, keys, rows, options, place, position)


def _bytes_of(array: npt.NDArray[Any]) -> bytes | memoryview:
    """The bytes of an array, not copied."""
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")
