"""Goes back to an earlier commit: first to look at it, then to train on from it."""

import numpy as np

import embedrock

keys = np.arange(1000)
with embedrock.open("back.store", memory="4MiB", keep=4) as store:
    table = store.table("items", 8, optimizer="none")
    for step in (1, 2, 3, 4):
        table.put(keys, np.full((1000, 8), step, np.float32))
        store.commit(step, meta={"loss": [0.9, 0.5, 0.7, 0.8][step - 1]})
    best = min(store.commits(), key=lambda commit: commit.meta["loss"])
    print("kept", [commit.step for commit in store.commits()], "best", best.step)

# To look at it: nothing changes, and the later commits stay.
with embedrock.open("back.store", memory="4MiB", step=best.step, read_only=True) as store:
    print("looked at", store.step, store.table("items").get([0])[0, 0])

# To go on from it: the next commit drops the later ones.
with embedrock.open("back.store", memory="4MiB", keep=4, step=best.step) as store:
    store.table("items").put(keys, np.full((1000, 8), 2.5, np.float32))
    store.commit(3, meta={"loss": 0.4})
    print("kept", [commit.step for commit in store.commits()])
