"""Distinct keys, in the order in which they are first used."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arrays import ArrayLike, as_keys

__all__ = ["distinct"]


def distinct(keys: ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct keys in order of first occurrence, and each key's place among them.

    Shapes: ``keys (*,) int64 or uint64 -> distinct (U,) of the same type, inverse (*,) int64``,
    with ``distinct[inverse] == keys``. ``np.unique`` sorts instead, which costs more and destroys
    the order in which rows are used together.

    >>> embedrock.distinct([5, 3, 5])
    (array([5, 3]), array([0, 1, 0]))
    """
    found = as_keys(keys)
    first, inverse = _core.distinct(found.flat)
    return first.view(np.int64 if found.signed else np.uint64), inverse.reshape(found.shape)
