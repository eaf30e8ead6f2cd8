"""The origin of a copy: ``copy`` records it beside the copy, for followers of its source.

A copy is a store of its own, with an id of its own and one commit. The note says which commit of
which store that is. It holds for that commit alone: one that somebody makes in the copy is no
commit of the source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from embedrock import _core
from embedrock._durable import sync
from embedrock._warnings import warn
from embedrock.commits import Commit
from embedrock.errors import UnsupportedError

if TYPE_CHECKING:
    from embedrock.store.store import Store

__all__ = ["NOTE", "Copied", "Facts", "Seen", "copied_from", "last_facts", "look_at", "write_note"]

NOTE = "copied-from"
"""The file of the note, in the directory of a copy."""
_FORMAT = 1


class Facts(NamedTuple):
    """The identity of a commit among others of its store."""

    sequence: int
    step: int
    unix_time: int
    bytes_written: int
    writer: int = 0
    """Drawn by each opening of a store: a copy of its files may have made a commit in the same
    second, as large. 0: of an earlier version."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Facts:
        """Of what the engine or JSON says. Errors: ``KeyError``, ``TypeError``, ``ValueError``."""
        numbers = [int(told[name]) for name in cls._fields if name != "writer"]
        return cls(*numbers)._replace(writer=int(told.get("writer", 0)))

    def commit(self) -> Commit:
        """As ``Store.changes`` takes it; what does not tell commits apart is empty."""
        facts = self._asdict()
        del facts["writer"]
        return Commit(meta=None, rows_flushed=0, state_bytes=0, **facts)


class Copied(NamedTuple):
    """The note of a copy."""

    store: str
    """The id of the store that was copied."""
    source: Facts
    """The commit that was copied."""
    copy: Facts
    """The commit that it is in the copy."""
    path: str
    """The path of the source."""
    buckets: str | None
    """The buckets whose keys were copied; None for all."""

    def told(self) -> dict[str, Any]:
        """As JSON holds it."""
        both = {"source": self.source._asdict(), "copy": self.copy._asdict()}
        return {**self._asdict(), **both}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Copied:
        """Of what :meth:`told` has given. Errors: ``KeyError``, ``TypeError``, ``ValueError``."""
        source, own = Facts.of(told["source"]), Facts.of(told["copy"])
        return cls(str(told["store"]), source, own, str(told["path"]), told["buckets"])


class Seen(NamedTuple):
    """A commit before it is copied."""

    store: str
    facts: Facts
    meta: str
    state_bytes: int

    def may_be(self, copied: Mapping[str, Any]) -> bool:
        """Whether the commit of a copy may be of this one."""
        told = (copied["step"], copied["meta"], copied["state_bytes"])
        return told == (self.facts.step, self.meta, self.state_bytes)


def look_at(path: Path, step: int | None, pin: str | None) -> Seen | None:
    """The commit that a copy would take; None of a store that nobody can follow.

    Errors: those of ``open``; ``NotFoundError`` for a store without commits.

    Blocking: reads the index. Memory: that of the index, until it returns.
    """
    try:
        files = _core.CommitFiles(path, step, pin)
    except UnsupportedError:  # rows on persistent memory have no versions
        return None
    try:
        told = files.commit()
        return Seen(files.uuid(), Facts.of(told), told["meta"], told["state_bytes"])
    finally:
        files.close()


def write_note(destination: Path, note: Copied) -> None:
    """Writes the note of a copy, durably. Warns where it cannot: the copy is whole all the same."""
    told = {"format": _FORMAT, **note.told()}
    draft = destination / f".{NOTE}.part"
    try:
        draft.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        sync(draft)
        os.replace(draft, destination / NOTE)
        sync(destination)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        warn(
            f"{destination} is a whole copy, and {destination / NOTE} cannot be written "
            f"({error.strerror}): no follower will take it for a copy; copy again to follow "
            f"{note.path}"
        )


def copied_from(path: Path) -> Copied | None:
    """The note of the store at a path; None where there is none that makes sense."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        told = json.loads((path / NOTE).read_text(encoding="utf-8"))
        if told["format"] == _FORMAT:
            return Copied.of(told)
    return None


def last_facts(store: Store) -> Facts | None:
    """Those of the commit that a store is at; None before its first."""
    told = store._core.last_commit()
    return None if told is None else Facts.of(told)
