"""The contents of a URL: manifests by their number, and how long objects stay."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from embedrock._warnings import warn
from embedrock.errors import CorruptError, EmbedrockError, NotFoundError, UnsupportedError
from embedrock.objects.manifest import (
    BY_LENGTH,
    MANIFESTS,
    PUSHES,
    SUMMARY_BYTES,
    WAY_OUT,
    Manifest,
    Summary,
    manifest_name,
    number_of,
    summary_of,
)
from embedrock.objects.remote import Found, Remote, TakenError

__all__ = [
    "PRUNE_AGE",
    "PUSH_TIME",
    "REUSE_AGE",
    "Announced",
    "announced",
    "numbers",
    "read",
    "read_any",
    "read_summary",
    "whole_or_none",
    "whose",
]

T = TypeVar("T")

PUSH_TIME = timedelta(days=3)
"""A push that takes longer is not published."""
REUSE_AGE = timedelta(days=3)
"""Pieces that no manifest names are used again by a push that begins before they are older."""
PRUNE_AGE = timedelta(days=7)
"""Pieces that no manifest names are not removed before they are older, which is more than both
together: so none goes that a push which may still be published has counted on."""


class Announced:
    """The notes of a push or a prune about itself."""

    def __init__(self, name: str, by: str, since: datetime) -> None:
        """``since`` is the storage's clock."""
        self.name, self.by, self.since = name, by, since


def whose(path: Path | None = None) -> str:
    """This process, for people: it is named where two meet."""
    of = f" of {path}" if path is not None else ""
    return f"process {os.getpid()} on {socket.gethostname()}{of}"[:BY_LENGTH]


@contextlib.contextmanager
def announced(remote: Remote, by: str) -> Iterator[Announced]:
    """Announces work at the URL. If the process dies or fails, its announcement stays, so that the
    next push finds the pieces that it sent; pruning removes it. Announcing also reads the storage's
    clock, and proves write access."""
    name = secrets.token_hex(6)
    place = f"{PUSHES}/{name}.json"
    told = json.dumps({"by": by}).encode()
    remote.put(place, told)
    if not remote.is_folder:
        _expect_conditions(remote, place, told)
    yield Announced(name, by, remote.modified(place))
    with contextlib.suppress(EmbedrockError):
        remote.delete([place])


def _expect_conditions(remote: Remote, name: str, content: bytes) -> None:
    """Refuses a server that overwrites what is to be created: two pushes would lose one."""
    try:
        remote.create(name, content)
    except TakenError:
        return
    raise UnsupportedError(
        f"{remote.url}: the server has overwritten {name}, which was to be created only where "
        f"there is none (If-None-Match: *); a server that knows this is needed, to push and to "
        f"prune"
    )


def numbers(remote: Remote) -> list[Found]:
    """The manifests that there are, pruned ones too, by rising number."""
    found = [found for found in remote.below(MANIFESTS) if number_of(found.name) is not None]
    return sorted(found, key=lambda found: found.name)


def read_summary(remote: Remote, name: str) -> Summary:
    """Errors: ``NotFoundError``, ``CorruptError``, ``UnsupportedError``."""
    line, end, _ = bytes(remote.get(name, SUMMARY_BYTES)).partition(b"\n")
    if not end:
        raise CorruptError(
            f"{remote.url}: {name} is no manifest: its first line has no end; {WAY_OUT}"
        )
    return _numbered(summary_of(line, f"{remote.url}: {name}"), name)


def whole_or_none(read_it: Callable[[Remote, str], T], remote: Remote, name: str) -> T | None:
    """The result of reading a manifest, or None, with a warning, if that is damaged."""
    try:
        return read_it(remote, name)
    except CorruptError as error:
        warn(f"a push is left out: {error}")
        return None


def read(remote: Remote, name: str) -> Manifest:
    """Errors: ``NotFoundError``, for a pruned one too; ``CorruptError``, ``UnsupportedError``."""
    manifest = read_any(remote, name)
    if manifest.summary.pruned is not None:
        raise NotFoundError(f"{remote.url}: push {manifest.summary.number} was pruned")
    return manifest


def read_any(remote: Remote, name: str) -> Manifest:
    """As :func:`read`; one that was pruned has no files."""
    manifest = Manifest.decode(bytes(remote.get(name)), f"{remote.url}: {name}")
    _numbered(manifest.summary, name)
    return manifest


def _numbered(summary: Summary, name: str) -> Summary:
    if manifest_name(summary.number) != name:
        raise CorruptError(f"{name} is the manifest of push {summary.number} under another name")
    return summary
