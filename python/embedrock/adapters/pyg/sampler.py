"""``NeighborSampler``: neighbours of nodes and of edges, in NumPy over where each node's edges lie.

PyTorch Geometric's own sampler needs a library of C++ that is built for some versions of PyTorch.
This one needs nothing, and no store: it runs in the worker processes of a loader. Random numbers
come from torch's generator, which loaders seed in each worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.sampler import BaseSampler, SamplerOutput

from embedrock import _distinct
from embedrock._arguments import flag, shown, whole
from embedrock.adapters.pyg.graph import GraphStore
from embedrock.errors import KeyRangeError, MisuseError, UnsupportedError

__all__ = ["NeighborSampler"]

Ids = npt.NDArray[np.int64]


class NeighborSampler(BaseSampler):  # type: ignore[misc]
    """Draws neighbours along incoming edges, hop after hop, for loaders of nodes and of links.

    Args:
        data: A ``Data`` with an ``edge_index``, a pair of feature and graph store, or the pair
            ``(row, colptr)``: the sources of all edges by destination, and the offset of each
            node's first one. Mapped arrays stay on the disk.
        num_neighbors: Number of neighbours to draw for a node, by hop; -1: all.
        replace: Whether a neighbour can be drawn more than once.
        num_nodes: Number of nodes; None: as ``data`` says, or as its edges need.

    Semantics: without ``replace``, every set of neighbours of a node is as likely as any other. A
    node's neighbours are drawn when it first comes. Sampled nodes come seeds first, then in order
    of their first edge. Negatives of links are drawn uniformly, or by the weights of
    ``NegativeSampling``, and may be edges, as PyTorch Geometric's.

    Errors: ``KeyRangeError`` for seeds, and for edges, of nodes that there are not;
    ``UnsupportedError`` for graphs of several kinds of nodes and for sampling by time.

    >>> import torch
    >>> from torch_geometric.loader import NodeLoader
    >>> from torch_geometric.data import Data
    >>> from embedrock.adapters import pyg
    >>> graph = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
    >>> loader = NodeLoader(graph, pyg.NeighborSampler(graph, [1, 1]), batch_size=2)
    >>> [batch.n_id.tolist() for batch in loader]
    [[0, 1, 3, 2], [2, 3, 1, 0]]
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        num_nodes: int | None = None,
    ) -> None:
        """Sorts the edges by destination, unless they are."""
        if isinstance(num_neighbors, (str, bytes, dict)) or not hasattr(num_neighbors, "__iter__"):
            raise MisuseError(
                f"num_neighbors is {shown(num_neighbors)}, expected a number for each hop"
            )
        self.num_neighbors = [whole("num_neighbors", each, -1) for each in num_neighbors]
        self.replace = flag("replace", replace)
        row, colptr, self._permutation, found = _by_destination(data)
        self._row, self._colptr = row.numpy(), colptr.numpy()
        self.num_nodes = found if num_nodes is None else whole("num_nodes", num_nodes, 1)
        if len(self._colptr) - 1 > self.num_nodes:
            raise KeyRangeError(
                f"edges lead to {len(self._colptr) - 1} nodes, and there are {self.num_nodes}"
            )

    @property
    def edge_permutation(self) -> Tensor | None:
        """From the places of sampled edges to edges of the graph; None: they are the same."""
        return self._permutation

    def sample_from_nodes(self, index: Any, **_: Any) -> Any:
        """The neighbours of seed nodes, as a ``SamplerOutput``."""
        _refuse(index)
        out = self._sample(index.node.numpy())
        out.metadata = (index.input_id, None)
        return out

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        """The neighbours of both ends of seed edges, and of negative ones, as a
        ``SamplerOutput``."""
        _refuse(index)
        source, destination, label = index.row, index.col, index.label
        positives = len(source)
        if neg_sampling is not None:
            count = math.ceil(positives * neg_sampling.amount)
            if neg_sampling.is_binary():
                source = torch.cat([source, self._negatives(neg_sampling, count, "src")])
                label = torch.ones(positives) if label is None else label
                label = torch.cat([label, label.new_zeros(count, *label.shape[1:])])
            destination = torch.cat([destination, self._negatives(neg_sampling, count, "dst")])
        seeds, places = _distinct.distinct(torch.cat([source, destination]).numpy())
        out = self._sample(seeds)
        at = torch.from_numpy(places)
        if neg_sampling is None or neg_sampling.is_binary():
            out.metadata = (index.input_id, at.view(2, -1), label, None)
            return out
        negative = at[2 * positives :].view(positives, -1).squeeze(-1)
        out.metadata = (index.input_id, at[:positives], at[positives : 2 * positives], negative)
        out.metadata += (None,)
        return out

    def _negatives(self, sampling: Any, count: int, endpoint: str) -> Tensor:
        drawn: Tensor = sampling.sample(count, endpoint, self.num_nodes)
        return drawn

    def _sample(self, seeds: Ids) -> Any:
        self._check(seeds, "seed")
        random = np.random.default_rng(int(torch.randint(2**62, ()).item()))
        known, slots = _distinct.distinct(seeds)
        twice = len(seeds) - len(known)  # of a seed that comes twice, edges lead from the first
        first = np.full(len(known), len(seeds), np.int64)
        np.minimum.at(first, slots, np.arange(len(seeds)))
        nodes, frontier, begin = known, seeds, 0
        rows, columns, edges = [], [], []
        counts_of_nodes, counts_of_edges = [len(seeds)], []
        for wanted in self.num_neighbors:
            of, at = self._draw(frontier, wanted, random)
            sources = self._row[at].astype(np.int64, copy=False)
            self._check(sources, "edge", at)
            joined, inverse = _distinct.distinct(np.concatenate([nodes, sources]))
            places = inverse[len(nodes) :]
            new = places + twice
            early = places < len(first)
            new[early] = first[places[early]]
            rows.append(new)
            columns.append(of + begin)
            edges.append(at)
            begin = len(nodes) + twice
            frontier, nodes = joined[len(nodes) :], joined
            counts_of_nodes.append(len(frontier))
            counts_of_edges.append(len(at))
        return SamplerOutput(
            node=torch.from_numpy(np.concatenate([seeds, nodes[len(known) :]])),
            row=_joined(rows),
            col=_joined(columns),
            edge=_joined(edges),
            num_sampled_nodes=counts_of_nodes,
            num_sampled_edges=counts_of_edges,
        )

    def _draw(self, nodes: Ids, wanted: int, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Edges into nodes: which of the nodes each leads to, and where it lies."""
        inside = np.minimum(nodes, len(self._colptr) - 2)
        begins = self._colptr[inside].astype(np.int64, copy=False)
        degrees = self._colptr[inside + 1] - begins
        degrees[nodes != inside] = 0  # nodes behind the last one that an edge leads to
        if wanted < 0:
            return _all(begins, degrees, np.arange(len(nodes)))
        if self.replace:
            some = np.flatnonzero(degrees)
            drawn = (random.random((len(some), wanted)) * degrees[some, None]).astype(np.int64)
            places = begins[some, None] + np.minimum(drawn, degrees[some, None] - 1)
            return np.repeat(some, wanted), places.reshape(-1)
        few = np.flatnonzero((degrees <= wanted) & (degrees > 0))
        many = np.flatnonzero(degrees > wanted)
        of, at = _all(begins[few], degrees[few], few)
        drawn = _without_replacement(degrees[many], wanted, random) + begins[many, None]
        of = np.concatenate([of, np.repeat(many, wanted)])
        at = np.concatenate([at, drawn.reshape(-1)])
        order = np.argsort(of, kind="stable")
        return of[order], at[order]

    def _check(self, ids: Ids, what: str, edges: Ids | None = None) -> None:
        if len(ids) == 0 or (ids.min() >= 0 and ids.max() < self.num_nodes):
            return
        place = int(np.flatnonzero((ids < 0) | (ids >= self.num_nodes))[0])
        if edges is None:
            named = f"{what} {place} is"
        else:
            edge = int(edges[place])
            edge = edge if self._permutation is None else int(self._permutation[edge])
            named = f"{what} {edge} begins at"
        raise KeyRangeError(
            f"{named} node {int(ids[place])}, expected 0 to {self.num_nodes - 1}, as there are "
            f"{self.num_nodes} nodes"
        )


def _all(begins: Ids, degrees: Ids, of: Ids) -> tuple[Ids, Ids]:
    """All edges of some nodes."""
    total = int(degrees.sum())
    ends = np.cumsum(degrees)
    places = np.arange(total) + np.repeat(begins - (ends - degrees), degrees)
    return np.repeat(of, degrees), places


def _without_replacement(degrees: Ids, wanted: int, random: np.random.Generator) -> Ids:
    """For each degree so many different numbers below it. Source: Floyd's algorithm."""
    chosen = np.empty((len(degrees), wanted), np.int64)
    for i in range(wanted):
        last = degrees - wanted + i
        drawn = np.minimum((random.random(len(degrees)) * (last + 1)).astype(np.int64), last)
        taken = (chosen[:, :i] == drawn[:, None]).any(axis=1)
        chosen[:, i] = np.where(taken, last, drawn)
    return chosen


def _joined(parts: list[Ids]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts]))


