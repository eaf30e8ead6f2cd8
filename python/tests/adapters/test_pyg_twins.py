"""GraphSAGE and GAT over tables at a tenth of their memory, beside the same model in memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data  # noqa: E402
from torch_geometric.nn import GATConv, SAGEConv  # noqa: E402

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402
from embedrock.adapters import pyg  # noqa: E402

NODES, DIM, KINDS, STEPS, BATCH = 20_000, 64, 5, 50, 32
LR = 0.5


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two layers over features and learnable embeddings of nodes."""

    def __init__(self, layer: Any, embeddings: Any) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.first, self.second = layer(2 * DIM, 16), layer(16, KINDS)

    def forward(self, batch: Any) -> Any:
        rows = torch.cat([batch.x, self.embeddings(batch.n_id)], 1)
        hidden = self.first(rows, batch.edge_index).relu()
        return self.second(hidden, batch.edge_index)[: batch.batch_size]


def train(model: Model, loader: Any, optimizers: list[Any]) -> list[float]:
    torch.manual_seed(5)  # determines the drawn neighbours
    losses: list[float] = []
    for batch in loader:
        wanted = batch.y[: batch.batch_size]
        loss = torch.nn.functional.cross_entropy(model(batch), wanted)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("layer", [SAGEConv, GATConv])
def test_losses_and_rows_are_those_of_the_model_in_memory(tmp_path: Path, layer: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 8 * NODES), generator=generator)
    x = torch.randn(NODES, DIM, generator=generator)
    y = torch.randint(0, KINDS, (NODES,), generator=generator)
    seeds = torch.randperm(NODES, generator=generator)[: STEPS * BATCH]

    torch.manual_seed(1)
    theirs = Model(layer, torch.nn.Embedding(NODES, DIM))
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    graph = Data(x=x, y=y, edge_index=edges, num_nodes=NODES)
    loader = pyg.NeighborLoader(graph, [4, 4], seeds, batch_size=BATCH)
    expected = train(theirs, loader, [torch.optim.SGD(theirs.parameters(), lr=LR)])

    with warnings.catch_warnings():
        warnings.simplefilter("error", embedrock.BudgetWarning)  # it is a tenth
        store = embedrock.open(tmp_path / "store", memory="10%", max_disk_bytes=200 << 20)
    with store:
        rows = nn.Embedding(NODES, DIM, store=store, name="nodes", optimizer="sgd")
        weights.load(rows.table, before.pop("embeddings.weight"))
        features, stored = pyg.FeatureStore(store), pyg.GraphStore()
        features[None, "x", None] = x
        features[None, "y", None] = y
        stored.put_edge_index(tuple(edges), edge_type=None, layout="coo", size=(NODES, NODES))
        store.commit(0)
        mine = Model(layer, rows)
        mine.load_state_dict(before, strict=False)
        loader = pyg.NeighborLoader(
            (features, stored), [4, 4], seeds, batch_size=BATCH, embeddings=rows
        )
        dense = torch.optim.SGD(nn.dense_parameters(mine), lr=LR)
        losses = train(mine, loader, [dense, optim.SGD(mine, lr=LR)])
        stats = store.stats()
        found = torch.from_numpy(rows.table.get(torch.arange(NODES)))
        store.commit(1)
    assert stats["misses"] > 30_000
    assert len(losses) == STEPS and losses == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found, theirs.embeddings.weight.detach(), rtol=0, atol=1e-5)
