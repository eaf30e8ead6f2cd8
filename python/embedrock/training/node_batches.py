"""Batches of sampled nodes and links, as functions of a seed and a step.

Neighbours are drawn as PyTorch Geometric's loaders draw them, by torch's generator, which has a
seed of the batch meanwhile and then goes on as it was: how many batches were drawn ahead changes
neither them nor a model's dropout.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock.data.edges import Pairs
from embedrock.models.nodes import Sample

__all__ = ["Batch", "Batches", "LinkBatches", "NodeBatches", "negatives_of", "sampler_of"]

Ids: TypeAlias = npt.NDArray[np.int64]

_ORDER, _SAMPLE, _NEGATIVES, _MEASURE = 1, 2, 3, 5
"""The purposes of random numbers: streams that never meet."""


@dataclass(frozen=True)
class Batch:
    """The input of a step: a sample, and its targets."""

    sample: Sample
    targets: Tensor
    """Labels of nodes ``(B,)`` int64, or whether pairs are linked ``(B,)`` float32."""
    step: int
    """The number of the batch, from 0 on over all epochs."""
    epoch: int
    pairs: Tensor | None = None
    """Places of both ends of pairs, ``(2, B)``; None: of nodes."""

    def __len__(self) -> int:
        """Nodes, or edges without negatives."""
        return len(self.targets) if self.pairs is None else int(self.targets.sum())


def sampler_of(edges: Ids, num_nodes: int, neighbors: tuple[int, ...], *, directed: bool) -> Any:
    """A sampler of neighbours; 0 of a layer stands for all of them."""
    from torch_geometric.data import Data

    from embedrock.adapters.pyg.sampler import NeighborSampler

    both = edges if directed else np.concatenate([edges, edges[::-1]], axis=1)
    data = Data(edge_index=torch.from_numpy(np.ascontiguousarray(both)), num_nodes=num_nodes)
    return NeighborSampler(data, [count or -1 for count in neighbors])


class Batches(ABC):
    """Batches of some items, epoch after epoch, each in an order of its own.

    Iterating begins at the position, behind the batch that was given last.
    """

    def __init__(
        self, sampler: Any, count: int, *, batch_size: int, epochs: int, seed: int, step: int = 0
    ) -> None:
        """Of so many items; ``step`` is the position to begin at."""
        self._sampler, self.count, self._batch_size = sampler, count, batch_size
        self._epochs, self._seed, self._step = epochs, seed, step
        self.per_epoch = -(-count // batch_size)
        """Batches of an epoch."""

    def __len__(self) -> int:
        """Batches of all epochs."""
        return self._epochs * self.per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the position on."""
        epoch, order = -1, np.empty(0, np.int64)
        while self._step < len(self):
            if self._step // self.per_epoch != epoch:
                epoch = self._step // self.per_epoch
                order = self._random(_ORDER, epoch).permutation(self.count)
            begin = self._step % self.per_epoch * self._batch_size
            batch = self._batch(order[begin : begin + self._batch_size], self._step, epoch)
            self._step += 1
            yield batch

    def epoch_of(self, step: int) -> int:
        """The epoch of a batch, by its number."""
        return step // self.per_epoch

    @abstractmethod
    def _batch(self, items: Ids, step: int, epoch: int) -> Batch: ...

    def _random(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, number])

    @contextlib.contextmanager
    def _drawing(self, purpose: int, number: int) -> Iterator[None]:
        """Meanwhile torch's generator has a seed of its own."""
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(int(self._random(purpose, number).integers(2**62)))
        try:
            yield
        finally:
            generator.set_state(before)


