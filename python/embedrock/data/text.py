"""The one opener of users' text: plain, gzip or zstd, told apart by its first bytes, as a stream.

Invariants: a byte order mark of UTF-8 is no part of the text, though its bytes count in offsets;
UTF-16 and UTF-32 are refused, and so are lines that end in a carriage return alone. Readers of
lines take them from here, too; empty lines at the end of a text are dropped. A Parquet file is the
text that `parquet` makes of it, for runs of older versions.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

from embedrock.data import parquet
from embedrock.data.errors import DataError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_MARK = b"\xef\xbb\xbf"
"""The byte order mark with which some programs begin a UTF-8 text."""
_OTHERS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""The first bytes of texts in other encodings."""
_MARK_BYTES_MAX = 4
_BLOCK_BYTES = 4 << 20
#: Thousands of lines: two files of one kind that agree so far are the same one, or its beginning.
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Head:
    """Identity of a text in older stores, independent of its compression: the hash of its first
    bytes."""

    bytes: int
    blake2b: str

    @classmethod
    def of(cls, path: str | Path, size: int = _HEAD_BYTES) -> Head:
        """That of the first `size` bytes, or of the whole text when it is shorter.

        Errors: DataError.
        """
        with TextStream(path, keep_mark=True) as stream:
            text = stream.read(size)
        return cls(len(text), hashlib.blake2b(text, digest_size=16).hexdigest())


class TextStream:
    """Reads bytes of the (uncompressed) text and keeps count of them; errors name the file."""

    def __init__(
        self, path: str | Path, *, keep_mark: bool = False, as_it_is: bool = False
    ) -> None:
        """Opens the file. With `keep_mark` a mark at the beginning is read as what follows it;
        `as_it_is`, whatever it holds is read, unpacked if it is packed, and no text is made of it.

        Errors: DataError, also when its kind of packing needs a library, and for text that is in
        another encoding.
        """
        self.path = Path(path)
        self._file: BinaryIO = _open(self.path, as_it_is)
        self.offset = self.mark_bytes = 0
        self._decode_errors: tuple[type[Exception], ...] = (EOFError, zlib.error)
        self._decode_errors += (gzip.BadGzipFile, *_zstd_errors())
        self._ahead = b""
        if as_it_is:
            return
        try:
            begin = self.read(_MARK_BYTES_MAX)
            for mark, encoding in _OTHERS.items():
                if begin.startswith(mark):
                    raise DataError(
                        f"is {encoding}, expected UTF-8: run iconv -f {encoding} -t UTF-8",
                        path=self.path,
                    )
        except DataError:
            self.close()
            raise
        if begin.startswith(_MARK) and not keep_mark:
            self.mark_bytes = len(_MARK)  # which are not read
        self._ahead, self.offset = begin[self.mark_bytes :], self.mark_bytes

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the text."""
        parts = [self._ahead[:size]] if self._ahead else []
        missing = size - len(parts[0]) if parts else size
        self._ahead = self._ahead[size - missing :]
        self.offset += size - missing
        while missing > 0:
            try:
                part = self._file.read(missing)
            except self._decode_errors as error:
                raise DataError(
                    f"compressed data ends or breaks after {self.offset} bytes of text: {error}",
                    path=self.path,
                ) from error
            except OSError as error:
                raise DataError(f"cannot be read: {error}", path=self.path) from error
            if not part:
                break
            parts.append(part)
            missing -= len(part)
            self.offset += len(part)
        return b"".join(parts)

    def skip_to(self, offset: int) -> None:
        """Goes on at byte `offset` of the text: a seek in a plain file, decompression otherwise.

        The mark at the beginning is not read: the text begins behind it.
        """
        offset = max(offset, self.mark_bytes)
        if isinstance(self._file, io.FileIO):
            size = self.path.stat().st_size
            if offset > size:
                raise DataError(
                    f"has {size} bytes, reading was to go on at {offset}", path=self.path
                )
            self._file.seek(offset)
            self._ahead, self.offset = b"", offset
            return
        while self.offset < offset:
            if not self.read(min(1 << 20, offset - self.offset)):
                raise DataError(
                    f"has {self.offset} bytes of text, reading was to go on at {offset}",
                    path=self.path,
                )

    @property
    def packed_offset(self) -> int:
        """Bytes of the file that were read for it: of a plain one, those of the text."""
        file: Any = self._file
        if isinstance(file, io.FileIO):
            return self.offset
        for name in ("fileobj", "_fp", "_file"):  # of gzip, the library's zstd, ours
            inner: Any = getattr(file, name, None)
            if inner is not None:
                return int(inner.tell())
        return 0

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a text, by blocks: the number of the first, from 1 on, and their text, each line
    with a line feed, and without a carriage return, at its end. Empty lines at the end of the text
    are none.

    Errors: DataError; also for a text that has carriage returns alone for line ends.
    """
    with TextStream(path) as stream:
        number, rest, empty = 1, b"", 0
        while block := stream.read(_BLOCK_BYTES):
            rest += block
            end = rest.rfind(b"\n") + 1
            text, rest = rest[:end], rest[end:]
            if number == 1 and not text and b"\r" in rest.rstrip(b"\r"):
                raise DataError(
                    "has carriage returns alone at the ends of lines, expected line feeds: run "
                    "tr '\\r' '\\n'",
                    path=path,
                )
            text = text.replace(b"\r\n", b"\n")
            held = text.rstrip(b"\n")
            if not held:
                empty += len(text)
                continue
            after = len(text) - len(held) - 1
            yield number, b"\n" * empty + text[: len(held) + 1]
            number += empty + held.count(b"\n") + 1
            empty = after
        rest = rest.removesuffix(b"\r")
        if rest:
            yield number, b"\n" * empty + rest + b"\n"


