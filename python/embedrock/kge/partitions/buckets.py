"""Edges on disk, sorted by the partitions of their ends: the bucket file.

A counting sort in two passes over the edges, with memory for a block of them. The file is made
under another name and gets its own once it is whole and on the disk, so one that was not finished
is made anew. Every bucket has a checksum, which is compared before its edges are first used.

``docs/formats/bucket-file.md`` has every byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock._arguments import file_errors
from embedrock._durable import sync
from embedrock.errors import CorruptError, IoError, KeyRangeError, LockedError
from embedrock.kge.partitions.cut import Cut

__all__ = ["Buckets", "digest_of", "sort_edges"]

MAGIC = b"EMBEDGES"
VERSION = 1
_BLOCK = 1 << 20
"""Edges that are sorted, hashed or checked at once: some 100 MB."""
_PIECE = 1 << 20
"""Bytes that are read at once to be checked."""
_HEAD = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("columns", "<u4"),
        ("side", "<u4"),
        ("item_bytes", "<u4"),
        ("edges", "<u8"),
        ("hubs", "<u8"),
        ("digest", "V32"),
    ]
)


def blocks(edges: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Blocks of the edges, each with the number of its first."""
    for first in range(0, len(edges), _BLOCK):
        yield first, np.asarray(edges[first : first + _BLOCK])


def digest_of(edges: npt.NDArray[Any], facts: str) -> bytes:
    """32 bytes that tell these edges, cut by these facts, from others. Reads all edges once."""
    found = hashlib.blake2b(f"{facts} {edges.shape} {edges.dtype.str}".encode(), digest_size=32)
    for _, block in blocks(edges):
        found.update(np.ascontiguousarray(block).view(np.uint8).reshape(-1).data)
    return found.digest()


class Buckets:
    """A bucket file that is whole.

    Errors: ``CorruptError`` naming the file, and the bucket where it is one.
    """

    def __init__(self, path: Path, digest: bytes) -> None:
        """Reads what is before the edges."""
        self.path = path
        self._checked: set[int] = set()
        with file_errors(f"bucket file {path} cannot be read"):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(self._file).st_size
        head = np.frombuffer(self._read_at(0, _HEAD.itemsize, "its head"), _HEAD)[0]
        self.columns, self.side = int(head["columns"]), int(head["side"])
        fits = (
            head["magic"] == MAGIC
            and head["version"] == VERSION
            and self.columns in (2, 3)
            and head["item_bytes"] in (4, 8)
            and 0 < self.side <= 1 << 16
        )
        if not fits or bytes(head["digest"]) != digest:
            raise self._damaged("its head is not that of these edges")
        self.edges = int(head["edges"])
        self._item = np.dtype(f"<i{int(head['item_bytes'])}")
        hubs, buckets = int(head["hubs"]), self.side**2
        length = 12 * buckets + 8 * hubs
        if _HEAD.itemsize + length + 4 > size:
            raise self._damaged(f"it has {size} bytes, too few for its head")
        body = self._read_at(_HEAD.itemsize, length + 4, "its head")
        crc = zlib.crc32(body[:-4], zlib.crc32(head.tobytes()))
        if crc != int.from_bytes(body[-4:], "little"):
            raise self._damaged("the checksum of its head is wrong")
        self.counts = np.frombuffer(body, "<i8", buckets)
        self._crcs = np.frombuffer(body, "<u4", buckets, 8 * buckets)
        self.hubs = np.frombuffer(body, "<i8", hubs, 12 * buckets)
        """Rows that belong to no partition, ascending."""
        self._firsts = np.concatenate([[0], np.cumsum(self.counts)])
        self._data = _HEAD.itemsize + length + 4
        expected = self._data + self.edges * self._edge_bytes
        if self._firsts[-1] != self.edges or size != expected:
            raise self._damaged(f"it has {size} bytes, expected {expected}")

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """Number of edges in each bucket, ``(side, side)``, the head's partition first."""
        return self.counts.reshape(self.side, self.side)

    def read(self, bucket: int, first: int, last: int) -> npt.NDArray[Any]:
        """Edges ``first`` to ``last`` (exclusive) of a bucket: ``(N, columns)``.

        Errors: ``CorruptError`` naming the bucket, ``IoError``.
        """
        if bucket not in self._checked:
            self._check(bucket)
        at = self._data + (int(self._firsts[bucket]) + first) * self._edge_bytes
        found = self._read_at(at, (last - first) * self._edge_bytes, self._named(bucket))
        return np.frombuffer(found, self._item).reshape(-1, self.columns)

    @property
    def _edge_bytes(self) -> int:
        return self.columns * self._item.itemsize

    def _check(self, bucket: int) -> None:
        first, last = (int(place) * self._edge_bytes for place in self._firsts[bucket : bucket + 2])
        crc = 0
        for at in range(first, last, _PIECE):
            piece = self._read_at(self._data + at, min(_PIECE, last - at), self._named(bucket))
            crc = zlib.crc32(piece, crc)
        if crc != int(self._crcs[bucket]):
            raise self._damaged(f"the checksum of {self._named(bucket)} is wrong")
        self._checked.add(bucket)

    def _named(self, bucket: int) -> str:
        def name(part: int) -> str:
            return "rows that stay" if part == self.side - 1 else f"partition {part}"

        head, tail = divmod(bucket, self.side)
        return f"the bucket of edges from {name(head)} to {name(tail)}"

    def _read_at(self, at: int, length: int, what: str) -> bytes:
        parts = []
        while length > 0:
            with file_errors(f"{what} of bucket file {self.path} cannot be read"):
                part = os.pread(self._file, length, at)
            if not part:
                raise self._damaged(f"it ends within {what}")
            parts.append(part)
            at, length = at + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _damaged(self, what: str) -> CorruptError:
        return CorruptError(
            f"bucket file {self.path} is damaged: {what}; remove it, and it is made anew from the "
            f"edges"
        )