class NodeBatches(Batches):
    """Nodes and their labels."""

    def __init__(self, sampler: Any, nodes: Ids, labels: Ids, **how: Any) -> None:
        """Of these nodes ``(N,)``; ``labels`` are those of all nodes."""
        super().__init__(sampler, len(nodes), **how)
        self._nodes, self._labels = nodes, labels

    def _batch(self, items: Ids, step: int, epoch: int) -> Batch:
        return self._of(self._nodes[items], step, epoch, _SAMPLE)

    def in_order(self, nodes: Ids) -> Iterator[Batch]:
        """These nodes once, to measure with."""
        for number, begin in enumerate(range(0, len(nodes), self._batch_size)):
            yield self._of(nodes[begin : begin + self._batch_size], number, 0, _MEASURE)

    def _of(self, nodes: Ids, step: int, epoch: int, purpose: int) -> Batch:
        from torch_geometric.sampler import NodeSamplerInput

        with self._drawing(purpose, step):
            out = self._sampler.sample_from_nodes(
                NodeSamplerInput(input_id=None, node=torch.from_numpy(nodes))
            )
        return Batch(_sample(out), torch.from_numpy(self._labels[nodes]), step, epoch)


class LinkBatches(Batches):
    """Edges, and as many pairs of nodes drawn by chance.

    The edges that are asked for are not among those of the sample: each would tell itself.
    """

    def __init__(self, sampler: Any, edges: Ids, num_nodes: int, **how: Any) -> None:
        """Of these edges ``(2, E)`` between ``num_nodes`` nodes."""
        super().__init__(sampler, edges.shape[1], **how)
        self._edges, self._num_nodes = edges, num_nodes

    def _batch(self, items: Ids, step: int, epoch: int) -> Batch:
        drawn = self._random(_NEGATIVES, step).integers(0, self._num_nodes, (2, len(items)))
        return self._of(self._edges[:, items], drawn, step, epoch, _SAMPLE)

    def in_order(self, edges: Ids, negatives: Ids) -> Iterator[Batch]:
        """These edges and as many pairs that are none, once, to measure with."""
        for number, begin in enumerate(range(0, edges.shape[1], self._batch_size)):
            part = slice(begin, begin + self._batch_size)
            yield self._of(edges[:, part], negatives[:, part], number, 0, _MEASURE)

    def _of(self, edges: Ids, negatives: Ids, step: int, epoch: int, purpose: int) -> Batch:
        from torch_geometric.sampler import EdgeSamplerInput

        row, col = torch.from_numpy(np.concatenate([edges, negatives], axis=1))
        linked = torch.zeros(len(row), dtype=torch.float32, device="cpu")
        linked[: edges.shape[1]] = 1.0
        with self._drawing(purpose, step):
            out = self._sampler.sample_from_edges(
                EdgeSamplerInput(input_id=None, row=row, col=col, label=linked)
            )
        pairs = out.metadata[1]
        asked = pairs[:, : edges.shape[1]]
        return Batch(_sample(out, asked), linked, step, epoch, pairs)


def negatives_of(edges: Ids, num_nodes: int, count: int, seed: int) -> Ids:
    """Pairs ``(2, count)`` of different nodes that no edge joins, either way, drawn evenly.

    They may be fewer where hardly a pair is left.
    """
    random = np.random.default_rng([seed, 6])
    known = Pairs(np.concatenate([edges, edges[::-1]], axis=1), num_nodes)
    found: list[Ids] = []
    missing = count
    for _ in range(100):
        drawn = random.integers(0, num_nodes, (2, 2 * missing))
        _, is_edge = known.find(drawn)
        good = drawn[:, ~is_edge & (drawn[0] != drawn[1])][:, :missing]
        found.append(good)
        missing -= good.shape[1]
        if not missing:
            break
    return np.concatenate(found, axis=1)


def _sample(out: Any, asked: Tensor | None = None) -> Sample:
    """The sample without the predicted edges, in either direction."""
    edges = torch.stack([out.row, out.col])
    within = np.cumsum([0, *out.num_sampled_edges])
    if asked is not None and edges.shape[1]:
        count = len(out.node)
        numbers = [asked[0] * count + asked[1], asked[1] * count + asked[0]]
        kept = ~torch.isin(edges[0] * count + edges[1], torch.cat(numbers))
        before = np.concatenate([[0], np.cumsum(kept.numpy())])
        edges, within = edges[:, kept], before[within]
    nodes = np.cumsum(out.num_sampled_nodes)
    return Sample(
        out.node, edges, tuple(int(each) for each in nodes), tuple(int(each) for each in within)
    )
