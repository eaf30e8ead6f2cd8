"""Computation of a training step of ``recdb`` beside its rows: the dense part of a DLRM."""

from __future__ import annotations

import statistics
import time
from typing import Any

__all__ = ["dense_step_s"]

WARM_STEPS, STEPS = 50, 300
DENSE = 13


def dense_step_s(torch: Any, fields: int, dim: int, batch: int, layers: list[int]) -> float:
    """Seconds of one step of Adam on the dense part, forwards and backwards, one thread: median.

    The gradients of the embedded rows are formed, too. *Source*: layers and optimizer are those of
    RecDB's artifact.
    """
    from embedrock.models.dlrm import DLRM, DLRMConfig

    torch.manual_seed(0)
    hidden = tuple(layers)
    model = DLRM(DLRMConfig(DENSE, fields, dim, hidden, hidden), torch.nn.Identity())
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    dense, labels = torch.rand(batch, DENSE), torch.randint(0, 2, (batch,)).float()
    took = []
    for _ in range(WARM_STEPS + STEPS):
        rows = torch.rand(batch, fields, dim, requires_grad=True)
        begin = time.perf_counter()
        logits = model.head(dense, rows)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        adam.zero_grad()
        loss.backward()
        adam.step()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[WARM_STEPS:])
