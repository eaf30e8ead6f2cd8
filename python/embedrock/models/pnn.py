"""PNN: a layer of products of the vectors of ids, inner or outer ones, and an MLP behind it.

Source: Qu et al., "Product-based Neural Networks for User Response Prediction", ICDM 2016. The
first layer weighs the vectors (its linear signals) and their products (its quadratic ones). All
pairs are formed: the paper's factored weights are a cheaper approximation of that. The outer
product is of the sum of all vectors with itself, as there. Dense features, which the paper has
none of, are among the linear signals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embedrock.models.base import ClickModel, Shape
from embedrock.models.layers import mlp
from embedrock.models.registry import PNNOptions


class PNN(ClickModel):
    """Shapes: as `ClickModel`."""

    def __init__(self, shape: Shape, embeddings: nn.Module, options: PNNOptions) -> None:
        """Takes the embeddings, whose rows are (B, F, D)."""
        super().__init__(embeddings)
        fields, dim = shape.num_features, shape.embedding_dim
        self.is_inner = options.product in ("inner", "both")
        self.is_outer = options.product in ("outer", "both")
        signals = shape.num_dense + fields * dim
        signals += fields * (fields - 1) // 2 if self.is_inner else 0
        signals += dim * dim if self.is_outer else 0
        rows, columns = torch.tril_indices(fields, fields, offset=-1)
        self.register_buffer("_pairs", rows * fields + columns, persistent=False)
        self.layers = mlp([signals, *options.hidden, 1], last_relu=False)

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Rows (B, F, D) to logits (B,)."""
        signals = [dense, embedded.flatten(1)]
        if self.is_inner:
            products = torch.bmm(embedded, embedded.transpose(1, 2)).flatten(1)
            signals.append(products.index_select(1, self._pairs))
        if self.is_outer:
            total = embedded.sum(1)
            signals.append((total.unsqueeze(2) * total.unsqueeze(1)).flatten(1))
        return self.layers(torch.cat(signals, dim=1)).squeeze(1)
