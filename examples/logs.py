"""Writes what a store does to a log of the program, with the standard library's logging."""

import logging
import sys

import numpy as np

import embedrock

logging.basicConfig(
    stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s", level=logging.INFO
)
logging.getLogger("embedrock.commit").setLevel(logging.DEBUG)  # each commit, too

with embedrock.open("logs.store", memory="4MiB") as store:
    items = store.table("items", 8, optimizer="none")
    items.put(np.arange(1000), np.ones((1000, 8), np.float32))
    store.commit(step=1)
