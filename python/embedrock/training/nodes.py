"""`embedrock train` for nodes and links of a graph: trains on sampled neighbours, commits as it
goes, and tells at the end how many labels, or which links, it gets right."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import embedrock
from embedrock._optional import missing
from embedrock.data import DataError, graph_splits, graphs
from embedrock.data.edges import Pairs
from embedrock.data.graph_splits import Parts
from embedrock.initializers import uniform
from embedrock.models.nodes import NodeModel, NodeRows, NodeShape
from embedrock.models.registry import NODE_MODELS
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.training import epoch_run
from embedrock.training.auc import auc, average_precision
from embedrock.training.node_batches import (
    Batch,
    Batches,
    LinkBatches,
    NodeBatches,
    negatives_of,
    sampler_of,
)
from embedrock.training.node_options import NodeOptions
from embedrock.training.node_recipes import AUTO, NodeRecipe
from embedrock.training.stored import row_optimizer

FEATURES, EMBEDDINGS = "features.x", "nodes"
"""Tables: of features, as `embedrock.adapters.pyg.FeatureStore` names it, and of embeddings."""

_BLOCK_BYTES = 16 << 20


class NodeTrainer(epoch_run.RateTrainer[Batch]):
    """A model of nodes or links with its optimizers."""

    def keys_of(self, batch: Batch) -> Mapping[Any, Any]:
        """The keys that a batch reads."""
        keys: Mapping[Any, Any] = self.model.rows.keys_of(batch.sample.nodes)
        return keys

    def step(self, batch: Batch) -> float:
        """Trains on one batch and returns its loss (before the update)."""
        self.model.train()
        started = perf_counter()
        rows = self.model.rows(batch.sample.nodes)
        fetched = perf_counter()
        logits = _told_of(self.model(rows, batch.sample), batch)
        if batch.pairs is None:
            loss = F.cross_entropy(logits, batch.targets)
        else:
            loss = F.binary_cross_entropy_with_logits(logits, batch.targets)
        loss.backward()
        value = float(loss.detach())
        computed = perf_counter()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.seconds.embedding += fetched - started
        self.seconds.computing += computed - fetched
        self.seconds.updating += perf_counter() - computed
        return value

    def predict(self, batches: Iterable[Batch]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Targets, and classes ``(N,)`` or logits of links, without a trace in model or tables."""
        self.model.eval()
        targets, found = [], []
        with torch.no_grad():
            for batch in batches:
                rows = self.model.rows(batch.sample.nodes)
                logits = _told_of(self.model(rows, batch.sample), batch)
                found.append(logits.argmax(1) if batch.pairs is None else logits)
                targets.append(batch.targets)
        return torch.cat(targets).numpy(), torch.cat(found).numpy()


def _told_of(values: Tensor, batch: Batch) -> Tensor:
    """Logits of classes, or of links: products of what both ends have."""
    if batch.pairs is None:
        return values
    first, second = values[batch.pairs[0]], values[batch.pairs[1]]
    return (first * second).sum(dim=1)


