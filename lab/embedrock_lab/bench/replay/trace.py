"""Traces that are drawn for a replay."""

from __future__ import annotations

import numpy as np

from embedrock.observe.trace import Trace
from embedrock_lab.bench.zipf import Zipf

__all__ = ["synthetic"]


def synthetic(rows: int, exponent: float, batches: int, batch: int, seed: int) -> Trace:
    """Independent draws of ids below ``rows``, skewed as :class:`Zipf` has it; 0 is uniform."""
    offsets = np.arange(batches + 1, dtype=np.int64) * batch
    if exponent == 0:
        values = np.random.default_rng(seed).integers(0, rows, batches * batch)
    else:
        values = Zipf(rows, exponent, seed).draw(batches * batch)
    return Trace(values.astype(np.uint64), offsets)
