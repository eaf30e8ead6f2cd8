"""Commits of all ranks: every store at the same step, or an error on every rank.

Invariant: commit n + 1 begins after all ranks have n, so of the two commits that a store keeps one
is common to all, wherever ranks die. The manifest is for readers; no rank needs it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import _logs
from embedrock._arguments import flag, text, whole
from embedrock._ranks import ranks_of
from embedrock._warnings import warn
from embedrock.commits import Commit, encode_meta
from embedrock.distributed.all_gather import all_gather
from embedrock.distributed.binding import NAME, Binding, Run, binding_of, owners_of
from embedrock.distributed.dense import SAVE, check_same
from embedrock.distributed.exchange import Exchange, Verb
from embedrock.distributed.manifest import remove_manifests, write_manifest
from embedrock.distributed.pins import RankPins
from embedrock.errors import MisuseError, NotFoundError, PoisonedError, UnsupportedError
from embedrock.store import Store
from embedrock.store.batches import named_bytes

__all__ = ["Bound", "RankCommits", "drop_later"]

_log = _logs.of("distributed")
_VERB = Verb("commit")
_BACK = Verb("go_back")


@dataclass(frozen=True)
class Bound:
    """The buckets of all ranks, and what binds the store of this one to its own."""

    runs: Sequence[Run]
    binding: Binding

    @property
    def owners(self) -> npt.NDArray[np.uint16]:
        """(1024,) the rank of each bucket."""
        return owners_of(self.runs)


class RankCommits(RankPins):
    """The commits of a shard. Collective: every rank makes the same calls."""

    _commits_together = True
    _pending_step: int | None = None
    read_only = False
    """Ranks write."""

    store: Store
    exchange: Exchange
    _looked_at: set[str]
    """Tables whose rows were found to be of this rank's buckets."""
    _binding: Binding | None
    _failed: str | None = None
    """Message about a commit, a way back or a change of rows that only some ranks completed. While
    it is set, no rank commits before it is back at a common commit."""

    def _bind(self, bound: object) -> None:
        """Notes what binds its store, if ``embedrock.distributed.open`` has. Collective.

        Errors: ``MisuseError`` on all ranks for a store that was bound and is not opened so, and
        for one that was opened to read.
        """
        self._binding, failed = None, None
        self._looked_at = set()
        if isinstance(bound, Bound):
            self._binding = bound.binding
            self.store._commits_with(NAME)
        else:
            try:
                if self.store.read_only:
                    raise MisuseError(
                        f"the store {self.path} was opened read_only=True, and ranks write: open "
                        f"it without, or read it by itself, without a Shard"
                    )
                if NAME in self.store._stored_state():
                    raise MisuseError(
                        f"the store {self.path} is one of ranks, bound to buckets: open all of "
                        f"them with embedrock.distributed.open, whatever the numbers of the ranks"
                    )
            except Exception as error:
                failed = error
        with self.exchange as exchange:
            exchange.meet(Verb("Shard"), failed=failed)

    @property
    def path(self) -> Path:
        """The directory of this rank's store."""
        return self.store.path

    @property
    def run(self) -> str:
        """The id of the run. Errors: ``MisuseError`` where :func:`open` has not made the shard."""
        return self._bound().run

    @property
    def step(self) -> int | None:
        """Step of the commit that the ranks were opened at or made last. None before the first."""
        is_initial = self._binding is not None and self._binding.initial
        return None if is_initial else self.store.step

    @property
    def meta(self) -> Any:
        """This rank's meta of that commit."""
        return self.store.meta

    @property
    def uncommitted(self) -> tuple[int, int]:
        """Amount that closing this rank's store would discard: (batches, rows they touched)."""
        return self.store.uncommitted

    def state(self) -> dict[str, bytes]:
        """This rank's named byte strings of that commit."""
        self._take_state()
        return self._stored_state()

    def _stored_state(self) -> dict[str, bytes]:
        """The same, for who does not take it over."""
        stored = self.store._stored_state()
        return {name: content for name, content in stored.items() if name != NAME}

    @property
    def _state_taken(self) -> bool:
        """Whether somebody took it over, or the ranks made that commit."""
        return self.store._state_taken

    def _take_state(self) -> None:
        """Notes that it was taken over."""
        self.store._take_state()

    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: bool = True,
        pin: str | None = None,
    ) -> Commit:
        """Commits the stores of all ranks at one step. Collective; returns this rank's commit.

        ``step`` is the same on all ranks, at least 1, and larger than that of the last commit.
        ``meta`` and ``state`` are each rank's own; ``state`` has what the ranks have in common on
        each of them, so that any rank's is enough to go on with another number of ranks. ``pin`` is
        a name that keeps the commit beyond the last ones, given once all ranks have it, as
        :meth:`pin` does.

        Errors: the same on all ranks: ``MisuseError`` for a step that is not larger or differs;
        ``UnsupportedError`` for ``wait=False``; where a rank's commit failed, a ``RankError`` with
        its message, also of the rank's own kind. No rank commits after that, nor after an update or
        a ``put`` that failed on one of them (``PoisonedError``): go back to the last common commit,
        or end all and open again.

        Blocking: until all ranks have called it and all disks have it.

        Warns where the commit is made and its manifest cannot be written.

        Durability: when it returns the commit survives the death of any ranks and machines, as far
        as their disks do. Before, the last one does.
        """
        failed, told = None, None
        try:
            number, named = self._checked(step, state, wait)
            name = None if pin is None else text("pin", pin)
            encode_meta(meta)
            told = [number, secrets.token_hex(8)]
        except Exception as error:
            failed = error
        with self.exchange as exchange:
            each = all_gather(exchange, _VERB, told, failed)
            self._same_steps([step for step, _ in each])
            token = each[0][1]
            made, failed, buckets = None, None, ""
            try:
                bound = self._bound().now(self.store, token)
                made = self.store.commit(number, meta, {**named, NAME: bound.encoded(number)})
                buckets = str(bound.buckets)
            except Exception as error:
                failed = error
            try:
                runs = all_gather(exchange, _VERB, buckets, failed)
            except Exception as error:
                self._failed = (
                    f"the commit of step {number} failed on a rank ({error}), and others have it; "
                    f"go back to the last commit that all have, or end all ranks and start again"
                )
                _log.error("%s: %s", self.path, self._failed)
                raise
            self._binding = bound
            unwritten = all_gather(exchange, _VERB, self._note_in_manifests(bound, number, runs))
            left_out = next(filter(None, unwritten), None)
        if left_out is not None:
            warn(
                f"the commit of step {number} is made on all ranks, and its manifest is not, "
                f"which is for programs that copy or serve the stores: {left_out}; the next "
                f"commit has one"
            )
        assert made is not None, "an error of this rank was raised before"
        if name is not None:
            self.pin(number, name)
        return made

    def go_back(self, step: int) -> Commit:
        """Goes back to a commit that all ranks have, in place. Collective; returns this rank's.

        As :meth:`embedrock.Store.go_back`, but later commits are dropped at once on all ranks.

        Errors: the same on all ranks: as there; ``MisuseError`` if ranks give different steps. If
        the store of one rank has failed, no rank commits before all have gone back.
        """
        failed, behind = None, False
        try:
            number = whole("step", step, 0)
            self._bound()
            if number not in {commit.step for commit in self.store.commits()}:
                kept = ", ".join(str(commit.step) for commit in self.store.commits())
                raise NotFoundError(f"no commit of step {number} is kept; those of {kept} are")
        except Exception as error:
            failed = error
        with self.exchange as exchange:
            self._same_steps(all_gather(exchange, _BACK, None if failed else number, failed))
            try:
                behind = self.store.step != number
                self.store.go_back(number)
            except Exception as error:
                failed = error
            try:
                all_gather(exchange, _BACK, None, failed)
            except Exception as error:
                self._failed = (
                    f"going back to step {number} failed on a rank ({error}), and others are "
                    f"there; go back to a commit that all have, or end all ranks and start again"
                )
                raise
            try:
                self._binding, self._failed = (
                    binding_of(self.store._stored_state(), self.path),
                    None,
                )
                if behind:
                    drop_later(self.store)
                remove_manifests(self.path.parent, {commit.step for commit in self.commits()})
            except Exception as error:
                failed = error
            all_gather(exchange, _BACK, None, failed)
        return self.store.commits()[-1]

    def commits(self) -> list[Commit]:
        """The commits that this rank's store keeps, oldest first."""
        return self.store.commits()

    def _made_elsewhere(self) -> str | None:
        """Why what the commit has of a process is not of this rank; None where it is."""
        world = None if self._binding is None else self._binding.from_world
        if world is None:
            return None
        return (
            f"the commit of step {self.step} is of {ranks_of(world)}, and its stores were divided "
            f"anew since; what it has of each rank's generators and loader is of none of these"
        )

    def _fail(self, reason: str) -> None:
        """Notes why no rank commits before it has gone back."""
        self._failed = reason

    def _give_up(self, error: BaseException) -> None:
        """Takes the place of a commit of this rank that cannot come: all ranks raise its error."""
        with self.exchange as exchange:
            exchange.meet(SAVE, failed=error)

    def _check_dense(self, owners: Sequence[tuple[str, Any]]) -> None:
        """Refuses dense parts that differ among the ranks. Collective."""
        check_same(self.exchange, owners)

    def _bound(self) -> Binding:
        if self._binding is None:
            raise MisuseError(
                f"this Shard of {self.path} was made by hand, and its store is not bound to "
                f"buckets: ranks commit together with the one that "
                f"embedrock.distributed.open(path) gives; to keep what is trained, "
                f"commit on each rank with shard.store.commit(step)"
            )
        return self._binding

    def _same_steps(self, steps: Sequence[int]) -> None:
        if any(other != steps[0] for other in steps):
            said = ", ".join(f"{other} on rank {rank}" for rank, other in enumerate(steps))
            raise MisuseError(f"step is {said}; all ranks give the same step")

    def _note_in_manifests(self, bound: Binding, step: int, buckets: Sequence[str]) -> str | None:
        """Writes that of the last commit beside the store of rank 0, and removes beside each those
        of commits that are gone. Returns what kept it from that: the commit is made all the same.
        """
        folder = self.path.parent
        try:
            if self.exchange.rank == 0:
                write_manifest(folder, bound, step, buckets)
            remove_manifests(folder, {commit.step for commit in self.store.commits()})
        except Exception as error:
            return f"rank {self.exchange.rank}: {error}"
        return None

    def _checked(
        self, step: int, state: Mapping[str, bytes] | None, wait: bool
    ) -> tuple[int, dict[str, bytes]]:
        number, last = whole("step", step, 0), self.store.step
        if not flag("wait", wait):
            raise UnsupportedError(
                "ranks commit with wait=True alone: the next commit begins after all ranks have "
                "this one, or there may be none that all have"
            )
        if self._failed is not None:
            raise PoisonedError(self._failed)
        if last is not None and number <= last:
            raise MisuseError(
                f"step is {number}, and the last commit of the ranks is of step {last}; expected a "
                f"larger one: by its step all ranks know a commit"
            )
        named = dict(named_bytes(state))
        if NAME in named:
            raise MisuseError(
                f"state has a byte string {NAME!r}, which commits of ranks have anyway"
            )
        return number, named


def drop_later(store: Store) -> None:
    """Makes the commit that a store has gone back to once more, which drops those behind it
    durably: of one that a rank makes of their step nobody could tell them apart."""
    step = store.step
    assert step is not None, "it is at a commit"
    store.commit(step, store.meta, store.state())
