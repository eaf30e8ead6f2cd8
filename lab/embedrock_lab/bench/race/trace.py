"""Traces that a race draws itself."""

from __future__ import annotations

import numpy as np

from embedrock.observe.trace import Trace

__all__ = ["synthetic"]


def synthetic(rows: int, exponent: float, batches: int, batch: int, seed: int) -> Trace:
    """Independent draws of ids below ``rows``: id of rank r with weight r^-exponent, 0 is uniform.

    Ids are permuted, so that popular ones are not neighbours.
    """
    rng = np.random.default_rng(seed)
    offsets = np.arange(batches + 1, dtype=np.int64) * batch
    if exponent == 0:
        return Trace(rng.integers(0, rows, batches * batch).astype(np.uint64), offsets)
    shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    shares /= shares[-1]
    ids = rng.permutation(rows).astype(np.uint64)
    values = np.empty(batches * batch, np.uint64)
    for begin in range(0, len(values), 1 << 20):
        part = values[begin : begin + (1 << 20)]
        part[:] = ids[np.searchsorted(shares, rng.random(len(part)))]
    return Trace(values, offsets)