def _open(path: Path, as_it_is: bool) -> BinaryIO:
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror or error}", path=path) from error
    try:
        magic = file.read(4)
        file.seek(0)
    except OSError as error:
        file.close()
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error
    if magic.startswith(_GZIP):
        file.close()
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic == parquet.MAGIC and not as_it_is:
        file.close()
        return cast(BinaryIO, parquet.ParquetText(path))
    if magic == _ZSTD:
        file.close()
        return _open_zstd(path)
    return file


def zstd_module() -> ModuleType | None:
    """The standard library's module (Python 3.14), the package zstandard, or None."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _zstd_errors() -> tuple[type[Exception], ...]:
    module = zstd_module()
    return () if module is None else (module.ZstdError,)


def _open_zstd(path: Path) -> BinaryIO:
    module = zstd_module()
    if module is None:
        raise DataError(
            "is compressed with zstd, which needs Python 3.14 or the package zstandard: "
            "run pip install zstandard, or pass the file plain or as gzip",
            path=path,
        )
    if module.__name__ == "zstandard":
        return cast(BinaryIO, _ZstandardFile(module, path))
    return cast(BinaryIO, module.open(path, "rb"))


class _ZstandardFile:
    """A reader over the package's decompressor, because its own file object takes a truncated
    frame for the end of the file."""

    def __init__(self, module: ModuleType, path: Path) -> None:
        self._new_frame = module.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()
        self._in_frame = False
        self._file = path.open("rb", buffering=0)
        self._text = b""

    def read(self, size: int) -> bytes:
        while not self._text:
            packed = self._file.read(1 << 20)
            if not packed:
                if self._in_frame:
                    raise EOFError("the last zstd frame is not complete")
                return b""
            parts = []
            while packed:
                parts.append(self._frame.decompress(packed))
                self._in_frame = not self._frame.eof
                packed = b""
                if self._frame.eof:
                    packed = self._frame.unused_data
                    self._frame = self._new_frame()
            self._text = b"".join(parts)
        text, self._text = self._text[:size], self._text[size:]
        return text

    def close(self) -> None:
        self._file.close()
