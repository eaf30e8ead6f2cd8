"""What was pushed to a URL, and removing what only old pushes have.

Nothing is removed that a push counts on which may still be published: the newest manifest is never
pruned, a push that began with an older one is not published any more, and what no manifest names
goes only once it is older than any push that may have sent it or found it.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from embedrock._arguments import Progress, flag, function, whole
from embedrock.objects import history
from embedrock.objects.manifest import PIECES, PUSHES, Manifest, digest_of, manifest_name, number_of
from embedrock.objects.remote import Found, Remote

__all__ = ["list", "prune"]

_AT_ONCE = 1000
_NEVER = datetime.min.replace(tzinfo=timezone.utc)
_TOLD = ("number", "step", "sequence", "committed", "pushed", "by", "bytes", "sent_bytes", "store")


def list(url: Any, *, options: Mapping[str, Any] | None = None) -> builtins.list[dict[str, Any]]:
    """The pushes that a URL has, oldest first.

    Each is a dict: ``number``, ``step`` and ``sequence`` of the commit, ``committed`` and
    ``pushed`` in seconds since 1970, ``by`` whom, ``bytes`` of the commit and ``sent_bytes`` for
    it, ``store`` that it is of. ``options`` are as :func:`push` says.

    A manifest that is damaged is left out, with a ``UserWarning`` that names it.

    Errors: ``NotFoundError`` where the bucket or folder is not there, ``IoError``. Blocking: reads
    the first line of each manifest.
    """
    remote = Remote(url, options)
    there = history.numbers(remote)
    read = [history.whole_or_none(history.read_summary, remote, found.name) for found in there]
    live = [asdict(summary) for summary in read if summary is not None and summary.pruned is None]
    return [{name: summary[name] for name in _TOLD} for summary in live]


def prune(
    url: Any,
    keep: int,
    *,
    options: Mapping[str, Any] | None = None,
    alone: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Removes all pushes but the last ``keep``, and pieces that these do not name.

    Pieces go once they are seven days old, so that a push which goes on meanwhile finds what it
    counts on. ``alone=True`` says that no push goes on, and removes younger ones, too.
    ``progress(done, 0)`` is called now and then, in pieces looked at. ``options`` are as
    :func:`push` says.

    Returns a dict: ``pruned`` and ``kept`` pushes, ``removed_pieces`` and ``removed_bytes``,
    ``waiting_bytes`` of pieces that are too young, and ``missing``, the names of pieces that pushes
    which are kept have lost.

    A damaged manifest is named by ``damaged`` and a ``UserWarning``. Among those that stay it does
    not count, and no piece is removed until ``keep`` newer ones are whole; then it goes.

    Errors: ``NotFoundError``, ``IoError``. Blocking: reads the manifests that are kept, and lists
    all pieces. One that was cut off is made up for by the next.
    """
    kept_pushes = whole("keep", keep, 1)
    alone = flag("alone", alone)
    function("progress", progress, "pieces looked at and 0")
    remote = Remote(url, options)
    with history.announced(remote, f"prune by {history.whose()}") as own:
        # Before any age is looked at: a push that is published later is younger than what goes.
        now = own.since
        there = history.numbers(remote)
        kept, damaged, older = _sorted(remote, there, kept_pushes)
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
        # What a damaged one names is not known, so no piece goes before it does.
        before = _NEVER if damaged else now - old
        result = _remove(remote, named, before, progress)
        remote.delete(leftovers)
        remote.remove_staged(now - old)
    return {
        "pruned": pruned,
        "kept": len(kept),
        "damaged": [found.name for found in damaged],
        **result,
    }


def _sorted(
    remote: Remote, there: builtins.list[Found], keep: int
) -> tuple[builtins.list[Manifest], builtins.list[Found], builtins.list[Found]]:
    """The last whole manifests, damaged ones between and after these, and all before."""
    kept: builtins.list[Manifest] = []
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


def _prune(
    remote: Remote, older: builtins.list[Found], kept: builtins.list[Manifest]
) -> tuple[int, builtins.list[Found]]:
    """Prunes manifests; returns how many, and those that were pruned before.

    Their numbers stay taken: a push that began before one was made is not published.
    """
    pruned, tombs = 0, []
    for found in older:
        summary = history.whole_or_none(history.read_summary, remote, found.name)
        if summary is None:
            number = number_of(found.name) or 0
            unknown = "somebody whose manifest was damaged"
            summary = replace(kept[0].summary, number=number, push="", by=unknown)
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
    going: builtins.list[str] = []
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
