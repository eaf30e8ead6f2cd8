"""A rank's store and its run, as known by its folder and by a held commit.

``docs/formats/ranks.md`` has the format. ``embedrock.distributed`` reads the same, with PyTorch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedrock import _core
from embedrock._ranks import BUCKETS, buckets_in, folder_name
from embedrock.errors import CorruptError, MismatchError, UnsupportedError

__all__ = ["Facts", "facts_of", "lacking"]

_FORMAT = 1
_BEGINS = b'{"format":'
_TAIL_BYTES = 4 << 20
"""Far more than a binding has: about 60 bytes for each table."""
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Facts:
    """The binding of a commit to its run."""

    run: str
    world: int
    first: int
    last: int
    tables: Mapping[str, str]
    token: str
    step: int
    is_initial: bool

    @property
    def folder(self) -> str:
        """The name of its store's folder."""
        return folder_name(self.first, self.last)


def lacking(folders: Iterable[str]) -> list[str]:
    """The buckets, such as ``"512-1023"``, that none of these stores has.

    Errors: ``MismatchError`` where two stores have the same.
    """
    missing, behind, before = [], 0, ""
    for folder in sorted(folders):
        first, last = buckets_in(folder) or (0, -1)
        if first < behind:
            raise MismatchError(f"{before} and {folder} have buckets in common: keep one of them")
        if first > behind:
            missing.append(f"{behind}-{first - 1}")
        behind, before = last + 1, folder
    return [*missing, f"{behind}-{BUCKETS - 1}"] if behind < BUCKETS else missing


def facts_of(held: _core.CommitFiles, path: Path) -> Facts:
    """The run of a held commit, from the last byte string of its state.

    Errors: ``MismatchError`` where it says nothing, or the folder has another name;
    ``UnsupportedError`` for a later version; ``CorruptError``, ``CommitGoneError``.
    """
    step = held.commit()["step"]
    tails = [
        _tail(Path(place), length)
        for name, place, length, *_ in held.list(_BLOCK_BYTES)
        if name.startswith("state-")
    ]
    held.expect()
    begins = tails[0].rfind(_BEGINS) if tails else -1
    if begins < 0:
        raise MismatchError(
            f"{path}: its commit of step {step} does not say which buckets it has, as those of "
            f"ranks do; it was made by itself: push it by its own path, to a URL of its own"
        )
    try:
        told = json.loads(tails[0][begins:])
        if told["format"] != _FORMAT:
            raise UnsupportedError(
                f"{path} has a commit of ranks in format {told['format']}, this build reads "
                f"{_FORMAT}; use a newer embedrock"
            )
        facts = Facts(
            run=str(told["run"]),
            world=int(told["world"]),
            first=int(told["buckets"]["first"]),
            last=int(told["buckets"]["last"]),
            tables={str(name): str(digest) for name, digest in told["tables"].items()},
            token=str(told["token"]),
            step=int(told["step"]),
            is_initial=bool(told.get("initial", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{path}: what its commit says of its ranks makes no sense ({error})"
        ) from error
    if facts.folder != path.name:
        raise MismatchError(
            f"{path} has the buckets {facts.first}-{facts.last} by its commit; give the folder its "
            f"name back, {facts.folder}"
        )
    return facts


def _tail(path: Path, length: int) -> bytes:
    """The end of a file of this length. Errors: ``IoError``."""
    with path.open("rb") as file:
        return os.pread(file.fileno(), _TAIL_BYTES, max(length - _TAIL_BYTES, 0))
