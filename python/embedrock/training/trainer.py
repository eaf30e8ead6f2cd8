"""One training step and one prediction, timed by what the time went into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedrock.data import Batch
from embedrock.models.base import ClickModel
from embedrock.training.auc import auc, log_loss


@dataclass
class Seconds:
    """The time of all steps so far, by cause."""

    #: Getting embeddings: look-up, waiting for storage, pooling.
    embedding: float = 0.0
    #: The dense model forwards, and backwards through everything.
    computing: float = 0.0
    #: Optimizer steps, of tables and of the dense part.
    updating: float = 0.0

    def total(self) -> float:
        """All of it."""
        return self.embedding + self.computing + self.updating

    def copy(self) -> Seconds:
        """Its current value."""
        return replace(self)

    def __sub__(self, earlier: Seconds) -> Seconds:
        now, then = asdict(self), asdict(earlier)
        return Seconds(**{name: now[name] - then[name] for name in now})

    def as_dict(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluation:
    """Quality of a model's predictions for held-out samples. NaN when there are none (or one class
    only).

    Of several targets, AUC and log loss are the means of what each has.
    """

    samples: int
    auc: float
    log_loss: float
    #: AUC and log loss of each target, in the order of the labels' columns.
    by_target: tuple[tuple[float, float], ...] = ()


class Trainer:
    """A click model with its optimizers: the one for tables and the one for the dense part.

    `step` is the whole of training: forward, loss (the model's own), backward, both optimizers.
    The order of arithmetic does not depend on where the tables are.
    """

    def __init__(self, model: ClickModel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Takes the model and all of its optimizers."""
        self.model = model
        self.optimizers = list(optimizers)
        self.seconds = Seconds()
        self._base_lr = [[g["lr"] for g in o.param_groups] for o in self.optimizers]

    def scale_learning_rates(self, factor: float) -> None:
        """Sets every learning rate to `factor` times the one that the optimizer was made with."""
        for optimizer, rates in zip(self.optimizers, self._base_lr, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def step(self, batch: Batch) -> float:
        """Trains on one batch and returns its loss (before the update)."""
        self.model.train()
        started = perf_counter()
        dense, keys, offsets = _tensors(batch)
        embedded = self.model.embeddings(keys, offsets)
        fetched = perf_counter()
        loss = self.model.loss(dense, embedded, torch.from_numpy(batch.labels))
        loss.backward()
        value = float(loss.item())
        computed = perf_counter()
        for optimizer in self.optimizers:
            optimizer.step()
        self.forget()
        self.seconds.embedding += fetched - started
        self.seconds.computing += computed - fetched
        self.seconds.updating += perf_counter() - computed
        return value

    def forget(self) -> None:
        """Drops all gradients: those of a step that is complete, or that failed and is repeated."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def predict(self, batch: Batch) -> NDArray[np.float32]:
        """The logits of one batch, without leaving a trace in model or tables."""
        self.model.eval()
        with torch.no_grad():
            logits: NDArray[np.float32] = self.model(*_tensors(batch)).numpy()
        return logits

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """AUC and log loss over batches."""
        labels, logits = [], []
        for batch in batches:
            labels.append(batch.labels)
            logits.append(self.predict(batch))
        if not labels:
            return Evaluation(0, float("nan"), float("nan"))
        y, z = np.concatenate(labels), np.concatenate(logits)
        columns = zip(y.reshape(len(y), -1).T, z.reshape(len(z), -1).T, strict=True)
        found = [(auc(one, other), log_loss(one, other)) for one, other in columns]
        means = [float(np.mean(figures)) for figures in zip(*found, strict=True)]
        return Evaluation(len(y), means[0], means[1], tuple(found))


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(dense, keys, offsets) as tensors; ids share the batch's memory.

    A matrix product may depend on where its arguments begin (MKL's does on AMD processors), and a
    batch lies elsewhere in a run that was resumed. PyTorch's own memory always begins a line.
    """
    return (
        torch.from_numpy(batch.dense).clone(),
        torch.from_numpy(batch.keys),
        torch.from_numpy(batch.offsets),
    )
