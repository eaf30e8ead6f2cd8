"""Pull of a run: the stores of all ranks in a folder, which `embedrock.distributed.open` opens.

A mark lies in the folder until all are whole: it says which push is brought, and which stores are
done, so that the same call goes on. A store that is not done has a mark of its own, as every pull.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from embedrock._arguments import Progress, shown
from embedrock._durable import sync
from embedrock._ranks import buckets_in, commit_manifest_name, folders_in, manifest_content
from embedrock.errors import CorruptError, LockedError, MisuseError, NotFoundError
from embedrock.objects import history
from embedrock.objects.manifest import manifest_name
from embedrock.objects.pulling import LISTED, UNFINISHED, file_errors, pull_push, take
from embedrock.objects.remote import Remote
from embedrock.objects.runs.manifest import (
    RunManifest,
    StorePush,
    read_run,
    run_name,
    run_number,
    run_numbers,
)
from embedrock.weights.drafts import atomic

__all__ = ["pull_run"]

_MARK = "unfinished-pull"


def pull_run(
    remote: Remote,
    folder: Path,
    step: int | None,
    number: int | None,
    stores: Sequence[str] | None,
    workers: int,
    progress: Progress | None,
) -> dict[str, Any]:
    """Brings the stores of a push of a run, as :func:`embedrock.objects.pull` says."""
    manifest = _chosen(remote, step, number)
    wanted = _wanted(manifest, stores)
    received = pages = rows = 0
    # Each store is received and then verified, which counts as much again.
    total, done = 2 * sum(store.bytes for store in wanted), 0
    with _marked(folder, manifest) as mark:
        for store in wanted:
            if store.folder not in mark.done:
                told = _phases(progress, done, store.bytes, total)
                found = _pull_store(remote, folder, manifest, store, workers, told)
                received += found["received_bytes"]
                pages, rows = pages + found["pages"], rows + found["rows"]
                mark.add(store.folder)
            done += 2 * store.bytes
            if progress is not None:
                progress(done, total)
        _write_manifest(folder, manifest)
    return {
        "number": manifest.number,
        "step": manifest.step,
        "run": manifest.run,
        "ranks": manifest.world,
        "bytes": sum(store.bytes for store in wanted),
        "received_bytes": received,
        "pages": pages,
        "rows": rows,
        "stores": [store.folder for store in wanted],
    }


def _chosen(remote: Remote, step: int | None, number: int | None) -> RunManifest:
    there = run_numbers(remote)
    if not there:
        raise NotFoundError(
            f"{remote.url}: the stores of some ranks were pushed there, and never all of one "
            f"commit: push the others at the same step"
        )
    if number is not None:
        names = {run_number(found.name) or 0: found.name for found in there}
        if number not in names:
            read_them = (
                history.whole_or_none(read_run, remote, found.name) for found in there[-LISTED:]
            )
            live = [one for one in read_them if one is not None and one.pruned is None]
            said = ", ".join(f"push {one.number} of step {one.step}" for one in live) or "none"
            raise NotFoundError(
                f"{remote.url}: there is no push {number}; it has {said} (embedrock.objects.list)"
            )
        return _expect_live(remote, read_run(remote, names[number]))
    steps: list[int] = []
    for found in reversed(there):
        if step is None:
            return _expect_live(remote, read_run(remote, found.name))
        read = history.whole_or_none(read_run, remote, found.name)
        if read is None or read.pruned is not None:
            continue
        if read.step == step:
            return read
        steps.insert(0, read.step)
    raise NotFoundError(f"{remote.url} has no push of step {step}; it has steps {steps}")


def _expect_live(remote: Remote, manifest: RunManifest) -> RunManifest:
    if manifest.pruned is not None:
        raise NotFoundError(f"{remote.url}: push {manifest.number} was pruned")
    return manifest


def _wanted(manifest: RunManifest, stores: Sequence[str] | None) -> list[StorePush]:
    if stores is None:
        return list(manifest.stores)
    known = {store.folder: store for store in manifest.stores}
    unknown = [name for name in stores if name not in known]
    if unknown or not stores:
        raise MisuseError(
            f"stores is {shown(list(stores))}, expected some of {', '.join(known)}, which the run "
            f"has"
        )
    return [store for store in manifest.stores if store.folder in stores]


class _Mark:
    """The mark of a folder that is not whole: a line for the push, one for each store done."""

    def __init__(self, file: IO[bytes], path: Path, manifest: RunManifest) -> None:
        """Reads what a call that was cut off has left of the same push."""
        self._file, self._path = file, path
        head = json.dumps({"number": manifest.number, "push": manifest.push}).encode()
        lines = file.read().split(b"\n")
        self.done: set[str] = set()
        """The folders of stores that are whole, and of this push."""
        if lines[0] == head and len(lines) > 1:
            # The text after the last line end is an interrupted write.
            self.done = {line.decode() for line in lines[1:-1]}
            file.seek(sum(len(line) + 1 for line in lines[:-1]))
            file.truncate()
            return
        # Those of another push are none before this one is named.
        for store in folders_in(path.parent).values():
            (store / UNFINISHED).touch()
            sync(store)
        file.seek(0)
        file.truncate()
        self._append(head)
        sync(path.parent)

    def add(self, folder: str) -> None:
        """A store is whole."""
        with file_errors(self._path):
            self._append(folder.encode())
        self.done.add(folder)

    def _append(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@contextlib.contextmanager
def _marked(folder: Path, manifest: RunManifest) -> Iterator[_Mark]:
    """The folder, which counts as unfinished until the block ends well, and which nobody else
    fills."""
    path = folder / _MARK
    others = os.listdir(folder) if folder.is_dir() else []
    if others and _MARK not in others:
        raise MisuseError(
            f"{folder} has {', '.join(sorted(others)[:3])} already, expected a new or empty "
            f"folder, or one in which a pull of a run was cut off; pull to another place"
        )
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        take(descriptor, folder)
        if not path.exists():
            raise LockedError(f"{folder}: another pull has ended just now; its run is there")
        with file_errors(path):
            mark = _Mark(file, path, manifest)
        yield mark
        with file_errors(path):
            path.unlink()
            sync(folder)


def _pull_store(
    remote: Remote,
    folder: Path,
    manifest: RunManifest,
    store: StorePush,
    workers: int,
    told: tuple[Progress | None, Progress | None],
) -> dict[str, Any]:
    place = remote.within(store.folder)
    try:
        pushed = history.read(place, manifest_name(store.number))
        if pushed.summary.push != store.push:
            raise CorruptError(
                f"{place.url}: push {store.number} is not the one that the run's push "
                f"{manifest.number} names; pull another push (step=, or number=)"
            )
        return pull_push(place, pushed, folder / store.folder, workers, *told)
    except NotFoundError as error:
        # Says that the push of the run was pruned, if that is why.
        _expect_live(remote, read_run(remote, run_name(manifest.number)))
        raise CorruptError(
            f"{error}, which push {manifest.number} of the run needs; pull another push (step=, or "
            f"number=), and push to another URL"
        ) from error


def _phases(
    progress: Progress | None, before: int, size: int, total: int
) -> tuple[Progress | None, Progress | None]:
    """Tells the bytes of a store, and then its pages, as parts of all."""
    if progress is None:
        return None, None

    def part(start: int) -> Progress:
        return lambda done, of: progress(start + (size * done // of if of else 0), total)

    return part(before), part(before + size)


def _write_manifest(folder: Path, manifest: RunManifest) -> None:
    """That of the commit, as its ranks had it (``docs/formats/ranks.md``)."""
    runs = [buckets_in(store.folder) or (0, 0) for store in manifest.stores]
    content = manifest_content(
        manifest.run,
        manifest.step,
        manifest.token,
        [f"{first}-{last}" for first, last in runs],
        manifest.tables,
    )
    with atomic(folder / commit_manifest_name(manifest.step)) as file:
        file.write(content, 0)
