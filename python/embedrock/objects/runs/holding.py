"""Holds on the stores of a run at one common commit, while ranks train on.

A rank begins commit n + 1 when all have n, and keeps two at least, so all ranks have a common step
at any time. Holds are taken one after the other, and a store may have gone on before the last; then
a newer step is tried. A held commit stays, however far the ranks get.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedrock import _core
from embedrock._ranks import UNFINISHED_RESHARD, folders_in
from embedrock.errors import MismatchError, MisuseError, NotFoundError
from embedrock.objects.runs.facts import Facts, facts_of, lacking

__all__ = ["HeldStore", "held_run"]

_TRIES = 20
"""One is enough unless a rank commits between two holds, and another one before the next step."""
_MARKS = {
    UNFINISHED_RESHARD: "embedrock reshard into it goes on, or was cut off; call it again",
    "unfinished-pull": "embedrock pull into it goes on, or was cut off; call it again",
}


@dataclass(frozen=True)
class HeldStore:
    """A store of a rank at the commit that is held."""

    path: Path
    commit: _core.CommitFiles
    facts: Facts

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.path.name


@contextlib.contextmanager
def held_run(path: Path, step: int | None, pin: str | None) -> Iterator[list[HeldStore]]:
    """The stores in the folder of a run, all held at one commit, in the order of buckets.

    Errors: ``NotFoundError`` where there is no such commit; ``MisuseError`` where some of the run's
    stores are not here, which may be of another machine, and neither step nor pin is given;
    ``MismatchError`` for stores of several runs or commits.
    """
    for mark, what in _MARKS.items():
        if (path / mark).exists():
            raise MisuseError(f"{path} is not whole: {what}")
    stores = folders_in(path)
    missing = lacking(stores)
    if missing and step is None and pin is None:
        raise MisuseError(
            f"{path} has the stores of {', '.join(stores)}, and none of the buckets "
            f"{', '.join(missing)}: where these are on other machines, keep one commit on all of "
            f"them (shard.commit(step, pin=NAME)), and push it on each machine with step=NAME"
        )
    holds = _Holds(stores)
    try:
        is_named = step is not None or pin is not None
        found = holds.at(step, pin) if is_named else holds.newest(path)
        _expect_one_run(found, bool(missing))
        yield found
    finally:
        holds.close()


class _Holds:
    """Commits of stores that are held, by the store and the step."""

    def __init__(self, stores: Mapping[str, Path]) -> None:
        self._stores = stores
        self._held: dict[tuple[str, int], HeldStore] = {}

    def close(self) -> None:
        """Lets go of all."""
        for one in self._held.values():
            one.commit.close()
        self._held.clear()

    def at(self, step: int | None, pin: str | None) -> list[HeldStore]:
        """All stores at a step or a pin, which each of them must have."""
        found = []
        for path in self._stores.values():
            try:
                found.append(self._hold(path, step, pin))
            except NotFoundError as error:
                raise NotFoundError(
                    f"{path}: {error}; all stores of the run must have it: pin a commit on all "
                    f"ranks (shard.commit(step, pin=NAME)), or leave step= out to push the newest "
                    f"commit that all have"
                ) from error
        _expect_one_commit(found)
        return found

    def newest(self, path: Path) -> list[HeldStore]:
        """All stores at the newest step that all have."""
        last: Exception | None = None
        for _ in range(_TRIES):
            self.close()
            try:
                newest = [self._hold(store, None, None) for store in self._stores.values()]
            except NotFoundError as error:
                raise NotFoundError(f"{path}: {error}; nothing was committed yet") from error
            for step in sorted({one.facts.step for one in newest}, reverse=True):
                try:
                    found = [self._hold(store, step, None) for store in self._stores.values()]
                    _expect_one_commit(found)
                except (NotFoundError, MismatchError) as error:
                    # One has gone on, or is not there yet; or the run goes back just now.
                    last = error
                    continue
                if not found[0].facts.is_initial:
                    return found
                last = NotFoundError("nothing was committed yet")
        said = {one.path.name: one.facts.step for one in newest}
        if isinstance(last, MismatchError):
            raise last
        raise NotFoundError(
            f"{path}: there is no step that all stores have, their last ones are of {said}: "
            f"{last}; open the run with a larger keep=, or pin a commit on all ranks "
            f"(shard.commit(step, pin=NAME)) and push step=NAME"
        )

    def _hold(self, path: Path, step: int | None, pin: str | None) -> HeldStore:
        if step is not None and (path.name, step) in self._held:
            return self._held[path.name, step]
        commit = _core.CommitFiles(path, step, pin, None)
        try:
            one = HeldStore(path, commit, facts_of(commit, path))
        except BaseException:
            commit.close()
            raise
        other = self._held.setdefault((path.name, one.facts.step), one)
        if other is not one:
            commit.close()
        return other


def _expect_one_commit(stores: list[HeldStore]) -> None:
    first = stores[0]
    for one in stores:
        if one.facts.step != first.facts.step:
            raise MismatchError(
                f"the pin is at step {first.facts.step} in {first.path} and at {one.facts.step} in "
                f"{one.path}: ranks ended while it was moved; pin the commit on all ranks again"
            )
        if one.facts.token != first.facts.token:
            raise MismatchError(
                f"step {first.facts.step} of {first.path} and of {one.path} are of two commits: "
                f"the run went back before it and trained anew, and one of the stores is a copy of "
                f"before; push an earlier commit with step=, or put back stores of one commit"
            )


def _expect_one_run(stores: list[HeldStore], some_missing: bool) -> None:
    first = stores[0].facts
    for one in stores:
        if (one.facts.run, one.facts.world) != (first.run, first.world):
            raise MismatchError(
                f"{stores[0].path} is of run {first.run!r} of {first.world} ranks, and {one.path} "
                f"of run {one.facts.run!r} of {one.facts.world}; keep the stores of one run there"
            )
    if some_missing == (len(stores) == first.world):
        raise MismatchError(
            f"the run is of {first.world} ranks, and {stores[0].path.parent} has the stores "
            f"{', '.join(one.folder for one in stores)}: some are not of this run"
        )
