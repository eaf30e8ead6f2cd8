"""Push of a run: each store at one commit, then the manifest of the run.

Invariant: a manifest of a run names complete pushes, none older than those of the manifest before
it. So a prune, which keeps everything from the oldest kept manifest on, removes nothing that a
later one names.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from embedrock._arguments import Progress
from embedrock.errors import LockedError, MismatchError, NotFoundError
from embedrock.objects import history
from embedrock.objects.manifest import Summary, manifest_name
from embedrock.objects.pushing import PIECE_BYTES_MAX, push_commit
from embedrock.objects.remote import Remote, TakenError
from embedrock.objects.runs.facts import lacking
from embedrock.objects.runs.holding import HeldStore
from embedrock.objects.runs.manifest import (
    RunManifest,
    StorePush,
    encode,
    parts_of,
    put_part,
    read_run,
    remove_parts,
    run_name,
    run_number,
    run_numbers,
)

__all__ = ["push_run"]

_CREATES = 5


def push_run(
    path: Path,
    stores: list[HeldStore],
    remote: Remote,
    workers: int,
    piece_bytes: int | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Pushes stores of a run, held at one commit, as :func:`embedrock.objects.push` says."""
    return _RunPush(path, remote, stores, workers, piece_bytes, progress).run()


class _RunPush:
    """A push of a run under way."""

    def __init__(
        self,
        path: Path,
        remote: Remote,
        stores: list[HeldStore],
        workers: int,
        piece_bytes: int | None,
        progress: Progress | None,
    ) -> None:
        self._path, self._remote, self._stores = path, remote, stores
        self._workers, self._piece_bytes, self._progress = workers, piece_bytes, progress
        facts = stores[0].facts
        self._facts = facts
        self._commit = facts.run, facts.world, facts.step, facts.token
        self._name = secrets.token_hex(6)
        self._sent_bytes = self._sent_pieces = 0

    def run(self) -> dict[str, Any]:
        """Sends what is lacking of each store, then the manifest, if no store is lacking."""
        self._expect_place()
        newest, _ = self._newest()
        if newest is not None and newest.commit == self._commit:
            return self._told(newest, [], newest.stores)
        own = self._push_stores(newest)
        manifest, missing = self._publish()
        if manifest is None:
            return self._told(None, missing, own)
        remove_parts(self._remote, self._commit)
        return self._told(manifest, [], manifest.stores)

    def _told(
        self, manifest: RunManifest | None, missing: list[str], stores: Any
    ) -> dict[str, Any]:
        return {
            "number": None if manifest is None else manifest.number,
            "step": self._facts.step,
            "run": self._facts.run,
            "ranks": self._facts.world,
            "bytes": sum(store.bytes for store in stores),
            "sent_bytes": self._sent_bytes,
            "sent_pieces": self._sent_pieces,
            "is_new": manifest is not None and manifest.push == self._name,
            "stores": {store.folder: store.number for store in stores},
            "waiting_for": missing,
        }

    def _expect_place(self) -> None:
        if history.numbers(self._remote):
            raise MismatchError(
                f"{self._remote.url} has pushes of a single store, and {self._path} is a run of "
                f"{self._facts.world} ranks: name another URL for it"
            )
        self._remote.expect_no_store()

    def _newest(self) -> tuple[RunManifest | None, int]:
        """The newest push of a run that can be read, and the last number."""
        found = run_numbers(self._remote)
        last = (run_number(found[-1].name) or 0) if found else 0
        for one in reversed(found):
            read = history.whole_or_none(read_run, self._remote, one.name)
            if read is None:
                continue
            if (read.run, read.world) != self._commit[:2]:
                raise MismatchError(
                    f"{self._remote.url} has pushes of run {read.run!r} of {read.world} ranks, and "
                    f"{self._path} is run {self._facts.run!r} of {self._facts.world}: name another "
                    f"URL for it"
                )
            if read.pruned is None:
                # One that was killed may have made it and not its name durable.
                self._remote.settle(one.name)
                return read, last
        return None, last

    def _push_stores(self, newest: RunManifest | None) -> list[StorePush]:
        """All stores that are here, but those that a push which was cut off has sent."""
        before = parts_of(self._remote, self._commit)
        sizes = [_bytes_of(store) for store in self._stores]
        done, found = 0, []
        for store, size in zip(self._stores, sizes, strict=True):
            part = before.get(store.folder)
            if part is None or not self._is_there(part, newest):
                place = self._remote.within(store.folder, make=True)
                told = _scaled(self._progress, done, size, sum(sizes))
                pushed = push_commit(
                    store.commit, place, store.path, self._workers, self._piece_bytes, told
                )
                self._sent_bytes += pushed.sent_bytes
                self._sent_pieces += pushed.sent_pieces
                part = _part_of(store.folder, pushed.summary)
                put_part(self._remote, self._commit, part)
            done += size
            found.append(part)
            if self._progress is not None:
                self._progress(done, sum(sizes))
        return found

    def _is_there(self, part: StorePush, newest: RunManifest | None) -> bool:
        """Whether a store's push may be named by the next manifest of the run."""
        if newest is not None and part.number < newest.number_of(part.folder):
            return False
        place = self._remote.within(part.folder)
        try:
            summary = history.whole_or_none(history.read_summary, place, manifest_name(part.number))
        except NotFoundError:
            return False
        if summary is None or summary.pruned is not None:
            return False
        return (summary.push, summary.store) == (part.push, part.store)

    def _publish(self) -> tuple[RunManifest | None, list[str]]:
        """The manifest of the run, by whoever pushes the last of its stores; or the buckets that
        are lacking."""
        for _ in range(_CREATES):
            parts = parts_of(self._remote, self._commit)
            # After the parts: who makes the manifest removes them behind it.
            newest, last = self._newest()
            if newest is not None and newest.commit == self._commit:
                return newest, []
            there = [part for part in parts.values() if self._is_there(part, newest)]
            missing = lacking(part.folder for part in there)
            if missing:
                return None, missing
            manifest = RunManifest(
                number=last + 1,
                push=self._name,
                by=history.whose(self._path),
                pushed=int(time.time()),
                run=self._facts.run,
                step=self._facts.step,
                token=self._facts.token,
                world=self._facts.world,
                tables=dict(self._facts.tables),
                stores=tuple(sorted(there, key=lambda part: part.folder)),
            )
            try:
                self._remote.create(run_name(manifest.number), encode(manifest))
            except TakenError:
                continue
            return manifest, []
        raise LockedError(
            f"{self._remote.url}: others push runs to it again and again; push again, what was "
            f"sent is not sent again"
        )


def _part_of(folder: str, summary: Summary) -> StorePush:
    return StorePush(
        folder=folder,
        number=summary.number,
        push=summary.push,
        store=summary.store,
        sequence=summary.sequence,
        committed=summary.committed,
        bytes=summary.bytes,
        sent_bytes=summary.sent_bytes,
    )


def _bytes_of(store: HeldStore) -> int:
    """About what is read of it."""
    listed = store.commit.list(PIECE_BYTES_MAX)
    return max(sum(length for _, _, _, ranges, _ in listed for _, length in ranges), 1)


def _scaled(progress: Progress | None, before: int, size: int, total: int) -> Progress | None:
    """Tells how far one store is as part of all."""
    if progress is None:
        return None
    return lambda done, of: progress(before + (size * done // of if of else 0), total)
