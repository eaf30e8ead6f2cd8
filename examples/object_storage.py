"""Pushes commits of a store that is being written to, and makes a store of one of them again."""

from pathlib import Path

import numpy as np

import embedrock
from embedrock import objects

url = Path("backups")  # or s3://bucket/model, gs://…, az://…

keys = np.arange(50_000)
with embedrock.open("model.store", memory="8MiB") as store:
    table = store.table("items", 16, 50_000, optimizer="rowwise_adagrad")
    table.put(keys, np.ones((50_000, 16), np.float32))
    store.commit(step=1, state={"dense": b"weights"})
    first = objects.push(store, url)
    digest = table.digest()

    table.update(keys[:500], np.ones((500, 16), np.float32), lr=0.1)
    store.commit(step=2)
    second = objects.push(store, url)  # only what has changed
    less = second["sent_bytes"] * 4 < first["sent_bytes"]
    print("sent", "little" if less else "much", "for step", second["step"])

print("pushed steps", [push["step"] for push in objects.list(url)])
pulled = objects.pull(url, "restored.store", step=1)
with embedrock.open("restored.store", memory="8MiB", create=False) as store:
    same = store.table("items").digest() == digest
    print("restored step", store.step, "is", "equal" if same else "different")
print("pruned", objects.prune(url, keep=1)["pruned"])
