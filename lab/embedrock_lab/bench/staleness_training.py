"""Training for ``staleness``: click logs, a DLRM, and loops with and without a pipeline."""

from __future__ import annotations

import contextlib
import gzip
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import embedrock
from embedrock import LookaheadLoader, Pipeline, initializers
from embedrock.data import Feature, Position, crosses, fetch, movielens
from embedrock.data.formats import STREAMED
from embedrock.data.memory import Column, MemoryDataset
from embedrock.data.streamed import StreamedDataset, scan
from embedrock.models.dlrm import DLRM, DLRMConfig
from embedrock.training.embeddings import StoreEmbeddings
from embedrock.training.trainer import Trainer
from embedrock_lab.bench.common import Report

if TYPE_CHECKING:
    from embedrock_lab.bench.staleness import Options

__all__ = ["BOUNDS", "DATA", "bits_equal", "criteo", "sweep"]

BOUNDS = [0, 1, 4, 16, 80, math.inf]
READ_AHEAD_MAX = 128
"""Batches that are read ahead without a bound: infinity has to end somewhere."""
HOLDOUT = 0.1
DIM = 16
LR, DENSE_LR = 0.05, 0.01
INITIAL = 0.01
TEST_BATCH = 4096
BITS_STEPS = 150
DEPTH = 64


def _movielens(options: Options) -> MemoryDataset:
    ratings = movielens.read(fetch.movielens_100k(options.cache_dir))
    return crosses.click_dataset(ratings, holdout=HOLDOUT, seed=options.seed)


def criteo(file: Path) -> MemoryDataset:
    """A Criteo log, all of it in memory."""
    kind = STREAMED["criteo"]
    found = scan(file, kind)
    streamed = StreamedDataset(file, kind, scan=found, holdout=0)
    batches = list(streamed.train_batches(1 << 16, Position()))
    columns = [
        Column(np.concatenate([batch.feature_keys(f) for batch in batches]))
        for f in range(len(streamed.features))
    ]
    labels = np.concatenate([batch.labels for batch in batches])
    return MemoryDataset(
        "criteo",
        streamed.features,
        columns,
        np.concatenate([batch.dense for batch in batches]),
        labels,
        num_test=int(len(labels) * HOLDOUT),
        shuffle_seed=None,
    )


def _ipinyou(options: Options) -> MemoryDataset | None:
    """One advertiser's log: categorical features with ids of their own, and nothing dense."""
    if options.ipinyou is None:
        return None
    tables = []
    for name in ("train.tsv.gz", "test.tsv.gz"):
        with gzip.open(options.ipinyou / name, "rt", encoding="utf-8") as file:
            names = file.readline().split()[1:]
            tables.append(np.loadtxt(file, np.int64, ndmin=2))
    values = np.concatenate(tables)
    columns = [Column(np.ascontiguousarray(values[:, 1 + f])) for f in range(len(names))]
    return MemoryDataset(
        "ipinyou",
        [Feature(name) for name in names],
        columns,
        np.ones((len(values), 1), np.float32),
        values[:, 0].astype(np.float32),
        num_test=len(tables[1]),
        shuffle_seed=None,
    )


DATA: dict[str, Callable[[Options], MemoryDataset | None]] = {
    "movielens": _movielens,
    "criteo": lambda options: None if options.criteo is None else criteo(options.criteo),
    "ipinyou": _ipinyou,
}
"""Click logs by name: what reads one, or gives None where it was not given."""


def sweep(
    report: Report, options: Options, place: Path, name: str, data: MemoryDataset
) -> dict[str, dict[str, Any]]:
    """Samples per second and AUC with each bound, and without a pipeline."""
    found: dict[str, dict[str, Any]] = {}
    for bound in [None, *BOUNDS]:
        label = "no pipeline" if bound is None else f"bound {bound}"
        one = _train(options, place / f"{label}", data, bound, 0.0)
        slow = _train(options, place / f"{label} slow", data, bound, options.device_latency / 1e3)
        one["samples_per_s_slow"] = slow["samples_per_s"]
        found[label] = one
        report.say(f"{name}: {label}: {one['samples_per_s']:,.0f} samples/s, AUC {one['auc']:.4f}")
    report.results[f"sweep_{name}"] = found
    finite = [found[f"bound {bound}"]["auc"] for bound in BOUNDS if bound != math.inf]
    report.figure(f"auc_drop_{name}", finite[0] - min(finite))
    for suffix in ("", "_slow"):
        rates = [found[f"bound {bound}"][f"samples_per_s{suffix}"] for bound in BOUNDS]
        plain = found["no pipeline"][f"samples_per_s{suffix}"]
        report.figure(f"pipeline_speedup_{name}{suffix}", rates[0] / plain)
        report.figure(f"relaxed_speedup_{name}{suffix}", max(rates[1:]) / rates[0])
    return found


