"""Another number of ranks: the stores of a run made anew, offline, every bit of the rows kept.

Needs no process group, and PyTorch no more than this package does.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedrock import _core
from embedrock._arguments import (
    Progress,
    file_errors,
    function,
    named_path,
    shown,
    whole,
    whole_or_none,
)
from embedrock._durable import sync
from embedrock._memory import memory_text
from embedrock._ranks import BUCKETS
from embedrock.commits import encode_meta
from embedrock.distributed.binding import (
    NAME,
    UNFINISHED,
    Binding,
    Run,
    binding_of,
    folders_of,
    new_folder,
    runs_of,
    table_digests,
    wrong_with,
)
from embedrock.distributed.manifest import write_manifest
from embedrock.errors import CorruptError, MismatchError, MisuseError, NotFoundError
from embedrock.store.opening import open_part as open_store
from embedrock.weights.drafts import atomic

__all__ = ["reshard"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class _Old:
    """A store of the run as it is, at the step that is taken."""

    path: Path
    bound: Binding
    rows: int
    step: int


def reshard(
    old: PathLike | Sequence[PathLike],
    new: PathLike,
    ranks: int,
    *,
    step: int | None = None,
    memory: int | str = "256MiB",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Makes stores for another number of ranks from the existing ones, in a new folder.

    Nobody may train on the old ones meanwhile; they stay as they are. Rows keep every bit of their
    values and of their optimizer's state, tables their counts of steps, the run its id. The
    commit's state beside the tables comes from the first old store: dense parameters are the same
    on all ranks. Generators and the position of a loader are each rank's own, and
    :func:`embedrock.resume` leaves them out after this.

    Args:
        old: Folders of a run's ranks, as :func:`open` had them, or their single stores, all of
            which are needed: of every machine.
        new: The new folder, on one disk. After an interrupted call it has the finished part, and
            the same call goes on there. If everything is finished, the call does nothing.
        ranks: New number of ranks, 1 to 1,024.
        step: The commit of this step; None takes the newest that all have.
        memory: The budget of each of the two stores that are open at a time: an index must fit.
        progress: Told how many rows of the old stores were looked at, of how many. Each new store
            takes a pass over every old one that it shares buckets with.

    Returns ``{"run", "step", "ranks", "rows", "stores", "is_new"}``; ``stores`` has the path, the
    buckets, the rows and the bytes on disk of each, ``is_new`` is False where all was done already.

    Errors: ``MismatchError`` for stores of several runs, without a common step, with buckets
    missing or twice, or with other tables; ``MisuseError`` where ``new`` holds something else, or a
    table lies on persistent memory; ``NotFoundError``, ``BudgetError``, ``FullError``,
    ``CorruptError``.

    Durability: on return. Until then ``new`` is refused by :func:`open`.

    Blocking: reads and writes every row.
    """
    paths = [old] if isinstance(old, (str, os.PathLike)) else _several(old)
    sources = _expanded([named_path("old", path).absolute() for path in paths])
    target = named_path("new", new).absolute()
    world = whole("ranks", ranks, 1)
    if world > BUCKETS:
        raise MisuseError(f"ranks is {world}, expected at most one for each of {BUCKETS} buckets")
    budget, asked = memory_text(memory), whole_or_none("step", step, 0)
    function("progress", progress, "rows done and in all")
    olds, state, meta = _look(sources, asked, budget)
    bound, at = olds[0].bound, olds[0].step
    plan = {"run": bound.run, "step": at, "world": world, "from": [str(one.path) for one in olds]}
    runs = runs_of(world)
    is_new = _begin(target, plan, runs)
    passes = [[one for one in olds if one.bound.buckets.with_(run)] for run in runs]
    counted = _Counted(progress, sum(one.rows for taken in passes for one in taken))
    stores: list[dict[str, Any]] = []
    for run, taken in zip(runs, passes, strict=True):
        place = target / run.folder
        new_bound = replace(bound, world=world, buckets=run, from_world=bound.world)
        found = _done(place, new_bound, at, budget, is_new)
        if found is None and not is_new:
            raise MisuseError(f"{target} is not empty, and {place} is no whole store")
        if found is None:
            parts: list[tuple[PathLike, str, int]] = [
                (str(one.path), str(one.bound.buckets.with_(run)), len(one.bound.buckets))
                for one in taken
            ]
            named = [(name, content) for name, content in state.items() if name != NAME]
            named.append((NAME, new_bound.encoded(at)))
            report = _core.reshard(
                parts, place, budget, at, encode_meta(meta), named, counted.within()
            )
            found = {"rows": report["rows"], "bytes": report["disk_bytes"]}
        counted.past(sum(one.rows for one in taken))
        stores.append({"path": str(place), "buckets": str(run), **found})
    rows = sum(store["rows"] for store in stores)
    there = sum(one.rows for one in olds)
    if rows != there:
        raise CorruptError(
            f"{there:,} rows are in the old stores and {rows:,} were copied: a store has rows of "
            f"buckets that are not its own; {target} is not finished"
        )
    if is_new:
        write_manifest(target, bound, at, [str(run) for run in runs])
        _finish(target)
    of = {"run": bound.run, "step": at, "ranks": world, "rows": rows}
    return {**of, "stores": stores, "is_new": is_new}


class _Counted:
    """Progress of all passes, reported as one count."""

    def __init__(self, progress: Progress | None, rows: int) -> None:
        self._progress, self._rows, self._before = progress, rows, 0

    def within(self) -> Callable[[int, int], object] | None:
        """The progress callback of one pass."""
        progress = self._progress
        if progress is None:
            return None
        return lambda done, _: progress(self._before + done, self._rows)

    def past(self, rows: int) -> None:
        """So many rows more are done."""
        self._before += rows
        if self._progress is not None:
            self._progress(self._before, self._rows)


