"""Benchmarks: each figure by one definition, each row read verified.

A bench is a module of this package with a dataclass, ``Options``, and a function:
``run(options)`` measures and returns a report (another, ``render(report)``, where people need
another text than all results): a dict with ``figures`` (name to number, None where
it could not be measured), ``machine``, ``device``, ``settings``, ``results`` and ``notes``. Without
options a bench runs exactly the settings of its definition (``docs/benchmarks.md``). PyTorch is
imported by those figures alone that compare with it.

>>> BENCHES["commit"]
'a commit after few changes, against one after many'
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from embedrock_lab.bench.options import Given

__all__ = ["BENCHES", "Bench", "load"]

BENCHES = {
    "gather": "reading rows that are in memory, against torch.index_select",
    "update": "optimizer steps on rows in memory, against torch.optim",
    "miss": "reading rows from storage, against the device's own rate",
    "commit": "a commit after few changes, against one after many",
    "index": "bytes of index and cache metadata per row",
    "write": "bytes written for each byte of rows that leaves memory changed, on a tight disk",
    "cache": "replacement in the row cache, against lists under one lock",
    "pages": "random pages of a file, read directly, through a mapping, and by the engine",
    "lsm": "rows stored as an lsm beside a log: memory, reads, writes, disk, speed",
    "arrival": "pages that training reads, by the order in which rows are written",
    "serve": "queries of frozen stores: rows in an order that was learned, with replicas",
    "place": "pages of queries by layout, and what learning one takes: logs, replicas, others",
    "pull": "rows over loopback TCP from a server, against MGET of Redis",
    "pethash": "rows on persistent memory: their index beside other maps, and opened again",
    "recdb": "the parts of RecDB on an lsm, against RocksDB with the same window",
    "reopen": "from a crash to the first rows, without the page cache",
    "device": "random reads of every size and depth, and what a store chooses",
    "growth": "what a row costs while the rows double and the share of memory stays",
    "memory": "training and reading with 67 to 13 % of the rows in memory",
    "ycsb": "the YCSB core workloads in batches, against RocksDB",
    "staleness": "training with relaxed bounds of staleness, and what keeping to a bound costs",
    "recommend": "matrix factorization out of core and in memory: recall, and speed",
    "prefetch": "reading within the bound of staleness, and looking ahead beyond it",
    "race": "one trace on this and other stores, against the device's own rate",
    "lookahead": "what it is worth to know the next batches",
    "kge": "knowledge graphs trained out of core and in memory: filtered ranks, and their speed",
    "demo": "training a DLRM to the end, and its speed: out of core, in memory, plain PyTorch",
    "gnn": "graph neural networks with rows at a tenth of their memory, beside all in memory",
    "models": "click models out of core, beside themselves in memory: speed, AUC, inference",
    "ranks": "ranks that share the tables: ids exchanged, training, bytes on the wire",
    "loops": "what speed to expect, by training, memory, and what else computes",
    "schedule": "epochs whose order is known: pages and speed with a schedule, and making one",
}
"""Every bench by name, and what it measures."""


HARNESSES = {
    "replay": ["race", "ycsb", "memory", "lookahead", "recdb"],
    "training": ["loops", "models", "kge", "recommend", "gnn", "schedule"],
}
"""Packages of benches that share most of what they do; the others are modules here."""


class Bench(Protocol):
    """Interface of a module of this package."""

    Options: type[Given]
    """Its options, all with the definition's settings as defaults."""

    def run(self, options: Any) -> dict[str, Any]:
        """Measures, and returns the report."""


def load(name: str) -> Bench:
    """The bench of that name."""
    if name not in BENCHES:
        raise KeyError(f"there is no bench {name!r}, expected one of {', '.join(BENCHES)}")
    package = next((f"{package}." for package, names in HARNESSES.items() if name in names), "")
    return cast(Bench, importlib.import_module(f"{__name__}.{package}{name}"))
