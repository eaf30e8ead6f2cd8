"""DLRM: a bottom MLP for dense features, pairwise dot products with the embeddings, a top MLP.

Plain PyTorch. The embeddings are a module given from outside, so that the same model runs with
tables on storage (`StoreEmbeddings`) and in memory (`MemoryEmbeddings`).

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019, with the dot interaction and without self-interactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class DLRMConfig:
    """Sizes of hidden layers; those to `embedding_dim` and to the logit are implied."""

    num_dense: int
    num_features: int
    embedding_dim: int
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)


class DLRM(nn.Module):  # type: ignore[misc]
    """A click model: (dense, keys, offsets) → one logit per sample.

    `embeddings(keys, offsets)` must return (B, F, D) float32 for the jagged feature-major bags
    that `embedrock.data.Batch` describes.

    Shapes: dense (B, num_dense) float32, keys (N,) int64, offsets (F * B + 1,) int64 → logits (B,)
    float32.
    """

    def __init__(self, config: DLRMConfig, embeddings: nn.Module) -> None:
        """Takes the embeddings; weights of the dense part come from torch's generator."""
        super().__init__()
        self.config = config
        self.embeddings = embeddings
        vectors = config.num_features + 1
        self.bottom = mlp([config.num_dense, *config.bottom, config.embedding_dim], last_relu=True)
        pairs = vectors * (vectors - 1) // 2
        self.top = mlp([config.embedding_dim + pairs, *config.top, 1], last_relu=False)
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("_pairs", rows * vectors + columns, persistent=False)

    def forward(self, dense: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
        """The logits of a batch."""
        return self.head(dense, self.embeddings(keys, offsets))

    def keys_of(self, batch: Any) -> Any:
        """What the embeddings will read for a batch, for look-ahead (:mod:`embedrock.pipeline`)."""
        return self.embeddings.keys_of(batch)

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The dense part: what follows once the embeddings (B, F, D) are there."""
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self._pairs)
        return self.top(torch.cat([bottom, interactions], dim=1)).squeeze(1)

    def dense_modules(self) -> nn.ModuleDict:
        """The part that lives in memory in every case: what a commit carries as dense state."""
        return nn.ModuleDict({"bottom": self.bottom, "top": self.top})


def mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, weights drawn as in the paper's own code."""
    layers: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / outputs) ** 0.5)
        layers.append(linear)
        if last_relu or place < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
