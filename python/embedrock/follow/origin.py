"""Of which commit of which store the last commit of a copy is one.

Three things tell it. ``embedrock.copy`` notes it beside the copy, each commit of a
:class:`~embedrock.follow.StoreFollower` says it in its byte string ``source``, and a store that was
pulled, or whose folder was copied, has the id and the commits of its source. The first two hold for
one commit of the copy alone, so one that others have made is found out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from embedrock.errors import MismatchError, MisuseError
from embedrock.store import Store
from embedrock.store.copied import Copied, Facts, copied_from, last_facts

__all__ = ["SOURCE", "Origin", "origin_of", "told_of"]

SOURCE = "source"
"""Name of the byte string that a commit of a copy has its position in."""
_VERSION = 1
_WAY_OUT = "make a copy (embedrock copy {source} NEW), and follow with that one"


class _Position(NamedTuple):
    """The contents of a commit that a follower has made."""

    store: str
    facts: Facts
    by: tuple[str, int] | None
    """Id and commit number of the copy that the follower has made it in. None: an earlier version
    of this package has not said it."""


class Origin(NamedTuple):
    """The known facts of the last commit of a copy."""

    own: Facts | None
    """It itself; None before the first."""
    commits: Mapping[str, Facts]
    """The commits that it is, by the ids of their stores."""
    note: Copied | None
    followed: str | None
    """The id of the store that a follower has followed last, as far as it is known."""

    def commit_of(self, source: Store, copy: Store) -> Facts | None:
        """The commit of ``source`` that it is; None where the copy has no commit, and takes all.

        Errors: ``MismatchError`` for a copy of another store, of none, or of some buckets;
        ``MisuseError`` for a commit that others have made.
        """
        if self.own is None:
            return None
        way_out = _WAY_OUT.format(source=source.path)
        found = self.commits.get(source.id)
        if found is not None:
            some = None if self.note is None else self.note.buckets
            if some is not None:
                raise MismatchError(
                    f"{copy.path} has the keys of the buckets {some} alone, and a follower takes "
                    f"over all rows; {way_out}"
                )
            is_own = source.id == copy.id and found == self.own
            if is_own and not _may_have(source, found):
                raise self._of_others(copy, way_out)
            return found
        note, elsewhere = self.note, [store for store in self.commits if store != copy.id]
        if self.followed is not None and self.followed in elsewhere:
            raise MismatchError(
                f"{copy.path} follows the store {self.followed}, and {source.path} is store "
                f"{source.id}; {way_out}"
            )
        if note is not None and note.store in elsewhere:
            raise MismatchError(
                f"{copy.path} is a copy of {note.path}, store {note.store}, and {source.path} is "
                f"store {source.id}; {way_out}"
            )
        if self.followed is not None or note is not None:
            raise self._of_others(copy, way_out)
        raise MismatchError(
            f"{copy.path} is no copy of {source.path}: nothing says of which commit its commit of "
            f"step {self.own.step} is one. It was made by itself, or copied by an earlier version "
            f"of embedrock, which noted nothing; {way_out}"
        )

    def _of_others(self, copy: Store, way_out: str) -> MisuseError:
        assert self.own is not None, "it has a commit"
        earlier = [str(c.step) for c in copy.commits() if c.sequence < self.own.sequence]
        back = f"; it keeps commits of the steps {', '.join(earlier)}, too" if earlier else ""
        return MisuseError(
            f"the commit of step {self.own.step} in {copy.path} was made by others, and no "
            f"follower goes on behind it{back}. Go back to the last one that a copy or a follower "
            f"has made (embedrock.open({str(copy.path)!r}, step=...)), or {way_out}"
        )


def origin_of(copy: Store) -> Origin:
    """The commits, in this store and others, that the last commit of a copy is equal to.

    Errors: ``MismatchError`` for a byte string ``"source"`` that no follower has written.
    """
    own, note = last_facts(copy), copied_from(copy.path)
    if own is None:
        return Origin(None, {}, None, None)
    commits = {copy.id: own}
    if note is not None and note.copy == own:
        commits[note.store] = note.source
    position = _position_of(copy, own)
    if position is None:
        return Origin(own, commits, note, None)
    if position.by is None:
        holds = position.facts.step == own.step
    else:  # made here, or in the store of which this is a copy
        holds = position.by in {(store, facts.sequence) for store, facts in commits.items()}
    if holds:
        commits[position.store] = position.facts
    return Origin(own, commits, note, position.store)


def told_of(source: Store, commit: Facts, copy: Store) -> bytes:
    """Content of a copy's next commit that names the commit of the source which it equals."""
    last = last_facts(copy)
    by = {"id": copy.id, "sequence": 1 if last is None else last.sequence + 1}
    told = {"version": _VERSION, "id": source.id, **commit._asdict(), "by": by}
    return json.dumps(told).encode()


def _position_of(copy: Store, own: Facts) -> _Position | None:
    content = copy.state().get(SOURCE)
    if content is None:
        return None
    try:
        told: dict[str, Any] = json.loads(content)
        if told["version"] != _VERSION:
            raise ValueError(f"version {told['version']}")
        by = told.get("by")
        made = None if by is None else (str(by["id"]), int(by["sequence"]))
        return _Position(str(told["id"]), Facts.of(told), made)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MismatchError(
            f"the byte string {SOURCE!r} of the commit of step {own.step} in {copy.path} is no "
            f"position of a follower; it is {content[:60]!r}"
        ) from error


def _may_have(source: Store, commit: Facts) -> bool:
    """Whether a store may have made a commit: of those that it does not keep nobody knows."""
    kept = [Facts.of(info) for info in source._core.commits()]
    same = [one for one in kept if one.sequence == commit.sequence]
    newest = max((one.sequence for one in kept), default=0)
    return commit in same or (not same and commit.sequence < newest)
