"""A model over a store and its twin in memory, trained to the end one after the other.

Both begin with the same rows and weights and see the same batches; the optimizer of the rows is
Adagrad in both. Over the store a ``LookaheadLoader`` announces batches where it finds that it pays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

import embedrock
from embedrock_lab.bench.common import Report
from embedrock_lab.bench.training.load import Shape, Tables
from embedrock_lab.measure.machine import device_facts

__all__ = ["IN_MEMORY", "STORE", "Twins", "compare", "speed"]

STORE, IN_MEMORY = "store", "in memory"
CHECKED_ROWS = 4096


class Twins(ABC):
    """A model to train in both ways, and its quality in the end."""

    name: str
    """Prefix of its messages."""
    unit: ClassVar[str]
    """Name of the things that a batch consists of."""
    shown: ClassVar[tuple[str, str]]
    """The reported quality, and its name in messages."""
    tables: Mapping[str, Shape]
    initializer: Any
    lr: float
    summed: ClassVar[bool] = False
    """The loss of a batch is a sum."""
    opened: ClassVar[Mapping[str, Any]] = {}
    """Keyword arguments of ``embedrock.open``."""

    @abstractmethod
    def model(self, tables: Tables) -> Any:
        """The model over these tables: with the same weights whenever it is called."""

    @abstractmethod
    def batches(self) -> Iterable[Any]:
        """All batches from the first on: the same whenever it is called."""

    @abstractmethod
    def keys_of(self, model: Any, batch: Any) -> Mapping[Any, Any]:
        """The keys that a batch reads."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> tuple[Any, int]:
        """The loss of a batch, and the number of its units."""

    @abstractmethod
    def quality(self, model: Any, stored: bool) -> dict[str, Any]:
        """Quality of a trained model."""

    def dense(self, model: Any) -> list[Any]:
        """Optimizers of what is no row."""
        return []

    def rates(self, batch: Any) -> list[float]:
        """Learning rates for a batch, of the rows' optimizer and the dense ones."""
        return [self.lr]

    def summary(self, losses: list[float]) -> dict[str, float]:
        """Reported figures of the losses of all batches."""
        tenth = max(1, len(losses) // 10)
        return {"loss_first": _mean(losses[:tenth]), "loss": _mean(losses[-tenth:])}


def compare(
    report: Report, twins: Twins, place: Path, memory: str, seed: int
) -> dict[str, dict[str, Any]]:
    """Trains both, checks every row of the store; rates and qualities by where the rows are."""
    import torch

    from embedrock_lab.bench.training.places import InMemory, InStore

    found: dict[str, dict[str, Any]] = {}
    with embedrock.open(place, memory, seed=seed, **twins.opened) as store:
        for name, shape in twins.tables.items():
            store.table(
                name, shape.dim, shape.rows, optimizer="adagrad", initializer=twins.initializer
            )
        in_memory = InMemory(
            twins.tables, lambda name: store.table(name).get(np.arange(twins.tables[name].rows))
        )
        ours, theirs = twins.model(InStore(twins.tables, store)), twins.model(in_memory)
        loader = embedrock.LookaheadLoader(
            _Again(twins), ours, keys_of=lambda batch: twins.keys_of(ours, batch)
        )
        sparse = torch.optim.Adagrad(in_memory.rows, lr=twins.lr)
        for label, model, optimizer, batches in (
            (STORE, ours, embedrock.optim.Adagrad(ours, lr=twins.lr), loader),
            (IN_MEMORY, theirs, sparse, _Again(twins)),
        ):
            one = _train(twins, model, [optimizer, *twins.dense(model)], batches)
            begin = perf_counter()
            quality = twins.quality(model, label == STORE)
            found[label] = one | {"rank_s": perf_counter() - begin, **quality}
            key, called = twins.shown
            report.say(
                f"{twins.name}{label}: {one[f'{twins.unit}_per_s']:,.0f} {twins.unit}/s, "
                f"{called} {quality[key]:.4f}"
            )
        report.device = device_facts(store)
        store.commit(1)
        stats = store.stats()
        found[STORE] |= {name: stats[name] for name in ("hit_rate", "budget_bytes")}
        for name in twins.tables:
            table = store.table(name)
            for keys, values in table.items(CHECKED_ROWS):
                unlike = (table.get(keys) != values).any(axis=1)
                report.results["mismatches"] += int(unlike.sum())
    return found


def speed(found: dict[str, dict[str, Any]], twins: Twins) -> float:
    """The rate over the store ÷ that in memory."""
    rate = f"{twins.unit}_per_s"
    return float(found[STORE][rate] / found[IN_MEMORY][rate])


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


class _Again:
    """The batches, from the first on for whoever asks."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def __iter__(self) -> Any:
        return iter(self._twins.batches())


def _train(
    twins: Twins, model: Any, optimizers: list[Any], batches: Iterable[Any]
) -> dict[str, Any]:
    seen, losses = 0, list[float]()
    begin = perf_counter()
    for batch in batches:
        for optimizer, rate in zip(optimizers, twins.rates(batch), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss, count = twins.loss(model, batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen += count
        losses.append(float(loss.detach()) / (count if twins.summed else 1))
    seconds = perf_counter() - begin
    return {f"{twins.unit}_per_s": seen / seconds, "train_s": seconds, **twins.summary(losses)}
