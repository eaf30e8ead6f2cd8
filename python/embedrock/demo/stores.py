"""The stores and tables of the demo: the same in every run, so that they start from equal rows."""

from __future__ import annotations

import embedrock
from embedrock import initializers
from embedrock.data import Feature
from embedrock.demo.paths import store_path
from embedrock.demo.settings import DemoSettings
from embedrock.store import Store
from embedrock.table import Table

OPTIMIZER = "adagrad"
INITIALIZER = initializers.uniform(-0.01, 0.01)


def open_store(settings: DemoSettings, name: str, memory: str) -> Store:
    """A new store in the demo's folder."""
    return embedrock.open(store_path(settings, name), memory, seed=settings.seed, io=settings.io)


def table(settings: DemoSettings, store: Store, feature: Feature) -> Table:
    """The table of a feature."""
    return store.table(
        feature.name,
        settings.recipe.embedding_dim,
        feature.num_embeddings,
        expected_rows=feature.expected_rows,
        optimizer=OPTIMIZER,
        initializer=INITIALIZER,
    )
