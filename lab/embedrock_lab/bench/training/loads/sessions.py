"""GRU4Rec on sessions of 60,418 items (nowplaying's number), with sampled negatives.

Items are read in one call for inputs, targets and the 512 negatives of a batch, which is also what
ties the weights of input and output. Sessions have 2 to 10 items, padded with item 0.

Source: Hidasi and Karatzoglou, "Recurrent Neural Networks with Top-k Gains for Session-based
Recommendations", 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedrock_lab.bench.training.load import Load, Shape, Tables, drawn
from embedrock_lab.bench.zipf import Zipf

__all__ = ["load"]

DIM = 100
LENGTH = 10
SAMPLES = 256
NEGATIVES = 512
TABLES = {"items": Shape(60_418, DIM)}
EXPONENT = 0.8
IGNORED = -100


class GRU4Rec(nn.Module):  # type: ignore[misc]
    """Scores of each next item against shared negatives.

    Shapes: items (B, L), negatives (N,) -> scores (B * (L - 1), 1 + N), the true one first.
    """

    def __init__(self, tables: Tables) -> None:
        """Takes the items; row 0 is padding."""
        super().__init__()
        self.items = tables.embedding("items", padding_idx=0)
        self.gru = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, items: Tensor, negatives: Tensor) -> Tensor:
        """The scores of a batch."""
        rows = self.items(torch.cat([items.flatten(), negatives]))
        sessions = rows[: items.numel()].view(*items.shape, DIM)
        hidden, _ = self.gru(sessions[:, :-1])
        true = (hidden * sessions[:, 1:]).sum(2, keepdim=True)
        others = hidden @ rows[items.numel() :].T
        return torch.cat([true, others], 2).flatten(0, 1)

    def keys_of(self, batch: tuple[Tensor, Tensor]) -> dict[Any, Any]:
        """The keys that a batch reads."""
        return {self.items: torch.cat([batch[0].flatten(), batch[1]])}


def load(seed: int, steps: int | None, passes: int) -> Load:
    """Sessions of skewed items."""
    steps = steps or 24
    random = np.random.default_rng(seed)
    count = steps * passes
    items = 1 + Zipf(TABLES["items"].rows - 1, EXPONENT, random).draw((count, SAMPLES, LENGTH))
    lengths = random.integers(2, LENGTH + 1, (count, SAMPLES, 1))
    items[np.arange(LENGTH) >= lengths] = 0
    negatives = random.integers(1, TABLES["items"].rows, (count, NEGATIVES))
    batches = list(zip(torch.from_numpy(items), torch.from_numpy(negatives), strict=True))
    return Load("gru4rec", SAMPLES, steps, TABLES, batches, GRU4Rec, _loss, drawn(TABLES, seed))


def _loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    items, negatives = batch
    targets = torch.where(items[:, 1:] > 0, 0, IGNORED).flatten()
    return F.cross_entropy(model(items, negatives), targets, ignore_index=IGNORED)
