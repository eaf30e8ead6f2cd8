"""Copies a store that is being written to, and a store that is closed."""

import shutil

import numpy as np

import embedrock

keys = np.arange(10_000)
with embedrock.open("here.store", memory="4MiB") as store:
    table = store.table("items", 16, optimizer="adagrad")
    table.put(keys, np.ones((10_000, 16), np.float32))
    store.commit(step=1, state={"dense": b"weights"})
    digest = table.digest()
    table.put(keys, np.zeros((10_000, 16), np.float32))

    report = embedrock.copy("here.store", "copied.store")  # the last commit, not what came since
    print("copied step", report["commit"]["step"], "with", report["rows"], "rows")
    store.commit(step=2)

shutil.copytree("here.store", "moved.store")  # a closed store is files: cp, mv, rsync, tar

for name in ("copied.store", "moved.store"):
    assert embedrock.check(name)["problem_count"] == 0
    with embedrock.open(name, memory="4MiB", create=False) as store:
        same = store.table("items").digest() == digest
        print(name, "is at step", store.step, "and", "equal" if same else "different")
