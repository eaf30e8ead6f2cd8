"""The batches of an epoch: functions of counts, seed and number of the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock.kge.partitions.buckets import Buckets
from embedrock.kge.partitions.order import Plan, plan

__all__ = ["Chunk", "Epoch", "Order"]

SHUFFLED = 1 << 22
"""Edges that are shuffled together, about: with three columns of int64 100 MB, for a moment 200."""
_STATES, _EDGES, _PLACES = 1, 2, 3
"""The purposes of random numbers: streams that never meet."""


@dataclass(frozen=True)
class Order:
    """All that the order of edges depends on, beside the edges."""

    kind: str
    buffer: int
    logical: int
    batch_size: int
    seed: int

    def random(self, *purpose: int) -> np.random.Generator:
        """A generator for one purpose, such as an epoch's order."""
        return np.random.default_rng([self.seed, *purpose])


@dataclass(frozen=True)
class Chunk:
    """Edges of one state that are read and shuffled together."""

    state: int
    part: int
    """Index of the part that it has of every bucket of the state,"""
    parts: int
    """out of this number of parts."""
    edges: int


class Epoch:
    """An epoch: its plan, and which edges which batch has."""

    def __init__(self, number: int, counts: npt.NDArray[np.int64], order: Order) -> None:
        """Draws the states. ``counts (P + 1, P + 1)`` says how many edges each bucket has."""
        self.number, self._order = number, order
        self._counts = counts.reshape(-1)
        self.plan: Plan = plan(
            counts, order.buffer, order.kind, order.logical, order.random(_STATES, number)
        )
        states = self.plan.state_of.reshape(-1)
        sorted_by_state = np.argsort(states, kind="stable")
        bounds = np.searchsorted(states[sorted_by_state], np.arange(len(self.plan.states) + 1))
        self._buckets = [sorted_by_state[first:last] for first, last in pairwise(bounds.tolist())]
        self.chunks: list[Chunk] = []
        for state, buckets in enumerate(self._buckets):
            sizes = self._counts[buckets]
            parts = max(1, -(-int(sizes.sum()) // SHUFFLED))
            for part in range(parts):
                edges = int((sizes * (part + 1) // parts - sizes * part // parts).sum())
                if edges:
                    self.chunks.append(Chunk(state, part, parts, edges))
        batches = [-(-chunk.edges // order.batch_size) for chunk in self.chunks]
        self._bounds = np.concatenate([[0], np.cumsum(batches, dtype=np.int64)])

    def __len__(self) -> int:
        """Batches."""
        return int(self._bounds[-1])

    def find(self, batch: int) -> tuple[int, int]:
        """The chunk of a batch, and its number there."""
        chunk = int(np.searchsorted(self._bounds, batch, side="right")) - 1
        return chunk, batch - int(self._bounds[chunk])

    def batches_of(self, chunk: int) -> int:
        """Number of batches in a chunk."""
        return int(self._bounds[chunk + 1] - self._bounds[chunk])

    def read(self, chunk: Chunk, file: Buckets) -> npt.NDArray[Any]:
        """The edges of a chunk, shuffled. Errors: those of ``Buckets.read``."""
        buckets = self._buckets[chunk.state]
        sizes = self._counts[buckets]
        firsts = sizes * chunk.part // chunk.parts
        lengths = sizes * (chunk.part + 1) // chunk.parts - firsts
        # A part of a bucket has other edges in every epoch.
        turned = self._order.random(_PLACES, self.number, chunk.state).integers(0, sizes)
        firsts = (firsts + turned) % sizes
        parts = []
        for bucket, size, first, length in zip(
            buckets.tolist(), sizes.tolist(), firsts.tolist(), lengths.tolist(), strict=True
        ):
            parts.append(file.read(bucket, first, min(first + length, size)))
            if first + length > size:
                parts.append(file.read(bucket, 0, first + length - size))
        found = np.concatenate(parts)
        random = self._order.random(_EDGES, self.number, chunk.state, chunk.part)
        return found[random.permutation(len(found))]
