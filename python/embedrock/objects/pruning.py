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
from datetime import timedelta
from typing import Any

from embedrock._arguments import Progress, flag, function, whole
from embedrock.objects import history
from embedrock.objects.manifest import PIECES, PUSHES, digest_of
from embedrock.objects.remote import Remote

__all__ = ["list", "prune"]

_AT_ONCE = 1000
_TOLD = ("number", "step", "sequence", "committed", "pushed", "by", "bytes", "sent_bytes", "store")


def list(url: Any, *, options: Mapping[str, Any] | None = None) -> builtins.list[dict[str, Any]]:
    """The pushes that a URL has, oldest first.

    Each is a dict: ``number``, ``step`` and ``sequence`` of the commit, ``committed`` and
    ``pushed`` in seconds since 1970, ``by`` whom, ``bytes`` of the commit and ``sent_bytes`` for
    it, ``store`` that it is of. ``options`` are as :func:`push` says.

    Errors: ``NotFoundError`` where the bucket or folder is not there, ``CorruptError`` naming a
    manifest that is damaged, ``IoError``. Blocking: reads the first line of each manifest.
    """
    remote = Remote(url, options)
    summaries = [history.read_summary(remote, found.name) for found in history.numbers(remote)]
    live = [asdict(summary) for summary in summaries if summary.pruned is None]
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

    Errors: ``NotFoundError``, ``CorruptError`` naming a manifest that is damaged (nothing is
    removed), ``IoError``. Blocking: reads the manifests that are kept, and lists all pieces. One
    that was cut off is made up for by the next.
    """
    kept_pushes = whole("keep", keep, 1)
    alone = flag("alone", alone)
    function("progress", progress, "pieces looked at and 0")
    remote = Remote(url, options)
    with history.announced(remote, f"prune by {history.whose()}") as own:
        # Before any age is looked at: a push that is published later is younger than what goes.
        now = own.since
        there = history.numbers(remote)
        summaries = [(found, history.read_summary(remote, found.name)) for found in there]
        live = [(found, summary) for found, summary in summaries if summary.pruned is None]
        named: set[str] = set()
        for found, _ in live[-kept_pushes:]:
            named.update(piece.name for piece in history.read(remote, found.name).pieces())
        for found, summary in live[:-kept_pushes]:
            # Its number stays taken: a push that began before it was made is not published.
            gone = replace(summary, pruned=int(time.time()), files=digest_of(b""))
            remote.put(found.name, gone.encode())
        old = timedelta(0) if alone else history.PRUNE_AGE
        leftovers = [
            found.name
            for found, summary in summaries[:-1]
            if summary.pruned is not None and now - found.modified >= history.PRUNE_AGE
        ]
        leftovers += [
            found.name
            for found in remote.below(PUSHES)
            if now - found.modified >= old and own.name not in found.name
        ]
        result = _remove(remote, named, now - old, progress)
        remote.delete(leftovers)
    return {
        "pruned": len(live[:-kept_pushes]),
        "kept": len(live[-kept_pushes:]),
        **result,
    }


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
