"""Wide & Deep: a linear model over all ids and crosses, and an MLP over their vectors, added up.

A row holds the vector of an id and, as its last value, the id's weight in the wide part: one read
for both. Crosses are features of the data: those of MovieLens are there.

Source: Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016. Its wide part has
an optimizer of its own (FTRL with L1); here both parts of a row have that of the tables.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embedrock.models.base import ClickModel, Shape
from embedrock.models.layers import mlp
from embedrock.models.registry import WideDeepOptions


class WideDeep(ClickModel):
    """Shapes: as `ClickModel`; rows have D + 1 values."""

    def __init__(self, shape: Shape, embeddings: nn.Module, options: WideDeepOptions) -> None:
        """Takes the embeddings, whose rows are (B, F, D + 1)."""
        super().__init__(embeddings)
        self.wide = nn.Linear(shape.num_dense, 1)
        inputs = shape.num_dense + shape.num_features * shape.embedding_dim
        self.deep = mlp([inputs, *options.hidden, 1], last_relu=False)

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Rows (B, F, D + 1) to logits (B,)."""
        wide = embedded[..., -1].sum(1) + self.wide(dense).squeeze(1)
        inputs = torch.cat([dense, embedded[..., :-1].flatten(1)], dim=1)
        return wide + self.deep(inputs).squeeze(1)
