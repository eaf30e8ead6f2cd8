"""64-bit keys from ids, a whole column at a time.

`combine` is what feature crosses are made of; raw tokens go through `mix`, too. Both are fixed: a
store trained with one version must find its rows again with the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_U64 = np.uint64


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes all bits of each value; a bijection. (Finaliser: Pelle Evensen's "moremur".)"""
    x = values.astype(_U64, copy=True)
    x ^= x >> _U64(27)
    x *= _U64(0x3C79AC492BA7B653)
    x ^= x >> _U64(33)
    x *= _U64(0x1C69B3F74AC4AE35)
    x ^= x >> _U64(27)
    return x


def combine(*columns: NDArray[np.integer]) -> NDArray[np.int64]:
    """One sparse 64-bit key per row of several id columns: a feature cross.

    Order matters: `combine(a, b)` differs from `combine(b, a)`. Shapes: each (N,) → (N,) int64.
    """
    key = np.full(len(columns[0]), 0x9E3779B97F4A7C15, _U64)
    for column in columns:
        key = mix(key ^ np.ascontiguousarray(column).astype(np.int64, copy=False).view(_U64))
        key += _U64(0x9E3779B97F4A7C15)
    return key.view(np.int64)
