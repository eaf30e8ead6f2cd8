"""GraphSAGE and GAT over rows of nodes: frozen features, trained embeddings, or both side by side.

Layers are PyTorch Geometric's, which is imported when a model is made. A layer is computed for the
nodes that later layers need, which come first in a batch. Rows may be modules of `embedrock.nn` or
`torch.nn.Embedding`; the arithmetic is the same.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedrock.errors import MisuseError
from embedrock.models.registry import GATOptions, GraphSAGEOptions

__all__ = ["GAT", "GraphSAGE", "NodeModel", "NodeRows", "NodeShape", "Sample"]


@dataclass(frozen=True)
class NodeShape:
    """The shape of a model of nodes."""

    width: int
    """Values of a node's rows."""
    outputs: int
    """Classes, or values of a node that its links are told by."""
    links: bool = False


@dataclass(frozen=True)
class Sample:
    """Nodes ``(n,)``, those that are asked for first, then neighbours by hop; edges ``(2, e)``
    between their places, by hop, too."""

    nodes: Tensor
    edges: Tensor
    nodes_within: tuple[int, ...]
    """Number of nodes within each number of hops, from 0 on."""
    edges_within: tuple[int, ...]


class NodeRows(nn.Module):  # type: ignore[misc]
    """Rows of nodes: features, embeddings, or both."""

    def __init__(self, features: nn.Module | None, embeddings: nn.Module | None) -> None:
        """Takes modules from ids to rows."""
        super().__init__()
        self.features, self.embeddings = features, embeddings

    def forward(self, nodes: Tensor) -> Tensor:
        """``(n,) -> (n, width)``."""
        found = [module(nodes) for module in self._modules_of()]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def keys_of(self, nodes: Tensor) -> dict[Any, Any]:
        """The ids that a forward reads, by module, for look-ahead."""
        return dict.fromkeys(self._modules_of(), nodes)

    def _modules_of(self) -> Iterator[nn.Module]:
        return (each for each in (self.features, self.embeddings) if each is not None)


class NodeModel(nn.Module):  # type: ignore[misc]
    """Layers over rows. `rows(sample.nodes)` are apart from `forward`, for reading to be timed."""

    def __init__(self, shape: NodeShape, rows: NodeRows, options: Any) -> None:
        """Makes the layers, with weights of torch's generator. Errors: MisuseError."""
        super().__init__()
        if options.dropout >= 1:
            raise MisuseError(f"dropout is {options.dropout}, expected less than 1")
        self.rows, self.options = rows, options
        layers = nn.Module()
        layers.convolutions = nn.ModuleList(self._convolutions(shape, len(options.neighbors)))
        if shape.links:
            # A node's own rows tell most of its links: layers add to them.
            same = shape.width == shape.outputs
            own = nn.Identity() if same else nn.Linear(shape.width, shape.outputs, bias=False)
            layers.own = own
        self.layers = layers
        """All that is in memory."""

    @abstractmethod
    def _convolutions(self, shape: NodeShape, count: int) -> Iterator[nn.Module]: ...

    @abstractmethod
    def _activation(self, values: Tensor) -> Tensor: ...

    def forward(self, rows: Tensor, sample: Sample) -> Tensor:
        """``(n, width)`` -> of the nodes that are asked for, ``(nodes_within[0], outputs)``."""
        values, convolutions = rows, self.layers.convolutions
        for left in range(len(convolutions), 0, -1):
            values = F.dropout(values, self.options.dropout, self.training)
            edges = sample.edges[:, : sample.edges_within[left]]
            values = convolutions[len(convolutions) - left](values, edges)
            values = values[: sample.nodes_within[left - 1]]
            if left > 1:
                values = self._activation(values)
        if hasattr(self.layers, "own"):
            values = values + self.layers.own(rows[: sample.nodes_within[0]])
        return values


class GraphSAGE(NodeModel):
    """Source: Hamilton et al., "Inductive Representation Learning on Large Graphs", 2017."""

    options: GraphSAGEOptions

    def _convolutions(self, shape: NodeShape, count: int) -> Iterator[nn.Module]:
        from torch_geometric.nn import SAGEConv

        widths = [shape.width, *[self.options.hidden] * (count - 1), shape.outputs]
        for before, after in itertools.pairwise(widths):
            yield SAGEConv(before, after, aggr=self.options.aggregator)

    def _activation(self, values: Tensor) -> Tensor:
        return F.relu(values)


class GAT(NodeModel):
    """Source: Veličković et al., "Graph Attention Networks", 2018."""

    options: GATOptions

    def _convolutions(self, shape: NodeShape, count: int) -> Iterator[nn.Module]:
        from torch_geometric.nn import GATConv

        heads, dropout, width = self.options.heads, self.options.dropout, shape.width
        for _ in range(count - 1):
            yield GATConv(width, self.options.hidden, heads, dropout=dropout)
            width = self.options.hidden * heads
        yield GATConv(width, shape.outputs, 1, dropout=dropout)

    def _activation(self, values: Tensor) -> Tensor:
        return F.elu(values)
