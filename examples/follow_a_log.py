"""A trainer writes a log of its updates; another process applies them to a store of its own."""

import subprocess
import sys

import numpy as np

import embedrock
from embedrock.follow import Follower, LogReader, LogWriter

KEYS = np.arange(1000)

with embedrock.open("ads.store", memory="4MiB") as store:
    store.table("ads", 8, optimizer="adagrad", initializer=0.0)
    store.commit(step=1)

with LogWriter("ads.log") as log:  # the trainer's side
    log.put("ads", KEYS, np.ones((1000, 8), np.float32))
    log.update("ads", KEYS[:10], np.ones((10, 8), np.float32), lr=0.5)
    log.delete("ads", [999])
    log.sync()

with embedrock.open("ads.store", memory="4MiB", create=False) as store:
    with LogReader("ads.log") as source:
        followed = Follower(store, source, start="begin").run(once=True)
    print(followed.records, "records, commit at step", store.step)
    print("row 0 is", store.table("ads").get(0)[0])

with LogWriter("ads.log") as log:
    log.update("ads", [0], np.ones((1, 8), np.float32), lr=0.5)

# The same from a terminal: embedrock follow ads.store --log ads.log
follow = [sys.executable, "-m", "embedrock", "follow", "ads.store", "--log", "ads.log", "--once"]
subprocess.run([*follow, "--memory", "4MiB"], check=True)
