"""The shape that every data set has for the trainer: features, batches, a position to go on from.

A batch is jagged and feature-major, as torchrec's KeyedJaggedTensor: the keys of feature 0 for all
samples, then those of feature 1, and so on. A data set yields the same batches in the same order
for the same epoch, whoever asks and however often: both runs of a comparison depend on that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Feature:
    """One sparse feature, backed by a table of the same name unless another is named."""

    name: str
    #: Rows that training will write, if known: what a memory budget in per cent refers to.
    expected_rows: int | None = None
    #: Set for a table of dense ids in [0, num_embeddings); None for sparse 64-bit keys.
    num_embeddings: int | None = None
    #: The table, where features share one; None: one of the feature's name.
    table: str | None = None
    #: Whether the order of the keys of a bag matters: they are not pooled.
    is_sequence: bool = False


@dataclass(frozen=True)
class Position:
    """Position of the next unread training sample. The other fields are for streamed files: the
    number of the file among those of the log, and the place in it (for Parquet, the row)."""

    epoch: int = 0
    batch: int = 0
    offset: int = 0
    line: int = 0
    part: int = 0


@dataclass
class Batch:
    """One batch of B samples and F features.

    Shapes: dense (B, num_dense) float32, labels (B,) float32 of 0 and 1, or (B, T) of several
    targets, keys (N,) int64 (the bits of the 64-bit key), offsets (F * B + 1,) int64: bag
    `f * B + b` holds keys[offsets[f * B + b] : offsets[f * B + b + 1]].
    """

    dense: NDArray[np.float32]
    keys: NDArray[np.int64]
    offsets: NDArray[np.int64]
    labels: NDArray[np.float32]
    #: Start position for reading the batch after this one.
    next: Position

    def __len__(self) -> int:
        """Samples."""
        return len(self.labels)

    @property
    def num_features(self) -> int:
        """Features; 0 of an empty batch."""
        return (len(self.offsets) - 1) // max(len(self.labels), 1)

    def feature_keys(self, feature: int) -> NDArray[np.int64]:
        """The keys of one feature, all samples: a view."""
        size = len(self)
        return self.keys[self.offsets[feature * size] : self.offsets[(feature + 1) * size]]

    def feature_offsets(self, feature: int) -> NDArray[np.int64]:
        """Offsets of the bags of one feature among its keys, ``(B + 1,)`` with the end, as
        ``embedrock.nn.EmbeddingBag`` takes them with ``include_last_offset``."""
        begin = feature * len(self)
        offsets = self.offsets[begin : begin + len(self) + 1]
        from_0: NDArray[np.int64] = offsets - offsets[0]
        return from_0


class Dataset(Protocol):
    """The interface of a data set that the trainer needs."""

    name: str
    features: list[Feature]
    num_dense: int
    #: Names of the targets; labels have a column for each if there are several.
    targets: tuple[str, ...]

    def train_batches(self, batch_size: int, start: Position) -> Iterator[Batch]:
        """The batches of epoch `start.epoch`, from `start` on. The last one may be smaller."""
        ...

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """The held-out samples, always in the same order. Empty when nothing is held out."""
        ...

    def num_train(self) -> int | None:
        """Training samples of one epoch; None when the file has not been counted."""
        ...