def _refuse(index: Any) -> None:
    if index.time is not None:
        raise UnsupportedError(
            "NeighborSampler does not sample by time; leave input_time and edge_label_time out"
        )
    if index.input_type is not None:
        raise _several_kinds(f"seeds are of type {index.input_type!r}")


def _several_kinds(told: str) -> UnsupportedError:
    return UnsupportedError(
        f"{told}, and NeighborSampler takes graphs with one kind of nodes and edges; number the "
        f"nodes of all kinds from one range (Data, or HeteroData.to_homogeneous())"
    )


def _by_destination(data: Any) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """Sources of edges by destination, where those of each node begin, which edges they are, and
    how many nodes there are."""
    if isinstance(data, torch_geometric.data.HeteroData):
        raise _several_kinds("data is a HeteroData")
    if isinstance(data, torch_geometric.data.Data):
        if data.edge_index is None:
            raise MisuseError("data has no edge_index")
        graph = GraphStore()
        size = None if data.num_nodes is None else (data.num_nodes, data.num_nodes)
        graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=size)
    elif isinstance(data, (tuple, list)) and len(data) == 2:
        graph = data[1]
        if not isinstance(graph, torch_geometric.data.GraphStore):
            graph = GraphStore()
            row, colptr = (torch.as_tensor(each) for each in data)
            graph.put_edge_index((row, colptr), edge_type=None, layout="csc")
    else:
        raise MisuseError(
            f"data is {shown(data)}, expected a Data, a pair of feature and graph store, or "
            f"(row, colptr)"
        )
    attrs = graph.get_all_edge_attrs()
    if not attrs:
        raise MisuseError("the graph store has no edges")
    if any(attr.edge_type is not None for attr in attrs):
        raise _several_kinds(f"the graph store has edges of type {attrs[0].edge_type!r}")
    layouts = [attr.layout.value for attr in attrs]
    best = attrs[layouts.index(min(layouts, key=("csc", "coo", "csr").index))]
    row, colptr, permutation = graph._edge_to_layout(best, torch_geometric.data.EdgeLayout("csc"))
    sizes = [max(attr.size) for attr in attrs if attr.size is not None]
    return row, colptr, permutation, max([*sizes, len(colptr) - 1])
