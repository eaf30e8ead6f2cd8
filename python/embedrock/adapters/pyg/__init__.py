"""PyTorch Geometric over a store: features, edges, neighbour sampling, loaders that look ahead.

>>> import torch
>>> from embedrock.adapters import pyg
>>> features, graph = pyg.FeatureStore(store), pyg.GraphStore()
>>> edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
>>> features.put_tensor(torch.randn(4, 8), group_name=None, attr_name="x", index=None)
True
>>> graph.put_edge_index(tuple(edges), edge_type=None, layout="coo", size=(4, 4))
True
>>> loader = pyg.NeighborLoader(
...     (features, graph), [2, 2], input_nodes=torch.arange(4), batch_size=2
... )
>>> [tuple(batch.x.shape) for batch in loader]
[(4, 8), (4, 8)]
"""

import importlib.util

from embedrock._optional import missing

if importlib.util.find_spec("torch_geometric") is None:
    raise ModuleNotFoundError(
        missing("embedrock.adapters.pyg", "PyTorch Geometric", "torch-geometric"),
        name="torch_geometric",
    )

from embedrock.adapters.pyg.features import FeatureStore
from embedrock.adapters.pyg.graph import GraphStore
from embedrock.adapters.pyg.loaders import LinkNeighborLoader, NeighborLoader
from embedrock.adapters.pyg.sampler import NeighborSampler

__all__ = [
    "FeatureStore",
    "GraphStore",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
]
