"""`embedrock train` for knowledge graphs: trains on triples, and ranks at the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

import embedrock
from embedrock import kge
from embedrock.initializers import uniform
from embedrock.report.progress import Sink, Task
from embedrock.training import epoch_run
from embedrock.training.graph_options import GraphOptions
from embedrock.training.stored import row_optimizer


class GraphTrainer(epoch_run.RateTrainer[kge.TripleBatch]):
    """A model with its optimizers, and the constraint of its entities where it has one."""

    def __init__(
        self,
        model: kge.KnowledgeGraphModel,
        optimizers: list[torch.optim.Optimizer],
        options: GraphOptions,
    ) -> None:
        """Takes the model and all of its optimizers."""
        recipe = options.recipe
        super().__init__(model, optimizers, (recipe.lr, recipe.dense_lr), recipe.lr_decay)
        self._loss = recipe.loss
        self._with = {
            "margin": recipe.margin,
            "temperature": recipe.temperature,
            "regularization": recipe.regularization,
        }
        self.constraint = kge.RowConstraint(model.entities) if recipe.unit_rows else None

    def keys_of(self, batch: kge.TripleBatch) -> Mapping[Any, Any]:
        """The keys that a batch reads."""
        keys: Mapping[Any, Any] = self.model.keys_of(batch)
        return keys

    def step(self, batch: kge.TripleBatch) -> float:
        """Trains on one batch and returns its loss (before the update)."""
        started = perf_counter()
        if self.constraint is not None:
            self.constraint.before(batch.entities())
        rows = self.model.rows_of(batch)
        fetched = perf_counter()
        loss = self.model.loss(batch, self._loss, rows=rows, **self._with)
        loss.backward()
        value = float(loss.detach())
        computed = perf_counter()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if self.constraint is not None:
            self.constraint.after(batch.entities())
        self.seconds.embedding += fetched - started
        self.seconds.computing += computed - fetched
        self.seconds.updating += perf_counter() - computed
        return value

    def rank(self, triples: Any, known: Iterable[Any]) -> kge.Ranks:
        """Filtered ranks of triples."""
        fresh = None if self.constraint is None else kge.unit
        return kge.rank(self.model, triples, known=known, fresh=fresh)


@dataclass(kw_only=True)
class _Run(epoch_run.EpochRun[kge.TripleBatch]):
    """A run that is under way."""

    graph: kge.Graph
    trainer: GraphTrainer

    def __post_init__(self) -> None:
        """Partitions announce themselves: nothing else looks ahead."""
        super().__post_init__()
        if isinstance(self.batches, embedrock.PartitionedEdges):
            self.ahead_options = replace(self.options, lookahead_depth=0, schedule=False)

    def stored(self) -> dict[str, Any]:
        """Sizes of partitions, which `auto` took from the memory of the first process."""
        batches = self.batches
        if not isinstance(batches, embedrock.PartitionedEdges):
            return {}
        return {"partitions": {"partitions": batches.partitions, "buffer": batches.buffer}}

    def measure(self, sink: Sink) -> dict[str, Any]:
        """Ranks of the triples that were not trained on."""
        measured = {}
        for part in ("valid", "test"):
            triples = getattr(self.graph, part)
            if len(triples):
                with Task(sink, f"ranking {part}"):
                    ranks = self.trainer.rank(triples, self.graph.known())
                measured[part] = ranks.summary() | {"scans": ranks.scans}
        return measured

    def told(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Of the graph, and its ranks."""
        graph, batches = self.graph, self.batches
        told = {
            "entities": len(graph.entities),
            "relations": len(graph.relations),
            "ranks": measured,
            "skipped": graph.skipped,
        }
        if isinstance(batches, embedrock.PartitionedEdges):
            told["order"] = batches.stats()
        return told


def train(options: GraphOptions, sink: Sink) -> dict[str, Any]:
    """As `epoch_run.train`; the result has `ranks` of `valid` and `test`."""
    return epoch_run.train(options, sink, _begin)


def _begin(options: GraphOptions, sink: Sink, stack: contextlib.ExitStack) -> _Run:
    """Opens data and store, makes the model, and goes to the last commit if that was asked for."""
    begun = epoch_run.begin(options, sink, stack)
    options = begun.options
    with Task(sink, "reading triples"):
        graph = kge.read(
            options.data, unknown=options.unknown, skip_bad_lines=options.skip_bad_lines
        )
    if graph.skipped:
        counts = ", ".join(f"{count} of {what}" for what, count in graph.skipped.items())
        print(f"skipped {counts}, the first: {graph.first_skipped}", file=sys.stderr)
    store = begun.store()
    recipe = options.recipe
    entities = embedrock.nn.Embedding(
        len(graph.entities),
        recipe.embedding_dim,
        store=store,
        name="entities",
        optimizer=recipe.optimizer,
        initializer=uniform(-recipe.initial, recipe.initial),
        dtype=getattr(torch, recipe.dtype),
        output_dtype=torch.float32,
    )
    torch.manual_seed(options.seed)
    relations = kge.dense_relations(
        options.model,
        len(graph.relations),
        recipe.embedding_dim,
        entity_bound=recipe.initial,
    )
    model = kge.KnowledgeGraphModel(options.model, entities, relations)
    rows = row_optimizer(model, recipe)
    dense = torch.optim.Adagrad(relations.parameters(), lr=recipe.dense_lr)
    trainer = GraphTrainer(model, [rows, dense], options)
    batches = _batches(options, graph, entities, begun.stored)
    if isinstance(batches, embedrock.PartitionedEdges):
        stack.callback(batches.close)
    step = 0
    if begun.stored is not None:
        step = embedrock.resume(store, model, trainer.optimizers)
        batches.load_state_dict({**batches.state_dict(), "step": step})
    return _Run(
        begun=begun,
        trainer=trainer,
        batches=batches,
        per_epoch=len(graph.train),
        step=step,
        graph=graph,
    )


def _batches(
    options: GraphOptions,
    graph: kge.Graph,
    entities: embedrock.nn.Embedding,
    stored: dict[str, Any] | None,
) -> kge.TripleBatches | embedrock.PartitionedEdges:
    """The batches of all epochs."""
    recipe = options.recipe
    if options.partitions is None:
        return kge.TripleBatches(
            graph.train,
            len(graph.entities),
            batch_size=recipe.batch_size,
            negatives=recipe.negatives,
            epochs=recipe.epochs,
            seed=options.seed,
        )
    sizes: dict[str, Any] = {"partitions": options.partitions}
    if stored is not None:  # independent of the present memory
        sizes = stored["partitions"]
    return embedrock.PartitionedEdges(
        graph.train,
        entities,
        **sizes,
        order=options.order or "comet",
        negatives=embedrock.SharedNegatives(recipe.negatives),
        batch_size=recipe.batch_size,
        seed=options.seed,
        epochs=recipe.epochs,
    )
