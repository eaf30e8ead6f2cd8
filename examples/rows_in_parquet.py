"""Writes rows to Parquet with their optimizer state, and reads them from Parquet and Arrow."""

import numpy as np
import pyarrow.compute as pc
from pyarrow import parquet

import embedrock
from embedrock import weights

with embedrock.open("rows.store", memory="16MiB") as store:
    items = store.table("items", 8, optimizer="adagrad")
    keys = np.arange(10_000) * 17
    items.put(keys, np.random.default_rng(0).standard_normal((10_000, 8), np.float32))
    items.update(keys[:100], np.ones((100, 8), np.float32), lr=0.1)
    store.commit(step=1)

    weights.export(items, "items.parquet", state=True)
    print(parquet.read_schema("items.parquet").names)

    again = store.table("again", 8, optimizer="adagrad")
    weights.load(again, "items.parquet", state=True)
    print("equal, state too:", again.digest() == items.digest())

    # Anything that gives a stream of Arrow will do: a frame of polars, a query of DuckDB.
    found = weights.to_arrow(items).read_all()
    some = store.table("some", 8)
    print(weights.load(some, found.filter(pc.less(found["key"], 1_000))), "rows of small keys")
    store.commit(step=2)
