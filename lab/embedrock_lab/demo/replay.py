"""Replays a demo's key trace through the engine in a process without PyTorch, to measure memory.

The peak memory of a training process is mostly PyTorch's and says nothing about the engine's.
Here the same batches of keys are read and updated in the same order with the same budget, and all
else that the process needs is allocated before the store is opened: what the peak grows by after
that is the engine's.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embedrock
from embedrock.data import Dataset
from embedrock.report.progress import Sink, Task
from embedrock.training import engine
from embedrock_lab.demo import stores
from embedrock_lab.demo.settings import Settings
from embedrock_lab.measure import machine

_GRADIENT = 1e-3

Trace = list[list[NDArray[np.int64]]]


def replay(
    settings: Settings, dataset: Dataset, name: str, commits: int, sink: Sink
) -> dict[str, Any]:
    """The memory that the engine took: peak while running less what was there before `open`.

    The store of that name is made if it does not exist; commits are spread over the replay.
    """
    trace = _trace(settings, dataset, sink)
    steps_per_commit = len(trace) // commits
    most = max(sum(len(keys) for keys in step) for step in trace)
    values = np.zeros((most, settings.recipe.embedding_dim), np.float32)
    gradients = np.full((most, settings.recipe.embedding_dim), _GRADIENT, np.float32)
    if "torch" in sys.modules:
        raise AssertionError("the replay must run without torch")
    machine.reset_peak_rss()
    before = machine.rss_bytes()
    with stores.open_store(settings, name, settings.memory) as store:
        tables = [stores.table(settings, store, feature) for feature in dataset.features]
        with Task(sink, "memory: replaying the keys", len(trace)) as task:
            for step in trace:
                start, out = 0, []
                for keys in step:
                    out.append(slice(start, start + len(keys)))
                    start += len(keys)
                read = list(zip(tables, step, strict=True))
                store.get(read, out=[values[place] for place in out])
                update = [(*pair, gradients[place]) for pair, place in zip(read, out, strict=True)]
                store.update(update, lr=settings.recipe.lr, eps=settings.recipe.eps)
                task.advance()
                if task.done % steps_per_commit == 0:
                    store.commit((store.step or 0) + steps_per_commit)
        peak = machine.peak_rss_bytes()
        summary = engine.summary(store)
    return {
        "rss_before_open_bytes": before,
        "peak_rss_bytes": peak,
        "memory_bytes": peak - before,
        "steps": len(trace),
        "engine": summary,
    }


def _trace(settings: Settings, dataset: Dataset, sink: Sink) -> Trace:
    """Each step's distinct keys by feature, in order of first occurrence, as the modules ask."""
    trace = []
    with Task(sink, "memory: recording the keys") as task:
        for batch in settings.replayed(dataset):
            features = range(len(dataset.features))
            trace.append([embedrock.distinct(batch.feature_keys(f))[0] for f in features])
            task.advance()
    return trace
