"""What each rank tells all others in one collective call: values of any size, or its error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from embedrock.distributed.exchange import Exchange, Verb

__all__ = ["tell"]


def tell(
    exchange: Exchange, verb: Verb, value: Any = None, failed: BaseException | None = None
) -> list[Any]:
    """What each rank tells, in their order: anything that JSON holds. A barrier, too.

    Errors: as :meth:`Exchange.meet`: where a rank has ``failed``, all raise a ``RankError`` with
    its message.
    """
    own = b"" if failed is not None else json.dumps(value).encode()
    met = exchange.meet(verb, failed=failed, note=len(own))
    size = max(int(met.notes.max()), 1)
    padded = np.zeros(size, np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    found = [torch.empty(size, dtype=torch.uint8) for _ in range(exchange.world)]
    try:
        dist.all_gather(found, torch.from_numpy(padded), group=exchange.group)
    except RuntimeError as error:
        raise exchange._lost(verb, error) from error
    return [
        json.loads(bytes(one.numpy()[:length]))
        for one, length in zip(found, met.notes, strict=True)
    ]