def bits_equal(report: Report, options: Options, place: Path, data: MemoryDataset) -> float:
    """1 when loops with and without look-ahead and pipeline leave the same bits."""
    batches = _batches(options, data)[:BITS_STEPS]
    left = {}
    for name in ("plain", "look-ahead", "pipeline", "both"):
        with _opened(options, place / name) as store:
            trainer = _trainer(options, store, data)
            loader: Any = batches
            if name in ("look-ahead", "both"):
                loader = LookaheadLoader(loader, trainer.model, depth=DEPTH, announce=True)
            if name in ("pipeline", "both"):
                loader = Pipeline(trainer.model, loader, staleness_bound=0, overlap=True)
            losses = [trainer.step(batch) for batch in loader]
            left[name] = (losses, [table.digest() for table in store.tables.values()])
            store.commit(1)
    report.results["bits"] = {"steps": len(batches), "loops": len(left)}
    return float(all(one == left["plain"] for one in left.values()))


def _train(
    options: Options,
    place: Path,
    data: MemoryDataset,
    bound: float | None,
    latency_s: float,
) -> dict[str, Any]:
    """An epoch at one bound; None: without a pipeline."""
    batches = _batches(options, data)
    with _opened(options, place) as store:
        trainer = _trainer(options, store, data)
        loader: Any = batches
        if bound is not None:
            ahead = int(min(max(bound, 2), READ_AHEAD_MAX))
            loader = Pipeline(
                trainer.model, batches, staleness_bound=bound, read_ahead=ahead, overlap=True
            )
        # A plain loop waits for its rows in a get, the reading thread for the look-ahead window.
        with _slowed(store, "get" if bound is None else "begin", latency_s):
            begin = perf_counter()
            for batch in loader:
                trainer.step(batch)
            seconds = perf_counter() - begin
        found = trainer.evaluate(data.test_batches(TEST_BATCH))
        stats = {} if bound is None else loader.stats()
        store.commit(1)
    result = {
        "samples_per_s": data.num_train() / seconds,
        "auc": found.auc,
        "log_loss": found.log_loss,
    }
    if stats:
        result |= {
            "staleness_max": stats["permits"]["staleness_max"],
            "waited_for_rows_s": stats["waited_for_rows_s"],
            "waited_for_updates_s": stats["waited_for_updates_s"],
            "rows_late_share": stats["rows_late"] / max(stats["rows_ahead"], 1),
        }
    return result


def _batches(options: Options, data: MemoryDataset) -> list[Any]:
    return list(data.train_batches(options.samples, Position()))


def _opened(options: Options, place: Path) -> embedrock.Store:
    # Page size is given, so that no two runs differ by a measurement.
    return embedrock.open(place, memory=options.memory, page_bytes=4096, seed=options.seed)


def _trainer(options: Options, store: embedrock.Store, data: MemoryDataset) -> Trainer:
    torch.manual_seed(options.seed)
    embeddings = StoreEmbeddings(
        store,
        data.features,
        DIM,
        optimizer="adagrad",
        initializer=initializers.uniform(-INITIAL, INITIAL),
    )
    config = DLRMConfig(data.num_dense, len(data.features), DIM, (64, 32), (64, 32))
    model = DLRM(config, embeddings)
    tables = embedrock.optim.Adagrad(model, lr=LR)
    dense = torch.optim.Adagrad(model.dense_modules().parameters(), lr=DENSE_LR)
    return Trainer(model, [tables, dense])


@contextlib.contextmanager
def _slowed(store: embedrock.Store, verb: str, latency_s: float) -> Iterator[None]:
    """Adds a latency to a verb of the engine, as a device would that answers late."""
    core = store._core
    if latency_s:
        store._core = _Late(core, verb, latency_s)  # type: ignore[assignment]
    try:
        yield
    finally:
        store._core = core


class _Late:
    """The engine with one verb that takes longer; without the interpreter lock, as waiting does."""

    def __init__(self, core: Any, verb: str, latency_s: float) -> None:
        self._core, self._verb, self._latency_s = core, verb, latency_s

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        return self._late(found) if name == self._verb else found

    def _late(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            answer = verb(*arguments)
            time.sleep(self._latency_s)
            return answer

        return call
