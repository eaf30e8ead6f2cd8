"""Mixed precision on several ranks: what one rank's ``GradScaler`` finds counts on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from embedrock.distributed.exchange import Verb

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["unscale_together"]


def unscale_together(
    shard: Shard, scaler: Any, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """See ``Shard.unscale_``. torch's ``ShardedGradScaler`` goes the same way."""
    found = 0
    states = []
    with shard._refusing("unscale_"):
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
            if scaler.is_enabled():
                states.append(scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"])
                found |= any(bool(value.item()) for value in states[-1].values())
    with shard.exchange as exchange:
        anywhere = exchange.meet(Verb("unscale_"), note=found).notes.any()
    for state in states:
        if not state:  # this rank has no gradient, which the scaler refuses to step
            state[torch.device("cpu")] = torch.zeros(1, dtype=torch.float32, device="cpu")
        for value in state.values():
            value.fill_(float(anywhere))
