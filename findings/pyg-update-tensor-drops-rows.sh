#!/usr/bin/env bash
# What: update_tensor with an index, of PyTorch Geometric's Data and HeteroData, loses the rows
#   that the index does not name. HeteroData then has only the new rows as the whole attribute,
#   and the call returns True. Data loses the attribute altogether and raises an AssertionError
#   without a message. put_tensor with the same arguments changes the rows of the index and keeps
#   all others.
# Version: torch-geometric 2.8.1 with torch 2.15.0.
# Why it matters: refreshing some rows of a feature with the call of that name leaves a matrix of
#   another size. HeteroData gives no sign of it. Small node ids read the rows of other nodes, and
#   only larger ones fail. Use put_tensor for rows of an index.
# Source: the docstring of FeatureStore.update_tensor in torch-geometric 2.8.1 says "Updates a
#   tensor in the FeatureStore with a new value", and that the default is a removal and an
#   insertion. Data and HeteroData do not override it, and pyg-team/pytorch_geometric#4807 made
#   both such stores.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch-geometric==2.8.1 torch==2.15.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
import torch_geometric
from torch_geometric.data import Data, HeteroData

print("torch-geometric", torch_geometric.__version__, "torch", torch.__version__)
ids, new = torch.tensor([1, 4]), torch.ones(2, 3)


def made(kind):
    graph, x = kind(), torch.zeros(6, 3)
    if kind is Data:
        graph.x = x
        return graph, {"attr_name": "x"}
    graph["paper"].x = x
    return graph, {"group_name": "paper", "attr_name": "x"}


found = {}
for kind in (Data, HeteroData):
    graph, named = made(kind)
    graph.put_tensor(new, index=ids, **named)
    put = graph.get_tensor(index=None, **named)
    assert tuple(put.shape) == (6, 3) and put[:, 0].tolist() == [0, 1, 0, 0, 1, 0]
    graph, named = made(kind)
    try:
        told = graph.update_tensor(new, index=ids, **named)
    except AssertionError as error:
        told = f"{type(error).__name__}({str(error)!r})"
    left = graph.get_tensor(index=None, **named)
    found[kind.__name__] = (told, None if left is None else tuple(left.shape))
    print(f"{kind.__name__}: put_tensor leaves (6, 3); update_tensor says {told} and leaves",
          "nothing" if left is None else tuple(left.shape))
if found != {"Data": ("AssertionError('')", None), "HeteroData": (True, (2, 3))}:
    sys.exit(f"the behaviour has changed: {found}")
PYTHON
