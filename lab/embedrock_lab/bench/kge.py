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

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import embedrock
from embedrock.training.graph_recipes import MODELS, GraphRecipe
from embedrock_lab.bench import kge_speed
from embedrock_lab.bench.common import Report, add_common, import_torch, workspace
from embedrock_lab.measure.machine import device_facts

__all__ = ["add_arguments", "run"]

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
CHECKED_ROWS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with a folder for each graph"
    )
    parser.add_argument(
        "--graphs",
        nargs="+",
        choices=[RING, *GRAPHS, POWER],
        default=[RING, *GRAPHS, POWER],
        help="to train on",
    )
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="to be trained"
    )
    parser.add_argument("--epochs", type=int, help="of each; the model's own by default")
    parser.add_argument("--dim", type=int, help="values per entity; the model's own by default")
    parser.add_argument("--batch", type=int, help="triples a step; the model's own by default")
    parser.add_argument("--negatives", type=int, help="shared; the model's own by default")
    parser.add_argument("--memory", default="10%", help="of the table of entities")
    parser.add_argument("--test-triples", type=int, help="that are ranked, drawn by chance; all")
    parser.add_argument("--ring-entities", type=int, default=20_000, help="of the generated graph")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    kge_speed.add_arguments(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
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
            _contest(report, options, place / "store", graph, graphs[graph], model)
    if POWER in options.graphs:
        with workspace(options, 6 * options.power_entities * 8 * options.power_dim) as place:
            kge_speed.measure(report, options, place)
    return report.finish()


def _graph(report: Report, options: argparse.Namespace, name: str) -> Any:
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


def _contest(
    report: Report, options: argparse.Namespace, place: Path, name: str, graph: Any, model: str
) -> None:
    """One model on one graph, out of core and in memory."""
    import torch

    from embedrock import kge

    given = {
        "epochs": options.epochs,
        "embedding_dim": options.dim,
        "batch_size": options.batch,
        "negatives": options.negatives,
    }
    recipe = GraphRecipe.of_model(model, given)
    test = graph.test
    if options.test_triples is not None and options.test_triples < len(test):
        chosen = np.random.default_rng(options.seed).permutation(len(test))
        test = test[chosen[: options.test_triples]]
    batches = kge.TripleBatches(
        graph.train,
        len(graph.entities),
        batch_size=recipe.batch_size,
        negatives=recipe.negatives,
        epochs=recipe.epochs,
        seed=options.seed,
    )
    found: dict[str, dict[str, Any]] = {}
    with embedrock.open(place, options.memory, page_bytes=4096, seed=options.seed) as store:
        rows = embedrock.nn.Embedding(
            len(graph.entities),
            recipe.embedding_dim,
            store=store,
            name="entities",
            optimizer="adagrad",
            initializer=embedrock.initializers.uniform(-recipe.initial, recipe.initial),
        )
        torch.manual_seed(options.seed)
        relations = kge.dense_relations(
            model, len(graph.relations), recipe.embedding_dim, entity_bound=recipe.initial
        )
        ours = kge.KnowledgeGraphModel(model, rows, relations)
        table = store.tables["entities"]
        first = torch.from_numpy(table.get(np.arange(len(graph.entities))))
        twin = kge.KnowledgeGraphModel(
            model,
            torch.nn.Embedding.from_pretrained(first, freeze=False, sparse=True),
            torch.nn.Embedding.from_pretrained(relations.weight.detach().clone(), freeze=False),
        )
        tables = embedrock.optim.Adagrad(ours, lr=recipe.lr)
        sparse = torch.optim.Adagrad(twin.entities.parameters(), lr=recipe.lr)
        loader = embedrock.LookaheadLoader(batches, ours, keys_of=ours.keys_of)
        for label, contestant, optimizer, given_batches in (
            ("store", ours, tables, loader),
            ("in memory", twin, sparse, batches),
        ):
            batches.load_state_dict({**batches.state_dict(), "step": 0})
            dense = torch.optim.Adagrad(contestant.relations.parameters(), lr=recipe.dense_lr)
            one = _train(contestant, [optimizer, dense], given_batches, recipe)
            begin = perf_counter()
            ranks = kge.rank(contestant, test, known=graph.known())
            one |= {"rank_s": perf_counter() - begin, "inexact": ranks.inexact}
            one |= ranks.summary()
            found[label] = one
            report.say(
                f"{name}: {model}: {label}: {one['triples_per_s']:,.0f} triples/s, "
                f"MRR {one['mrr']:.4f}"
            )
        report.device = device_facts(store)
        store.commit(1)
        stats = store.stats()
        found["store"] |= {"hit_rate": stats["hit_rate"], "budget_bytes": stats["budget_bytes"]}
        found["store"]["entities"] = len(graph.entities)
        report.results["mismatches"] += _mismatches(table)
    published = PUBLISHED.get((name, model))
    if published is not None:
        found["published"] = {"mrr": published}
    report.results[f"{name}_{model}"] = found
    mrr, in_memory = found["store"]["mrr"], found["in memory"]["mrr"]
    report.figure(f"mrr_{name}_{model}", mrr)
    report.figure(f"mrr_gap_{name}_{model}", mrr - in_memory)
    rates = [found[label]["triples_per_s"] for label in ("store", "in memory")]
    report.figure(f"speed_{name}_{model}", rates[0] / rates[1])


def _train(model: Any, optimizers: list[Any], batches: Any, recipe: GraphRecipe) -> dict[str, Any]:
    """All epochs of one contestant."""
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    triples, epoch = 0, 0
    losses: list[float] = []
    begin = perf_counter()
    for batch in batches:
        if batch.epoch != epoch:
            epoch = batch.epoch
            losses.clear()
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * recipe.lr_decay**epoch
        loss = model.loss(
            batch,
            recipe.loss,
            margin=recipe.margin,
            temperature=recipe.temperature,
            regularization=recipe.regularization,
        )
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        triples += len(batch)
        losses.append(float(loss.detach()))
    seconds = perf_counter() - begin
    return {
        "triples_per_s": triples / seconds,
        "train_s": seconds,
        "loss": sum(losses) / max(len(losses), 1),
    }


def _mismatches(table: embedrock.Table) -> int:
    """Rows that a scan gives otherwise than a look-up."""
    wrong = 0
    for keys, values in table.items(CHECKED_ROWS):
        wrong += int((table.get(keys) != values).any(1).sum())
    return wrong
