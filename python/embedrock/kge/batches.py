"""Batches of triples with negatives that they share, as functions of a seed and a step.

Both sides of every triple are corrupted with the same entities, which are drawn evenly for the
whole batch (sLCWA). So a batch reads its ends and one set of negatives, and a loader that goes on
at a step, whatever was drawn ahead before, gives the batches that it would have given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._arguments import shown, whole
from embedrock.errors import KeyRangeError, MisuseError

__all__ = ["TripleBatch", "TripleBatches"]

_ORDER, _NEGATIVES = 1, 2
"""The purposes of random numbers: streams that never meet."""


@dataclass(frozen=True)
class TripleBatch:
    """B triples and N negatives: ``(B,)`` and ``(N,)`` int64 tensors."""

    heads: Tensor
    relations: Tensor
    tails: Tensor
    negatives: Tensor
    step: int
    """The number of the batch, from 0 on over all epochs."""
    epoch: int

    def __len__(self) -> int:
        """Triples."""
        return len(self.heads)

    def entities(self) -> Tensor:
        """The entities that the batch reads: heads, tails, negatives, in this order."""
        return torch.cat([self.heads, self.tails, self.negatives])


class TripleBatches:
    """Batches of triples, epoch after epoch, each epoch in an order of its own.

    Iterating begins at the position, behind the batch that was given last: a second iteration goes
    on where the first one ended. ``state_dict`` tells it and ``load_state_dict`` sets it; a
    :class:`embedrock.LookaheadLoader` around it keeps it right whatever it has drawn ahead. The
    order of an epoch takes 8 bytes per triple.

    Args:
        triples: ``(N, 3)`` ids of heads, relations and tails; not copied.
        num_entities: Entities, from which negatives are drawn.
        batch_size: Triples of a batch; the last one of an epoch has what is left.
        negatives: Entities that all triples of a batch are scored against.
        epochs: Passes over the triples; None: without an end.
        seed: Of orders and negatives.

    Errors: ``KeyRangeError`` for an entity that is not below ``num_entities``.

    >>> triples = np.array([[0, 0, 1], [1, 0, 2], [2, 0, 3]])
    >>> batches = embedrock.kge.TripleBatches(triples, 4, batch_size=2, negatives=3, epochs=1)
    >>> [(len(batch), len(batch.negatives)) for batch in batches]
    [(2, 3), (1, 3)]
    """

    def __init__(
        self,
        triples: npt.NDArray[Any],
        num_entities: int,
        *,
        batch_size: int,
        negatives: int,
        epochs: int | None = None,
        seed: int = 0,
    ) -> None:
        """Draws nothing before it is iterated."""
        self.triples = checked_triples("triples", triples, num_entities)
        if not len(self.triples):
            raise MisuseError("triples has none, expected at least one")
        self.num_entities = whole("num_entities", num_entities, 1)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.negatives = whole("negatives", negatives, 1)
        self.epochs = None if epochs is None else whole("epochs", epochs, 0)
        self.seed = whole("seed", seed, 0)
        self.per_epoch = -(-len(self.triples) // self.batch_size)
        """Batches of an epoch."""
        self._step = 0

    def __len__(self) -> int:
        """Batches of all epochs. Errors: ``TypeError`` when there is no end."""
        if self.epochs is None:
            raise TypeError("these batches have no end: epochs is None")
        return self.epochs * self.per_epoch

    def __iter__(self) -> Iterator[TripleBatch]:
        """The batches from the position on."""
        while self.epochs is None or self._step < self.epochs * self.per_epoch:
            epoch, first = divmod(self._step, self.per_epoch)
            order = self._random(_ORDER, epoch).permutation(len(self.triples))
            for number in range(first, self.per_epoch):
                batch = self._batch(epoch, number, order)
                self._step = batch.step + 1
                yield batch

    def epoch_of(self, step: int) -> int:
        """The epoch of a batch, by its number."""
        return step // self.per_epoch

    def state_dict(self) -> dict[str, int]:
        """The position behind the batch that was given last, and what batches depend on."""
        return {"step": self._step, **self._fixed()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to a position.

        Errors: ``MisuseError`` when it is one among other batches.
        """
        if not isinstance(state_dict, Mapping) or "step" not in state_dict:
            raise MisuseError(f"state_dict is {shown(state_dict)}, expected that of TripleBatches")
        for name, value in self._fixed().items():
            if state_dict.get(name) != value:
                raise MisuseError(
                    f"{name} is {value}, but the position is one among batches with "
                    f"{state_dict.get(name)}"
                )
        self._step = whole("step", state_dict["step"], 0)

    def _fixed(self) -> dict[str, int]:
        return {
            "triples": len(self.triples),
            "num_entities": self.num_entities,
            "batch_size": self.batch_size,
            "negatives": self.negatives,
            "seed": self.seed,
        }

    def _batch(self, epoch: int, number: int, order: npt.NDArray[np.int64]) -> TripleBatch:
        step = epoch * self.per_epoch + number
        chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
        columns = torch.from_numpy(self.triples[chosen].astype(np.int64).T.copy())
        drawn = self._random(_NEGATIVES, step).integers(0, self.num_entities, self.negatives)
        heads, relations, tails = columns
        return TripleBatch(heads, relations, tails, torch.from_numpy(drawn), step, epoch)

    def _random(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose, number])


def checked_triples(name: str, triples: Any, num_entities: int) -> npt.NDArray[Any]:
    """Triples whose ids are there.

    Errors: ``MisuseError`` for anything but whole numbers ``(N, 3)``, ``KeyRangeError`` with the
    place of the first entity that is not below ``num_entities``.
    """
    found = triples.numpy() if isinstance(triples, Tensor) else np.asarray(triples)
    if found.ndim != 2 or found.shape[1] != 3 or found.dtype.kind not in "iu":
        raise MisuseError(
            f"{name} has shape {found.shape} and dtype {found.dtype}, expected whole numbers "
            f"(N, 3): heads, relations and tails"
        )
    for column, what in ((0, "head"), (2, "tail")):
        ends = found[:, column]
        if len(ends) and (int(ends.min()) < 0 or int(ends.max()) >= num_entities):
            place = int(np.flatnonzero((ends < 0) | (ends >= num_entities))[0])
            raise KeyRangeError(
                f"{name}: the {what} of triple {place} is {int(ends[place])}, but there are "
                f"{num_entities} entities, 0 to {num_entities - 1}"
            )
    return found
