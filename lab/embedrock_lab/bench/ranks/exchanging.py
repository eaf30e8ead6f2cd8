"""Rows and gradients of uniform ids, of which every one is what it must be."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from embedrock_lab.measure.noise import Timed

__all__ = ["Exchanging"]

LR = 2.0**-8
"""Steps are exact in float32, by gradients of 1 that are divided by two ranks too."""


class Exchanging:
    """A table whose rows are a function of their ids and of how often they were updated."""

    def __init__(self, stores: dict[str, Any], settings: dict[str, Any]) -> None:
        """Writes all rows; ranks of a shard each a part."""
        self._rank, self._world = settings["rank"], settings["world"]
        self._seed = settings["seed"]
        self._rows, self._dim = settings["exchange_rows"], settings["exchange_dim"]
        self._stores = stores
        self._rounds = 0
        self._updates = np.zeros(self._rows, np.int32)
        """Of each id, by all ranks."""
        table = self._table("plain")
        part = -(-self._rows // self._world)
        own = np.arange(self._rank * part, min(self._rows, (self._rank + 1) * part))
        table.put(own, self._expected(own))

    def round(self, way: str, batch: int, steps: int) -> dict[str, Any]:
        """Reads and updates so many batches of ids; rows are compared behind the clock."""
        self._rounds += 1
        batches = [self._drawn(rank, batch, steps) for rank in range(self._world)]
        own = batches[self._rank]
        rows = np.empty((steps, batch, self._dim), np.float32)
        gradients = np.ones((batch, self._dim), np.float32)
        table, timed = self._table(way), Timed()
        table.get(own[0])  # all ranks have drawn
        used = time.process_time()
        with timed:
            for ids, out in zip(own, rows, strict=True):
                table.get(ids, out)
                table.update(ids, gradients, lr=LR)
        used = time.process_time() - used
        return {
            "seconds": timed.seconds,
            "cpu_seconds": used,
            "waited": timed.waited,
            "known": timed.known,
            "work": steps * batch,
            "mismatches": self._wrong(batches, rows, way == "narrow" and self._world > 1),
        }

    def _table(self, way: str) -> Any:
        return self._stores[way].table(
            "uniform", self._dim, self._rows, optimizer="sgd", initializer=0.0
        )

    def _drawn(self, rank: int, batch: int, steps: int) -> npt.NDArray[np.int64]:
        random = np.random.default_rng([self._seed, self._rounds, rank])
        return random.integers(0, self._rows, (steps, batch))

    def _expected(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        first = (ids % 509) - self._updates[ids] * (LR / self._world)
        rows: npt.NDArray[np.float32] = (first[:, None] + np.arange(self._dim)).astype(np.float32)
        return rows

    def _wrong(
        self, batches: list[npt.NDArray[np.int64]], rows: npt.NDArray[np.float32], narrow: bool
    ) -> int:
        """Rows that are not as they were at their step. All ranks' updates follow those reads."""
        wrong = 0
        for step, found in enumerate(rows):
            expected = self._expected(batches[self._rank][step])
            if narrow:
                expected = torch.from_numpy(expected).bfloat16().float().numpy()
            wrong += int((found != expected).any(axis=1).sum())
            for batch in batches:
                np.add.at(self._updates, batch[step], 1)
        return wrong
