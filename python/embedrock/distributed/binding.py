"""The binding of a store to a run of ranks: the run's id, the store's buckets, the tables of all.

Each commit of a rank carries it, as the byte string ``ranks`` of its state
(``docs/formats/ranks.md``). A store is bound to its buckets and never to a number of a rank, which
is another one after an elastic restart. Nothing here talks to other ranks: these are the facts that
they tell each other, and what is wrong with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from embedrock._durable import sync
from embedrock._ranks import BUCKETS, RANKS, UNFINISHED_RESHARD, buckets_in, folder_name, folders_in
from embedrock.errors import CorruptError, MismatchError, UnsupportedError

if TYPE_CHECKING:
    from embedrock.store import Store

__all__ = [
    "NAME",
    "UNFINISHED",
    "Binding",
    "Run",
    "binding_of",
    "folders_of",
    "new_folder",
    "owners_of",
    "runs_of",
    "table_digests",
    "wrong_with",
]

NAME = RANKS
"""The byte string of a commit's state that has the binding."""
UNFINISHED = UNFINISHED_RESHARD
_FORMAT = 1


@dataclass(frozen=True, order=True)
class Run:
    """Buckets in a row, which one store has."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __len__(self) -> int:
        return self.last + 1 - self.first

    @property
    def folder(self) -> str:
        """The name of its store's folder."""
        return folder_name(self.first, self.last)

    def with_(self, other: Run) -> Run | None:
        """The buckets that are in both, if any."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return Run(first, last) if first <= last else None


def runs_of(world: int) -> list[Run]:
    """The runs of so many ranks, in order; the first ``1024 % world`` have one bucket more."""
    each, more = divmod(BUCKETS, world)
    firsts = [rank * each + min(rank, more) for rank in range(world + 1)]
    return [Run(first, behind - 1) for first, behind in pairwise(firsts)]


def owners_of(runs: Sequence[Run]) -> npt.NDArray[np.uint16]:
    """(1024,) the place in ``runs`` of each bucket's; they leave none out."""
    owners = np.empty(BUCKETS, np.uint16)
    for place, run in enumerate(runs):
        owners[run.first : run.last + 1] = place
    return owners


def wrong_with(runs: Iterable[Run]) -> str | None:
    """Explains why runs are not all buckets, each exactly once; None if they are."""
    missing, twice, next_one = [], [], 0
    for run in sorted(runs):
        if run.first > next_one:
            missing.append(str(Run(next_one, run.first - 1)))
        if run.first < next_one:
            twice.append(str(Run(run.first, min(run.last, next_one - 1))))
        next_one = max(next_one, run.last + 1)
    if next_one < BUCKETS:
        missing.append(str(Run(next_one, BUCKETS - 1)))
    said = [f"no store has the buckets {', '.join(missing)}"] if missing else []
    said += [f"several stores have the buckets {', '.join(twice)}"] if twice else []
    return " and ".join(said) or None


def folders_of(path: Path) -> dict[Run, Path]:
    """The stores of ranks in a folder, by their buckets: by the names of their folders alone."""
    there = folders_in(path)
    return {Run(*(buckets_in(name) or (0, 0))): place for name, place in there.items()}


def new_folder(path: Path) -> None:
    """Makes a folder for stores, durably, if there is none."""
    if path.is_dir():
        return
    path.mkdir(exist_ok=True)
    sync(path.parent)


@dataclass(frozen=True)
class Binding:
    """Binding to the run, as part of a rank's commit."""

    run: str
    """The run's id: by chance, or a caller's name."""
    world: int
    """Number of stores that share the buckets."""
    buckets: Run
    """Those of this store."""
    tables: Mapping[str, str]
    """Digests of the tables, by name: the same in all stores of a run."""
    from_world: int | None = None
    """Number of ranks that made the commit, if the stores were resharded since: the commit's state
    of single processes is then not that of the present ranks."""
    initial: bool = False
    """Whether it is the commit that a store is made with, before there is anything to commit."""
    token: str = ""
    """By chance, and the same in all stores of one commit: a run that went back and trained on has
    other commits of the same steps. That of no commit of training is empty."""

    def encoded(self, step: int) -> bytes:
        """As a commit of a step has it."""
        facts = {"format": _FORMAT, "step": step, **asdict(self), "tables": dict(self.tables)}
        if self.from_world is None:
            del facts["from_world"]
        if not self.initial:
            del facts["initial"]
        return json.dumps(facts, separators=(",", ":")).encode()

    def now(self, store: Store, token: str) -> Binding:
        """That of the next commit of a store, of which all ranks have the same token."""
        tables = table_digests(store)
        return replace(self, tables=tables, from_world=None, initial=False, token=token)


def binding_of(state: Mapping[str, bytes], place: object) -> Binding:
    """The binding that a commit has; ``place`` is its store, for messages.

    Errors: ``MismatchError`` where it has none, ``CorruptError`` where it makes no sense,
    ``UnsupportedError`` for one of a later version.
    """
    content = state.get(NAME)
    if content is None:
        raise MismatchError(
            f"{place} is no store of ranks: its commit does not say which buckets it has; open it "
            f"with embedrock.open, and begin a run of ranks in another folder"
        )
    try:
        facts: dict[str, Any] = json.loads(content)
        if facts["format"] != _FORMAT:
            raise UnsupportedError(
                f"{place} has a commit of ranks in format {facts['format']}, which this version "
                f"of embedrock does not know"
            )
        buckets = Run(int(facts["buckets"]["first"]), int(facts["buckets"]["last"]))
        if not 0 <= buckets.first <= buckets.last < BUCKETS:
            raise ValueError(f"buckets {buckets}")
        tables = {str(name): str(digest) for name, digest in facts["tables"].items()}
        world, initial = facts.get("from_world"), facts.get("initial", False)
        run, token = str(facts["run"]), str(facts["token"])
        return Binding(run, int(facts["world"]), buckets, tables, world, initial, token)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{place}: what its commit says of its ranks makes no sense ({error})"
        ) from error


def table_digests(store: Store) -> dict[str, str]:
    """Digests of the tables of a store, by name: over the seed of initial rows and a table's
    description, but not over its expected rows and capacity."""
    seed = store._core.seed()
    found = {}
    for handle in store._core.tables():
        spec = dict(store._core.table_info(handle)["spec"])
        name = spec.pop("name")
        for size in ("expected_rows", "capacity"):
            spec.pop(size, None)
        facts = json.dumps([name, seed, spec], sort_keys=True)
        found[name] = hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
    return found
