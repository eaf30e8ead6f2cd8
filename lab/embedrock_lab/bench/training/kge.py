"""``kge``: models of knowledge graphs, trained out of core and in memory, and how well they rank.

For each graph and model, ``mrr_<graph>_<model>`` is the filtered MRR (realistic, both sides) of
the test triples with entities in a store at ``--memory``, ``mrr_gap_...`` that less the MRR of the
twin: the same model with ``torch.nn.Embedding``, the same initial rows, batches and optimizers.
``speed_...`` is triples/s of the store's loop divided by those of the twin's, one after the other.

Losses agree in all but last bits, which training makes grow; so ranks do not agree to the last.

``speed_vs_memory_kge_...``: see ``kge_speed``.

The graphs of the papers are given (``--data``, a folder with one for each); without, a generated
one is trained: a ring on which each relation leads a few steps ahead.

*Source* of the task: MLKV's link prediction; of the measure: Bordes et al., TransE, 2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import embedrock
from embedrock.training.graph_recipes import MODELS, GraphRecipe
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import option
from embedrock_lab.bench.training import kge_speed
from embedrock_lab.bench.training.load import Shape, Tables
from embedrock_lab.bench.training.twins import IN_MEMORY, STORE, Twins, compare, speed

__all__ = ["Options", "run"]

GRAPHS = {"fb15k-237": MODELS, "wn18rr": ("transe", "rotate")}
"""Graphs of the papers, and the models whose published results train with sampled negatives."""
PUBLISHED = {
    ("fb15k-237", "transe"): 0.313,
    ("fb15k-237", "distmult"): 0.343,
    ("fb15k-237", "complex"): 0.348,
    ("fb15k-237", "rotate"): 0.338,
    ("wn18rr", "transe"): 0.228,
    ("wn18rr", "rotate"): 0.476,
}
"""Filtered MRR. Rows 1 to 3 of each graph: LibKGE's README; RotatE: Sun et al., 2019."""
RING = "ring"
POWER = "power"
MEMORY_BYTES = 2 << 30
TABLE_BYTES = 2 << 30
ENTITIES = "entities"


@dataclass(frozen=True, kw_only=True)
class Options(kge_speed.Options):
    """Options of this bench."""

    data: Path | None = option(None, "folder with a folder for each graph", metavar="DIR")
    graphs: list[str] = option(
        [RING, *GRAPHS, POWER], "to train on", choices=[RING, *GRAPHS, POWER]
    )
    models: list[str] = option(list(MODELS), "to be trained", choices=MODELS)
    epochs: int | None = option(None, "of each; the model's own by default")
    dim: int | None = option(None, "values per entity; the model's own by default")
    batch: int | None = option(None, "triples a step; the model's own by default")
    negatives: int | None = option(None, "shared; the model's own by default")
    memory: str = option("10%", "of the table of entities")
    test_triples: int | None = option(None, "that are ranked, drawn by chance; all")
    ring_entities: int = option(20_000, "of the generated graph")
    threads: int = option(1, "of PyTorch")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("kge", options)
    wanted = [
        (graph, model)
        for graph in options.graphs
        if graph != POWER
        for model in options.models
        if model in GRAPHS.get(graph, MODELS)
    ]
    figures = [f"mrr_{graph}_{model}" for graph, model in wanted]
    if POWER in options.graphs:
        figures += [f"speed_vs_memory_kge_{share}" for share in kge_speed.SHARES]
    torch = import_torch(report, figures, MEMORY_BYTES)
    if torch is None:
        return report.finish()
    torch.set_num_threads(options.threads)
    graphs: dict[str, Any] = {}
    for graph, model in wanted:
        if graph not in graphs:
            graphs[graph] = _graph(report, options, graph)
        if graphs[graph] is None:
            report.missing(f"mrr_{graph}_{model}", "no data: pass --data")
            continue
        with workspace(options, TABLE_BYTES) as place:
            _measure(report, options, place / "store", graph, graphs[graph], model)
    if POWER in options.graphs:
        with workspace(options, 6 * options.power_entities * 8 * options.power_dim) as place:
            kge_speed.measure(report, options, place)
    return report.finish()


def _graph(report: Report, options: Options, name: str) -> Any:
    from embedrock import kge

    if name == RING:
        found = ring(options.ring_entities, options.seed)
    elif options.data is None or not (options.data / name).is_dir():
        return None
    else:
        found = kge.read(options.data / name, unknown="add")
    report.say(f"{name}: {len(found.train):,} triples of {len(found.entities):,} entities")
    return found


