"""Keeps the best commit under a name, and goes back to it long after."""

import numpy as np

import embedrock

keys = np.arange(1000)
losses = [0.9, 0.5, 0.7, 0.4, 0.8, 0.6]
with embedrock.open("pins.store", memory="4MiB") as store:
    table = store.table("items", 8, optimizer="none")
    best = float("inf")
    for step, loss in enumerate(losses):
        table.put(keys, np.full((1000, 8), loss, np.float32))
        store.commit(step, pin="best" if loss < best else None)
        best = min(best, loss)
    print("kept", [commit.step for commit in store.commits()], "pinned", store.pins())
    store.go_back("best")
    print("back at", store.step, table.get([0])[0, 0])
    store.unpin("best")
