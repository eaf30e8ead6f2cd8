"""A served copy of a store follows its commits: it takes over what changed, and nothing else."""

import subprocess
import sys

import numpy as np

import embedrock
from embedrock.follow import StoreFollower

KEYS = np.arange(10_000)

trainer = embedrock.open("ads.store", memory="16MiB")
ads = trainer.table("ads", 8, optimizer="adagrad", initializer=0.0)
ads.put(KEYS, np.ones((10_000, 8), np.float32))
trainer.commit(step=1)
embedrock.copy("ads.store", "served.store")  # embedrock serve has this copy open

ads.update(KEYS[:100], np.ones((100, 8), np.float32), lr=0.5)
ads.delete([9_999])
trainer.commit(step=2)
with trainer.changes(since=1) as changes:
    for batch in changes:
        print(batch.table, len(batch.keys), "rows,", len(batch.deleted), "deleted")

with (
    embedrock.open("served.store", memory="16MiB") as copy,
    StoreFollower(copy, "ads.store") as follower,
):
    followed = follower.run(once=True)
    print("step", followed.step, "row 0 is", copy.table("ads").get(0)[0])

ads.update(KEYS[:5], np.ones((5, 8), np.float32), lr=0.5)
trainer.commit(step=3)
# The same from a terminal: embedrock follow served.store --store ads.store
follow = [sys.executable, "-m", "embedrock", "follow", "served.store", "--store", "ads.store"]
subprocess.run([*follow, "--once", "--memory", "16MiB"], check=True)
trainer.close()
