"""Traces: the keys of one batch after another.

A trace comes of a recording (``Store.record``), of a file, or is drawn. A trace file is an ``.npz``
with ``values`` (uint64 keys) and ``offsets`` (int64, where each batch begins, and the end), so that
anyone can replay their own.

>>> trace = Trace(np.array([5, 7, 5, 9], np.uint64), np.array([0, 3, 4]))
>>> trace.batches, [batch.tolist() for batch in trace.distinct()]
(2, [[5, 7], [9]])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock.errors import MisuseError

__all__ = ["Trace", "check", "load"]

Keys = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """Keys of batches: batch ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: Keys
    offsets: Offsets

    @property
    def batches(self) -> int:
        """Number of batches."""
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Keys]:
        """The batches in order."""
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.values[begin:end]

    def first(self, batches: int) -> Trace:
        """The first batches."""
        offsets = self.offsets[: batches + 1]
        return Trace(self.values[: offsets[-1]], offsets)

    def distinct(self) -> Trace:
        """The same batches with every key once, in order of first occurrence."""
        parts = [_core.distinct(np.ascontiguousarray(batch))[0] for batch in self]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return Trace(np.concatenate(parts) if parts else self.values[:0], offsets)

    def dense(self) -> tuple[Trace, int]:
        """The same with keys renumbered from 0 by their order, and how many keys there are."""
        keys, ids = np.unique(self.values, return_inverse=True)
        return Trace(ids.astype(np.uint64).reshape(-1), self.offsets), len(keys)

    def save(self, directory: Path) -> dict[str, str]:
        """Writes both arrays as raw little-endian files for programs in other languages."""
        files = {"values": directory / "values.u64", "offsets": directory / "offsets.i64"}
        self.values.astype("<u8", copy=False).tofile(files["values"])
        self.offsets.astype("<i8", copy=False).tofile(files["offsets"])
        return {name: str(file) for name, file in files.items()}


def load(file: Path) -> Trace:
    """The trace of an ``.npz`` file. Errors: ``MisuseError`` naming what is wrong with it."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ("values", "offsets") if name not in arrays]
            if missing:
                raise MisuseError(
                    f"{file} has no array {missing[0]!r}, expected values (uint64 keys) and "
                    "offsets (int64 batch boundaries)"
                )
            values, offsets = arrays["values"], arrays["offsets"]
    except (OSError, ValueError) as error:
        raise MisuseError(f"{file} cannot be read as an .npz file: {error}") from error
    return check(values, offsets, str(file))


def check(values: npt.NDArray[np.generic], offsets: npt.NDArray[np.generic], name: str) -> Trace:
    """A trace of these arrays. Errors: ``MisuseError`` naming what is wrong with them."""
    for array, label in ((values, "values"), (offsets, "offsets")):
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise MisuseError(
                f"{name}: {label} is {array.dtype} of shape {array.shape}, expected a flat array "
                "of integers"
            )
    if np.issubdtype(values.dtype, np.signedinteger):
        values = values.astype(np.int64).view(np.uint64)
    bounds = offsets.astype(np.int64)
    if len(bounds) < 2:
        raise MisuseError(
            f"{name}: offsets has {len(bounds)} entries, so there are no batches; expected where "
            "each batch begins, and the end of the last"
        )
    steps = np.flatnonzero(np.diff(bounds) <= 0)
    if len(steps):
        at = int(steps[0])
        raise MisuseError(
            f"{name}: offsets[{at}] = {bounds[at]} is followed by {bounds[at + 1]}, expected "
            "rising offsets: every batch has at least one key"
        )
    if bounds[0] < 0 or bounds[-1] > len(values):
        raise MisuseError(
            f"{name}: offsets go from {bounds[0]} to {bounds[-1]}, expected 0 to at most the "
            f"{len(values)} values"
        )
    kept = values[bounds[0] : bounds[-1]].astype(np.uint64, copy=False)
    return Trace(np.ascontiguousarray(kept), bounds - bounds[0])