def sort_edges(path: Path, digest: bytes, edges: npt.NDArray[Any], cut: Cut, seed: int) -> None:
    """Makes the bucket file of these edges, beside which it takes memory for a block of them.

    Within a bucket edges come in the order of their blocks, in a block as drawn by chance.

    Errors: ``KeyRangeError`` with the place of an edge beyond the table, ``LockedError`` where
    another process is at it, ``IoError``. *Durability*: the file is there when it is whole.
    """
    partial = path.with_name(path.name + ".partial")
    with file_errors(f"bucket file {partial} cannot be written"):
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockedError(
                f"bucket file {partial} is being made by another process; wait until it is done"
            ) from error
        try:
            with file_errors(f"bucket file {partial} cannot be written"):
                os.ftruncate(file, 0)  # what an interrupted one has left
                _write(file, partial, digest, edges, cut, seed)
                os.fsync(file)
                os.replace(partial, path)
                sync(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    finally:
        os.close(file)


def _write(
    file: int, name: Path, digest: bytes, edges: npt.NDArray[Any], cut: Cut, seed: int
) -> None:
    side, columns = cut.side, edges.shape[1]
    counts, largest = np.zeros(side**2, np.int64), 0
    for first, block in blocks(edges):
        check_ends(first, block, cut)
        counts += np.bincount(cut.buckets(block), minlength=side**2)
        largest = max(largest, int(block.max()))
        if columns == 3 and int(block[:, 1].min()) < 0:
            place = first + int(np.flatnonzero(block[:, 1] < 0)[0])
            raise KeyRangeError(f"edges: the relation of edge {place} is below 0")
    item = np.dtype("<i4" if largest < 1 << 31 else "<i8")
    head = np.zeros(1, _HEAD)
    head[0] = (
        MAGIC,
        VERSION,
        columns,
        side,
        item.itemsize,
        len(edges),
        len(cut.hubs),
        np.void(digest),
    )
    begin = _HEAD.itemsize + 12 * side**2 + 8 * len(cut.hubs) + 4
    size = begin + len(edges) * columns * item.itemsize
    # Mapped pages need disk space beforehand: writing to one on a full disk kills the process.
    os.posix_fallocate(file, 0, size)
    data = np.memmap(name, item, "r+", begin, (len(edges), columns))
    firsts = np.concatenate([[0], np.cumsum(counts)])
    filled = firsts[:-1].copy()
    for first, block in blocks(edges):
        random = np.random.default_rng([seed, 0, first])
        block = block[random.permutation(len(block))]
        buckets = cut.buckets(block)
        places = np.argsort(buckets, kind="stable")
        present, starts, sizes = np.unique(buckets[places], return_index=True, return_counts=True)
        within = np.arange(len(block)) - np.repeat(starts, sizes)
        data[np.repeat(filled[present], sizes) + within] = block[places]
        filled[present] += sizes
    if not np.array_equal(filled, firsts[1:]):
        raise IoError("edges changed while they were sorted; leave them as they are until then")
    crcs = np.zeros(side**2, "<u4")
    for bucket in np.flatnonzero(counts):
        crc = 0
        for at in range(int(firsts[bucket]), int(firsts[bucket + 1]), _BLOCK):
            crc = zlib.crc32(data[at : min(at + _BLOCK, int(firsts[bucket + 1]))].data, crc)
        crcs[bucket] = crc
    data.flush()
    body = counts.astype("<i8").tobytes() + crcs.tobytes() + cut.hubs.astype("<i8").tobytes()
    crc = zlib.crc32(body, zlib.crc32(head.tobytes()))
    _write_all(file, head.tobytes() + body + crc.to_bytes(4, "little"))


def check_ends(first: int, block: npt.NDArray[Any], cut: Cut) -> None:
    """Errors: ``KeyRangeError`` with the place of the first end that no row of its table is."""
    for column, what, rows in ((0, "head", cut.heads), (-1, "tail", cut.tails)):
        ends = block[:, column]
        if int(ends.min()) < 0 or int(ends.max()) >= rows:
            place = int(np.flatnonzero((ends < 0) | (ends >= rows))[0])
            raise KeyRangeError(
                f"edges: the {what} of edge {first + place} is {int(ends[place])}, but its table "
                f"has ids 0 to {rows - 1}"
            )


def _write_all(file: int, data: bytes) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(file, data[at : at + _PIECE], at)
