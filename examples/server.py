"""Serves a store from a process of its own, and reads and trains its rows from this one."""

import subprocess
import sys

import numpy as np

import embedrock

with embedrock.open("shop.store", memory="16MiB") as store:
    users = store.table("user", 8, 10_000, optimizer="sgd", initializer=0.0)
    users.put(np.arange(5000), np.ones((5000, 8), np.float32))
    store.commit(step=1)

command = [sys.executable, "-m", "embedrock", "serve", "shop.store", "--writable"]
command += ["--listen", "127.0.0.1:0", "--memory", "16MiB"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    address = server.stdout.readline().split("serving at ")[1].split(",")[0]

    with embedrock.connect(f"redis://{address}") as remote:
        users = remote["user"]
        rows, found = users.get([17, 42, 9999], found=True)
        print(rows[:, 0], found)

        users.update([17, 17], np.ones((2, 8), np.float32), lr=0.25)
        print(users.get([17])[0, 0], "at step", remote.commit())

    server.terminate()
print("ended with", server.returncode)
