"""``bench kge``, its part about speed: partition by partition out of core, beside all in memory.

``speed_vs_memory_kge_25`` and ``_10`` are edges/s of an epoch with memory for a share of the table,
by ``embedrock.PartitionedEdges``, divided by those of the same loop with all rows in memory and
edges in random order. The graph is generated: ends are drawn by a power law, ids by chance.
``passes_kge_...`` is how often the epoch passes over the table, divided by BETA's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench.common import Report
from embedrock_lab.bench.options import Common, option

__all__ = ["Options", "measure", "power_graph"]

SHARES = (25, 10)
RELATIONS = 16
FILLED_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this part."""

    GROUP: ClassVar[str | None] = "speed on the graph 'power'"

    power_entities: int = option(1_000_000, "of the graph")
    power_edges: int = option(4_000_000, "of an epoch")
    power_dim: int = option(32, "values per entity")
    power_batch: int = option(20_000, "edges a step")
    power_negatives: int = option(200, "shared by a step")
    power_exponent: float = option(0.8, "of degree by rank")
    power_order: str = option("beta", "of partitions", choices=("beta", "comet"))
    power_resident: float = option(0.0, "share of rows that stay")


def power_graph(entities: int, edges: int, exponent: float, seed: int) -> npt.NDArray[np.int32]:
    """``(edges, 3)``: ends by a power law, the more the smaller their rank; ranks are given to ids
    by chance."""
    random = np.random.default_rng(seed)
    found = np.empty((edges, 3), np.int32)
    ids = random.permutation(entities).astype(np.int32)
    for column in (0, 2):
        # The inverse of the distribution, as if ranks were real numbers.
        ranks = entities * random.random(edges) ** (1 / (1 - exponent))
        found[:, column] = ids[np.minimum(ranks.astype(np.int64), entities - 1)]
    found[:, 1] = random.integers(0, RELATIONS, edges)
    return found


def measure(report: Report, options: Options, place: Path) -> None:
    """Measures one epoch in memory and one with each share of it."""
    edges = power_graph(
        options.power_entities, options.power_edges, options.power_exponent, options.seed
    )
    found: dict[str, Any] = {}
    for label, memory in (("memory", "200%"), *((str(share), f"{share}%") for share in SHARES)):
        one = _epoch(options, place / label, edges, memory)
        found[label] = one
        report.results["mismatches"] += one.pop("mismatches")
        report.say(
            f"power: {label}: {one['edges_per_s']:,.0f} edges/s, {one['passes']:.2f} passes, "
            f"{one['bytes_read'] / 1e9:.1f} GB read, {one['bytes_written'] / 1e9:.1f} written"
        )
    report.results["power"] = found
    for share in SHARES:
        rate = found[str(share)]["edges_per_s"] / found["memory"]["edges_per_s"]
        report.figure(f"speed_vs_memory_kge_{share}", rate)
        beta = found[str(share)]["passes_beta"]
        report.figure(f"passes_kge_{share}", found[str(share)]["passes"] / beta if beta else 1.0)


def _epoch(
    options: Options, place: Path, edges: npt.NDArray[np.int32], memory: str
) -> dict[str, Any]:
    import torch

    from embedrock import kge

    in_memory = memory == "200%"
    with embedrock.open(place, memory, seed=options.seed) as store:
        entities = embedrock.nn.Embedding(
            options.power_entities,
            options.power_dim,
            store=store,
            name="entities",
            optimizer="adagrad",
            initializer=embedrock.initializers.uniform(-0.1, 0.1),
        )
        torch.manual_seed(options.seed)
        relations = kge.dense_relations("distmult", RELATIONS, options.power_dim)
        model = kge.KnowledgeGraphModel("distmult", entities, relations)
        optimizers = [
            embedrock.optim.Adagrad(model, lr=0.1),
            torch.optim.Adagrad(relations.parameters(), lr=0.1),
        ]
        _fill(store, store.tables["entities"])
        loader = embedrock.PartitionedEdges(
            edges,
            entities,
            order="random" if in_memory else options.power_order,
            resident=0.0 if in_memory else options.power_resident,
            negatives=embedrock.SharedNegatives(options.power_negatives),
            batch_size=options.power_batch,
            seed=options.seed,
        )
        begun, losses = perf_counter(), []
        for batch in loader:
            loss = model.loss(batch, "softmax")
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        seconds = perf_counter() - begun
        facts = loader.stats()
        store.commit(2)
        window = store.window.stats()
        loader.close()
        loader.path.unlink()
        stats = store.stats()
        return {
            "edges_per_s": len(edges) / seconds,
            "seconds": seconds,
            "loss": losses[-1],
            "partitions": loader.partitions,
            "buffer": loader.buffer,
            **{name: facts["epoch"][name] for name in ("passes", "passes_beta", "passes_least")},
            **{name: facts[name] for name in ("swaps", "announced", "refused")},
            **{name: facts[name] for name in ("bytes_read", "bytes_written")},
            "requests": window["requests"],
            "pages": window["pages"],
            "rows_ahead": window["rows_loaded"],
            "begin_wait_s": window["wait_s"],
            "read_wait_s": stats["read_wait_s"],
            "hit_rate": stats["hit_rate"],
            "budget_bytes": stats["budget_bytes"],
            "mismatches": int(not np.isfinite(losses).all()),
        }


def _fill(store: embedrock.Store, table: embedrock.Table) -> None:
    """Writes every row, as training has left it."""
    rows = table.num_embeddings or 0
    for first in range(0, rows, FILLED_ROWS):
        keys = np.arange(first, min(first + FILLED_ROWS, rows))
        table.put(keys, table.get(keys))
    store.commit(1)
    store.warm()
