"""Keeps rows in memory that survives the process, and gives the table more room."""

from pathlib import Path

import numpy as np

import embedrock
from embedrock.errors import FullError

# Persistent memory that is mounted with DAX, or /dev/shm, which loses its files with the power.
MEMORY = Path("memory")

with embedrock.open("users.store", memory="16MiB", pmem_path=MEMORY) as store:
    users = store.table("users", 16, optimizer="adagrad", storage="pmem", capacity=1_000)
    store.commit(step=0)  # from here on the table is there, and every row that is put
    keys = np.arange(1_000)
    users.put(keys, np.ones((1_000, 16), np.float32))
    users.update([7, 42], np.ones((2, 16), np.float32), lr=0.1)
    changed = users.get([7, 42])
    try:
        users.put([5_000], np.ones((1, 16), np.float32))
    except FullError as error:
        print("refused:", str(error).partition(",")[0])

print("room for", embedrock.resize("users.store", "users", 10_000)["capacity"], "rows")

with embedrock.open("users.store", memory="16MiB") as store:  # it knows where the rows are
    users = store.table("users")
    print(len(users), "rows, the changed ones too:", bool((users.get([7, 42]) == changed).all()))
    users.put([5_000], np.ones((1, 16), np.float32))
    print(users.promote([7, 42]), "hot keys are where look-ups begin")
