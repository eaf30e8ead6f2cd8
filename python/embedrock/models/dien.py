"""DIEN: how an interest evolves along a user's items, up to the item at hand.

A GRU makes interests of the items of a history. An auxiliary loss has each of them tell the next
item from one that was drawn by chance. Attention to the item at hand weighs the interests, and a
GRU whose update gate has these weights (AUGRU) makes the final one, which goes into an MLP with the
other vectors.

Source: Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", AAAI 2019:
equations (2) to (7) and (9), the auxiliary loss by inner products, as a mean over all steps, and
AUGRU. The items of a history are their ids: there are no categories beside them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedrock.models.base import ClickModel, Shape
from embedrock.models.layers import mlp
from embedrock.models.registry import DIENOptions


class SequenceRows(NamedTuple):
    """Rows of a batch whose samples have histories.

    Histories are jagged: of sample b, ``lengths[b]`` rows, oldest first, behind those of b - 1.
    """

    #: (B, P, D) of the features without order.
    pooled: Tensor
    #: (B, D) of the item at hand, which is one of these.
    target: Tensor
    #: (N, D) of the items of all histories.
    history: Tensor
    #: (N, D) of an item for each of them that was drawn by chance.
    negatives: Tensor
    #: (B,) int64.
    lengths: Tensor


class AUGRU(nn.Module):  # type: ignore[misc]
    """A GRU whose update gate is multiplied by a weight of each step."""

    def __init__(self, size: int) -> None:
        """Inputs and states have this size."""
        super().__init__()
        self.of_input = nn.Linear(size, 3 * size)
        self.of_state = nn.Linear(size, 3 * size)

    def forward(self, inputs: Tensor, weights: Tensor) -> Tensor:
        """The state after the last step. Shapes: (B, T, D), (B, T) → (B, D)."""
        state = inputs.new_zeros(inputs.shape[0], inputs.shape[2])
        steps = self.of_input(inputs).unbind(1)
        for given, weight in zip(steps, weights.unsqueeze(2).unbind(1), strict=True):
            reset, update, new = given.chunk(3, dim=1)
            kept, updated, newer = self.of_state(state).chunk(3, dim=1)
            update = torch.sigmoid(update + updated) * weight
            new = torch.tanh(new + torch.sigmoid(reset + kept) * newer)
            state = (1 - update) * state + update * new
        return state


class DIEN(ClickModel):
    """Shapes: as `ClickModel`; the embeddings give `SequenceRows`."""

    def __init__(self, shape: Shape, embeddings: nn.Module, options: DIENOptions) -> None:
        """Takes the embeddings. Of the shape, features are those without order."""
        super().__init__(embeddings)
        dim = shape.embedding_dim
        self.auxiliary = options.auxiliary
        self.extractor = nn.GRU(dim, dim, batch_first=True)
        self.attention = nn.Linear(dim, dim, bias=False)
        self.evolution = AUGRU(dim)
        inputs = shape.num_dense + (shape.num_features + 1) * dim
        self.top = mlp([inputs, *options.hidden, 1], last_relu=False)

    def head(self, dense: Tensor, embedded: SequenceRows) -> Tensor:
        """Rows to logits (B,)."""
        return self._logits(dense, embedded, *self._interests(embedded))

    def loss(self, dense: Tensor, embedded: SequenceRows, labels: Tensor) -> Tensor:
        """Mean binary cross entropy, and the auxiliary loss by its weight."""
        interests, mask = self._interests(embedded)
        logits = self._logits(dense, embedded, interests, mask)
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        if self.auxiliary == 0:
            return loss
        return loss + self.auxiliary * self._auxiliary_loss(embedded, interests, mask)

    def _interests(self, embedded: SequenceRows) -> tuple[Tensor, Tensor]:
        """(B, T, D) interests, where (B, T) says which are of items: T is the longest history."""
        longest = int(embedded.lengths.max()) if len(embedded.lengths) else 0
        mask = torch.arange(longest, device=embedded.lengths.device) < embedded.lengths[:, None]
        items = _padded(embedded.history, mask)
        return (self.extractor(items)[0] if longest else items), mask

    def _logits(
        self, dense: Tensor, embedded: SequenceRows, interests: Tensor, mask: Tensor
    ) -> Tensor:
        scores = (interests * self.attention(embedded.target).unsqueeze(1)).sum(2)
        # Steps behind a history get no weight, so that AUGRU leaves its state as it was there.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(1) * mask
        final = self.evolution(interests, weights)
        inputs = [dense, embedded.pooled.flatten(1), final]
        return self.top(torch.cat(inputs, dim=1)).squeeze(1)

    def _auxiliary_loss(self, embedded: SequenceRows, interests: Tensor, mask: Tensor) -> Tensor:
        """Mean over steps with a following item; 0 where no history has two items."""
        follows = mask[:, 1:]
        before = interests[:, :-1][follows]
        if not len(before):
            return interests.sum() * 0
        clicked = (before * _padded(embedded.history, mask)[:, 1:][follows]).sum(1)
        drawn = (before * _padded(embedded.negatives, mask)[:, 1:][follows]).sum(1)
        return (F.softplus(-clicked) + F.softplus(drawn)).mean()


def _padded(rows: Tensor, mask: Tensor) -> Tensor:
    """Jagged rows (N, D) as (B, T, D), zeros behind the end of each. The mask has N places."""
    padded = rows.new_zeros(*mask.shape, rows.shape[1])
    return padded.masked_scatter(mask.unsqueeze(2), rows)
