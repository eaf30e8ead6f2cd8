"""Pairs of nodes as sorted sets, whatever the ids of the nodes are.

A pair is compared as one number, `first * count + second`, which 64 bits hold for up to three
billion nodes. Beyond that nodes are counted by their places among those that come, so that no
number ever overflows and stands for another pair.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock.errors import MisuseError

__all__ = ["Pairs", "undirected"]

Ids: TypeAlias = npt.NDArray[np.int64]

COUNT_MAX = 3_037_000_499
"""The largest number whose square is below 2^63."""


class Pairs:
    """A sorted set of pairs of nodes: by the first, then by the second."""

    def __init__(self, pairs: Ids, num_nodes: int) -> None:
        """Of pairs (2, P), some of which may be there twice. Errors: MisuseError for too many."""
        self._nodes: Ids | None = None
        self._count = num_nodes
        if num_nodes > COUNT_MAX:
            self._nodes = np.unique(pairs)
            self._count = max(len(self._nodes), 1)
            if self._count > COUNT_MAX:
                raise MisuseError(f"{self._count} nodes have edges, expected {COUNT_MAX} at most")
        self._numbers = np.unique(self._numbered(pairs)[0])

    def __len__(self) -> int:
        """Pairs, each once."""
        return len(self._numbers)

    def find(self, pairs: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The places of pairs (2, P) in the set, and which of them are there."""
        if not len(self):
            return np.zeros(pairs.shape[1], np.int64), np.zeros(pairs.shape[1], np.bool_)
        numbers, known = self._numbered(pairs)
        places = np.minimum(np.searchsorted(self._numbers, numbers), len(self) - 1)
        return places, known & (self._numbers[places] == numbers)

    def pairs(self) -> Ids:
        """All of them, (2, P), in their order."""
        found = np.stack([self._numbers // self._count, self._numbers % self._count])
        return found if self._nodes is None else self._nodes[found]

    def _numbered(self, pairs: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The numbers of pairs, and which of these can be of the set."""
        if self._nodes is None:
            return pairs[0] * self._count + pairs[1], np.ones(pairs.shape[1], np.bool_)
        places = np.minimum(np.searchsorted(self._nodes, pairs), max(len(self._nodes) - 1, 0))
        known = (self._nodes[places] == pairs).all(axis=0)
        return places[0] * self._count + places[1], known


def undirected(edges: Ids, num_nodes: int) -> Ids:
    """Every edge once, (2, E): the smaller node first, without loops, in the order of both."""
    low, high = edges.min(axis=0), edges.max(axis=0)
    return Pairs(np.stack([low, high])[:, low != high], num_nodes).pairs()