def _several(given: Any) -> list[Any]:
    if not isinstance(given, (list, tuple)) or not given:
        raise MisuseError(f"old is {shown(given)}, expected a path, or a list of several")
    return list(given)


def _expanded(paths: Iterable[Path]) -> list[Path]:
    """The single stores."""
    found = []
    for path in paths:
        if (path / UNFINISHED).exists():
            raise MismatchError(
                f"{path} is not whole: an embedrock reshard into it goes on, or was cut off; "
                f"{_goes_on(path)}"
            )
        if (path / "superblock").is_file():
            found.append(path)
            continue
        inside = list(folders_of(path).values())
        if not inside:
            raise NotFoundError(f"{path} has no store of ranks; their folders are buckets-…-…")
        found += inside
    return found


def _look(
    sources: Sequence[Path], step: int | None, memory: str
) -> tuple[list[_Old], dict[str, bytes], Any]:
    """The old stores at one step, by their buckets, and state and meta of the first."""
    steps = {}
    for path in sources:
        with open_store(path, memory, read_only=True, create=False) as store:
            steps[path] = [commit.step for commit in store.commits()]
    common = set.intersection(*map(set, steps.values()))
    at = step if step is not None else max(common, default=None)
    if at is None or at not in common:
        said = "; ".join(f"{path} has {sorted(set(kept))}" for path, kept in steps.items())
        what = "a step" if at is None else f"step {at}"
        raise NotFoundError(f"there is no commit of {what} that all stores have: {said}")
    olds = []
    for path in sources:
        with open_store(path, memory, read_only=True, create=False, step=at) as store:
            bound = replace(binding_of(store.state(), path), tables=table_digests(store))
            rows = sum(len(table) for table in store.tables.values())
            olds.append(_Old(path, bound, rows, at))
    olds.sort(key=lambda one: one.bound.buckets)
    for one in olds:
        if one.bound.run != olds[0].bound.run:
            raise MismatchError(
                f"{olds[0].path} is of run {olds[0].bound.run!r} and {one.path} of run "
                f"{one.bound.run!r}; give the stores of one run"
            )
        if one.bound.token != olds[0].bound.token:
            raise MismatchError(
                f"step {at} of {olds[0].path} and of {one.path} are of two commits: the run went "
                f"back before it, and one of the stores is a copy of before; give step= of an "
                f"earlier commit, or the stores of one commit"
            )
        if one.bound.tables != olds[0].bound.tables:
            raise MismatchError(f"{olds[0].path} and {one.path} have tables that differ")
    wrong = wrong_with(one.bound.buckets for one in olds)
    if wrong is not None:
        raise MismatchError(f"{wrong}: give the stores of all {olds[0].bound.world} ranks once")
    with open_store(olds[0].path, memory, read_only=True, create=False, step=at) as store:
        return olds, store.state(), store.meta


def _begin(target: Path, plan: dict[str, Any], runs: Sequence[Run]) -> bool:
    """Marks the folder before anything is in it, or finds the mark of the same call. Returns False
    for one that has the stores of so many ranks and no mark: they may be what is asked for."""
    mark = target / UNFINISHED
    with file_errors(f"making {target}"):
        new_folder(target)
        if mark.exists():
            if _plan_in(target) != plan:
                raise MisuseError(
                    f"{target} has what another embedrock reshard has left; {_goes_on(target)}. "
                    f"For this one remove the folder, or give another"
                )
            return True
        if list(folders_of(target)) == list(runs):
            return False
        if any(not child.name.startswith(".") for child in target.iterdir()):
            raise MisuseError(f"{target} is not empty, expected a new folder")
    with atomic(mark) as file:
        file.write(json.dumps(plan).encode(), 0)
    return True


def _plan_in(target: Path) -> dict[str, Any] | None:
    """Plan of the unfinished call that left a folder; None if it cannot be read."""
    try:
        told = json.loads((target / UNFINISHED).read_bytes())
        return {name: told[name] for name in ("run", "step", "world", "from")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _goes_on(target: Path) -> str:
    """The command that goes on with what was left in a folder."""
    plan = _plan_in(target)
    if plan is None:
        return f"what it was to make cannot be read in {target / UNFINISHED}"
    stores = [Path(path) for path in plan["from"]]
    folders = {path.parent for path in stores}
    if all(set(folders_of(folder).values()) <= set(stores) for folder in folders):
        stores = sorted(folders)
    old = shlex.join(map(str, stores))
    return (
        f"this goes on with it: embedrock reshard {old} {shlex.quote(str(target))} "
        f"--ranks {plan['world']} --step {plan['step']}"
    )


def _done(
    place: Path, bound: Binding, step: int, memory: str, is_new: bool
) -> dict[str, int] | None:
    """Content of a store that an earlier call, or this one before an interruption, has made; None
    if the store is incomplete."""
    if not (place / "superblock").is_file() or (place / "unfinished-copy").exists():
        return None
    with open_store(place, memory, read_only=True, create=False) as store:
        found = binding_of(store.state(), place) if store.step is not None else None
        if store.step != step or found != bound:
            said = "no commit"
            if found is not None:
                said = f"the buckets {found.buckets} of step {store.step} of run {found.run!r}"
            raise MisuseError(
                f"{place} is there, with {said}, and is to have the buckets {bound.buckets} of "
                f"step {step} of run {bound.run!r}, which was to be divided: "
                + ("remove it, or " if is_new else "")
                + "give another folder"
            )
        rows = sum(len(table) for table in store.tables.values())
        return {"rows": rows, "bytes": int(store.stats()["disk_bytes"])}


def _finish(target: Path) -> None:
    with file_errors(f"finishing {target}"):
        (target / UNFINISHED).unlink()
        sync(target)
