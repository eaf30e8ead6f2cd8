"""``embedrock.distributed.open``: every rank's store, all at the newest commit that all have.

Invariants: ranks decide from the reports of all, so all of them open, or all raise the same error.
Nothing is created before it is known that no rank's store is lost.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch.distributed as dist

from embedrock._arguments import file_errors, flag, named_path, text, whole, whole_or_none
from embedrock._ranks import ranks_of
from embedrock.distributed.all_gather import all_gather
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
from embedrock.distributed.commits import Bound, drop_later
from embedrock.distributed.exchange import Exchange, Verb, group_of, waiting_limit
from embedrock.distributed.manifest import remove_manifests
from embedrock.distributed.shard import Shard
from embedrock.errors import LockedError, MismatchError, MisuseError, NotFoundError
from embedrock.store import Store
from embedrock.store.locked import for_ranks
from embedrock.store.opening import open_part as open_store

__all__ = ["open"]

T = TypeVar("T")
_VERB = Verb("embedrock.distributed.open")
_SHOWN_MAX = 4


def open(
    path: str | os.PathLike[str],
    memory: int | str = "10%",
    group: dist.ProcessGroup | None = None,
    run: str | None = None,
    *,
    step: int | None = None,
    create: bool = True,
    reduction: Literal["mean", "sum"] = "mean",
    wire_dtype: Any = None,
    presum: bool = True,
    timeout: float | None = None,
    **options: Any,
) -> Shard:
    """Opens the stores of all ranks, at the newest commit that all of them have. Collective.

    Every rank of the group calls it, with a store of its own in a folder of ``path``, named by the
    buckets that it has: ``path/buckets-0000-0511``. ``path`` may be a folder that all machines
    share, or one of each machine's own disk. If there is no store, a new run begins: ranks get
    buckets in their order, 1,024 divided by their number. A store keeps its buckets for life; after
    a restart with other numbers a rank takes one of those that it finds.

    A rank that died between its commit and another's leaves a commit that others do not have. It
    is dropped here, durably, before anything is trained.

    Args:
        path: The folder of the ranks' stores.
        memory: The budget of this rank's store, as ``embedrock.open`` takes it.
        group: The ranks; None for all. Commits go over a gloo group of their own.
        run: Name of the run. A new run gets it, or a random one; stores of another run are refused.
        step: Go back to the commit of this step, which all ranks must have.
        create: Whether to begin a new run where there is none.
        reduction: ``"mean"`` divides gradients of rows by the number of ranks, as
            ``DistributedDataParallel`` does for dense parameters; ``"sum"`` does not.
        wire_dtype: ``"bfloat16"`` halves the bytes between ranks; :class:`Shard` says at what cost.
        presum: Whether a rank sums its gradients of equal ids before it sends them.
        timeout: Seconds that a rank waits for the others in a call; None: 30 minutes.
        options: Options of ``embedrock.open``, such as ``keep`` and ``max_disk_bytes``.

    Errors: the same on all ranks, as a ``RankError`` that is also of the rank's own kind where one
    has failed. ``MismatchError`` where ranks give another ``run``, ``step`` or ``create``, for
    stores of another run or with other tables, for commits of one step that were not made together
    (a copy from before the run went back), for buckets that no store has or several have, for a
    number of ranks that the stores were not made by (with the command that makes new ones), and for
    ranks without a commit beside others with one.
    ``NotFoundError`` where there is no commit that all have, or none at all without ``create``.

    Blocking: until all ranks have called it; as ``embedrock.open`` then.
    """
    folder = named_path("path", path).absolute()
    name = None if run is None else text("run", run)
    asked, may_begin = whole_or_none("step", step, 0), flag("create", create)
    if whole("keep", options.get("keep", 2), 1) < 2:
        raise MisuseError(
            "keep is 1, expected at least 2 commits: while ranks commit, some have the new one "
            "and others the one before"
        )
    if options.get("read_only"):
        raise MisuseError(
            "read_only is for stores by themselves: open one rank's with embedrock.open, or serve "
            "them together (docs/how-to/cluster.md); ranks write"
        )
    exchange = Exchange(group_of(group, waiting_limit(timeout)))
    opening = _Opening(exchange, folder, memory, options)
    try:
        with exchange:
            bound = opening.find(name, asked, may_begin)
        return Shard(
            opening.store,
            group,
            reduction=reduction,
            wire_dtype=wire_dtype,
            presum=presum,
            binding=bound,
            timeout=timeout,
        )
    except BaseException:
        opening.close()
        raise
    finally:
        dist.destroy_process_group(exchange.group)


class _Opening:
    """The steps of one opening, on one rank."""

    def __init__(
        self, exchange: Exchange, folder: Path, memory: int | str, options: dict[str, Any]
    ) -> None:
        self._exchange, self._folder = exchange, folder
        self._memory, self._options = memory, options
        self._opened: Store | None = None
        self._left_behind = False
        """Whether its store went back from a later commit, which is there until the next one."""
        self._host = socket.gethostname()

    @property
    def store(self) -> Store:
        """This rank's, once it is open."""
        assert self._opened is not None, "a rank's store is opened before it is used"
        return self._opened

    def close(self) -> None:
        """Closes what was opened."""
        if self._opened is not None:
            self._opened.close()

    def find(self, name: str | None, step: int | None, create: bool) -> Bound:
        """Opens the store, and binds it."""
        wanted, present = self._look()
        self._same_arguments(name, step, create)
        mine = wanted[self._exchange.rank]
        there = mine in present
        kept = self._together(lambda: self._open_present(mine, step) if there else {"steps": []})
        self._check_run(name, kept)
        begun = [rank for rank, one in enumerate(kept) if one["steps"] and not one["initial"]]
        without = [rank for rank, one in enumerate(kept) if not one["steps"]]
        if begun and without:
            raise MismatchError(
                f"{self._ranks(begun)} commits of a run in {self._folder}, and "
                f"{self._ranks(without)} none for the buckets "
                f"{_listed(wanted[rank] for rank in without)}: put those stores back from a copy, "
                f"or begin anew in another folder"
            )
        if begun:
            bound = self._go_on([one["steps"] for one in kept], step)
        else:
            bound = self._begin(name, mine, kept, create, step)
        return Bound(wanted, bound)

    def _look(self) -> tuple[list[Run], set[Run]]:
        """The buckets of each rank by the folders that there are, and those that have a store."""

        def seen() -> dict[str, Any]:
            return {
                "host": self._host,
                "folder": str(self._folder),
                "runs": [[run.first, run.last] for run in folders_of(self._folder)],
                "unfinished": (self._folder / UNFINISHED).exists(),
            }

        told = self._together(seen)
        self._hosts = [one["host"] for one in told]
        self._folders = [one["folder"] for one in told]
        visible = [{Run(first, last) for first, last in one["runs"]} for one in told]
        cut_off = [rank for rank, one in enumerate(told) if one["unfinished"]]
        if cut_off:
            raise MismatchError(
                f"{self._folder} of {self._ranks(cut_off, '')} is not whole: embedrock reshard "
                f"into it goes on, or was cut off; run the same command again, or remove the folder"
            )
        present = set().union(*visible)
        world = len(told)
        wanted = runs_of(world)
        if not present <= set(wanted):
            wrong = wrong_with(present)
            if wrong is not None:
                raise MismatchError(f"in {self._folder} {wrong}: {_what_there_is(present)}")
            if len(present) != world:
                raise MismatchError(
                    f"the stores in {self._folder} are of {ranks_of(len(present))}, and there are "
                    f"{world} now; make new ones with: embedrock reshard {self._folder} NEW "
                    f"--ranks {world}"
                )
            wanted = sorted(present)
        return self._assigned(wanted, present, visible), present

    def _assigned(
        self, wanted: Sequence[Run], present: set[Run], visible: Sequence[set[Run]]
    ) -> list[Run]:
        """The buckets of each rank, which has to see its store if there is one: the rank in its
        order first."""
        taken: dict[int, Run] = {}

        def take(run: Run, asked: set[int]) -> bool:
            place = wanted.index(run)
            ranks = sorted(range(len(visible)), key=lambda rank: (rank != place, rank))
            for rank in ranks:
                if run not in visible[rank] or rank in asked:
                    continue
                asked.add(rank)
                if rank not in taken or take(taken[rank], asked):
                    taken[rank] = run
                    return True
            return False

        for run in sorted(present):
            if not take(run, set()):
                raise MismatchError(self._out_of_reach(run, visible))
        left = iter(run for run in wanted if run not in present)
        return [taken.get(rank) or next(left) for rank in range(len(visible))]

    def _out_of_reach(self, run: Run, visible: Sequence[set[Run]]) -> str:
        """Why no rank can take the store of these buckets, and what to do; the same on all."""
        where = [rank for rank, runs in enumerate(visible) if run in runs]
        folder = self._folders[where[0]]
        near = [rank for rank, host in enumerate(self._hosts) if host == self._hosts[where[0]]]
        apart = [rank for rank in near if self._folders[rank] != folder]
        told = (
            f"the store of the buckets {run} is in {folder}, where {self._ranks(where, '')} alone "
            f"look{'s' * (len(where) == 1)}, and there are more stores than ranks there"
        )
        if not apart:
            return f"{told}: start as many ranks on each machine as it has stores"
        given = ", ".join(
            f"{self._rank(rank)} {self._folders[rank]}" for rank in apart[:_SHOWN_MAX]
        )
        return (
            f"ranks of one machine gave different paths: {self._rank(where[0])} {folder}, "
            f"{given}; {told}: give all of them the path of the run"
        )

    def _open(self, mine: Run, **options: Any) -> Store:
        try:
            path = self._folder / mine.folder
            return open_store(path, self._memory, **options, **self._options)
        except LockedError as error:
            raise for_ranks(error) from None

    def _open_present(self, mine: Run, step: int | None) -> dict[str, Any]:
        """Opens a store that is there. Returns the steps of its commits, and what the one that is
        asked for says of its run, which must be what its folder says."""
        store = self._opened = self._open(mine, create=False)
        steps = [commit.step for commit in store.commits()]
        if not steps:
            return {"steps": []}
        self._left_behind = step is not None and step in steps and self._go_back(step)
        try:
            bound = binding_of(store._stored_state(), store.path)
        except MismatchError as error:
            earlier = sorted({one for one in steps if one < steps[-1]})
            if step is not None or not earlier:
                raise
            raise MismatchError(
                f"{error}; if its last commit was made by itself, open an earlier one of all "
                f"ranks with step=, of {_listed(earlier)}"
            ) from error
        if bound.buckets != mine:
            raise MismatchError(
                f"{store.path} has the buckets {bound.buckets} by its commit; give the folder its "
                f"name back, {bound.buckets.folder}"
            )
        initial = bound.initial and not self._left_behind
        return {"steps": steps, "initial": initial, "run": bound.run, "world": bound.world}

    def _check_run(self, name: str | None, kept: Sequence[dict[str, Any]]) -> None:
        """Refuses stores that are not all of one run of as many ranks."""
        bound = [(rank, one) for rank, one in enumerate(kept) if one["steps"]]
        for rank, one in bound:
            (first, other) = bound[0]
            if one["run"] != other["run"]:
                raise MismatchError(
                    f"the store of {self._rank(first)} is of run {other['run']!r} and that of "
                    f"{self._rank(rank)} of run {one['run']!r}, whatever their steps are; put the "
                    f"stores of one run into {self._folder}"
                )
            if one["world"] != len(kept):
                raise MismatchError(
                    f"the store of {self._rank(rank)} is of a run of {ranks_of(one['world'])}, and "
                    f"there are {len(kept)} now; make new stores with: embedrock reshard "
                    f"{self._folder} NEW --ranks {len(kept)}"
                )
            if name is not None and name != one["run"]:
                raise MismatchError(
                    f"run is {name!r}, and the store of {self._rank(rank)} in {self._folder} is of "
                    f"run {one['run']!r}; use another folder"
                )

    def _begin(
        self,
        name: str | None,
        mine: Run,
        kept: Sequence[dict[str, Any]],
        create: bool,
        step: int | None,
    ) -> Binding:
        """A new run. Each store is made with a commit that has nothing but its binding: so a rank
        that dies in the first commit of something leaves one that all have."""
        made = [one for one in kept if one["steps"]]
        if step is not None or not (create or made):
            what = "a commit" if step is None else f"a commit of step {step}"
            raise NotFoundError(f"there is no store with {what} in {self._folder}")
        seeds = self._together(lambda: self._options.get("seed", 0))
        self._same(seeds, "the seed of initial rows", "give all ranks one seed")
        runs = self._together(lambda: name or secrets.token_hex(8))
        run = made[0]["run"] if made else runs[0]
        bound = Binding(run, len(kept), mine, {}, initial=True)

        def make() -> int:
            if self._opened is None:
                with file_errors(f"making {self._folder}"):
                    new_folder(self._folder)
                self._opened = self._open(mine)
            if self._opened.step is None:
                self._opened.commit(0, None, {NAME: bound.encoded(0)})
            return self._opened._core.seed()

        seeds = self._together(make)
        self._same(seeds, "the seed of the store", "remove the stores and give all ranks one seed")
        return bound

    def _go_on(self, kept: Sequence[list[int]], step: int | None) -> Binding:
        """A run in which something was committed."""
        common = self._common(kept, step)
        behind = self._together(lambda: self._go_back(common) or self._left_behind)
        bounds: list[Binding] = []

        def token() -> str:
            bounds.append(binding_of(self.store._stored_state(), self.store.path))
            return bounds[0].token

        self._same_commits(self._together(token), common)
        self._same_tables(self._together(lambda: table_digests(self.store)))
        if any(behind):
            self._together(lambda: drop_later(self.store) if behind[self._exchange.rank] else None)
        steps = {commit.step for commit in self.store.commits()}
        self._together(lambda: remove_manifests(self._folder, steps))
        return bounds[0]

    def _common(self, kept: Sequence[list[int]], step: int | None) -> int:
        common = set(kept[0]).intersection(*kept[1:])
        asked = step if step is not None else max(common, default=None)
        if asked is None or asked not in common:
            said = "; ".join(
                f"{self._rank(rank)} has {_listed(sorted(set(steps)))}"
                for rank, steps in enumerate(kept[:_SHOWN_MAX])
            )
            what = "a step" if asked is None else f"step {asked}"
            raise NotFoundError(
                f"there is no commit of {what} that all ranks have in {self._folder}: {said}"
                f"{'; …' if len(kept) > _SHOWN_MAX else ''}; put a store back from a copy, or open "
                f"with a larger keep= next time"
            )
        return asked

    def _go_back(self, step: int) -> bool:
        """Brings this rank's store to a step. Returns whether a later commit is left behind it."""
        if self.store.step == step:
            return False
        self.store.go_back(step)
        self.store._take_state(False)  # nobody asked for it: the ranks meet there
        return True

    def _same_commits(self, tokens: Sequence[str], step: int) -> None:
        for rank, other in enumerate(tokens):
            if other != tokens[0]:
                raise MismatchError(
                    f"step {step} of {self._rank(0)} and of {self._rank(rank)} are of two commits: "
                    f"the run went back before it and trained anew, and one of the stores in "
                    f"{self._folder} is a copy of before; open an earlier commit with step=, or "
                    f"put back stores of one commit"
                )

    def _same_tables(self, digests: Sequence[dict[str, str]]) -> None:
        for rank, other in enumerate(digests):
            if other == digests[0]:
                continue
            differing = sorted(
                name for name in {*digests[0], *other} if digests[0].get(name) != other.get(name)
            )
            what = [
                f"table {name!r}"
                + (
                    f" is not there on rank {0 if name in other else rank}"
                    if (name in digests[0]) != (name in other)
                    else ""
                )
                for name in differing[:_SHOWN_MAX]
            ]
            raise MismatchError(
                f"the stores of {self._rank(0)} and of {self._rank(rank)} differ in "
                f"{', '.join(what)}: all ranks make the same tables, with one seed"
            )

    def _same_arguments(self, name: str | None, step: int | None, create: bool) -> None:
        told = self._together(lambda: [name, step, create])
        for what, values in zip(("run=", "step=", "create="), zip(*told, strict=True), strict=True):
            self._same(values, what, "give all ranks the same")

    def _same(self, told: Sequence[Any], what: str, way_out: str) -> None:
        for rank, one in enumerate(told):
            if one != told[0]:
                raise MismatchError(
                    f"{what} is {told[0]!r} on {self._rank(0)} and {one!r} on {self._rank(rank)}; "
                    f"{way_out}"
                )

    def _together(self, act: Callable[[], T]) -> list[T]:
        """Does it on each rank, and gives what all have got. One that fails fails on all."""
        failed, value = None, None
        try:
            value = act()
        except Exception as error:
            failed = error
        found: list[T] = all_gather(self._exchange, _VERB, value, failed)
        return found

    def _rank(self, rank: int) -> str:
        return f"rank {rank} ({self._hosts[rank]})"

    def _ranks(self, ranks: Sequence[int], verb: str | None = None) -> str:
        """Some ranks, as the subject of a sentence."""
        shown = ", ".join(self._rank(rank) for rank in ranks[:_SHOWN_MAX])
        more = f" and {len(ranks) - _SHOWN_MAX} more" if len(ranks) > _SHOWN_MAX else ""
        has = ("has" if len(ranks) == 1 else "have") if verb is None else verb
        return f"{shown}{more} {has}".strip()


def _listed(values: Any) -> str:
    shown = [str(value) for value in values]
    more = f" and {len(shown) - _SHOWN_MAX} more" if len(shown) > _SHOWN_MAX else ""
    return ", ".join(shown[:_SHOWN_MAX]) + more or "none"


def _what_there_is(present: set[Run]) -> str:
    return f"there are {_listed(run.folder for run in sorted(present))}"
