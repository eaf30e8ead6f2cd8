"""Names for commits of ranks: the same in the stores of all, so that a later push finds them.

Invariant: a name moves to a commit only when all ranks have that commit. A rank that dies during
the move leaves the name at two commits; the newer one is among the last that all keep.
"""

from __future__ import annotations

from typing import Any

from embedrock._arguments import text, whole
from embedrock.distributed.all_gather import all_gather
from embedrock.distributed.exchange import Exchange, Verb
from embedrock.errors import MisuseError, NotFoundError
from embedrock.store import Store

__all__ = ["RankPins"]

_PIN, _UNPIN = Verb("pin"), Verb("unpin")


class RankPins:
    """Names for the commits of a shard. Each rank makes the same calls."""

    store: Store
    exchange: Exchange

    def pin(self, step: int, name: str) -> None:
        """Keeps the commit of a step on all ranks, until :meth:`unpin`. Collective.

        As :meth:`embedrock.Store.pin`, in the store of each rank under one name.

        Errors: the same on all ranks: as there; ``MisuseError`` if ranks give different steps or
        names. If a rank had no room, others may have moved the name: pin again.

        Blocking: until all ranks have it. Durability: when it returns.
        """
        failed, asked = None, None
        try:
            asked = [whole("step", step, 0), text("name", name)]
            kept = {commit.step for commit in self.store.commits()} | {*self.store.pins().values()}
            if asked[0] not in kept:
                raise NotFoundError(
                    f"there is no commit of step {step} to pin; those of {sorted(kept)} are kept"
                )
        except Exception as error:
            failed = error
        with self.exchange as exchange:
            _expect_same(all_gather(exchange, _PIN, asked, failed))
            try:
                self.store.pin(step, name)
            except Exception as error:
                failed = error
            all_gather(exchange, _PIN, None, failed)

    def unpin(self, name: str) -> None:
        """Takes the name of a pin away on all ranks. Collective.

        Errors: the same on all ranks: ``NotFoundError`` where none has the name, ``MisuseError``
        where ranks give different names. Blocking, durability: as :meth:`pin`.
        """
        failed, has = None, False
        try:
            has = text("name", name) in self.store.pins()
        except Exception as error:
            failed = error
        with self.exchange as exchange:
            told = all_gather(exchange, _UNPIN, [name, has] if failed is None else None, failed)
            _expect_same([one[:1] for one in told])
            try:
                # One that died amid a pin has left the name on some ranks alone.
                if has or not any(there for _, there in told):
                    self.store.unpin(name)
            except Exception as error:
                failed = error
            all_gather(exchange, _UNPIN, None, failed)

    def pins(self) -> dict[str, int]:
        """The steps of pinned commits of this rank's store by their names, the oldest first."""
        return self.store.pins()


def _expect_same(told: list[Any]) -> None:
    for rank, other in enumerate(told):
        if other != told[0]:
            raise MisuseError(
                f"rank 0 gives {told[0]} and rank {rank} gives {other}; all ranks give the same"
            )
