"""Trains GraphSAGE on frozen features and trained embeddings of nodes, both in one store."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

import embedrock
from embedrock.adapters import pyg

NODES, KINDS, DIM = 3_000, 4, 16


class Model(torch.nn.Module):
    """Two layers over what a node is and what is learned of it."""

    def __init__(self, store):
        super().__init__()
        self.embeddings = embedrock.nn.Embedding(NODES, DIM, store=store, name="nodes")
        self.first, self.second = SAGEConv(2 * DIM, 32), SAGEConv(32, KINDS)

    def forward(self, batch):
        """A mini-batch -> logits (seeds, KINDS)."""
        rows = torch.cat([batch.x, self.embeddings(batch.n_id)], dim=1)
        hidden = F.relu(self.first(rows, batch.edge_index))
        return self.second(hidden, batch.edge_index)[: batch.batch_size]


torch.manual_seed(0)
kinds = torch.randint(0, KINDS, (NODES,))
edges = torch.randint(0, NODES, (2, 20 * NODES))
alike = kinds[edges[0]] == kinds[edges[1]]
edges = edges[:, alike | (torch.rand(len(alike)) < 0.1)]  # most join nodes of one kind
features = torch.randn(NODES, DIM)
features[:, :KINDS] += F.one_hot(kinds, KINDS)

with embedrock.open("graph.store", memory="8MiB") as store:
    # Once: a later run finds them there.
    known, graph = pyg.FeatureStore(store, "graph"), pyg.GraphStore("graph")
    known.put_tensor(features, group_name=None, attr_name="x", index=None)
    known.put_tensor(kinds, group_name=None, attr_name="y", index=None)
    graph.put_edge_index(tuple(edges), edge_type=None, layout="coo", size=(NODES, NODES))

    model = Model(store)
    optimizers = [
        torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.01),
        embedrock.optim.RowWiseAdagrad(model, lr=0.05),
    ]

    def loader(seeds, **options):
        """Mini-batches of these nodes, whose rows the store knows ahead."""
        return pyg.NeighborLoader(
            (known, graph), [8, 4], seeds, embeddings=model.embeddings, batch_size=64, **options
        )

    for _ in range(4):
        for batch in loader(torch.arange(2_400), shuffle=True):
            F.cross_entropy(model(batch), batch.y[: batch.batch_size]).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    embedrock.save(store, model, optimizers, step=1)

    right = 0
    with torch.no_grad():
        for batch in loader(torch.arange(2_400, NODES)):
            right += int((model(batch).argmax(1) == batch.y[: batch.batch_size]).sum())
    print(f"accuracy {right / 600:.2f} of nodes that were not trained")
    print("tables", ", ".join(store.tables))
