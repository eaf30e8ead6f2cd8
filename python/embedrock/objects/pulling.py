"""Pull: a pushed commit becomes a store in a folder, which counts as none until it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from embedrock import _core
from embedrock._arguments import Progress, function, named_path, whole, whole_or_none
from embedrock.errors import (
    CorruptError,
    FullError,
    IoError,
    LockedError,
    MisuseError,
    NotFoundError,
)
from embedrock.objects import history
from embedrock.objects.manifest import (
    Manifest,
    Piece,
    PushedFile,
    Summary,
    digest_of,
    manifest_name,
)
from embedrock.objects.parallel import side_by_side
from embedrock.objects.remote import Remote

__all__ = ["pull"]

_UNFINISHED, _LOCK, _HEAD = "unfinished-copy", "lock", "head"
_OF_A_STORE = re.compile(
    r"superblock|superblock\.new|head|spare|measure|pins|pins\.new|cold|cold\.new"
    r"|(journal|pin|rows|part|state|hold)-.*"
)
_TRIES = 3
"""How often a piece is fetched that is not what its name says."""


def pull(
    url: Any,
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    number: int | None = None,
    options: Mapping[str, Any] | None = None,
    in_flight: int = 8,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Makes a store of a commit that was pushed, the newest one by default.

    Args:
        url: Where it was pushed to, as :func:`push` says.
        path: A folder that is empty or not there; or one in which a pull was cut off, which then
            goes on.
        step: The step of the commit; of several pushes of one step, the last.
        number: The number of the push.
        options: As :func:`push` says.
        in_flight: Pieces received at once.
        progress: Called as ``progress(done, total)``, in bytes of the commit, and then in pages
            that are verified.

    Returns a dict: ``number``, ``step`` and ``sequence``, ``bytes`` of the commit,
    ``received_bytes``, and ``pages`` and ``rows`` that were verified.

    The store has this commit alone, with the rows, states and counts that it was pushed with. All
    of it lies in ``path``; opened with ``cold_directory=`` it begins one.

    Errors: ``NotFoundError`` for a push that is not there, or was pruned; ``MisuseError`` where the
    folder has other files, or a store; ``CorruptError`` naming the file and the piece that is
    missing or is not what was pushed; ``FullError``, ``LockedError``, ``IoError``. Until it
    returns the folder is no store: ``open`` refuses it.

    Blocking: writes, syncs and reads all of the commit. *Memory*: its index, and ``in_flight``
    pieces. Durability: when it returns.
    """
    wanted = whole_or_none("step", step, 0), whole_or_none("number", number, 1)
    workers = whole("in_flight", in_flight, 1)
    function("progress", progress, "done and in all")
    folder = named_path("path", path)
    remote = Remote(url, options)
    manifest = _chosen(remote, *wanted)
    with _folder_to_fill(folder):
        received = _Pull(remote, manifest, folder, workers, progress).run()
        found = _core.finish_pull(folder, manifest.summary.sequence, progress)
    summary = manifest.summary
    return {
        "number": summary.number,
        "step": summary.step,
        "sequence": summary.sequence,
        "bytes": summary.bytes,
        "received_bytes": received,
        "pages": found["pages"],
        "rows": found["rows"],
    }


def _chosen(remote: Remote, step: int | None, number: int | None) -> Manifest:
    if number is not None:
        with _known(remote, f"push {number}"):
            return _of_step(remote, history.read(remote, manifest_name(number)), step)
    there = history.numbers(remote)
    if not there:
        raise NotFoundError(f"{remote.url}: nothing was pushed there")
    steps: list[int] = []
    for found in reversed(there):
        if step is None:
            return history.read(remote, found.name)
        summary = history.read_summary(remote, found.name)
        if summary.pruned is None and summary.step == step:
            return history.read(remote, found.name)
        if summary.pruned is None:
            steps.insert(0, summary.step)
    raise NotFoundError(f"{remote.url} has no push of step {step}; it has steps {steps}")


@contextlib.contextmanager
def _known(remote: Remote, what: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        if "pruned" in str(error):
            raise
        raise NotFoundError(
            f"{remote.url}: there is no {what}; embedrock.objects.list tells which there are"
        ) from error


def _of_step(remote: Remote, manifest: Manifest, step: int | None) -> Manifest:
    summary: Summary = manifest.summary
    if step is not None and summary.step != step:
        raise NotFoundError(
            f"{remote.url}: push {summary.number} is of step {summary.step}, not of step {step}"
        )
    return manifest


@contextlib.contextmanager
def _folder_to_fill(folder: Path) -> Iterator[None]:
    """A folder with the mark that it is no store, which nobody else fills."""
    if not (folder / _UNFINISHED).exists():
        _core.check_place(folder)
        if folder.is_dir() and any(_OF_A_STORE.fullmatch(name) for name in os.listdir(folder)):
            raise MisuseError(f"{folder} holds a store already; pull to another place")
    with _file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(lock, folder)
        with _file_errors(folder):
            (folder / _UNFINISHED).touch()
            _sync(folder)
        yield
    finally:
        os.close(lock)


def _take(lock: int, folder: Path) -> None:
    """The lock of the one writer of a store, of a kind that the engine sees."""
    # struct flock: type, whence, start, length, process.
    whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, whole_file)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise LockedError(
                f"{folder}: somebody copies or pulls to it; wait until it is done"
            ) from error
        raise IoError(f"{folder / _LOCK} cannot be locked: {error.strerror}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, IoError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FullError(
                f"{path}: no room is left on its disk; make room and pull again to the same place: "
                f"what is there is kept"
            ) from error
        raise IoError(f"{path}: {error.strerror or error}") from error


