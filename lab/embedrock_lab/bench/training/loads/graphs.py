"""GraphSAGE on a graph of 22,470 nodes, as large as MUSAE's Facebook pages.

``graphsage`` learns a row of 64 values for each node, in batches of 32 nodes; in ``features`` rows
are 1,024 given values that only are read, in batches of 256. Two layers, five neighbours each.
Neighbours are mostly of the same of four kinds, which is what the model tells; popular nodes are
neighbours of many.

Source: Hamilton et al., "Inductive Representation Learning on Large Graphs", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedrock_lab.bench.training.load import SCALE, Floats, Load, Shape, Tables, drawn
from embedrock_lab.bench.zipf import Zipf

__all__ = ["learnable", "read_only"]

NODES = 22_470
KINDS = 4
FANOUT = 5
HIDDEN = 64
NEIGHBOURS = 15
"""Of each node: twice the edges of the Facebook graph by its nodes."""
SAME_KIND = 0.8
EXPONENT = 0.6
TABLE = "nodes"

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """A mini-batch: the distinct nodes it reads, and by place among them who is whose neighbour.

    Shapes: nodes (U,), near (B * 6,), far (B * 6, 5), labels (B,); of ``near`` the first B are the
    seeds, the others their neighbours.
    """

    nodes: Tensor
    near: Tensor
    far: Tensor
    labels: Tensor


class GraphSAGE(nn.Module):  # type: ignore[misc]
    """Two layers of means over neighbours: a block -> logits (B, 4)."""

    def __init__(self, tables: Tables, dim: int, trained: bool) -> None:
        """Takes the rows of the nodes, to be trained or not."""
        super().__init__()
        self.nodes = tables.embedding(TABLE).requires_grad_(trained)
        self.first = nn.Linear(2 * dim, HIDDEN)
        self.second = nn.Linear(2 * HIDDEN, KINDS)

    def forward(self, block: Block) -> Tensor:
        """The logits of a batch."""
        rows = self.nodes(block.nodes)
        near = torch.cat([rows[block.near], rows[block.far].mean(1)], 1)
        hidden = F.relu(self.first(near))
        seeds = len(block.labels)
        around = hidden[seeds:].view(seeds, FANOUT, HIDDEN).mean(1)
        return self.second(torch.cat([hidden[:seeds], around], 1))

    def keys_of(self, block: Block) -> dict[Any, Any]:
        """The keys that a batch reads."""
        return {self.nodes: block.nodes}


def learnable(seed: int, steps: int | None, passes: int) -> Load:
    """Rows that are trained."""
    tables = {TABLE: Shape(NODES, 64)}
    random = np.random.default_rng(seed)
    steps = steps or 200
    blocks = _blocks(random, _kinds(seed), 32, steps * passes)
    return Load(
        "graphsage",
        32,
        steps,
        tables,
        blocks,
        lambda place: GraphSAGE(place, 64, trained=True),
        _loss,
        drawn(tables, seed),
    )


def read_only(seed: int, steps: int | None, passes: int) -> Load:
    """Rows that are features: normal numbers about a middle of the node's kind."""
    tables = {TABLE: Shape(NODES, 1024)}
    random = np.random.default_rng(seed)
    steps = steps or 24
    blocks = _blocks(random, _kinds(seed), 256, steps * passes)
    noise = drawn(tables, seed)

    def values(name: str) -> Floats:
        random = np.random.default_rng(seed + 1)
        middles = random.standard_normal((KINDS, 1024), np.float32) * np.float32(SCALE)
        found: Floats = noise(name) + middles[_kinds(seed)]
        return found

    return Load(
        "features",
        256,
        steps,
        tables,
        blocks,
        lambda place: GraphSAGE(place, 1024, trained=False),
        _loss,
        values,
        trained=False,
    )


def _loss(model: Any, block: Block) -> Tensor:
    return F.cross_entropy(model(block), block.labels)


def _kinds(seed: int) -> Ids:
    return np.random.default_rng(seed).integers(0, KINDS, NODES)


def _blocks(random: np.random.Generator, kinds: Ids, samples: int, count: int) -> list[Block]:
    """Batches of seeds with their sampled neighbours."""
    neighbours = Zipf(NODES, EXPONENT, random).draw((NODES, NEIGHBOURS))
    for kind in range(KINDS):
        members = np.flatnonzero(kinds == kind)
        own = Zipf(len(members), EXPONENT, random).draw((len(members), NEIGHBOURS))
        same = random.random(own.shape) < SAME_KIND
        neighbours[members] = np.where(same, members[own], neighbours[members])

    def sampled(nodes: Ids) -> Ids:
        chosen = random.integers(0, NEIGHBOURS, (len(nodes), FANOUT))
        found: Ids = neighbours[nodes[:, None], chosen]
        return found

    blocks = []
    for _ in range(count):
        seeds = random.choice(NODES, samples, replace=False)
        near = np.concatenate([seeds, sampled(seeds).reshape(-1)])
        far = sampled(near)
        nodes, places = np.unique(np.concatenate([near, far.reshape(-1)]), return_inverse=True)
        first, second = np.split(places.reshape(-1), [len(near)])
        parts = (nodes, first, second.reshape(far.shape), kinds[seeds])
        blocks.append(Block(*map(torch.from_numpy, parts)))
    return blocks