@dataclass(kw_only=True)
class _Run(epoch_run.EpochRun[Batch]):
    """A run that is under way."""

    graph: graphs.Graph
    trainer: NodeTrainer
    parts: Parts
    edges: npt.NDArray[np.int64]

    def stored(self) -> dict[str, Any]:
        """The original labels, by their numbers."""
        classes = self.graph.classes
        return {} if classes is None else {"class_names": list(classes)}

    def measure(self, sink: Sink) -> dict[str, Any]:
        """Accuracy of nodes, or AUC of links, that were not trained on."""
        measured: dict[str, Any] = {}
        for part in ("valid", "test"):
            items = self.parts[part]
            if not len(items):
                continue
            with Task(sink, f"measuring {part}", len(items)) as task:
                targets, found = self.trainer.predict(_counted(self._batches_of(part), task))
            measured[part] = _figures(self.options.recipe.task, targets, found)
        return measured

    def told(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Of the graph, and what was measured."""
        return {
            "nodes": self.graph.num_nodes,
            "edges": int(self.edges.shape[1]),
            "classes": _classes(self.graph) if self.options.recipe.task == "nodes" else None,
            "parts": {part: len(items) for part, items in self.parts.items()},
            "rows": sorted(self.store.tables),
            "measured": measured,
            "skipped": self.graph.skipped,
            **self.stored(),
        }

    def _batches_of(self, part: str) -> Iterator[Batch]:
        items, batches = self.parts[part], self.batches
        if isinstance(batches, NodeBatches):
            return batches.in_order(items)
        assert isinstance(batches, LinkBatches)
        number = 1 if part == "valid" else 2
        drawn = negatives_of(
            self.edges, self.graph.num_nodes, len(items), self.options.seed + 1000 * number
        )
        return batches.in_order(self.edges[:, items], drawn)


def train(options: NodeOptions, sink: Sink) -> dict[str, Any]:
    """As `epoch_run.train`; the result has `measured` of `valid` and `test`.

    Errors: also ModuleNotFoundError without PyTorch Geometric.
    """
    if importlib.util.find_spec("torch_geometric") is None:
        raise ModuleNotFoundError(
            missing(f"model {options.model}", "PyTorch Geometric", "torch-geometric"),
            name="torch_geometric",
        )
    return epoch_run.train(options, sink, _begin)


def _begin(options: NodeOptions, sink: Sink, stack: contextlib.ExitStack) -> _Run:
    """Opens data and store, makes the model, and goes to the last commit if that was asked for."""
    begun = epoch_run.begin(options, sink, stack)
    options = begun.options
    recipe = options.recipe
    with Task(sink, "reading the graph"):
        graph = graphs.read(
            options.data,
            labels=recipe.task == "nodes",
            skip_bad_lines=options.skip_bad_lines,
            map_ids=options.map_ids,
        )
        edges = graph.edges if recipe.directed else graph.undirected()
        parts, known = _parts(options, graph, edges)
    if graph.skipped:
        print(f"skipped {graph.skipped} lines, the first: {graph.first_skipped}", file=sys.stderr)
    neighbors = recipe.model_options["neighbors"]
    sampler = sampler_of(known, graph.num_nodes, neighbors, directed=recipe.directed)
    kinds = _rows(recipe, graph, options)
    store = begun.store()
    rows = _over_store(store, graph, recipe, kinds, fill=begun.stored is None, sink=sink)
    torch.manual_seed(options.seed)
    model = model_over(options, rows, _width(recipe, graph, kinds), _classes(graph))
    trainer = NodeTrainer(model, *_optimizers(model, recipe), recipe.lr_decay)
    step = 0
    if begun.stored is not None:
        step = embedrock.resume(store, model, trainer.optimizers)
    how = {"batch_size": recipe.batch_size, "epochs": recipe.epochs, "seed": options.seed}
    batches: Batches
    if recipe.task == "nodes":
        assert graph.labels is not None
        batches = NodeBatches(sampler, parts["train"], graph.labels, **how, step=step)
    else:
        batches = LinkBatches(sampler, known, graph.num_nodes, **how, step=step)
    return _Run(
        begun=begun,
        trainer=trainer,
        batches=batches,
        per_epoch=len(parts["train"]),
        step=step,
        graph=graph,
        parts=parts,
        edges=edges,
        keys="names" if options.map_ids else "ids",
    )


def _parts(
    options: NodeOptions, graph: graphs.Graph, edges: npt.NDArray[np.int64]
) -> tuple[Parts, npt.NDArray[np.int64]]:
    """The contents of each part, and the edges that neighbours are sampled along."""
    recipe, path = options.recipe, graph_splits.file_of(options.data)
    split = recipe.split_with(path is not None)
    if recipe.task == "links":
        # Ids and masks of a file are of edges as they come there.
        given = graph.edges if split == graph_splits.FILE else edges
        parts = graph_splits.of_edges(given, split, options.seed, path)
        if split == graph_splits.FILE and not recipe.directed:
            if given.shape[1] != edges.shape[1]:
                raise DataError(
                    f"is a split of {given.shape[1]} edges, of which {edges.shape[1]} are left "
                    f"when each is taken once and loops are left out; write each edge once, or "
                    f"say --directed",
                    path=path,
                )
            parts = _renumbered(parts, given, edges, graph.num_nodes)
        return parts, edges[:, parts["train"]]
    if graph.labels is None:
        raise DataError(
            "has no labels.tsv, .csv, .parquet or .npy; give one, or train on links: --task links",
            path=options.data,
        )
    return graph_splits.of_nodes(graph, split, options.seed, path), edges


def _renumbered(
    parts: Parts, given: npt.NDArray[np.int64], edges: npt.NDArray[np.int64], nodes: int
) -> Parts:
    """The same edges by their places among those that are sorted."""
    places, _ = Pairs(edges, nodes).find(np.stack([given.min(axis=0), given.max(axis=0)]))
    return {part: places[ids] for part, ids in parts.items()}


def _rows(recipe: NodeRecipe, graph: graphs.Graph, options: NodeOptions) -> tuple[bool, bool]:
    """Whether nodes are told by features, and by embeddings. Errors: DataError."""
    has = graph.features is not None
    if recipe.rows == AUTO:
        return has, not has
    features, embeddings = recipe.rows != "embeddings", recipe.rows != "features"
    if features and not has:
        raise DataError(
            f"has no features.npy, .npz, .csv or .tsv, and rows is {recipe.rows}; give one, or "
            f"train embeddings: --rows embeddings",
            path=options.data,
        )
    return features, embeddings


def _width(recipe: NodeRecipe, graph: graphs.Graph, kinds: tuple[bool, bool]) -> int:
    width = recipe.embedding_dim if kinds[1] else 0
    if kinds[0]:
        assert graph.features is not None
        width += graph.features.shape[1]
    return width


def _classes(graph: graphs.Graph) -> int:
    return 0 if graph.labels is None else 1 + int(graph.labels.max())


def _over_store(
    store: Store,
    graph: graphs.Graph,
    recipe: NodeRecipe,
    kinds: tuple[bool, bool],
    *,
    fill: bool,
    sink: Sink,
) -> NodeRows:
    """Rows of nodes in tables; with `fill` features are written first."""
    features: nn.Module | None = None
    embeddings: nn.Module | None = None
    if kinds[0]:
        given = graph.features
        assert given is not None
        features = embedrock.nn.Embedding(
            *given.shape,
            store=store,
            name=FEATURES,
            optimizer="none",
            initializer=0.0,
            dtype=torch.float16 if given.dtype == np.float16 else torch.float32,
            output_dtype=torch.float32,
        ).requires_grad_(False)
        if fill:
            with Task(sink, "writing features", len(given)) as task:
                _fill(store.table(FEATURES), given, graph.files["features"], task)
    if kinds[1]:
        embeddings = embedrock.nn.Embedding(
            graph.num_nodes,
            recipe.embedding_dim,
            store=store,
            name=EMBEDDINGS,
            optimizer=recipe.optimizer,
            initializer=uniform(-recipe.initial, recipe.initial),
            dtype=getattr(torch, recipe.dtype),
            output_dtype=torch.float32,
        )
    return NodeRows(features, embeddings)


def _fill(table: embedrock.Table, rows: npt.NDArray[Any], path: Path, task: Task) -> None:
    """Writes features by blocks. Errors: DataError for a value that is no number."""
    each = max(1, _BLOCK_BYTES // (4 * rows.shape[1]))
    for begin in range(0, len(rows), each):
        block = np.ascontiguousarray(rows[begin : begin + each], np.float32)
        if not np.isfinite(block).all():
            row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(block)))
            raise DataError(
                f"row {begin + row}, column {column} is {block[row, column]}, expected finite "
                f"numbers",
                path=path,
            )
        table.put(np.arange(begin, begin + len(block)), block)
        task.advance(len(block))


def model_over(options: NodeOptions, rows: NodeRows, width: int, classes: int) -> NodeModel:
    """The model of a recipe over rows that are there, its weights from torch's generator."""
    recipe = options.recipe
    links = recipe.task == "links"
    shape = NodeShape(width, recipe.embedding_dim if links else classes, links)
    model: NodeModel = NODE_MODELS[options.model].make(shape, rows, recipe.model_options)
    return model


def _optimizers(
    model: NodeModel, recipe: NodeRecipe
) -> tuple[list[torch.optim.Optimizer], list[float]]:
    """Of the layers, and of embeddings where there are some, with their rates."""
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(
            model.layers.parameters(), lr=recipe.dense_lr, weight_decay=recipe.weight_decay
        )
    ]
    rates = [recipe.dense_lr]
    if model.rows.embeddings is not None:
        optimizers.append(row_optimizer(model.rows.embeddings, recipe))
        rates.append(recipe.lr)
    return optimizers, rates


def _figures(task: str, targets: npt.NDArray[Any], found: npt.NDArray[Any]) -> dict[str, Any]:
    if task == "nodes":
        return {"nodes": len(targets), "accuracy": float((targets == found).mean())}
    return {
        "pairs": len(targets),
        "auc": auc(targets, found),
        "average_precision": average_precision(targets, found),
    }


def _counted(batches: Iterator[Batch], task: Task) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        task.advance(len(batch))
