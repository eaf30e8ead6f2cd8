"""Mt-KaHyPar, where it is installed: a partitioner of hypergraphs to compare with.

``pip install mtkahypar``. Its preset for many blocks makes the sum of connectivities small, as ours
does. Rows that no query links with another are not given to it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock_lab.bench.place.logs import Hyperedges

__all__ = ["blocks", "is_installed"]

IMBALANCE = 0.03
"""Of pages of up to 33 rows none can be larger by it."""

Numbers = npt.NDArray[np.int64]
Pages = tuple[Numbers, npt.NDArray[np.uint32], int]


def is_installed() -> bool:
    """Whether the package can be imported."""
    return importlib.util.find_spec("mtkahypar") is not None


def blocks(
    learned: Hyperedges, rows_per_page: int, seed: int, threads: int
) -> tuple[Callable[[], Numbers], Callable[[Numbers], Pages]]:
    """A function that partitions, and one that makes pages from the block of each given row.

    Pages are (starts, rows, rows that were moved because their block was larger than a page).
    """
    import mtkahypar

    edges, given = _edges(learned)
    count = -(-len(given) // rows_per_page)
    engine: Any = mtkahypar.initialize(threads)
    context = engine.context_from_preset(mtkahypar.PresetType.LARGE_K)
    context.set_partitioning_parameters(count, IMBALANCE, mtkahypar.Objective.KM1)
    context.logging = False
    mtkahypar.set_seed(seed)
    graph = engine.create_hypergraph(context, len(given), len(edges), edges)

    def partition() -> Numbers:
        found = graph.partition(context)
        return np.array([found.block_id(node) for node in range(len(given))], np.int64)

    def pages_of(found: Numbers) -> Pages:
        frequency = np.bincount(learned.rows, minlength=learned.num_rows)
        others = np.setdiff1d(np.arange(learned.num_rows), given)
        others = others[np.argsort(-frequency[others], kind="stable")]
        block, moved = _fitted(found, count, rows_per_page)
        order = np.argsort(block, kind="stable")
        lengths = np.bincount(block, minlength=count)
        full = np.full(-(-len(others) // rows_per_page), rows_per_page)
        if len(full):
            full[-1] = len(others) - rows_per_page * (len(full) - 1)
        starts = np.concatenate([[0], np.cumsum(np.concatenate([lengths, full]))])
        rows = np.concatenate([given[order], others]).astype(np.uint32)
        return starts.astype(np.int64), rows, moved

    return partition, pages_of


def _edges(learned: Hyperedges) -> tuple[list[list[int]], Numbers]:
    """The rows of each query that links some, numbered anew, and the rows of these numbers."""
    query = np.repeat(np.arange(learned.queries), np.diff(learned.offsets))
    pins = np.unique(query * learned.num_rows + learned.rows)
    query, rows = pins // learned.num_rows, pins % learned.num_rows
    linking = np.bincount(query, minlength=learned.queries)[query] > 1
    query, rows = query[linking], rows[linking]
    given, numbers = np.unique(rows, return_inverse=True)
    ends = np.flatnonzero(np.diff(query)) + 1
    return [one.tolist() for one in np.split(numbers, ends)], given


def _fitted(block: Numbers, count: int, rows_per_page: int) -> tuple[Numbers, int]:
    """Blocks of a page at most: the last rows of larger ones go where there is room."""
    order = np.argsort(block, kind="stable")
    sizes = np.bincount(block, minlength=count)
    place = np.arange(len(block)) - (np.cumsum(sizes) - sizes)[block[order]]
    moved = order[place >= rows_per_page]
    room = np.repeat(np.arange(count), np.maximum(rows_per_page - sizes, 0))
    fitted = block.copy()
    fitted[moved] = room[: len(moved)]
    return fitted, len(moved)
