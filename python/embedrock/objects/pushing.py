"""Push: a commit of a store, which may be in use, to object storage.

The commit is held while its files are read. Each piece is read once: what is sent is what was
digested. The manifest comes last, and only where there is none of its number, so a push that ends
anywhere before leaves everything as it was.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from embedrock import _core
from embedrock._arguments import (
    Progress,
)
from embedrock.errors import (
    CorruptError,
    IoError,
    LockedError,
    MismatchError,
    NotFoundError,
)
from embedrock.objects import history
from embedrock.objects.history import Announced
from embedrock.objects.manifest import (
    PATH_LENGTH,
    PIECES,
    PUSHES,
    Manifest,
    Piece,
    PushedFile,
    Summary,
    digest_of,
    files_line,
    manifest_name,
    number_of,
    piece_name,
)
from embedrock.objects.parallel import side_by_side
from embedrock.objects.remote import Remote, TakenError
from embedrock.objects.runs.manifest import of_a_run
from embedrock.store import Store
from embedrock.store.copied import Facts, copied_from

__all__ = ["PIECE_BYTES_MAX", "PIECE_BYTES_MIN", "Pushed", "hold", "push_commit"]

PIECE_BYTES_MIN, PIECE_BYTES_MAX = 256 << 10, 4 << 20
CLASS_FILES = "rows-"
"""The prefix of names of files of rows."""
_CREATES, _CREATE_SECONDS = 5, 0.3
_PIECES_OF_A_STORE = 1024
"""Approximate number of pieces of a store, within the limits of their size."""


class Pushed(NamedTuple):
    """A push that is there, and what it took."""

    summary: Summary
    is_new: bool
    sent_bytes: int
    sent_pieces: int

    def told(self) -> dict[str, Any]:
        """As :func:`embedrock.objects.push` returns it."""
        return {
            "number": self.summary.number,
            "step": self.summary.step,
            "sequence": self.summary.sequence,
            "bytes": self.summary.bytes,
            "sent_bytes": self.sent_bytes,
            "sent_pieces": self.sent_pieces,
            "is_new": self.is_new,
        }


def push_commit(
    held: _core.CommitFiles,
    remote: Remote,
    path: Path,
    workers: int,
    piece_bytes: int | None,
    progress: Progress | None,
    pin: str | None = None,
) -> Pushed:
    """Sends what the storage lacks of a commit that is held, of the store at a path.

    ``pin`` is the name that the commit was asked for by, which the push has, too.
    """
    remote.expect_no_store()
    with history.announced(remote, history.whose(path)) as own:
        return _Push(
            held, remote, own, workers, piece_bytes, progress, pin, _note_of(path, held)
        ).run()


def hold(
    store: Store | Path, step: int | None, pin: str | None, cold: Path | None
) -> _core.CommitFiles:
    """The commit that is meant: of a reader, its own."""
    path = store.path if isinstance(store, Store) else store
    if not isinstance(store, Store) or not store.read_only or (step, pin) != (None, None):
        return _core.CommitFiles(path, step, pin, cold)
    own = store._core.last_commit()
    if own is None:
        return _core.CommitFiles(path, step, pin, cold)
    # A step may have been committed again; a name has one commit.
    pins = [one["name"] for one in store._core.pins() if one["sequence"] == own["sequence"]]
    gone = (
        f"{path}: the reader is at commit {own['sequence']} of step {own['step']}, which nothing "
        f"but the reader keeps: pin a commit when it is made (commit(…, pin=)) to push it later, "
        f"or push the last one (by the store's path)"
    )
    name = pins[0] if pins else None
    try:
        held = _core.CommitFiles(path, None if pins else own["step"], name, cold)
    except NotFoundError as error:
        raise NotFoundError(gone) from error
    if held.commit()["sequence"] != own["sequence"]:
        held.close()
        raise NotFoundError(f"{gone}; the commit of that step is another one now")
    return held


class _Job(NamedTuple):
    """A piece that is to be sent, if need be: of which file, and where it goes."""

    file: int
    path: str
    offset: int
    length: int


class _Push:
    """A push under way."""

    def __init__(
        self,
        held: _core.CommitFiles,
        remote: Remote,
        own: Announced,
        workers: int,
        piece_bytes: int | None,
        progress: Progress | None,
        pin: str | None,
        copied: dict[str, Any] | None,
    ) -> None:
        self._pin, self._copied = pin, copied
        self._held, self._remote, self._own = held, remote, own
        self._workers, self._size, self._progress = workers, piece_bytes, progress
        self._commit: dict[str, Any] = held.commit()
        self._uuid = held.uuid()
        self._began = _now()
        self._known: dict[str, str] = {}
        """The push that sent each piece that may be counted on, by digest."""
        self._known_lock = threading.Lock()
        """Guards what is known and sent. Nothing is asked of the storage under it."""
        self._unproven: set[str] = set()
        """Digests whose pieces a push has left that was cut off: in a folder they may be torn."""
        self._sent_bytes = self._sent_pieces = 0
        self._number = 0
        """The number of the last push."""

    def run(self) -> Pushed:
        """Sends what is lacking, then the manifest."""
        newest = self._find_newest()
        # Beside one that is damaged a prune may take what older ones name.
        if newest is not None and newest.summary.number == self._number:
            self._known = {piece.digest: piece.push for piece in newest.pieces()}
        self._find_left()
        size = self._size_of_pieces(newest)
        listed = self._held.list(size)
        files = self._files(listed, size)
        head = self._held.head().hex()
        # All of it was read by now.
        self._held.expect()
        if newest is not None and self._is_same(newest, files):
            return Pushed(newest.summary, False, self._sent_bytes, self._sent_pieces)
        if _now() - self._began > history.PUSH_TIME.total_seconds():
            raise IoError(
                f"{self._remote.url}: the push took more than {history.PUSH_TIME}, so what it "
                f"counted on may have been pruned; push again: what was sent is not sent again"
            )
        summary = Summary(
            number=self._number + 1,
            store=self._uuid,
            push=self._own.name,
            by=self._own.by,
            pushed=int(time.time()),
            step=self._commit["step"],
            sequence=self._commit["sequence"],
            committed=self._commit["unix_time"],
            piece_bytes=size,
            bytes=sum(piece.length for file in files for piece in file.pieces),
            sent_bytes=self._sent_bytes,
            head=head,
            files=digest_of(files_line(files)),
            pin=self._pin,
            copied=self._copied,
        )
        self._publish(Manifest(summary, files))
        return Pushed(summary, True, self._sent_bytes, self._sent_pieces)

    def _find_newest(self) -> Manifest | None:
        """The newest push that can be read, if there is one; those after it are damaged."""
        found = history.numbers(self._remote)
        if not found and of_a_run(self._remote):
            raise MismatchError(
                f"{self._remote.url} has pushes of a run of ranks, and this is a single store: "
                f"name another URL for it, or push the folder of the run"
            )
        is_ours = not found
        for one in reversed(found):
            read = history.whole_or_none(history.read_any, self._remote, one.name)
            if read is None:
                continue
            summary = read.summary
            if summary.store != self._uuid:
                raise MismatchError(
                    f"{self._remote.url} has pushes of store {summary.store} (the last one by "
                    f"{summary.by}), and this is store {self._uuid}: name another URL for it"
                )
            is_ours = True
            if summary.pruned is None:
                # One that was killed may have made it and not its name durable.
                self._remote.settle(one.name)
                break
        else:
            read = None
        if not is_ours:
            raise CorruptError(
                f"{self._remote.url}: all of its {len(found)} manifests are damaged, so nothing "
                f"tells which store it is of; push to another URL"
            )
        self._number = number_of(found[-1].name) or 0 if found else 0
        return read

    def _find_left(self) -> None:
        """Finds young pieces of pushes that were interrupted or still run, to use them."""
        others = {
            found.name.removeprefix(f"{PUSHES}/").removesuffix(".json")
            for found in self._remote.below(PUSHES)
            if self._own.since - found.modified < history.REUSE_AGE + history.PUSH_TIME
        }
        others.discard(self._own.name)
        if not others:
            return
        for found in self._remote.below(PIECES):
            digest, _, push = found.name.rpartition("/")[2].partition(".")
            young = self._own.since - found.modified < history.REUSE_AGE
            if push in others and young and digest not in self._known:
                self._known[digest] = push
                self._unproven.add(digest)

    def _size_of_pieces(self, newest: Manifest | None) -> int:
        """That of the pushes before, or nothing would be the same."""
        before = newest.summary.piece_bytes if newest is not None else None
        if before is not None and self._size not in (None, before):
            raise MismatchError(
                f"{self._remote.url} has pieces of {before} bytes, and piece_bytes is "
                f"{self._size}; leave it out"
            )
        size = before or self._size
        if size is None:
            wanted = max(self._held.rows_bytes() // _PIECES_OF_A_STORE, 1)
            size = 1 << (wanted - 1).bit_length()
        return min(max(size, PIECE_BYTES_MIN), PIECE_BYTES_MAX)

    def _files(self, listed: list[Any], size: int) -> list[PushedFile]:
        """The files of the commit, once all their pieces are there."""
        jobs = list(_jobs(listed, size))
        total = sum(job.length for job in jobs)
        pieces: list[list[Piece]] = [[] for _ in listed]
        done = 0
        self._report(0, total)
        work = side_by_side(self._workers, jobs, self._piece, self._remote)
        with contextlib.closing(work):
            for job, piece in work:
                pieces[job.file].append(piece)
                done += job.length
                self._report(done, total)
        return [
            PushedFile(name, length, room, sorted(of))
            for (name, _, length, _, room), of in zip(listed, pieces, strict=True)
        ]

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _piece(self, job: _Job) -> Piece:
        """Reads a piece, and sends it unless it is there."""
        content = self._read(job)
        digest = digest_of(content)
        with self._known_lock:
            push = self._known.get(digest)
            doubtful = push is not None and digest in self._unproven
        if push is not None and doubtful and not self._is_whole(piece_name(digest, push), digest):
            push = None
        if push is None:
            push = self._own.name
            self._remote.put(piece_name(digest, push), content)
            with self._known_lock:
                self._sent_bytes += job.length
                self._sent_pieces += 1
        with self._known_lock:
            self._known[digest] = push
            self._unproven.discard(digest)
        return Piece(job.offset, job.length, digest, push)

    def _is_whole(self, name: str, digest: str) -> bool:
        """Whether a piece is what its name says, and durable. Object storage has no others."""
        if not self._remote.is_folder:
            return True
        try:
            if digest_of(self._remote.get(name)) != digest:
                return False
            self._remote.settle(name)
            return True
        except NotFoundError:
            return False

    def _read(self, job: _Job) -> bytes:
        """A piece, in memory of its own: a storage may keep what it was given."""
        try:
            descriptor = os.open(job.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            self._held.expect()
            raise CorruptError(f"{job.path} is missing; restore it from a copy") from error
        except OSError as error:
            raise IoError(f"{job.path}: {error.strerror}") from error
        try:
            content = os.pread(descriptor, job.length, job.offset)
            while len(content) < job.length:
                end = job.offset + len(content)
                more = os.pread(descriptor, job.length - len(content), end)
                if not more:
                    self._held.expect()
                    raise CorruptError(
                        f"{job.path} ends at byte {end}, expected {job.length} bytes at "
                        f"{job.offset}; restore it from a copy"
                    )
                content += more
        except OSError as error:
            if isinstance(error, IoError):
                raise
            raise IoError(f"{job.path}, at byte {job.offset}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        return content

    def _is_same(self, newest: Manifest, files: list[PushedFile]) -> bool:
        """Whether the newest push has this very commit."""

        # In blocks of rows what the commit does not need may have changed since.
        def seen(of: list[PushedFile]) -> list[Any]:
            told = [f for f in of if not f.name.startswith(CLASS_FILES)]
            return [(f.name, f.bytes, [piece[:3] for piece in f.pieces]) for f in told]

        of = newest.summary
        is_last = of.number == self._number and of.sequence == self._commit["sequence"]
        has_notes = self._pin in (None, of.pin) and self._copied in (None, of.copied)
        return is_last and has_notes and seen(newest.files) == seen(files)

    def _publish(self, manifest: Manifest) -> None:
        number = manifest.summary.number
        name = manifest_name(number)
        for left in reversed(range(_CREATES)):
            try:
                self._remote.create(name, manifest.encode())
                return
            except TakenError as error:
                try:
                    other = history.read_summary(self._remote, name)
                except NotFoundError:
                    # A storage may refuse one for another that then fails.
                    if not left:
                        raise
                    time.sleep(_CREATE_SECONDS)
                    continue
                # An answer was lost, and the request repeated.
                if other.push == manifest.summary.push:
                    return
                raise LockedError(
                    f"{self._remote.url}: push {number}, of step {other.step}, was made meanwhile "
                    f"by {other.by}; that one counts, and this one of step "
                    f"{manifest.summary.step} does not: push again, what was sent is not sent "
                    f"again"
                ) from error


def _note_of(path: Path, held: _core.CommitFiles) -> dict[str, Any] | None:
    """The note beside a store that names the commit of another store which this commit equals."""
    note = copied_from(path)
    if note is None or note.copy != Facts.of(held.commit()):
        return None
    return note._replace(path=note.path[-PATH_LENGTH:]).told()


def _now() -> float:
    """Seconds, also of those that the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _jobs(listed: list[Any], size: int) -> Iterator[_Job]:
    """The pieces of all files: at multiples of their size, so that what stays has the same."""
    for at, (_, path, _, ranges, _) in enumerate(listed):
        for offset, length in ranges:
            end = offset + length
            while offset < end:
                until = min(end, (offset // size + 1) * size)
                yield _Job(at, str(path), offset, until - offset)
                offset = until
