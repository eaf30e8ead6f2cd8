"""Pull: a pushed commit becomes a store in a folder, which counts as none until it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from embedrock import _core
from embedrock._arguments import Progress
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
from embedrock.store.copied import NOTE, Copied, write_note

__all__ = ["LISTED", "UNFINISHED", "chosen", "file_errors", "pull_push", "take"]

UNFINISHED, _LOCK, _HEAD = "unfinished-copy", "lock", "head"
_OF_A_STORE = re.compile(
    r"superblock|superblock\.new|head|spare|measure|pins|pins\.new|cold|cold\.new"
    r"|(journal|pin|rows|part|state|hold)-.*"
)
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
LISTED = 8
"""Of so many pushes at most an error tells, the newest."""
_TRIES = 3
"""Number of attempts to fetch a piece whose content does not match its name."""


def pull_push(
    remote: Remote,
    manifest: Manifest,
    folder: Path,
    workers: int,
    progress: Progress | None,
    verifying: Progress | None,
) -> dict[str, Any]:
    """Makes a store of a push; ``progress`` is told bytes, and ``verifying`` pages."""
    with _folder_to_fill(folder) as place:
        received = _Pull(remote, manifest, place, workers, progress).run()
        place.expect_ours()
        found = _core.finish_pull(folder, manifest.summary.sequence, verifying)
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


def chosen(
    remote: Remote, step: int | None, number: int | None, pin: str | None = None
) -> Manifest:
    """The push of a step, of the name of a pin or a number, the newest one by default."""
    if number is not None:
        with _known(remote, number):
            return _of_step(remote, history.read(remote, manifest_name(number)), step)
    there = history.numbers(remote)
    if not there:
        raise NotFoundError(f"{remote.url}: nothing was pushed there")
    steps: list[int] = []
    names: list[str] = []
    damaged: list[str] = []
    for found in reversed(there):
        if step is None and pin is None:
            return history.read(remote, found.name)
        summary = history.whole_or_none(history.read_summary, remote, found.name)
        if summary is None:
            damaged.append(found.name)
            continue
        if summary.pruned is not None:
            continue
        if summary.step == step if pin is None else summary.pin == pin:
            return history.read(remote, found.name)
        steps.insert(0, summary.step)
        if summary.pin is not None and summary.pin not in names:
            names.insert(0, summary.pin)
    also = f", and {', '.join(damaged)} damaged" if damaged else ""
    if pin is not None:
        raise NotFoundError(
            f"{remote.url} has no push of {pin!r}; it has steps {steps}, and by name "
            f"{', '.join(names) or 'none'}{also}: push --step {pin} pushes by a name"
        )
    raise NotFoundError(f"{remote.url} has no push of step {step}; it has steps {steps}{also}")


@contextlib.contextmanager
def _known(remote: Remote, number: int) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        if "pruned" in str(error):
            raise
        raise NotFoundError(
            f"{remote.url}: there is no push {number}; it has {_listed(remote)} "
            f"(embedrock.objects.list)"
        ) from error


def _listed(remote: Remote) -> str:
    """The pushes that can be pulled, by number and step."""
    read = (
        history.whole_or_none(history.read_summary, remote, found.name)
        for found in history.numbers(remote)[-LISTED:]
    )
    live = [one for one in read if one is not None and one.pruned is None]
    return ", ".join(f"push {one.number} of step {one.step}" for one in live) or "none"


def _of_step(remote: Remote, manifest: Manifest, step: int | None) -> Manifest:
    summary: Summary = manifest.summary
    if step is not None and summary.step != step:
        raise NotFoundError(
            f"{remote.url}: push {summary.number} is of step {summary.step}, not of step {step}"
        )
    return manifest


class _Place:
    """An open folder that is being filled, under the lock of the one writer of a store. Its files
    are found by its descriptor: whatever comes to its path meanwhile is not touched."""

    def __init__(self, path: Path, descriptor: int, lock: int) -> None:
        self.path, self.descriptor, self._lock = path, descriptor, lock

    def open(self, name: str, flags: int) -> int:
        """A descriptor of one of its files."""
        return os.open(name, flags, 0o644, dir_fd=self.descriptor)

    def names(self) -> list[str]:
        """The names in it."""
        return os.listdir(self.descriptor)

    def expect_ours(self) -> None:
        """The path leads to this folder, and the lock file in it is the locked one.

        Errors: ``NotFoundError`` and ``LockedError``, where somebody has moved or removed them.
        """
        own, locked = os.fstat(self.descriptor), os.fstat(self._lock)
        with file_errors(self.path):
            if not _is(own, self.path, None):
                raise NotFoundError(
                    f"{self.path} is not the folder any more that the pull has filled: that was "
                    f"moved or removed, and what is there now was not touched; pull again"
                )
            if not _is(locked, _LOCK, self.descriptor):
                raise LockedError(
                    f"{self.path / _LOCK} was removed or replaced while the pull went on, and "
                    f"somebody else may fill the folder; pull again, and never remove that file"
                )


def _is(one: os.stat_result, path: str | Path, folder: int | None) -> bool:
    try:
        other = os.stat(path, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


@contextlib.contextmanager
def _folder_to_fill(folder: Path) -> Iterator[_Place]:
    """A folder with the mark that it is no store, which nobody else fills."""
    _expect_no_store(folder)
    with contextlib.ExitStack() as opened:
        with file_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o644, dir_fd=directory)
            opened.callback(os.close, lock)
        take(lock, folder)
        # Another pull may have ended since.
        _expect_no_store(folder)
        place = _Place(folder, directory, lock)
        place.expect_ours()
        with file_errors(folder):
            os.close(place.open(UNFINISHED, flags))
            os.fsync(directory)
        yield place


def _expect_no_store(folder: Path) -> None:
    """Whether a pull may fill it: it is empty, or one was cut off there."""
    if (folder / UNFINISHED).exists():
        return
    names = set(os.listdir(folder)) - {_LOCK} if folder.is_dir() else {""}
    if any(_OF_A_STORE.fullmatch(name) for name in names):
        raise MisuseError(f"{folder} holds a store already; pull to another place")
    if names:
        _core.check_place(folder)


def take(lock: int, folder: Path) -> None:
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


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Errors of files become ours, with what to do where a disk is full."""
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


