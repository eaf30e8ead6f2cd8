"""Counts distinct keys of a stream in 16 KiB, to about 1 %.

Source: Flajolet et al., "HyperLogLog", 2007, with linear counting for small sets and 64-bit hashes
(no large-range correction), as in Heule et al., "HyperLogLog in Practice", 2013.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedrock.data.hashing import mix

_BITS = 14
_REGISTERS = 1 << _BITS


class DistinctCounter:
    """Estimates how many distinct keys it was shown; the standard error is 0.8 %."""

    def __init__(self) -> None:
        """A counter that was shown nothing."""
        self._registers = np.zeros(_REGISTERS, np.uint8)

    def add(self, keys: NDArray[np.int64]) -> None:
        """Shows a column of keys of any shape."""
        hashes = mix(np.ascontiguousarray(keys).reshape(-1).view(np.uint64))
        register = (hashes >> np.uint64(64 - _BITS)).astype(np.intp)
        # The upper 53 of the remaining 50 bits and a sentinel fit a double exactly, so its exponent
        # is the position of the first one.
        rest = (hashes << np.uint64(_BITS)) | np.uint64(1 << (_BITS - 1))
        exponent = np.frexp((rest >> np.uint64(11)).astype(np.float64))[1]
        np.maximum.at(self._registers, register, (54 - exponent).astype(np.uint8))

    def estimate(self) -> int:
        """The number of distinct keys shown so far."""
        empty = int(np.count_nonzero(self._registers == 0))
        if empty > 0:
            linear = _REGISTERS * np.log(_REGISTERS / empty)
            if linear <= 2.5 * _REGISTERS:
                return round(float(linear))
        bias = 0.7213 / (1 + 1.079 / _REGISTERS)
        harmonic = np.sum(np.exp2(-self._registers.astype(np.float64)))
        return round(bias * _REGISTERS * _REGISTERS / float(harmonic))
