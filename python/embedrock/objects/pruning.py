"""The pushes of a URL, and removing what only old pushes have.

Nothing is removed that a push counts on which may still be published: the newest manifest is never
pruned, a push that began with an older one is not published any more, and what no manifest names
goes only once it is older than any push that may have sent it or found it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from embedrock._arguments import Progress
from embedrock.objects import history
from embedrock.objects.manifest import (
    MANIFESTS,
    PIECES,
    PUSHES,
    Manifest,
    digest_of,
    manifest_name,
    number_of,
)
from embedrock.objects.remote import Found, Remote

__all__ = ["list_pushes", "prune_store"]

_AT_ONCE = 1000
_NEVER = datetime.min.replace(tzinfo=timezone.utc)
_TOLD = (
    *("number", "step", "sequence", "committed", "pushed", "by", "bytes", "sent_bytes", "store"),
    "pin",
)


def list_pushes(remote: Remote) -> list[dict[str, Any]]:
    """As :func:`embedrock.objects.list` says, of one store."""
    there = history.numbers(remote)
    read = [history.whole_or_none(history.read_summary, remote, found.name) for found in there]
    live = [asdict(summary) for summary in read if summary is not None and summary.pruned is None]
    return [{name: summary[name] for name in _TOLD} for summary in live]


def prune_store(
    remote: Remote, keep: int, alone: bool, progress: Progress | None, *, oldest: int | None = None
) -> dict[str, Any]:
    """As :func:`embedrock.objects.prune` says, of one store.

    ``oldest`` is the number of a push that is kept with all after it, in place of ``keep``.
    """
    with history.announced(remote, f"prune by {history.whose()}") as own:
        # Before any age is looked at: a push that is published later is younger than what goes.
        now = own.since
        there = history.numbers(remote)
        if oldest is None:
            kept, damaged, older = _sorted(remote, there, keep)
        else:
            recent = [found for found in there if (number_of(found.name) or 0) >= oldest]
            kept, damaged, _ = _sorted(remote, recent, len(recent))
            older = there[: len(there) - len(recent)] if kept else []
        for manifest in kept:
            # One whose push was killed may not be durable, and others go for it.
            remote.settle(manifest_name(manifest.summary.number))
        named = {piece.name for manifest in kept for piece in manifest.pieces()}
        pruned, tombs = _prune(remote, older, kept)
        old = timedelta(0) if alone else history.PRUNE_AGE
        leftovers = [found.name for found in tombs if now - found.modified >= history.PRUNE_AGE]
        leftovers += [
            found.name
            for found in remote.below(PUSHES)
            if now - found.modified >= old and own.name not in found.name
        ]
        # Pieces named by a damaged manifest are unknown, so no piece is removed before it is.
        before = _NEVER if damaged else now - old
        result = _remove(remote, named, before, progress)
        remote.delete(leftovers)
        remote.remove_staged((MANIFESTS, PIECES, PUSHES), now - old)
    return {
        "pruned": pruned,
        "kept": len(kept),
        "damaged": [found.name for found in damaged],
        **result,
    }


def _sorted(
    remote: Remote, there: list[Found], keep: int
) -> tuple[list[Manifest], list[Found], list[Found]]:
    """The last whole manifests, damaged ones between and after these, and all before."""
    kept: list[Manifest] = []
    damaged = []
    at = len(there)
    while at and len(kept) < keep:
        at -= 1
        manifest = history.whole_or_none(history.read_any, remote, there[at].name)
        if manifest is None:
            damaged.append(there[at])
        elif manifest.summary.pruned is None:
            kept.append(manifest)
    return kept, damaged, there[:at]


def _prune(remote: Remote, older: list[Found], kept: list[Manifest]) -> tuple[int, list[Found]]:
    """Prunes manifests; returns how many, and those that were pruned before.

    Their numbers stay taken: a push that began before one was made is not published.
    """
    pruned, tombs = 0, []
    for found in older:
        summary = history.whole_or_none(history.read_summary, remote, found.name)
        if summary is None:
            number = number_of(found.name) or 0
            unknown = "somebody whose manifest was damaged"
            summary = replace(kept[0].summary, number=number, push="", by=unknown, pin=None)
        elif summary.pruned is not None:
            tombs.append(found)
            continue
        gone = replace(summary, pruned=int(time.time()), files=digest_of(b""))
        remote.replace(found.name, gone.encode())
        pruned += 1
    return pruned, tombs


def _remove(
    remote: Remote, named: set[str], before: Any, progress: Progress | None
) -> dict[str, Any]:
    """Removes pieces that are not named and were written before a time."""
    removed = removed_bytes = waiting_bytes = seen = 0
    missing = set(named)
    going: list[str] = []
    for found in remote.below(PIECES):
        seen += 1
        missing.discard(found.name)
        if progress is not None and seen % _AT_ONCE == 0:
            progress(seen, 0)
        if found.name in named:
            continue
        if found.modified > before:
            waiting_bytes += found.bytes
            continue
        going.append(found.name)
        removed, removed_bytes = removed + 1, removed_bytes + found.bytes
        if len(going) == _AT_ONCE:
            remote.delete(going)
            going = []
    remote.delete(going)
    return {
        "removed_pieces": removed,
        "removed_bytes": removed_bytes,
        "waiting_bytes": waiting_bytes,
        "missing": sorted(missing),
    }
