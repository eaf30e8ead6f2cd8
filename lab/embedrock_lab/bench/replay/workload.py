"""Operations of one batch of a race, and the expected rows after it.

A row starts as ``values_of(key, dim)`` and changes by its own uses alone, so a count of uses tells
what it must be:

========== ====================================================================================
mode       a batch, of distinct keys
========== ====================================================================================
train      read all rows, add 2^-23 to each value, write them
update     read all rows, one step of row-wise Adagrad with a constant gradient
read       read all rows
ycsb-a     read the first half, overwrite the second
ycsb-b     read 95 %, overwrite the rest
ycsb-c     read all rows
ycsb-f     read the first half; read, change and write the second
========== ====================================================================================

*Source*: the YCSB core workloads (Cooper et al., 2010), batched as MLKV's section IV-D has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedrock_lab.measure.rows import values_of

__all__ = ["EPS", "GRADIENT", "LR", "MODES", "STEP", "Mode", "expected", "wrong_rows"]

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.uint16]

STEP = np.float32(2.0**-23)
"""Increment of a value in training: exact, as every value is a multiple of it."""
GRADIENT = 0.0625
LR = 0.05
EPS = 1e-10
TOLERANCE = 1e-4
"""Values after steps of an optimizer may differ in their last bits between engines; one step more
or less is a hundred times that."""


@dataclass(frozen=True)
class Mode:
    """Division of a batch."""

    reads: float
    """Share of the keys that are only read."""
    blind: bool = False
    """The others are overwritten unread."""
    optimizer: bool = False
    """They change by an optimizer step, whose state is a word beside the values."""

    @property
    def state_words(self) -> int:
        """Words of optimizer state per row."""
        return int(self.optimizer)

    def read_only(self, keys: int) -> int:
        """Number of keys of a batch, from its beginning, that are only read."""
        return int(keys * self.reads)


MODES = {
    "train": Mode(0.0),
    "update": Mode(0.0, optimizer=True),
    "read": Mode(1.0),
    "ycsb-a": Mode(0.5, blind=True),
    "ycsb-b": Mode(0.95, blind=True),
    "ycsb-c": Mode(1.0),
    "ycsb-f": Mode(0.5),
}


def expected(keys: npt.NDArray[np.uint64], counts: Counts, dim: int, mode: Mode) -> Floats:
    """The rows of keys that were written so many times. ``keys (N,) -> (N, dim) float32``."""
    rows = values_of(keys, dim)
    if mode.optimizer:
        rows -= _moved(counts)[:, None]
    else:
        rows += counts[:, None].astype(np.float32) * STEP
    return rows


def wrong_rows(found: Floats, keys: npt.NDArray[np.uint64], counts: Counts, mode: Mode) -> int:
    """Number of rows that differ from the expected ones."""
    rows = expected(keys, counts, found.shape[1], mode)
    same = np.abs(found - rows) <= TOLERANCE if mode.optimizer else found == rows
    return int(len(found) - same.all(axis=1).sum())


def _moved(counts: Counts) -> Floats:
    """Distance that row-wise Adagrad has moved a value after this number of steps of the constant
    gradient."""
    steps = np.arange(1, int(counts.max(initial=0)) + 1)
    each = LR * GRADIENT / (np.sqrt(steps * GRADIENT**2) + EPS)
    moved: Floats = np.concatenate([[0.0], np.cumsum(each)]).astype(np.float32)[counts]
    return moved
