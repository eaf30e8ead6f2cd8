"""Asks two served stores for the rows of held-out sessions, and counts the pages they read."""

import numpy as np

import embedrock

held = embedrock.trace.Trace.load("held.npz", table="items")
queries = np.split(held.values, held.offsets[1:-1])

answers = {}
for name in ("plain.store", "placed.store"):
    with embedrock.open(name, memory="512KiB", read_only=True) as served:
        items = served.table("items")
        before = served.stats()["pages_read"]
        answers[name] = [items.get(query) for query in queries]
        pages = served.stats()["pages_read"] - before
    print(f"{name}: {pages / len(queries):.2f} pages for the {len(queries[0])} rows of a query")

equal = all(map(np.array_equal, answers["plain.store"], answers["placed.store"]))
print("both give the same rows" if equal else "the rows differ")
