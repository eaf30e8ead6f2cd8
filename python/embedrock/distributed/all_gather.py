"""Exchange between ranks in one collective call: each tells all others values, or its error."""

from __future__ import annotations

import json
from typing import Any

from embedrock.distributed.exchange import Exchange, Verb

__all__ = ["all_gather"]


def all_gather(
    exchange: Exchange, verb: Verb, value: Any = None, failed: BaseException | None = None
) -> list[Any]:
    """The values of all ranks, in rank order: anything that JSON holds. Also a barrier.

    Errors: as :meth:`Exchange.meet`: where a rank has ``failed``, all raise a ``RankError`` with
    its message.
    """
    own = b"" if failed is not None else json.dumps(value).encode()
    met = exchange.meet(verb, failed=failed, note=len(own))
    found = exchange.gather(verb, own, max(int(met.notes.max()), 1))
    return [json.loads(one[:length]) for one, length in zip(found, met.notes, strict=True)]
