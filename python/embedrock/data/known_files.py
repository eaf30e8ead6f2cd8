"""Recognition of a run's data: the same files, the same with more at the end, or others.

A file is identified by its length, its time and a digest of samples from all over it, which is
cheap. If these differ, because the file was copied or compressed in another way, the digest of its
whole text decides; of a longer text, that of as many bytes as before. So changed data is never
taken for data that was read, and a text that has grown is told from another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from embedrock.data.errors import DataError
from embedrock.data.text import TextStream

__all__ = ["Known", "Seen", "compared"]

Seen: TypeAlias = Literal["same", "grown", "other"]

_SAMPLES = 64
_SAMPLE_BYTES = 16 << 10
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Known:
    """The facts of a file at the time it was read."""

    path: str
    file_bytes: int
    """Of the file as it lies there, and when it was changed last."""
    changed_ns: int
    samples: str
    """Digest of pieces of the file as it lies there."""
    bytes: int
    """Of the text, unpacked."""
    blake2b: str
    """Digest of all of it."""

    @classmethod
    def of(cls, path: Path, progress: Callable[[int], object] | None = None) -> Known:
        """Reads the whole file. `progress` gets bytes of the file. Errors: DataError."""
        size, changed = _stat(path)
        length, digest, _ = _text_digest(path, None, progress)
        return cls(str(path.absolute()), size, changed, _samples(path, size), length, digest)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def compared(
    then: Mapping[str, Any], path: Path, progress: Callable[[int], object] | None = None
) -> Seen:
    """State of a file compared with its earlier `Known.as_dict`. Errors: DataError."""
    size, changed = _stat(path)
    is_quick = (size, changed) == (then["file_bytes"], then["changed_ns"])
    if is_quick and _samples(path, size) == then["samples"]:
        return "same"
    length, digest, more = _text_digest(path, then["bytes"], progress)
    if (length, digest) != (then["bytes"], then["blake2b"]):
        return "other"
    return "grown" if more else "same"


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror or error}", path=path) from error
    return found.st_size, found.st_mtime_ns


def _samples(path: Path, size: int) -> str:
    """Of pieces at even distances, the first and the last bytes among them."""
    digest = hashlib.blake2b(digest_size=16)
    last = max(size - _SAMPLE_BYTES, 0)
    try:
        with path.open("rb", buffering=0) as file:
            for place in sorted({last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)}):
                file.seek(place)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error
    return digest.hexdigest()


def _text_digest(
    path: Path, most: int | None, progress: Callable[[int], object] | None
) -> tuple[int, str, bool]:
    """(bytes, digest) of the text, of `most` bytes of it at most, and whether more follows."""
    digest, length = hashlib.blake2b(digest_size=16), 0
    with TextStream(path, as_it_is=True) as stream:
        while most is None or length < most:
            block = stream.read(_BLOCK_BYTES if most is None else min(_BLOCK_BYTES, most - length))
            if not block:
                break
            digest.update(block)
            length += len(block)
            if progress is not None:
                progress(stream.packed_offset)
        return length, digest.hexdigest(), bool(stream.read(1))
