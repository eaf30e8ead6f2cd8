"""The stores, tables and models of a demo: the same in every run, so that runs can be compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

import embedrock
from embedrock import initializers
from embedrock.data import Feature
from embedrock.data.hashing import mix
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.table import Table
from embedrock_lab.demo.paths import store_path
from embedrock_lab.demo.settings import Keys, Settings
from embedrock_lab.measure.rows import values_of

#: Half the width of initial values, and of those that are written before a comparison.
_WIDTH = 0.01
INITIALIZER = initializers.uniform(-_WIDTH, _WIDTH)
#: The middle of the optimizer state that is written: some steps with gradients of a rare key.
_STATE = 1e-9
_LOAD_ROWS = 1 << 16

Floats = NDArray[np.float32]


def open_store(settings: Settings, name: str, memory: str) -> Store:
    """The store of that name in the demo's folder."""
    return embedrock.open(
        store_path(settings, name),
        memory,
        seed=settings.seed,
        io=settings.io,
        page_bytes=settings.page_bytes,
    )


def measured_page_bytes(settings: Settings) -> int:
    """The page size that the engine chooses for such rows on this device, while nothing else asks
    it for anything."""
    path = store_path(settings, "measured")
    try:
        with embedrock.open(path, "64MiB", io=settings.io) as store:
            store.table("rows", settings.recipe.embedding_dim, optimizer=settings.optimizer)
            return int(store.stats()["classes"][0]["page_bytes"])
    finally:
        shutil.rmtree(path, ignore_errors=True)


def table(settings: Settings, store: Store, feature: Feature) -> Table:
    """The table of a feature."""
    return store.table(
        feature.name,
        settings.recipe.embedding_dim,
        feature.num_embeddings,
        expected_rows=feature.expected_rows,
        optimizer=settings.optimizer,
        initializer=INITIALIZER,
    )


def pieces(keys: Keys) -> Iterator[NDArray[np.int64]]:
    """The keys of a table, some at a time."""
    for begin in range(0, len(keys), _LOAD_ROWS):
        part = keys[begin : begin + _LOAD_ROWS]
        yield np.arange(part.start, part.stop) if isinstance(part, range) else part


def written_values(place: int, keys: NDArray[np.int64], dim: int) -> Floats:
    """The values that rows of the table at a place have before all rounds: not the initial ones."""
    values: Floats = (values_of(_salted(place, keys), dim) - np.float32(0.5)) * np.float32(
        2 * _WIDTH
    )
    return values


def written_state(place: int, keys: NDArray[np.int64], words: int) -> Floats:
    """Their optimizer state: sums of squares, so none is negative or zero."""
    state: Floats = (values_of(_salted(place, keys), words, version=1) + np.float32(0.5)) * (
        np.float32(_STATE)
    )
    return state


def write_rows(
    settings: Settings,
    store: Store,
    features: Sequence[Feature],
    keys: Sequence[Keys],
    sink: Sink,
    name: str,
) -> None:
    """Writes every row, values and state, and commits as step 0."""
    with Task(sink, f"{name}: writing all rows", sum(map(len, keys))) as task:
        # All tables first: a budget in per cent is divided at the first batch.
        tables = [table(settings, store, feature) for feature in features]
        for place, (target, some) in enumerate(zip(tables, keys, strict=True)):
            for part in pieces(some):
                values = written_values(place, part, target.embedding_dim)
                state = written_state(place, part, target.state_words)
                target.put(part, values, state=state)
                task.advance(len(part))
        store.commit(0)


def _salted(place: int, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    return mix(keys.view(np.uint64) + (np.uint64(place + 1) << np.uint64(48)))
