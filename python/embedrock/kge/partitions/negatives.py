"""Negatives that all edges of a batch share, drawn from what is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedrock._arguments import between, whole

__all__ = ["SharedNegatives", "drawn"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SharedNegatives:
    """Number of rows that every edge of a batch is scored against, and their distribution.

    They are drawn from the partitions in the buffer and the rows that always stay, so they cost no
    reads.

    Args:
        count: Rows of a batch, at least 1.
        degree: The share of them that is drawn by degree, among the ends of the edges around the
            batch; the others are drawn evenly.

    >>> embedrock.SharedNegatives(1000, degree=0.5)
    SharedNegatives(count=1000, degree=0.5)
    """

    count: int
    degree: float = 0.0

    def __post_init__(self) -> None:
        """Errors: ``MisuseError`` for a count below 1, a share that is none."""
        object.__setattr__(self, "count", whole("count", self.count, 1))
        object.__setattr__(self, "degree", between("degree", self.degree, 0, 1))


def drawn(
    how: SharedNegatives,
    ranges: Sequence[tuple[int, int]],
    hubs: Ids,
    ends: Ids,
    random: np.random.Generator,
) -> Ids:
    """Rows out of ``ranges`` (first, last and one more) and ``hubs``, and out of ``ends``, those of
    edges, where they are drawn by degree: ``(count,)``."""
    firsts = np.array([first for first, _ in ranges], np.int64)
    sizes = np.array([last - first for first, last in ranges], np.int64)
    total = int(sizes.sum()) + len(hubs)
    # A state may have rows of one table alone: then the ends of its edges are all there is.
    by_degree = round(how.count * how.degree) if total else how.count
    places = random.integers(0, max(total, 1), how.count - by_degree)
    bounds = np.cumsum(sizes)
    within = np.searchsorted(bounds, places, side="right")
    found = np.empty(how.count, np.int64)
    evenly = found[by_degree:]
    of_ranges = within < len(firsts)
    number = within[of_ranges]
    evenly[of_ranges] = places[of_ranges] - (bounds - sizes)[number] + firsts[number]
    evenly[~of_ranges] = hubs[places[~of_ranges] - (total - len(hubs))]
    found[:by_degree] = ends[random.integers(0, max(len(ends), 1), by_degree)]
    return found
