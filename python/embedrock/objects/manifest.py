"""Manifests of pushes: each names the files of one commit and the pieces that make them up.

Format: ``docs/formats/objects.md``. The name of a piece begins with the digest of its bytes, and no
name is written twice. A manifest has two lines: a summary, which is enough to tell pushes apart,
and the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from embedrock.errors import CorruptError, UnsupportedError

__all__ = [
    "BY_LENGTH",
    "MANIFESTS",
    "PATH_LENGTH",
    "PIECES",
    "PUSHES",
    "SUMMARY_BYTES",
    "WAY_OUT",
    "Manifest",
    "Piece",
    "PushedFile",
    "Summary",
    "digest_of",
    "json_bytes",
    "manifest_name",
    "number_in",
    "number_of",
    "numbered",
    "piece_name",
    "summary_of",
]

VERSION, VERSION_OF_NOTES = 1, 2
"""The second is that of pushes with a field of ``_LATER`` alone: earlier builds read all others."""
_LATER = ("pin", "copied")
MANIFESTS, PIECES, PUSHES = "manifests", "pieces", "pushes"
SUMMARY_BYTES = 4096
"""A summary, with the end of its line, is not longer: ``by`` has at most ``BY_LENGTH`` letters, and
the path in ``copied`` ``PATH_LENGTH``."""
BY_LENGTH, PATH_LENGTH = 300, 100
_DIGEST_BYTES = 32
_DIGITS = 10


def digest_of(content: bytes | bytearray | memoryview) -> str:
    """BLAKE2b with 32 bytes, as 64 digits."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def manifest_name(number: int) -> str:
    """The object of a push of this number."""
    return numbered(MANIFESTS, number)


def number_of(name: str) -> int | None:
    """The number of a push, of the name of its object; None for other names."""
    return number_in(MANIFESTS, name)


def numbered(folder: str, number: int) -> str:
    """The object of a number in a folder: names are in the order of numbers."""
    return f"{folder}/{number:0{_DIGITS}d}.json"


def number_in(folder: str, name: str) -> int | None:
    """The number of such an object, by its name; None for other names."""
    digits = name.removeprefix(f"{folder}/").removesuffix(".json")
    if not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) if numbered(folder, int(digits)) == name else None


def piece_name(digest: str, push: str) -> str:
    """The object of a piece with this digest, sent by the push of this name."""
    return f"{PIECES}/{digest[:2]}/{digest}.{push}"


class Piece(NamedTuple):
    """Bytes of a file, and which push sent them."""

    offset: int
    length: int
    digest: str
    push: str

    @property
    def name(self) -> str:
        """The object that has them."""
        return piece_name(self.digest, self.push)


@dataclass(frozen=True)
class PushedFile:
    """A file of a store. Ranges that no piece covers read as zeros."""

    name: str
    bytes: int
    room: list[tuple[int, int]]
    pieces: list[Piece]


_Bytes = bytes


@dataclass(frozen=True)
class Summary:
    """A push, without its files."""

    number: int
    store: str
    push: str
    by: str
    pushed: int
    step: int
    sequence: int
    committed: int
    piece_bytes: int
    bytes: int
    sent_bytes: int
    head: str
    files: str
    """The digest of the second line."""
    pruned: int | None = None
    """When it was pruned, in seconds since 1970: its files are gone."""
    pin: str | None = None
    """The name of a pin that it was asked for by."""
    copied: dict[str, Any] | None = None
    """Of a commit that is one of another store, what its file ``copied-from`` says."""

    def encode(self) -> _Bytes:
        """Its line."""
        told = asdict(self)
        later = [name for name in _LATER if told[name] is not None]
        told = {name: value for name, value in told.items() if name not in _LATER or name in later}
        told["embedrock"] = VERSION_OF_NOTES if later else VERSION
        return json_bytes({**told, "digest": digest_of(json_bytes(told))}) + b"\n"


@dataclass(frozen=True)
class Manifest:
    """A push."""

    summary: Summary
    files: list[PushedFile]

    def pieces(self) -> Iterator[Piece]:
        """The pieces of all files."""
        for file in self.files:
            yield from file.pieces

    def encode(self) -> bytes:
        """Both lines; ``summary.files`` is that of :func:`files_line`."""
        return self.summary.encode() + files_line(self.files)

    @classmethod
    def decode(cls, content: bytes, name: str) -> Manifest:
        """Errors: ``CorruptError`` naming the object, ``UnsupportedError``."""
        first, _, second = content.partition(b"\n")
        summary = summary_of(first, name)
        if summary.pruned is not None:
            return cls(summary, [])
        if digest_of(second) != summary.files:
            raise CorruptError(f"{name}: its second line is not what was written; {WAY_OUT}")
        try:
            return cls(summary, [_file(told) for told in json.loads(second)])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"{name}: its files cannot be read: {error}; {WAY_OUT}") from error


WAY_OUT = "pull another push (step=, or number=), and push again"


def summary_of(line: bytes, name: str) -> Summary:
    """The summary of a first line. Errors: ``CorruptError``, ``UnsupportedError``."""
    try:
        told = json.loads(line)
        version, digest = told["embedrock"], told.pop("digest")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"{name} is no manifest: {error}; {WAY_OUT}") from error
    if version not in (VERSION, VERSION_OF_NOTES):
        raise UnsupportedError(
            f"{name} has version {version}, this build reads {VERSION} and {VERSION_OF_NOTES}; use "
            f"a newer embedrock"
        )
    if digest_of(json_bytes(told)) != digest:
        raise CorruptError(f"{name}: its first line is not what was written; {WAY_OUT}")
    del told["embedrock"]
    try:
        return Summary(**told)
    except TypeError as error:
        raise CorruptError(f"{name}: {error}; {WAY_OUT}") from error


def files_line(files: list[PushedFile]) -> bytes:
    """The second line."""
    told = []
    for file in files:
        pieces = [[*piece] for piece in file.pieces]
        told.append({"name": file.name, "bytes": file.bytes, "room": file.room, "pieces": pieces})
    return json_bytes(told) + b"\n"


def _file(told: dict[str, Any]) -> PushedFile:
    name, length = told["name"], told["bytes"]
    # A name leads nowhere but into the store's folder.
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"a file cannot be named {name!r}")
    pieces = [Piece(*piece) for piece in told["pieces"]]
    for offset, size in [*((p.offset, p.length) for p in pieces), *told["room"]]:
        if offset < 0 or size <= 0 or offset + size > length:
            raise ValueError(f"{name} has {length} bytes and names {offset} to {offset + size}")
    return PushedFile(name, length, [(at, size) for at, size in told["room"]], pieces)


def json_bytes(value: Any) -> bytes:
    """JSON as digests are taken of it: keys in order, no spaces."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
