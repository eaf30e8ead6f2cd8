"""``gnn``: GraphSAGE and GAT of PyTorch Geometric, with rows at a tenth of their memory.

* Nodes are classified by frozen features (``accuracy_MODEL``), and edges told from pairs that are
  none by learned embeddings (``link_auc``), each beside the same model with all rows in memory
  (``..._in_memory``), same seeds and batches. With ``--graph``: folders with files of graphs
  (:mod:`embedrock.data.graphs`), Planetoid's split; otherwise a graph that is made.
* ``speed_vs_memory_gnn``: steps of GraphSAGE per second on a made graph with features at
  ``--memory`` per cent, with sampling and look-ahead, divided by those with features in memory.

Source: Hamilton et al. 2017; Veličković et al. 2018; Kipf & Welling 2016 for edges.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock._optional import missing
from embedrock.data.graphs import Graph, files_of, planetoid_split, read
from embedrock.training.auc import auc
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.measure.noise import Timed, interleave

__all__ = ["Options", "run"]

KINDS, HIDDEN, EMBEDDED, TEST_SHARE = 4, 64, 64, 0.1
RATES = {"graphsage": 0.01, "gat": 0.005}
FIGURES = ["accuracy_graphsage", "accuracy_gat", "link_auc", "speed_vs_memory_gnn"]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    graph: list[Path] = option([], "folders of graphs", nargs="*")
    nodes: int = option(200_000, "nodes of the made graph")
    dim: int = option(128, "features of the made graph")
    epochs: int = option(60, "passes over the nodes to train on")
    edges: int = option(50_000, "edges to learn of, at most")
    link_epochs: int = option(20, "passes over the edges")
    steps: int = option(40, "steps of a round, for the speed")
    rounds: int = option(5, "rounds of each, for the speed")
    memory: float = option(10.0, "per cent of the rows' bytes")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("gnn", options)
    torch = import_torch(report, FIGURES, 2 << 30)
    if torch is None:
        return report.finish()
    if importlib.util.find_spec("torch_geometric") is None:
        for figure in FIGURES:
            report.missing(figure, missing("it", "PyTorch Geometric", "torch-geometric"))
        return report.finish()
    made = _made(options)
    # Of several labels a node, as Blogcatalog has them, none is read.
    graphs = {
        path.name: read(path, labels="features" in files_of(path)) for path in options.graph
    } or {"made": made}
    for name, graph in graphs.items():
        if graph.features is not None and graph.labels is not None:
            for model in RATES:
                _classify(report, options, name, graph, model)
        _link(report, options, name, graph)
    _speed(report, options, made)
    return report.finish()


def _made(options: Options) -> Graph:
    """Nodes of four kinds, whose edges mostly join nodes of one kind, and noisy features."""
    random = np.random.default_rng(options.seed)
    nodes = options.nodes
    kinds = random.integers(0, KINDS, nodes)
    edges = (nodes * random.random((2, 16 * nodes)) ** 1.5).astype(np.int64)
    alike = kinds[edges[0]] == kinds[edges[1]]
    edges = edges[:, (alike | (random.random(len(alike)) < 0.1)) & (edges[0] != edges[1])]
    features = random.standard_normal((nodes, options.dim), np.float32)
    features[np.arange(nodes), kinds] += 1.0
    return Graph(edges, nodes, kinds, features)


def _model(kind: str, width: int, classes: int) -> Any:
    """Two layers: (rows (N, width), edges) -> (N, classes)."""
    from torch_geometric.nn import GAT, GraphSAGE

    if kind == "gat":
        return GAT(width, HIDDEN, 2, classes, dropout=0.6, heads=8, act="elu")
    return GraphSAGE(width, HIDDEN, 2, classes, dropout=0.5)


def _data(graph: Graph, edges: Any) -> Any:
    """The graph in memory, as PyTorch Geometric has it."""
    import torch
    from torch_geometric.data import Data

    found = Data(edge_index=torch.from_numpy(edges.copy()), num_nodes=graph.num_nodes)
    if graph.features is not None:
        found.x = torch.from_numpy(graph.features)
    if graph.labels is not None:
        found.y = torch.from_numpy(graph.labels)
    return found


def _stored(graph: Graph, store: embedrock.Store) -> Any:
    """The graph's features in tables of a store."""
    from embedrock.adapters import pyg

    data = _data(graph, graph.both_ways())
    features, edges = pyg.FeatureStore(store), pyg.GraphStore()
    for name in ("x", "y"):
        features.put_tensor(data[name], group_name=None, attr_name=name, index=None)
    size = (graph.num_nodes, graph.num_nodes)
    edges.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=size)
    store.commit(0)
    return features, edges


