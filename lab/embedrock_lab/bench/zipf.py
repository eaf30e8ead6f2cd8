"""Skewed keys without end: the id of rank r is drawn with weight r^-exponent.

>>> keys = Zipf(1000, 0.9, seed=1)
>>> batch = keys.distinct(100)
>>> len(batch) == len(set(batch.tolist())) <= 100
True
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedrock import _core

__all__ = ["Zipf"]

Keys = npt.NDArray[np.int64]


class Zipf:
    """Draws ids below ``rows``, permuted, so that popular ones are not neighbours."""

    def __init__(self, rows: int, exponent: float, seed: int | np.random.Generator) -> None:
        """The same arguments draw the same ids."""
        self._rng = np.random.default_rng(seed)
        self._ids = self._rng.permutation(rows).astype(np.uint32)
        # Float32 would merge the tail; the shares take 8 bytes per row.
        self._shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
        self._shares /= self._shares[-1]

    def draw(self, count: int | tuple[int, ...]) -> Keys:
        """``count`` ids, or an array of that shape, popular ones several times."""
        ranks = np.searchsorted(self._shares, self._rng.random(count), side="right")
        return self._ids[np.minimum(ranks, len(self._ids) - 1)].astype(np.int64)

    def distinct(self, count: int) -> Keys:
        """The distinct ones of ``count`` ids, in order of first occurrence."""
        keys, _ = _core.distinct(self.draw(count).view(np.uint64))
        return keys.view(np.int64)
