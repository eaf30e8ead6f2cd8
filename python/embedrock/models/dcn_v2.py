"""DCN-v2: cross layers, which multiply the input with learnt sums of what came of it, and an MLP.

Source: Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems", WWW 2021: equations (1) and (2), stacked and parallel (figure 1). Its
mixture of low-rank experts is not here; one low-rank expert is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embedrock.models.base import ClickModel, Shape
from embedrock.models.layers import mlp
from embedrock.models.registry import DCNv2Options


class Cross(nn.Module):  # type: ignore[misc]
    """Cross layers: x of the next is x0 * (W x + b) + x. Shapes: (B, N) → (B, N)."""

    def __init__(self, inputs: int, layers: int, rank: int) -> None:
        """Rank 0 is a full W; else W is U Vᵀ of two matrices (N, rank)."""
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(inputs, inputs)
            if rank == 0
            else nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, inputs))
            for _ in range(layers)
        )

    def forward(self, first: Tensor) -> Tensor:
        """The output of the last layer."""
        crossed = first
        for layer in self.layers:
            crossed = first * layer(crossed) + crossed
        return crossed


class DCNv2(ClickModel):
    """Shapes: as `ClickModel`."""

    def __init__(self, shape: Shape, embeddings: nn.Module, options: DCNv2Options) -> None:
        """Takes the embeddings, whose rows are (B, F, D)."""
        super().__init__(embeddings)
        inputs = shape.num_dense + shape.num_features * shape.embedding_dim
        self.is_stacked = options.structure == "stacked"
        self.cross = Cross(inputs, options.cross_layers, options.low_rank)
        self.deep = mlp([inputs, *options.hidden], last_relu=True)
        outputs = options.hidden[-1] + (0 if self.is_stacked else inputs)
        self.logit = mlp([outputs, 1], last_relu=False)

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Rows (B, F, D) to logits (B,)."""
        first = torch.cat([dense, embedded.flatten(1)], dim=1)
        crossed = self.cross(first)
        if self.is_stacked:
            return self.logit(self.deep(crossed)).squeeze(1)
        return self.logit(torch.cat([crossed, self.deep(first)], dim=1)).squeeze(1)