class _Job(NamedTuple):
    file: PushedFile
    descriptor: int
    was_there: bool
    piece: Piece


class _Pull:
    """A pull under way."""

    def __init__(
        self,
        remote: Remote,
        manifest: Manifest,
        folder: Path,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._remote, self._manifest, self._folder = remote, manifest, folder
        self._workers, self._progress = workers, progress

    def run(self) -> int:
        """Brings all files, durably. Returns the bytes that came from the storage."""
        files = self._manifest.files
        self._remove_others({file.name for file in files})
        self._expect_room()
        descriptors: list[int] = []
        received = done = 0
        total = self._manifest.summary.bytes
        try:
            jobs: list[_Job] = []
            for file in files:
                descriptor, was_there = self._made(file)
                descriptors.append(descriptor)
                jobs.extend(_Job(file, descriptor, was_there, piece) for piece in file.pieces)
            for job, came in side_by_side(self._workers, jobs, self._bring, "embedrock-pull"):
                received += came
                done += job.piece.length
                if self._progress is not None:
                    self._progress(done, total)
            for file, descriptor in zip(files, descriptors, strict=True):
                with _file_errors(self._folder / file.name):
                    os.fsync(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with _file_errors(self._folder / _HEAD):
            (self._folder / _HEAD).write_bytes(bytes.fromhex(self._manifest.summary.head))
            _sync(self._folder / _HEAD)
            _sync(self._folder)
        return received

    def _remove_others(self, names: set[str]) -> None:
        """What another pull, or a copy, has left here."""
        with _file_errors(self._folder):
            for name in os.listdir(self._folder):
                if _OF_A_STORE.fullmatch(name) and name not in names:
                    os.unlink(self._folder / name)

    def _expect_room(self) -> None:
        """Refuses what the disk could not hold before anything is fetched."""
        with _file_errors(self._folder):
            disk = os.statvfs(self._folder)
            there = sum(
                os.stat(self._folder / name).st_blocks * 512 for name in os.listdir(self._folder)
            )
        needed = sum(size for file in self._manifest.files for _, size in file.room)
        free = disk.f_bavail * disk.f_frsize + there
        if needed > free:
            raise FullError(
                f"{self._folder}: the commit takes {needed} bytes, and {free} are free on its "
                f"disk; make room, or pull to another disk"
            )

    def _made(self, file: PushedFile) -> tuple[int, bool]:
        """The file with its length and room, and whether it was there."""
        path = self._folder / file.name
        with _file_errors(path):
            was_there = path.exists()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o644)
            try:
                os.ftruncate(descriptor, file.bytes)
                for offset, size in file.room:
                    os.posix_fallocate(descriptor, offset, size)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor, was_there

    def _bring(self, job: _Job) -> int:
        """Brings a piece to its place, unless it is there. Returns the bytes that came."""
        descriptor, piece = job.descriptor, job.piece
        path = self._folder / job.file.name
        if job.was_there:
            with _file_errors(path):
                there = os.pread(descriptor, piece.length, piece.offset)
            if digest_of(there) == piece.digest:
                return 0
        content = self._fetched(job)
        with _file_errors(path):
            written = 0
            while written < piece.length:
                written += os.pwrite(descriptor, content[written:], piece.offset + written)
        return piece.length

    def _fetched(self, job: _Job) -> memoryview:
        piece = job.piece
        where = f"{self._remote.url}: {job.file.name}, bytes {piece.offset} to " + str(
            piece.offset + piece.length
        )
        for _ in range(_TRIES):
            try:
                content = memoryview(self._remote.get(piece.name))
            except NotFoundError as error:
                # Says that it was pruned, if that is why.
                history.read(self._remote, manifest_name(self._manifest.summary.number))
                raise CorruptError(f"{where}: {piece.name} is missing there; {_OTHER}") from error
            if len(content) == piece.length and digest_of(content) == piece.digest:
                return content
        raise CorruptError(f"{where}: {piece.name} is not what was pushed; {_OTHER}")


_OTHER = "pull another push (step=, or number=), and push to another URL"
