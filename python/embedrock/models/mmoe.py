"""MMoE: experts that all targets share, and for each target a gate that mixes them and a tower.

Source: Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate
Mixture-of-Experts", KDD 2018: equations (5) to (7).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embedrock.models.base import ClickModel, Shape
from embedrock.models.layers import mlp
from embedrock.models.registry import MMoEOptions


class MMoE(ClickModel):
    """Shapes: as `ClickModel`, with logits (B, T) of T targets."""

    def __init__(self, shape: Shape, embeddings: nn.Module, options: MMoEOptions) -> None:
        """Takes the embeddings, whose rows are (B, F, D)."""
        super().__init__(embeddings)
        inputs = shape.num_dense + shape.num_features * shape.embedding_dim
        self.experts = nn.ModuleList(
            mlp([inputs, *options.expert], last_relu=True) for _ in range(options.experts)
        )
        self.gates = nn.ModuleList(
            nn.Linear(inputs, options.experts, bias=False) for _ in range(shape.num_targets)
        )
        self.towers = nn.ModuleList(
            mlp([options.expert[-1], *options.tower, 1], last_relu=False)
            for _ in range(shape.num_targets)
        )

    def head(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Rows (B, F, D) to logits (B, T)."""
        inputs = torch.cat([dense, embedded.flatten(1)], dim=1)
        found = torch.stack([expert(inputs) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed = torch.bmm(gate(inputs).softmax(1).unsqueeze(1), found).squeeze(1)
            logits.append(tower(mixed))
        return torch.cat(logits, dim=1)