def _opened(options: Options, place: Path) -> embedrock.Store:
    import warnings

    with warnings.catch_warnings():  # of graphs so small that a tenth of them cannot work
        warnings.simplefilter("ignore", embedrock.BudgetWarning)
        return embedrock.open(place / "store", memory=f"{options.memory:g}%")


def _classify(report: Report, options: Options, name: str, graph: Graph, kind: str) -> None:
    """Trains a model on twenty nodes of each class, in memory and from a store."""
    report.say(f"{name}: {kind}, nodes")
    accuracies = {"_in_memory": _accuracy(_data(graph, graph.both_ways()), graph, options, kind)}
    assert graph.features is not None
    needed = 3 * graph.features.nbytes + (64 << 20)
    with workspace(options, needed) as place, _opened(options, place) as store:
        accuracies[""] = _accuracy(_stored(graph, store), graph, options, kind)
        report.results.setdefault(name, {})[f"{kind}_misses"] = store.stats()["misses"]
    for which, accuracy in accuracies.items():
        report.results[name][f"accuracy_{kind}{which}"] = accuracy
        report.figure(f"accuracy_{kind}{which}", accuracy)


def _accuracy(data: Any, graph: Graph, options: Options, kind: str) -> float:
    """Of the nodes to test on, where those to choose by were told best."""
    import torch
    from torch.nn import functional as F

    from embedrock.adapters import pyg

    assert graph.features is not None and graph.labels is not None
    torch.manual_seed(options.seed)
    model = _model(kind, graph.features.shape[1], int(graph.labels.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATES[kind], weight_decay=5e-4)
    parts = [torch.from_numpy(part.copy()) for part in planetoid_split(graph)]
    loaders = [pyg.NeighborLoader(data, [10, 10], part, batch_size=256) for part in parts]

    def right(loader: Any) -> float:
        found = []
        with torch.no_grad():
            for batch in loader:
                logits = model(batch.x, batch.edge_index)[: batch.batch_size]
                found.append(logits.argmax(1) == batch.y[: batch.batch_size])
        return float(torch.cat(found).float().mean())

    best = (-1.0, 0.0)
    for epoch in range(options.epochs):
        model.train()
        for batch in loaders[0]:
            logits = model(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(logits, batch.y[: batch.batch_size]).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        if epoch % 3 == 2 or epoch == options.epochs - 1:
            best = max(best, (right(loaders[1]), right(loaders[2])))
    return best[1]


def _link(report: Report, options: Options, name: str, graph: Graph) -> None:
    """Learns embeddings of nodes by edges, and tells edges that were kept back from others."""
    import torch

    report.say(f"{name}: edges")
    edges = graph.edges[:, np.random.default_rng(options.seed).permutation(graph.edges.shape[1])]
    edges = edges[:, : options.edges]
    held = max(1, int(TEST_SHARE * edges.shape[1]))
    parts = edges[:, held:], edges[:, :held]
    torch.manual_seed(options.seed)
    theirs = torch.nn.Embedding(graph.num_nodes, EMBEDDED)
    torch.nn.init.normal_(theirs.weight, std=0.1)
    first = theirs.weight.detach().clone()
    found = {"_in_memory": _auc(options, graph, parts, theirs, torch.optim.Adagrad)}
    needed = 4 * first.nbytes + (64 << 20)
    with workspace(options, needed) as place, _opened(options, place) as store:
        size = (graph.num_nodes, EMBEDDED)
        mine = embedrock.nn.Embedding(*size, store=store, name="nodes", optimizer="adagrad")
        embedrock.weights.load(store.table("nodes"), first)
        store.commit(0)
        found[""] = _auc(options, graph, parts, mine, embedrock.optim.Adagrad)
        store.commit(1)
    for which, value in found.items():
        report.results.setdefault(name, {})[f"link_auc{which}"] = value
        report.figure(f"link_auc{which}", value)


def _auc(options: Options, graph: Graph, parts: Any, embeddings: Any, optimizer: Any) -> float:
    import torch
    from torch.nn import functional as F
    from torch_geometric.nn import GraphSAGE

    from embedrock.adapters import pyg

    torch.manual_seed(options.seed)
    model = torch.nn.Module()
    model.layers = GraphSAGE(EMBEDDED, HIDDEN, 1, EMBEDDED)
    model.nodes = embeddings
    train, test = parts
    data = _data(Graph(train, graph.num_nodes), np.concatenate([train, train[::-1]], 1))
    dense = torch.optim.Adam(model.layers.parameters(), lr=0.01)
    ours = isinstance(embeddings, embedrock.nn.RowsModule)
    rows = optimizer(embeddings if ours else embeddings.parameters(), lr=0.1)

    def loader(some: Any, **more: Any) -> Any:
        chosen = torch.from_numpy(some.copy())
        known = {"embeddings": embeddings} if ours else {}
        return pyg.LinkNeighborLoader(
            data, [10], chosen, neg_sampling="binary", batch_size=512, **known, **more
        )

    def scores(batch: Any) -> Any:
        rows = embeddings(batch.n_id)
        # An edge that is asked for would tell itself to the nodes that it joins.
        asked = batch.edge_label_index
        hidden = rows + model.layers(rows, _without(batch.edge_index, asked, len(rows)))
        return (hidden[asked[0]] * hidden[asked[1]]).sum(1)

    for _ in range(options.link_epochs):
        for batch in loader(train, shuffle=True):
            F.binary_cross_entropy_with_logits(scores(batch), batch.edge_label).backward()
            for each in (dense, rows):
                each.step()
                each.zero_grad()
    with torch.no_grad():
        told = [(batch.edge_label, scores(batch)) for batch in loader(test)]
    labels, values = (torch.cat(each).numpy() for each in zip(*told, strict=True))
    return auc(labels, values)


def _without(edges: Any, asked: Any, nodes: int) -> Any:
    """Edges that are not asked for, in either direction."""
    import torch

    numbers = [asked[0] * nodes + asked[1], asked[1] * nodes + asked[0]]
    return edges[:, ~torch.isin(edges[0] * nodes + edges[1], torch.cat(numbers))]


def _speed(report: Report, options: Options, graph: Graph) -> None:
    """Steps per second with features from a store, and in memory, in rounds."""
    assert graph.features is not None
    report.say(f"speed: {graph.num_nodes:,} nodes of {graph.features.shape[1]} features")
    needed = 3 * graph.features.nbytes + (64 << 20)
    with workspace(options, needed) as place, _opened(options, place) as store:
        loops = [
            _Loop(options, graph, data)
            for data in (_stored(graph, store), _data(graph, graph.both_ways()))
        ]
        for loop in loops:
            loop()  # caches fill, and look-ahead finds out whether it pays
        rounds = interleave(loops, options.rounds, options.patience)
        stats = store.stats()
        report.results["speed"] = {
            "steps_per_s": rounds.rate(0),
            "steps_per_s_in_memory": rounds.rate(1),
            "hit_rate": stats["hits"] / max(1, stats["hits"] + stats["misses"]),
            "lookahead": loops[0].loader.stats(),
        }
    report.figure("speed_vs_memory_gnn", rounds.ratio(0, 1))
    report.rounds("speed_vs_memory_gnn", rounds)


class _Loop:
    """Training that goes on for some steps whenever it is called."""

    def __init__(self, options: Options, graph: Graph, data: Any) -> None:
        import torch

        from embedrock.adapters import pyg

        assert graph.features is not None
        torch.manual_seed(options.seed)
        self._steps = options.steps
        self._model = _model("graphsage", graph.features.shape[1], KINDS)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01)
        seeds = torch.arange(graph.num_nodes)
        self.loader = pyg.NeighborLoader(data, [10, 5], seeds, batch_size=256, shuffle=True)
        self._batches: Iterator[Any] = itertools.chain.from_iterable(
            self.loader for _ in itertools.count()
        )

    def __call__(self) -> Timed:
        """So many steps, timed."""
        from torch.nn import functional as F

        timed = Timed()
        with timed:
            for batch in itertools.islice(self._batches, self._steps):
                logits = self._model(batch.x, batch.edge_index)[: batch.batch_size]
                F.cross_entropy(logits, batch.y[: batch.batch_size]).backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
                timed.work += 1
        return timed