class _Target:
    """A file that is being filled. It is open from its first piece to its last."""

    def __init__(self, file: PushedFile, place: _Place, *, was_there: bool) -> None:
        self.file, self.was_there = file, was_there
        self.path, self._place = place.path / file.name, place
        self._left = len(file.pieces)
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def descriptor(self) -> int:
        """The open file."""
        with self._lock:
            if self._descriptor is None:
                with file_errors(self.path):
                    try:
                        self._descriptor = self._place.open(self.file.name, _OPEN)
                    except FileNotFoundError:
                        self._place.expect_ours()  # its folder was removed meanwhile
                        raise
            return self._descriptor

    def done(self) -> None:
        """A piece is there. After the last one the file is synced."""
        with self._lock:
            self._left -= 1
            if self._left or self._descriptor is None:
                return
            with file_errors(self.path):
                os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Closes it where it is open."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _Job(NamedTuple):
    target: _Target
    piece: Piece


class _Pull:
    """A pull under way."""

    def __init__(
        self,
        remote: Remote,
        manifest: Manifest,
        place: _Place,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._remote, self._manifest, self._place = remote, manifest, place
        self._workers, self._progress = workers, progress

    def run(self) -> int:
        """Brings all files, durably. Returns the bytes that came from the storage."""
        files = self._manifest.files
        self._remove_others({file.name for file in files})
        self._expect_room()
        received = done = 0
        total = self._manifest.summary.bytes
        targets = [self._made(file) for file in files]
        # In the order of files, so that few are open at once.
        jobs = (_Job(target, piece) for target in targets for piece in target.file.pieces)
        try:
            work = side_by_side(self._workers, jobs, self._bring, self._remote)
            # Nobody writes any more when the files are closed.
            with contextlib.closing(work):
                for job, came in work:
                    received += came
                    done += job.piece.length
                    if self._progress is not None:
                        self._progress(done, total)
        finally:
            for target in targets:
                target.close()
        self._place.expect_ours()
        self._write_note()
        with file_errors(self._place.path / _HEAD):
            head = self._place.open(_HEAD, _OPEN | os.O_CREAT | os.O_TRUNC)
            with os.fdopen(head, "wb") as file:
                file.write(bytes.fromhex(self._manifest.summary.head))
                file.flush()
                os.fsync(head)
            os.fsync(self._place.descriptor)
        return received

    def _write_note(self) -> None:
        """Writes the note that tells followers which store this is a copy of, as it was at the
        push."""
        told = self._manifest.summary.copied
        folder = self._place.path
        with file_errors(folder / NOTE), contextlib.suppress(FileNotFoundError):
            os.unlink(NOTE, dir_fd=self._place.descriptor)
        if told is not None:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                write_note(folder, Copied.of(told))

    def _remove_others(self, names: set[str]) -> None:
        """Removes what another pull, or a copy, has left here."""
        place = self._place
        place.expect_ours()
        with file_errors(place.path):
            for name in place.names():
                if _OF_A_STORE.fullmatch(name) and name not in names:
                    os.unlink(name, dir_fd=place.descriptor)

    def _expect_room(self) -> None:
        """Refuses what the disk could not hold before anything is fetched."""
        folder, place = self._place.path, self._place.descriptor
        with file_errors(folder):
            disk = os.statvfs(place)
            there = sum(os.stat(name, dir_fd=place).st_blocks * 512 for name in os.listdir(place))
        needed = sum(size for file in self._manifest.files for _, size in file.room)
        free = disk.f_bavail * disk.f_frsize + there
        if needed > free:
            raise FullError(
                f"{folder}: the commit takes {needed} bytes, and {free} are free on its "
                f"disk; make room, or pull to another disk"
            )

    def _made(self, file: PushedFile) -> _Target:
        """The file with its length and room; one without pieces is durable then."""
        with file_errors(self._place.path / file.name):
            was_there = file.name in self._place.names()
            descriptor = self._place.open(file.name, _OPEN | os.O_CREAT)
            try:
                os.ftruncate(descriptor, file.bytes)
                for offset, size in file.room:
                    os.posix_fallocate(descriptor, offset, size)
                if not file.pieces:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return _Target(file, self._place, was_there=was_there)

    def _bring(self, job: _Job) -> int:
        """Brings a piece to its place, unless it is there. Returns the bytes that came."""
        target, piece = job
        descriptor = target.descriptor()
        came = 0
        if not self._is_there(target, descriptor, piece):
            content = self._fetched(job)
            with file_errors(target.path):
                while came < piece.length:
                    came += os.pwrite(descriptor, content[came:], piece.offset + came)
        target.done()
        return came

    def _is_there(self, target: _Target, descriptor: int, piece: Piece) -> bool:
        if not target.was_there:
            return False
        with file_errors(target.path):
            return digest_of(os.pread(descriptor, piece.length, piece.offset)) == piece.digest

    def _fetched(self, job: _Job) -> memoryview:
        piece = job.piece
        where = f"{self._remote.url}: {job.target.file.name}, bytes {piece.offset} to " + str(
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
