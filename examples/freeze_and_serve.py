"""Freezes a store by what is asked for together, and counts the pages that queries read."""

import numpy as np

import embedrock
from embedrock.placement import place

ROWS, QUERIES = 50_000, 500
random = np.random.default_rng(0)
# Rows of a group are asked for together, and lie anywhere.
groups = random.permutation(ROWS).reshape(-1, 20)


def query() -> np.ndarray:
    group = groups[int(random.random() ** 2 * len(groups))]
    return random.permutation(group)[:15]


with embedrock.open("ads.store", memory="16MiB") as store:
    table = store.table("items", 16, num_embeddings=ROWS, optimizer="adagrad")
    table.put(np.arange(ROWS), random.standard_normal((ROWS, 16), np.float32))
    store.commit(step=1)

asked = [query() for _ in range(20_000)]
offsets = np.cumsum([0, *map(len, asked)])
trace = embedrock.trace.Trace({"items": (np.concatenate(asked), offsets)})
plan = place(trace, store="ads.store", replicate=0.1)

for name, by in (("plain.store", None), ("placed.store", plan)):
    embedrock.freeze("ads.store", name, plan=by)
    with embedrock.open(name, memory="2MiB", read_only=True) as served:
        items = served.table("items")
        for _ in range(QUERIES):
            rows = items.get(query())
        pages = served.stats()["pages_read"] / QUERIES
    print(f"{name}: {pages:.1f} pages a query of {len(rows)} rows")
