"""DeepFM: a factorization machine and an MLP over the same vectors, added up.

A row holds the vector of an id and, as its last value, the id's weight in the linear part: one
read for both.

Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
IJCAI 2017. A dense feature is a field whose vector is its value times a learnt one (2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embedrock.models.base import ClickModel, Shape
from embedrock.models.layers import mlp
from embedrock.models.registry import DeepFMOptions


class DenseFields(nn.Module):  # type: ignore[misc]
    """Vectors of dense features: each its value times a learnt one. (B, N) → (B, N, D)."""

    def __init__(self, num_dense: int, embedding_dim: int) -> None:
        """Draws the vectors as those of ids are drawn: small ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_dense, embedding_dim).uniform_(-0.01, 0.01))

    def forward(self, dense: Tensor) -> Tensor:
        """The vectors of a batch."""
        return dense.unsqueeze(2) * self.weight


def pairs(vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of F vectors, in one pass. (B, F, D) → (B,)."""
    return (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2


class DeepFM(ClickModel):
    """Shapes: as `ClickModel`; rows have D + 1 values."""

    def __init__(self, shape: Shape, embeddings: nn.Module, options: DeepFMOptions) -> None:
        """Takes the embeddings, whose rows are (B, F, D + 1)."""
        super().__init__(embeddings)
        self.fields = DenseFields(shape.num_dense, shape.embedding_dim)
        self.linear = nn.Linear(shape.num_dense, 1)
        inputs = (shape.num_dense + shape.num_features) * shape.embedding_dim
        self.deep = mlp([inputs, *options.hidden, 1], last_relu=False)

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Rows (B, F, D + 1) to logits (B,)."""
        vectors = torch.cat([embedded[..., :-1], self.fields(dense)], dim=1)
        linear = embedded[..., -1].sum(1) + self.linear(dense).squeeze(1)
        return linear + pairs(vectors) + self.deep(vectors.flatten(1)).squeeze(1)
