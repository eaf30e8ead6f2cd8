"""A data set that lies in memory: columns of keys, shuffled anew but reproducibly in each epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embedrock.data.batch import Batch, Feature, Position


@dataclass(frozen=True)
class Column:
    """The keys of one feature for all samples: one each (`offsets` None), or bags of any size."""

    keys: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, gathered: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Column:
        """Of keys and the sizes of the bags that they lie in."""
        keys, sizes = gathered
        return cls(keys, np.concatenate([[0], np.cumsum(sizes)]))

    def gather(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(keys, bag sizes) of the given samples, in their order."""
        if self.offsets is None:
            return self.keys[samples], np.ones(len(samples), np.int64)
        starts = self.offsets[samples]
        sizes = self.offsets[samples + 1] - starts
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        place = np.arange(total) + np.repeat(starts - (ends - sizes), sizes)
        return self.keys[place], sizes

    def head(self, samples: int) -> NDArray[np.int64]:
        """The keys of the first `samples` samples."""
        return self.keys[: samples if self.offsets is None else int(self.offsets[samples])]

    def keep(self, wanted: NDArray[np.bool_]) -> Column:
        """Only the keys marked in `wanted`; their samples stay, with smaller or empty bags."""
        offsets = np.arange(len(self.keys) + 1) if self.offsets is None else self.offsets
        kept_before = np.concatenate([[0], np.cumsum(wanted)])
        return Column(self.keys[wanted], kept_before[offsets])


def epoch_order(samples: int, shuffle_seed: int | None, epoch: int) -> NDArray[np.int64]:
    """The training samples in the order of an epoch; without a seed in their own."""
    order = np.arange(samples)
    if shuffle_seed is None:
        return order
    return np.random.default_rng([shuffle_seed, epoch]).permutation(order)


def jagged(
    gathered: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(keys, offsets) of a batch, from the keys and bag sizes of each feature."""
    sizes = np.concatenate([sizes for _, sizes in gathered])
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return np.concatenate([keys for keys, _ in gathered]), offsets


class HeldInMemory(ABC):
    """Samples that are all in memory, in time order, the last of them held out. See `Dataset`."""

    labels: NDArray[np.float32]
    num_test: int
    shuffle_seed: int | None

    def num_train(self) -> int:
        """Samples of an epoch."""
        return len(self.labels) - self.num_test

    def train_batches(self, batch_size: int, start: Position) -> Iterator[Batch]:
        """See `Dataset`; the order depends on the shuffle seed and the epoch only."""
        order = epoch_order(self.num_train(), self.shuffle_seed, start.epoch)
        for batch in range(start.batch, -(-len(order) // batch_size)):
            samples = order[batch * batch_size : (batch + 1) * batch_size]
            yield self._batch(samples, Position(start.epoch, batch + 1))

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """See `Dataset`; in order of time."""
        order = np.arange(self.num_train(), len(self.labels))
        for first in range(0, len(order), batch_size):
            yield self._batch(order[first : first + batch_size], Position())

    @abstractmethod
    def _batch(self, samples: NDArray[np.int64], following: Position) -> Batch:
        """These samples, and the position behind them."""


class MemoryDataset(HeldInMemory):
    """Samples in time order, the last of them held out. See `Dataset`."""

    def __init__(
        self,
        name: str,
        features: list[Feature],
        columns: list[Column],
        dense: NDArray[np.float32],
        labels: NDArray[np.float32],
        *,
        num_test: int,
        shuffle_seed: int | None = 0,
        targets: tuple[str, ...] = ("click",),
    ) -> None:
        """Counts the keys of the training part: samples before the last `num_test`. Labels are
        (N,), or (N, T) of T targets."""
        self.name = name
        self.targets = targets
        self.columns = columns
        self.dense = dense
        self.labels = labels
        self.num_dense = dense.shape[1]
        self.num_test = num_test
        self.shuffle_seed = shuffle_seed
        #: Distinct keys of the training part and how often each occurs there, per feature.
        self.train_counts = [
            np.unique(column.head(len(labels) - num_test), return_counts=True) for column in columns
        ]
        self.features = [
            replace(feature, expected_rows=len(keys))
            for feature, (keys, _) in zip(features, self.train_counts, strict=True)
        ]

    def written_keys(self) -> int:
        """Distinct (feature, key) pairs that training writes."""
        return sum(len(keys) for keys, _ in self.train_counts)

    def keys_seen_once(self) -> int:
        """Those of them that occur in one training sample only: fillers, nothing can be learned."""
        return sum(int(np.count_nonzero(counts == 1)) for _, counts in self.train_counts)

    def _batch(self, samples: NDArray[np.int64], following: Position) -> Batch:
        keys, offsets = jagged([column.gather(samples) for column in self.columns])
        return Batch(self.dense[samples], keys, offsets, self.labels[samples], following)

    def without_fillers(self) -> MemoryDataset:
        """The same samples without the keys that occur at most once in the training part, and
        without the features that have no others."""
        features, columns = [], []
        for place, (keys, counts) in enumerate(self.train_counts):
            if counts.max(initial=0) > 1:
                column = self.columns[place]
                features.append(self.features[place])
                columns.append(column.keep(np.isin(column.keys, keys[counts > 1])))
        return self._with(features, columns)

    def densified(self) -> tuple[MemoryDataset, list[NDArray[np.int64]]]:
        """The same samples with dense ids by first occurrence, and each id's key, per feature.

        Held-out samples are included: an id for a key that is only read needs a row, too.
        """
        features, columns, tables = [], [], []
        for feature, column in zip(self.features, self.columns, strict=True):
            distinct, first, inverse = np.unique(
                column.keys, return_index=True, return_inverse=True
            )
            by_occurrence = np.argsort(first, kind="stable")
            rank = np.empty(len(distinct), np.int64)
            rank[by_occurrence] = np.arange(len(distinct))
            columns.append(Column(rank[inverse], column.offsets))
            tables.append(distinct[by_occurrence])
            features.append(replace(feature, num_embeddings=len(distinct)))
        return self._with(features, columns), tables

    def _with(self, features: list[Feature], columns: list[Column]) -> MemoryDataset:
        return MemoryDataset(
            self.name,
            features,
            columns,
            self.dense,
            self.labels,
            num_test=self.num_test,
            shuffle_seed=self.shuffle_seed,
            targets=self.targets,
        )
