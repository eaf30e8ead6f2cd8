"""The interface of click models for the trainer: embeddings from outside, a head, a loss.

The embeddings are a module, so that a model runs with tables on storage (`StoreEmbeddings`) and in
memory (`MemoryEmbeddings`). Invariant: all other parameters are in child modules, which
`dense_modules` lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The shape of a model's inputs: how many of each, and the width of vectors."""

    num_dense: int
    num_features: int
    embedding_dim: int
    num_targets: int = 1


class ClickModel(nn.Module):  # type: ignore[misc]
    """(dense, keys, offsets) → logits.

    `embeddings(keys, offsets)` takes the jagged feature-major bags that `embedrock.data.Batch`
    describes; what it gives is what `head` takes: (B, F, row_dim) float32, unless the model reads
    sequences.

    Shapes: dense (B, num_dense) float32, keys (N,) int64, offsets (F * B + 1,) int64 → logits (B,)
    float32, or (B, T) of a model with several targets.
    """

    def __init__(self, embeddings: nn.Module) -> None:
        """Takes the embeddings; weights of the dense part come from torch's generator."""
        super().__init__()
        self.embeddings = embeddings

    def forward(self, dense: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
        """The logits of a batch."""
        return self.head(dense, self.embeddings(keys, offsets))

    def keys_of(self, batch: Any) -> Any:
        """The keys that the embeddings will read for a batch, for look-ahead
        (:mod:`embedrock.pipeline`)."""
        return self.embeddings.keys_of(batch)

    def head(self, dense: Tensor, embedded: Any) -> Tensor:
        """The dense part: what follows once the embeddings are there."""
        raise NotImplementedError(f"{type(self).__name__} has no head")

    def loss(self, dense: Tensor, embedded: Any, labels: Tensor) -> Tensor:
        """The training loss: mean binary cross entropy, also over targets if there are several.
        Labels have the shape of the logits."""
        return F.binary_cross_entropy_with_logits(self.head(dense, embedded), labels)

    def dense_modules(self) -> nn.ModuleDict:
        """The part that lives in memory in every case: what a commit carries as dense state."""
        return nn.ModuleDict(
            {name: child for name, child in self.named_children() if name != "embeddings"}
        )
