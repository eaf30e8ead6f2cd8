"""DLRM: a bottom MLP for dense features, pairwise dot products with the embeddings, a top MLP.

Plain PyTorch. The embeddings are a module given from outside, so that the same model runs with
tables on storage (`StoreEmbeddings`) and in memory (`MemoryEmbeddings`).

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019, with the dot interaction and without self-interactions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embedrock.models.base import ClickModel
from embedrock.models.layers import mlp


@dataclass(frozen=True)
class DLRMConfig:
    """Sizes of hidden layers; those to `embedding_dim` and to the logit are implied."""

    num_dense: int
    num_features: int
    embedding_dim: int
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)


class DLRM(ClickModel):
    """A click model: (dense, keys, offsets) → one logit per sample. Shapes: as `ClickModel`."""

    def __init__(self, config: DLRMConfig, embeddings: nn.Module) -> None:
        """Takes the embeddings; weights of the dense part come from torch's generator."""
        super().__init__(embeddings)
        self.config = config
        vectors = config.num_features + 1
        self.bottom = mlp([config.num_dense, *config.bottom, config.embedding_dim], last_relu=True)
        pairs = vectors * (vectors - 1) // 2
        self.top = mlp([config.embedding_dim + pairs, *config.top, 1], last_relu=False)
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("_pairs", rows * vectors + columns, persistent=False)

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The dense part: what follows once the embeddings (B, F, D) are there."""
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self._pairs)
        return self.top(torch.cat([bottom, interactions], dim=1)).squeeze(1)
