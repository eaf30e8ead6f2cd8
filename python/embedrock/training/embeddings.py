"""Embeddings for a model, as one module: tables on storage, or plain PyTorch tables in memory.

Both take the jagged feature-major bags of `embedrock.data.Batch` and give (B, F, D) float32, so a
model does not know which one it has. `SequenceEmbeddings` is for models that read histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embedrock._rows import RowTable
from embedrock.data import Batch, Feature
from embedrock.data.sequences import HISTORY, ITEM, NEGATIVES
from embedrock.models.dien import SequenceRows
from embedrock.nn import EmbeddingBagCollection, EmbeddingBagConfig
from embedrock.store import Store


def bags(keys: Tensor, offsets: Tensor, num_features: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cuts a batch by features: (keys, offsets with the last one included) of each. Views."""
    size = (len(offsets) - 1) // num_features
    ends = offsets[::size].tolist() if size else [0] * (num_features + 1)
    for feature in range(num_features):
        start, end = ends[feature], ends[feature + 1]
        own = offsets[feature * size : (feature + 1) * size + 1]
        yield keys[start:end], own - start


class StoreEmbeddings(nn.Module):  # type: ignore[misc]
    """One table of a store per feature, read together in one call, bags summed.

    Shapes: keys (N,) int64, offsets (F * B + 1,) int64 → (B, F, D) float32.
    """

    def __init__(
        self,
        store: Store,
        features: Sequence[Feature],
        embedding_dim: int,
        *,
        optimizer: Any = "adagrad",
        initializer: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Opens the tables, or creates them."""
        super().__init__()
        self.names = [feature.name for feature in features]
        self.embedding_dim = embedding_dim
        self.collection = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    feature.name,
                    embedding_dim,
                    num_embeddings=feature.num_embeddings,
                    expected_rows=feature.expected_rows,
                    optimizer=optimizer,
                    initializer=initializer,
                    dtype=dtype,
                )
                for feature in features
            ],
            store=store,
            include_last_offset=True,
            concatenate=True,
        )

    def keys_of(self, batch: Batch) -> dict[RowTable, NDArray[np.int64]]:
        """The keys that a forward with this batch reads, by table, for look-ahead."""
        return {
            table: batch.feature_keys(feature)
            for feature, table in enumerate(self.collection.tables)
        }

    def forward(self, keys: Tensor, offsets: Tensor) -> Tensor:
        """The summed bags of a batch."""
        cut = bags(keys, offsets, len(self.names))
        rows = self.collection(dict(zip(self.names, cut, strict=True)))
        return rows.view(-1, len(self.names), self.embedding_dim)


class SequenceEmbeddings(nn.Module):  # type: ignore[misc]
    """Tables of a store that features may share, read together in one call: bags are summed, but
    for the features whose order matters.

    Shapes: keys (N,) int64, offsets (F * B + 1,) int64 → `embedrock.models.dien.SequenceRows`.
    """

    def __init__(
        self,
        store: Store,
        features: Sequence[Feature],
        embedding_dim: int,
        *,
        optimizer: Any = "adagrad",
        initializer: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Opens the tables, or creates them."""
        super().__init__()
        self.features = list(features)
        self.pooled = [feature.name for feature in features if not feature.is_sequence]
        by_table: dict[str, list[Feature]] = {}
        for feature in features:
            by_table.setdefault(feature.table or feature.name, []).append(feature)
        places = {feature.name: place for place, feature in enumerate(features)}
        self._places = [[places[one.name] for one in some] for some in by_table.values()]
        self.collection = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    table,
                    embedding_dim,
                    [feature.name for feature in some],
                    num_embeddings=some[0].num_embeddings,
                    expected_rows=some[0].expected_rows,
                    optimizer=optimizer,
                    initializer=initializer,
                    dtype=dtype,
                )
                for table, some in by_table.items()
            ],
            store=store,
            include_last_offset=True,
        )

    def keys_of(self, batch: Batch) -> dict[RowTable, NDArray[np.int64]]:
        """The keys that a forward with this batch reads, by table, for look-ahead."""
        return {
            table: np.concatenate([batch.feature_keys(place) for place in places])
            for table, places in zip(self.collection.tables, self._places, strict=True)
        }

    def forward(self, keys: Tensor, offsets: Tensor) -> SequenceRows:
        """The rows of a batch."""
        given, lengths = {}, offsets[:0]
        for feature, bag in zip(
            self.features, bags(keys, offsets, len(self.features)), strict=True
        ):
            if feature.is_sequence:  # each id is a bag of its own
                given[feature.name] = (bag[0], torch.arange(len(bag[0]) + 1, device="cpu"))
                lengths = torch.diff(bag[1])
            else:
                given[feature.name] = bag
        rows = self.collection(given)
        pooled = torch.stack([rows[name] for name in self.pooled], 1)
        return SequenceRows(pooled, rows[ITEM], rows[HISTORY], rows[NEGATIVES], lengths)


class MemoryEmbeddings(nn.Module):  # type: ignore[misc]
    """One `torch.nn.EmbeddingBag(sparse=True)` per feature: the reference that all else is held to.

    Keys are dense ids here (`MemoryDataset.densified`); `weights` are the initial rows by id.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        """Takes the tables (rows, D), which training changes in place."""
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                weight, freeze=False, mode="sum", sparse=True, include_last_offset=True
            )
            for weight in weights
        )

    def forward(self, keys: Tensor, offsets: Tensor) -> Tensor:
        """The summed bags of a batch."""
        cut = bags(keys, offsets, len(self.tables))
        return torch.stack([table(*bag) for table, bag in zip(self.tables, cut, strict=True)], 1)


class MemorySequences(nn.Module):  # type: ignore[misc]
    """`SequenceEmbeddings` over `torch.nn.Embedding(sparse=True)`, one for each table.

    Keys are dense ids here; `weights` are the initial rows of each table by id.
    """

    def __init__(self, features: Sequence[Feature], weights: Mapping[str, Tensor]) -> None:
        """Takes the tables (rows, D), which training changes in place."""
        super().__init__()
        self.features = list(features)
        self.pooled = [feature.name for feature in features if not feature.is_sequence]
        self.tables = nn.ModuleDict(
            {
                name: nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
                for name, weight in weights.items()
            }
        )

    def forward(self, keys: Tensor, offsets: Tensor) -> SequenceRows:
        """The rows of a batch."""
        rows, lengths = {}, offsets[:0]
        for feature, (own, begins) in zip(
            self.features, bags(keys, offsets, len(self.features)), strict=True
        ):
            found = self.tables[feature.table or feature.name](own)
            sizes = torch.diff(begins)
            if feature.is_sequence:
                lengths = sizes
            else:
                samples = torch.arange(len(sizes), device="cpu").repeat_interleave(sizes)
                found = found.new_zeros(len(sizes), found.shape[1]).index_add(0, samples, found)
            rows[feature.name] = found
        pooled = torch.stack([rows[name] for name in self.pooled], 1)
        return SequenceRows(pooled, rows[ITEM], rows[HISTORY], rows[NEGATIVES], lengths)