def ring(entities: int, seed: int) -> Any:
    """A graph that can be learned: from each entity, relation r leads to one of three that are
    ``17 r + 1`` and a few steps further; a tenth of the triples to measure with."""
    from embedrock import kge

    random = np.random.default_rng(seed)
    count = 10 * entities
    heads, relations = random.integers(0, entities, count), random.integers(0, 8, count)
    tails = (heads + 17 * relations + 1 + random.integers(0, 3, count)) % entities
    triples = random.permutation(np.unique(np.stack([heads, relations, tails], 1), axis=0))
    triples = triples.astype(np.int32)
    test = min(len(triples) // 10, 2000)
    names = kge.Names([str(number) for number in range(entities)])
    kinds = kge.Names([str(number) for number in range(8)])
    return kge.Graph(triples[2 * test :], triples[test : 2 * test], triples[:test], names, kinds)


class _Twins(Twins):
    """One model on one graph."""

    unit, shown, opened = "triples", ("mrr", "MRR"), MappingProxyType({"page_bytes": 4096})

    def __init__(self, options: Options, name: str, graph: Any, model: str) -> None:
        from embedrock import kge

        self._kge, self._options, self._graph, self._model = kge, options, graph, model
        given = {
            "epochs": options.epochs,
            "embedding_dim": options.dim,
            "batch_size": options.batch,
            "negatives": options.negatives,
        }
        self._recipe = recipe = GraphRecipe.of_model(model, given)
        self.name, self.lr = f"{name}: {model}: ", recipe.lr
        self.tables = {ENTITIES: Shape(len(graph.entities), recipe.embedding_dim)}
        self.initializer = embedrock.initializers.uniform(-recipe.initial, recipe.initial)
        self._test = graph.test
        if options.test_triples is not None and options.test_triples < len(self._test):
            chosen = np.random.default_rng(options.seed).permutation(len(self._test))
            self._test = self._test[chosen[: options.test_triples]]

    def model(self, tables: Tables) -> Any:
        import torch

        torch.manual_seed(self._options.seed)
        relations = self._kge.dense_relations(
            self._model,
            len(self._graph.relations),
            self._recipe.embedding_dim,
            entity_bound=self._recipe.initial,
        )
        return self._kge.KnowledgeGraphModel(self._model, tables.embedding(ENTITIES), relations)

    def batches(self) -> Any:
        return self._kge.TripleBatches(
            self._graph.train,
            len(self._graph.entities),
            batch_size=self._recipe.batch_size,
            negatives=self._recipe.negatives,
            epochs=self._recipe.epochs,
            seed=self._options.seed,
        )

    def keys_of(self, model: Any, batch: Any) -> Any:
        return model.keys_of(batch)

    def dense(self, model: Any) -> list[Any]:
        import torch

        return [torch.optim.Adagrad(model.relations.parameters(), lr=self._recipe.dense_lr)]

    def rates(self, batch: Any) -> list[float]:
        decay = self._recipe.lr_decay**batch.epoch
        return [self._recipe.lr * decay, self._recipe.dense_lr * decay]

    def loss(self, model: Any, batch: Any) -> tuple[Any, int]:
        recipe = self._recipe
        found = model.loss(
            batch,
            recipe.loss,
            margin=recipe.margin,
            temperature=recipe.temperature,
            regularization=recipe.regularization,
        )
        return found, len(batch)

    def summary(self, losses: list[float]) -> dict[str, float]:
        last = losses[-self.batches().per_epoch :]  # those of the last epoch
        return {"loss": sum(last) / max(len(last), 1)}

    def quality(self, model: Any, stored: bool) -> dict[str, Any]:
        ranks = self._kge.rank(model, self._test, known=self._graph.known())
        return {"inexact": ranks.inexact, **ranks.summary()}


def _measure(
    report: Report, options: Options, place: Path, name: str, graph: Any, model: str
) -> None:
    twins = _Twins(options, name, graph, model)
    found = compare(report, twins, place, options.memory, options.seed)
    found[STORE]["entities"] = len(graph.entities)
    published = PUBLISHED.get((name, model))
    if published is not None:
        found["published"] = {"mrr": published}
    report.results[f"{name}_{model}"] = found
    mrr = found[STORE]["mrr"]
    report.figure(f"mrr_{name}_{model}", mrr)
    report.figure(f"mrr_gap_{name}_{model}", mrr - found[IN_MEMORY]["mrr"])
    report.figure(f"speed_{name}_{model}", speed(found, twins))
