"""Samples of queries: those whose number has a small hash.

So a sample is the same wherever it is drawn, from a file or while queries are made, and a smaller
one of the same seed is a part of a larger one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock._arguments import number
from embedrock.data.hashing import mix
from embedrock.errors import MisuseError

__all__ = ["WHOLE", "hashes", "limit", "marked", "share_of"]

WHOLE = 1 << 64
"""The limit below which every hash lies."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def share_of(name: str, value: Any, *, whole: bool) -> float:
    """A share above 0 and below 1, or with ``whole`` up to 1.

    Errors: ``MisuseError``.
    """
    found = number(name, value)
    if not (0 < found < 1 or (whole and found == 1)):
        expected = "more than 0, 1 at most" if whole else "more than 0 and less than 1"
        raise MisuseError(f"{name} is {found:g}, expected a share: {expected}")
    return found


def limit(share: float) -> int:
    """The bound below which hashes are in a sample of this share."""
    return max(1, round(share * WHOLE))


def hashes(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Hashes of the numbers of queries, one to one for a seed."""
    return mix(numbers ^ mix(np.array([seed], np.uint64) + _GOLDEN))


def marked(numbers: npt.NDArray[np.uint64], seed: int, below: int) -> npt.NDArray[np.bool_]:
    """Whether queries of these numbers are in the sample of a seed and a limit."""
    if below >= WHOLE:
        return np.ones(len(numbers), np.bool_)
    return np.less(hashes(numbers, seed), np.uint64(below))
