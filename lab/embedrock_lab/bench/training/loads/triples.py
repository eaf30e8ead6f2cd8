"""ComplEx on a knowledge graph of NELL-995's size, with negatives that a batch shares.

75,492 entities and 200 kinds of relations, both as 100 complex numbers; 1,024 triples a batch, each
scored against its tail and 256 entities drawn for all of them.

Source: Trouillon et al., "Complex Embeddings for Simple Link Prediction", 2016; shared negatives as
in Zheng et al., "DGL-KE: Training Knowledge Graph Embeddings at Scale", 2020.
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

DIM = 200
SAMPLES = 1024
NEGATIVES = 256
TABLES = {"entities": Shape(75_492, DIM), "relations": Shape(200, DIM)}
EXPONENT = 0.7


class ComplEx(nn.Module):  # type: ignore[misc]
    """Scores of triples: the real part of <head, relation, conjugate of tail>.

    Shapes: heads, relations, tails (B,), negatives (N,) -> scores (B, 1 + N), the true one first.
    """

    def __init__(self, tables: Tables) -> None:
        """Takes entities and relations."""
        super().__init__()
        self.entities = tables.embedding("entities")
        self.relations = tables.embedding("relations")

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor, others: Tensor) -> Tensor:
        """The scores of a batch."""
        ends = self.entities(torch.cat([heads, tails, others]))  # one call reads all of them
        head, tail, other = ends.split([len(heads), len(tails), len(others)])
        real, imaginary = head.chunk(2, 1)
        cosine, sine = self.relations(relations).chunk(2, 1)
        query = torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine], 1)
        return torch.cat([(query * tail).sum(1, keepdim=True), query @ other.T], 1)

    def keys_of(self, batch: tuple[Tensor, ...]) -> dict[Any, Any]:
        """The keys that a batch reads."""
        heads, relations, tails, others = batch
        return {self.entities: torch.cat([heads, tails, others]), self.relations: relations}


def load(seed: int, steps: int | None, passes: int) -> Load:
    """The graph's triples, skewed as its entities are."""
    steps = steps or 60
    random = np.random.default_rng(seed)
    count = steps * passes
    entity = Zipf(TABLES["entities"].rows, EXPONENT, random).draw
    kind = Zipf(TABLES["relations"].rows, 1.0, random).draw
    heads, kinds, tails = entity((count, SAMPLES)), kind((count, SAMPLES)), entity((count, SAMPLES))
    others = random.integers(0, TABLES["entities"].rows, (count, NEGATIVES))
    batches = list(zip(*map(torch.from_numpy, (heads, kinds, tails, others)), strict=True))
    first = torch.zeros(SAMPLES, dtype=torch.int64)
    return Load(
        "complex",
        SAMPLES,
        steps,
        TABLES,
        batches,
        ComplEx,
        lambda model, batch: F.cross_entropy(model(*batch), first),
        drawn(TABLES, seed),
        lr=0.1,
    )
