"""Loaders of mini-batches of nodes and of links, which tell the store what they will read.

The loaders of PyTorch Geometric, with three differences: neighbours are sampled without further
libraries, features are read in the main process whatever workers there are, and the nodes of
batches that were sampled ahead are announced to the store before their rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch_geometric.data
import torch_geometric.loader
import torch_geometric.sampler
from torch.utils.data import DataLoader

from embedrock._arguments import shown
from embedrock.adapters.pyg.features import FeatureStore
from embedrock.adapters.pyg.sampler import NeighborSampler
from embedrock.errors import KeyRangeError, MisuseError
from embedrock.pipeline.loader import LookaheadLoader
from embedrock.store import Store
from embedrock.table import Table

__all__ = ["LinkNeighborLoader", "NeighborLoader"]


class _Samples:
    """Sampled batches of a loader, before their features are read."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(DataLoader.__iter__(self._loader))

    def __len__(self) -> int:
        return len(self._loader)


class _Announcing:
    """The common part of both loaders: features of the main process, and look-ahead over
    ``out.node``."""

    data: Any
    _ahead: LookaheadLoader[Any] | None = None

    def _announce(self, embeddings: Any, num_nodes: int, depth: int, announce: bool | None) -> None:
        features = self.data[0] if isinstance(self.data, (tuple, list)) else None
        features = features if isinstance(features, FeatureStore) else None
        tables = _tables(embeddings)
        for table in tables:
            size = table.num_embeddings
            if size is not None and num_nodes > size:
                raise KeyRangeError(
                    f"the graph has {num_nodes} nodes, and table {table.name!r} rows for {size}: "
                    f"edges would lead beyond it"
                )
        stores = {id(table.store): table.store for table in tables}
        if features is not None and features.tables:
            stores.setdefault(id(features.store), features.store)
        if len(stores) > 1:
            raise MisuseError(
                f"features and embeddings are in {len(stores)} stores, expected one: "
                f"{', '.join(str(store.path) for store in stores.values())}"
            )
        for store in stores.values():
            self._ahead = _ahead(self, store, features, tables, depth, announce)

    def __iter__(self) -> Iterator[Any]:
        """Mini-batches, with their features."""
        samples = _Samples(self) if self._ahead is None else self._ahead
        return (self.filter_fn(out) for out in samples)  # type: ignore[attr-defined]

    def _get_iterator(self) -> Any:
        return DataLoader._get_iterator(self)

    def __getstate__(self) -> dict[str, Any]:
        """The state that a worker process needs to sample; it reads and announces nothing."""
        return {**self.__dict__, "_ahead": None}

    def stats(self) -> dict[str, int]:
        """Counts of look-ahead, as :meth:`embedrock.LookaheadLoader.stats` has them."""
        return {} if self._ahead is None else self._ahead.stats()


class NeighborLoader(_Announcing, torch_geometric.loader.NodeLoader):  # type: ignore[misc]
    """Mini-batches of seed nodes and their sampled neighbours.

    As ``torch_geometric.loader.NeighborLoader``, without further libraries. With ``num_workers``,
    workers sample and the main process reads rows.

    Args:
        data: A ``Data``, or a pair of feature and graph store.
        num_neighbors: Number of neighbours to draw for a node, by hop; -1: all.
        input_nodes: The seeds, as ids or as a mask; None: all nodes of a ``Data``.
        embeddings: Modules of ``embedrock.nn``, or tables, in which the model looks up
            ``batch.n_id``: their rows are read ahead.
        replace: Whether a neighbour can be drawn more than once.
        sampler: A sampler of ``torch.utils.data``, such as PyTorch Geometric's
            ``ImbalancedSampler``, says which seeds come and in which order. A ``BaseSampler``
            counts as ``neighbor_sampler``.
        neighbor_sampler: Another sampler of neighbours, instead of ``num_neighbors`` and
            ``replace``.
        depth, announce: As for :class:`embedrock.LookaheadLoader`.
        **kwargs: Those of PyTorch Geometric's ``NodeLoader`` and of PyTorch's ``DataLoader``.

    Errors: ``KeyRangeError`` for a graph with more nodes than a table of embeddings has rows;
    ``MisuseError`` for tables of several stores; otherwise those of :class:`NeighborSampler`.

    Blocking: asking for a batch waits for its sample, and for its rows.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from embedrock.adapters import pyg
    >>> graph = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
    >>> nodes = embedrock.nn.Embedding(4, 8, store=store, name="nodes")
    >>> loader = pyg.NeighborLoader(graph, [2, 2], embeddings=nodes, batch_size=2)
    >>> [tuple(nodes(batch.n_id).shape) for batch in loader]
    [(4, 8), (4, 8)]
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | None = None,
        input_nodes: Any = None,
        *,
        embeddings: Any = (),
        replace: bool = False,
        sampler: Any = None,
        neighbor_sampler: Any = None,
        depth: int = 512,
        announce: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes the sampler."""
        given = (neighbor_sampler, sampler)
        sampler, nodes = _sampler(data, num_neighbors, replace, given, kwargs)
        super().__init__(data, sampler, input_nodes, filter_per_worker=False, **kwargs)
        self._announce(embeddings, nodes, depth, announce)


