"""Commits of all ranks: every store at the same step, or an error on every rank.

What always holds: commit n + 1 begins after all ranks have n, so of the two commits that a store
keeps one is common to all, wherever ranks die. The manifest is for readers; no rank needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedrock._arguments import flag, whole
from embedrock.commits import Commit, encode_meta
from embedrock.distributed.binding import NAME
from embedrock.distributed.exchange import Verb
from embedrock.distributed.manifest import write_manifest
from embedrock.distributed.together import tell
from embedrock.errors import MisuseError, PoisonedError, UnsupportedError
from embedrock.store.batches import named_bytes

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["commit", "give_up"]

_VERB = Verb("commit")


def commit(
    shard: Shard,
    step: int,
    meta: Any = None,
    state: Mapping[str, bytes] | None = None,
    *,
    wait: bool = True,
) -> Commit:
    """Commits the stores of all ranks at one step. Collective; returns this rank's commit.

    ``step`` is the same on all ranks, at least 1, and larger than that of the last commit. ``meta`` and
    ``state`` are each rank's own; ``state`` has what the ranks have in common on each of them, so
    that any rank's is enough to go on with another number of ranks.

    Errors: the same on all ranks: ``MisuseError`` for a step that is not larger or differs;
    ``UnsupportedError`` for ``wait=False``; where a rank's commit failed, a ``RankError`` with its
    message, also of the rank's own kind. No rank commits after that: end all, and open again at the
    last common commit.

    Blocking: until all ranks have called it and all disks have it.

    Durability: when it returns the commit survives the death of any ranks and machines, as far as
    their disks do. Before, the last one does.
    """
    verb, failed, told = _VERB, None, None
    try:
        number, named = _checked(shard, step, state, wait)
        encode_meta(meta)
        told = number
    except Exception as error:
        failed = error
    with shard.exchange as exchange:
        steps = tell(exchange, verb, told, failed)
        if any(other != steps[0] for other in steps):
            said = ", ".join(f"{other} on rank {rank}" for rank, other in enumerate(steps))
            raise MisuseError(f"step is {said}; all ranks commit the same step")
        made, failed = None, None
        try:
            bound = shard.binding.now(shard.store)
            made = shard.store.commit(number, meta, {**named, NAME: bound.encoded(number)})
            told = [str(bound.buckets), bound.tables]
        except Exception as error:
            failed = error
        try:
            stores = tell(exchange, verb, told, failed)
        except Exception as error:
            shard.commits_failed = (
                f"the commit of step {number} failed on a rank ({error}), and others have it; end "
                f"all ranks and start them again: they open at the last commit that all have"
            )
            raise
        shard.binding, failed = bound, None
        if exchange.rank == 0:
            try:
                store, bound = shard.store, shard.binding
                kept = {commit.step for commit in store.commits()}
                buckets = [buckets for buckets, _ in stores]
                write_manifest(store.path.parent, bound.run, number, buckets, bound.tables, kept)
            except Exception as error:
                failed = error
        tell(exchange, verb, None, failed)
    assert made is not None, "an error of this rank was raised before"
    return made


def give_up(shard: Shard, error: BaseException) -> None:
    """Takes the place of a rank's ``commit`` that cannot come, so that all ranks raise its error."""
    with shard.exchange as exchange:
        tell(exchange, _VERB, None, error)


def _checked(
    shard: Shard, step: int, state: Mapping[str, bytes] | None, wait: bool
) -> tuple[int, dict[str, bytes]]:
    number, last = whole("step", step, 0), shard.store.step
    if not flag("wait", wait):
        raise UnsupportedError(
            "ranks commit with wait=True alone: the next commit begins after all ranks have this "
            "one, or there may be none that all have"
        )
    if shard.commits_failed is not None:
        raise PoisonedError(shard.commits_failed)
    if last is not None and number <= last:
        raise MisuseError(
            f"step is {number}, and the last commit of the ranks is of step {last}; expected a "
            f"larger one: by its step all ranks know a commit"
        )
    named = dict(named_bytes(state))
    if NAME in named:
        raise MisuseError(f"state has a byte string {NAME!r}, which commits of ranks have anyway")
    return number, named
