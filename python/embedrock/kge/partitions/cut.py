"""How rows are cut into partitions, and which rows belong to none because they always stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Cut"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Rows of one table, or of those of heads and tails one behind the other, cut by their ids.

    Rows have numbers: ids of the table, or of that of heads; those of tails follow.
    """

    heads: int
    """Rows of the table of heads."""
    tails: int
    """The same of tails."""
    joint: bool
    """One table has both."""
    firsts: Ids
    """The first row of each partition, and the number of rows."""
    hubs: Ids
    """Rows that stay and belong to no partition, ascending."""
    is_hub: npt.NDArray[np.bool_] | None
    """The same by row, while edges are sorted."""

    @classmethod
    def of(cls, heads: int, tails: int, *, joint: bool, partitions: int) -> Cut:
        """Even partitions. None of them has rows of two tables."""
        if joint:
            firsts = _even(heads, partitions)
        else:
            of_heads = min(max(round(partitions * heads / (heads + tails)), 1), partitions - 1)
            of_tails = _even(tails, partitions - of_heads)
            firsts = np.concatenate([_even(heads, of_heads), heads + of_tails[1:]])
        return cls(heads, tails, joint, firsts, np.zeros(0, np.int64), None)

    @property
    def rows(self) -> int:
        """Of all tables."""
        return int(self.firsts[-1])

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.firsts) - 1

    @property
    def side(self) -> int:
        """Partitions, and one more: the rows that stay."""
        return self.partitions + 1

    def ends(self, edges: npt.NDArray[Any]) -> tuple[Ids, Ids]:
        """The rows of heads and tails, by number."""
        heads, tails = edges[:, 0].astype(np.int64), edges[:, -1].astype(np.int64)
        return heads, tails if self.joint else tails + self.heads

    def buckets(self, edges: npt.NDArray[Any]) -> Ids:
        """The bucket of each edge: the partition of its head times ``side``, and of its tail."""
        head, tail = (self._partition(rows) for rows in self.ends(edges))
        return head * self.side + tail

    def _partition(self, rows: Ids) -> Ids:
        found: Ids = np.searchsorted(self.firsts, rows, side="right") - 1
        if self.is_hub is not None:
            found[self.is_hub[rows]] = self.partitions
        return found

    def range_of(self, partition: int) -> tuple[int, int]:
        """The rows of a partition: the first, and one past the last."""
        return int(self.firsts[partition]), int(self.firsts[partition + 1])

    def with_hubs(self, share: float, degrees: npt.NDArray[np.uint32]) -> Cut:
        """Without the rows of highest degree, so large a share of all; of equal ones those with the
        lowest numbers stay."""
        count = int(share * self.rows)
        if count == 0:
            return self
        least = np.partition(degrees, self.rows - count)[self.rows - count]
        above = np.flatnonzero(degrees > least)
        equal = np.flatnonzero(degrees == least)[: count - len(above)]
        hubs = np.sort(np.concatenate([above, equal])).astype(np.int64)
        is_hub = np.zeros(self.rows, np.bool_)
        is_hub[hubs] = True
        return Cut(self.heads, self.tails, self.joint, self.firsts, hubs, is_hub)


def _even(rows: int, parts: int) -> Ids:
    """The first of each part, and the number of rows; exact, for files are cut by it."""
    firsts: Ids = np.arange(parts + 1, dtype=np.int64) * rows // parts
    return firsts
