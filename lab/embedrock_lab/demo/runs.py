"""The training runs of the demo, each in a child process of its own.

All start from the same initial rows and dense weights, see the same batches in the same order and
use the same number of threads. A run returns JSON; its per-step losses go to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

import embedrock
from embedrock.data import Feature, Position
from embedrock.data.memory import MemoryDataset
from embedrock.observe.step_report import StepReport
from embedrock.report.counters import Counters
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.training import engine
from embedrock.training.history import History
from embedrock.training.trainer import Trainer
from embedrock_lab.demo import models, stores
from embedrock_lab.demo.paths import OUT_OF_CORE, losses_path
from embedrock_lab.demo.settings import DemoSettings
from embedrock_lab.demo.system import digests
from embedrock_lab.measure import machine

_EVALUATION_BATCH = 1024
_STEPS_PER_ROW = 8


def on_storage(
    settings: DemoSettings, name: str, memory: str, dataset: MemoryDataset, sink: Sink
) -> dict[str, Any]:
    """Trains with tables in a store that has `memory`; adds the engine's counters, and digests."""
    before_bytes = machine.rss_bytes()
    with stores.open_store(settings, name, memory) as store:
        trainer = models.over_store(settings, store, dataset)
        result = _train(settings, name, dataset, trainer, sink, store)
        result["rss_before_open_bytes"] = before_bytes
        result["digests"] = digests(store, sink, name)
        result["rows"] = sum(len(table) for table in store.tables.values())
    return result


def in_memory(
    settings: DemoSettings, name: str, dataset: MemoryDataset, sink: Sink
) -> dict[str, Any]:
    """Trains plain PyTorch tables that start with the engine's initial rows."""
    dense_ids, keys = dataset.densified()
    weights = _initial_rows(settings, dataset.features, keys)
    trainer = models.in_memory(settings, dense_ids, weights)
    del weights
    result = _train(settings, name, dense_ids, trainer, sink, None)
    rows = sum(len(table) for table in keys)
    result["rows"] = rows
    result["embedding_bytes"] = rows * settings.recipe.embedding_dim * 4 * 2
    return result


def _initial_rows(
    settings: DemoSettings, features: Sequence[Feature], keys: Sequence[np.ndarray]
) -> list[torch.Tensor]:
    """The rows that the engine gives for keys that were never written: same seed, same tables."""
    with stores.open_store(settings, "initial", "64MiB") as store:
        return [
            torch.from_numpy(stores.table(settings, store, feature).get(table_keys))
            for feature, table_keys in zip(features, keys, strict=True)
        ]


def _train(
    settings: DemoSettings,
    name: str,
    dataset: MemoryDataset,
    trainer: Trainer,
    sink: Sink,
    store: Store | None,
) -> dict[str, Any]:
    """All epochs, each with a commit; then, not part of the time, the held-out samples."""
    losses: list[float] = []
    epochs = []
    cpu_before = process_time()
    history = History(trainer, store)
    watch = None
    if store is not None and name == OUT_OF_CORE:  # the run that reads rows
        watch = StepReport(store, trainer.optimizers, steps_per_row=_STEPS_PER_ROW)
    for epoch in range(settings.recipe.epochs):
        trainer.scale_learning_rates(settings.recipe.lr_decay**epoch)
        before = None if store is None else Counters.of(store)
        started, first_step = perf_counter(), len(losses)
        with Task(
            sink, f"{name}: epoch {epoch + 1} of {settings.recipe.epochs}", dataset.num_train()
        ) as task:
            batches = dataset.train_batches(settings.recipe.batch_size, Position(epoch))
            for batch in batches if watch is None else watch.steps(batches):
                losses.append(trainer.step(batch))
                history.step(losses[-1], len(batch))
                task.advance(len(batch), f"loss {losses[-1]:.4f}")
        if store is not None:
            embedrock.save(store, trainer.model, trainer.optimizers, len(losses))
        history.pause()
        seconds = perf_counter() - started
        entry: dict[str, Any] = {"seconds": seconds, "samples_per_s": dataset.num_train() / seconds}
        if store is not None and before is not None:
            entry["engine"] = (Counters.of(store) - before).as_dict()
        entry["train_loss"] = float(np.mean(losses[first_step:]))
        epochs.append(entry)
        history.resume()
    cpu_seconds = process_time() - cpu_before
    if watch is not None:
        watch.close()
    with Task(sink, f"{name}: evaluating", dataset.num_test):
        evaluation = trainer.evaluate(dataset.test_batches(_EVALUATION_BATCH))
    np.save(losses_path(settings, name), np.array(losses))
    seconds = sum(entry["seconds"] for entry in epochs)
    return {
        "step_report": None if watch is None else watch.to_dict(),
        "auc": evaluation.auc,
        "log_loss": evaluation.log_loss,
        "steps": len(losses),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "samples_per_s": settings.recipe.epochs * dataset.num_train() / seconds,
        "epochs": epochs,
        "history": history.points(),
        "engine": None if store is None else engine.summary(store),
        "peak_rss_bytes": machine.peak_rss_bytes(),
        "core_wait_share": machine.core_wait_share(),
    }