class LinkNeighborLoader(_Announcing, torch_geometric.loader.LinkLoader):  # type: ignore[misc]
    """Mini-batches of edges, of negative ones, and of sampled neighbours of their ends.

    As ``torch_geometric.loader.LinkNeighborLoader``, without further libraries; arguments beside
    those of :class:`NeighborLoader` are those of PyTorch Geometric's ``LinkLoader``.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from embedrock.adapters import pyg
    >>> graph = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
    >>> loader = pyg.LinkNeighborLoader(graph, [2], neg_sampling="binary", batch_size=2)
    >>> [batch.edge_label.tolist() for batch in loader]
    [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | None = None,
        edge_label_index: Any = None,
        *,
        embeddings: Any = (),
        replace: bool = False,
        sampler: Any = None,
        neighbor_sampler: Any = None,
        depth: int = 512,
        announce: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes the sampler."""
        given = (neighbor_sampler, sampler)
        sampler, nodes = _sampler(data, num_neighbors, replace, given, kwargs)
        if isinstance(data, (tuple, list)) and hasattr(edge_label_index, "shape"):
            edge_label_index = (None, edge_label_index)  # of a graph with one kind of edges
        super().__init__(data, sampler, edge_label_index, filter_per_worker=False, **kwargs)
        self._announce(embeddings, nodes, depth, announce)


def _sampler(
    data: Any, num_neighbors: Any, replace: bool, samplers: tuple[Any, Any], options: dict[str, Any]
) -> tuple[Any, int]:
    """A sampler of neighbours, and of how many nodes it is; 0 where it does not say.

    Of ``samplers`` the second may be one of seeds, which the options take then.

    Errors: MisuseError, also for an option with which workers would read the store.
    """
    if options.pop("filter_per_worker", None):
        raise MisuseError(
            "filter_per_worker is True, and worker processes cannot read the store; leave it out: "
            "workers sample, and the main process reads"
        )
    given, seeds = samplers
    if given is None and isinstance(seeds, torch_geometric.sampler.BaseSampler):
        given, seeds = seeds, None
    if given is not None and not isinstance(given, torch_geometric.sampler.BaseSampler):
        raise MisuseError(f"neighbor_sampler is {shown(given)}, expected a BaseSampler")
    if seeds is not None:
        if isinstance(seeds, (str, bytes, dict)) or not hasattr(seeds, "__iter__"):
            raise MisuseError(
                f"sampler is {shown(seeds)}, expected a sampler of torch.utils.data, which says "
                f"what seeds come, or a BaseSampler of torch_geometric, which draws neighbours"
            )
        options["sampler"] = seeds
    if (num_neighbors is None) == (given is None):
        raise MisuseError(
            "expected either num_neighbors, or a sampler of neighbours instead (neighbor_sampler)"
        )
    if given is None:
        given = NeighborSampler(data, num_neighbors, replace=replace)
    nodes = getattr(given, "num_nodes", 0)
    return given, nodes if isinstance(nodes, int) else 0


def _tables(embeddings: Any) -> list[Table]:
    """The tables of modules and tables."""
    several = isinstance(embeddings, (tuple, list))
    found: list[Table] = []
    for each in embeddings if several else [embeddings]:
        tables = [each] if isinstance(each, Table) else getattr(each, "tables", None)
        if not isinstance(tables, (list, tuple)) or not all(isinstance(t, Table) for t in tables):
            raise MisuseError(
                f"embeddings have {shown(each)}, expected modules of embedrock.nn, or tables"
            )
        found.extend(tables)
    return found


def _ahead(
    loader: Any,
    store: Store,
    features: FeatureStore | None,
    tables: list[Table],
    depth: int,
    announce: bool | None,
) -> LookaheadLoader[Any]:
    def keys_of(out: Any) -> dict[Table, Any]:
        ids = out.node.numpy()
        parts = [] if features is None else [*features.keys_of(ids).items()]
        keys: dict[Table, Any] = {}
        for table, some in [*parts, *((table, ids) for table in tables)]:
            keys[table] = np.concatenate([keys[table], some]) if table in keys else some
        return keys

    return LookaheadLoader(_Samples(loader), store, depth, keys_of, announce=announce)
