"""The shape of Criteo's Kaggle data set: how many rows each table has, and how skewed its keys are.

Numbers only, no line of the data. `rows` are the distinct tokens that the DLRM benchmark finds in
the file (facebookresearch/dlrm: its `--arch-embedding-size` for that set, listed in its issue 233).
Skew is that of the first 80,000 lines of the data in time order: `top` is the share of the most
frequent token, and the token of rank r from 2 on has a share in proportion to the integral of
(t + shift)^-exponent over r - 0.5 to r + 0.5 (Zipf's law with Mandelbrot's shift, and ranks that
can be drawn without a table). Exponent and shift are the ones with which the expected number of
distinct tokens among the first 1,000, 3,000, 10,000, 30,000 and 80,000 lines and the share of the
ten most frequent ones come closest to what was counted. They are off by 10 % on average and by 40 %
at most; the large tables, in which the misses are, by 12 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embedrock.errors import MisuseError

#: Tables do not shrink below this when all are scaled, unless they are smaller to begin with.
_FEWEST_ROWS = 1000


@dataclass(frozen=True)
class Field:
    """One categorical field: its table's rows and its skew."""

    rows: int
    top: float
    exponent: float
    shift: float

    def ranks(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ranks, from 0, that numbers uniform in [0, 1) draw."""
        power = 1.0 - self.exponent
        first, last = (1.5 + self.shift) ** power, (self.rows + 0.5 + self.shift) ** power
        rest = np.maximum((uniform - self.top) / (1.0 - self.top), 0.0)
        drawn = (first + rest * (last - first)) ** (1.0 / power) - self.shift
        ranks = np.minimum(np.rint(drawn), self.rows).astype(np.int64) - 1
        return np.where(uniform < self.top, 0, np.maximum(ranks, 1))

    def ids(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of ranks: a permutation that does not leave popular rows side by side."""
        step = round(self.rows * (math.sqrt(5) - 1) / 2) | 1
        while math.gcd(step, self.rows) != 1:
            step += 2
        return (ranks * step + self.rows // 3) % self.rows


FIELDS = (
    Field(1460, 0.503, 1.98, 0.5),
    Field(583, 0.126, 2.54, 31.5),
    Field(10131227, 0.039, 1.02, -0.5),
    Field(2202608, 0.054, 1.12, 0.5),
    Field(305, 0.67, 2.38, -0.3),
    Field(24, 0.464, 5.74, 0.0),
    Field(12517, 0.01, 1.32, 53.3),
    Field(633, 0.592, 2.0, -0.8),
    Field(3, 0.885, 6.1, -1.0),
    Field(93145, 0.268, 1.32, 32.5),
    Field(5683, 0.021, 1.52, 53.3),
    Field(8351593, 0.039, 1.06, 1.1),
    Field(3194, 0.023, 1.36, 32.5),
    Field(27, 0.364, 4.38, 2.0),
    Field(14992, 0.02, 1.76, 76.8),
    Field(5461306, 0.039, 1.1, 2.0),
    Field(10, 0.425, 6.06, 2.0),
    Field(5652, 0.054, 1.92, 38.4),
    Field(2173, 0.414, 1.44, -0.5),
    Field(4, 0.414, 0.44, -0.6),
    Field(7046547, 0.039, 1.08, 1.5),
    Field(18, 0.817, 5.2, 0.0),
    Field(15, 0.444, 5.42, 2.0),
    Field(286181, 0.073, 1.22, 0.5),
    Field(105, 0.414, 5.48, 8.5),
    Field(142572, 0.414, 1.22, 1.8),
)

ROWS = sum(field.rows for field in FIELDS)
"""33,762,577: rows of all tables at full size."""
ROWS_MIN = sum(min(field.rows, _FEWEST_ROWS) for field in FIELDS)
"""The least that `scaled` takes."""

#: Mean and standard deviation of log(1 + x) of the 13 integers, missing ones as 0, in those lines.
DENSE_MEAN = (0.48, 2.14, 1.89, 1.42, 6.79, 2.65, 1.47, 2.07, 3.43, 0.22, 0.82, 0.07, 1.52)
DENSE_STD = (0.86, 2.15, 1.49, 1.11, 3.24, 2.19, 1.38, 1.17, 1.81, 0.36, 0.75, 0.32, 1.21)


def scaled(rows: int) -> tuple[Field, ...]:
    """The fields with `rows` rows in all: every table smaller by one factor, except that none
    shrinks below 1,000 rows or its own size; exponents stay.

    Errors: MisuseError outside `ROWS_MIN` to `ROWS`.
    """
    if not ROWS_MIN <= rows <= ROWS:
        raise MisuseError(f"rows is {rows}, expected {ROWS_MIN} to {ROWS} (all of Criteo's)")
    if rows == ROWS:
        return FIELDS
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        factor = (low + high) / 2
        low, high = (factor, high) if sum(_sizes(factor)) <= rows else (low, factor)
    sizes = _sizes(low)
    sizes[max(range(len(sizes)), key=lambda f: FIELDS[f].rows)] += rows - sum(sizes)
    return tuple(replace(field, rows=size) for field, size in zip(FIELDS, sizes, strict=True))


def _sizes(factor: float) -> list[int]:
    return [max(min(field.rows, _FEWEST_ROWS), math.floor(field.rows * factor)) for field in FIELDS]


def names(fields: Sequence[Field]) -> list[str]:
    """`C1` to `C26`, as in the data."""
    return [f"C{place}" for place in range(1, len(fields) + 1)]
