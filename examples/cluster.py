"""Divides a store among three servers, and uses it as if there were one."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

import embedrock

BUCKETS = {"a": "0-340", "b": "341-681", "c": "682-1023"}

with embedrock.open("shop.store", memory="16MiB") as store:
    users = store.table("user", 8, 10_000, optimizer="sgd", initializer=0.0)
    users.put(np.arange(5000), np.ones((5000, 8), np.float32))
    store.commit(step=1)

nodes = []
for node, buckets in BUCKETS.items():
    embedrock.copy("shop.store", f"{node}.store", buckets=buckets)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    nodes.append({"id": node, "address": address, "buckets": buckets})
Path("map.json").write_text(json.dumps({"nodes": nodes}))

servers = []
for node in nodes:
    command = [sys.executable, "-m", "embedrock", "serve", f"{node['id']}.store", "--writable"]
    command += ["--listen", node["address"], "--cluster", "map.json", "--memory", "16MiB"]
    servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    servers[-1].stdout.readline()  # it listens

with embedrock.connect([f"redis://{node['address']}" for node in nodes]) as remote:
    users = remote["user"]
    rows, found = users.get([17, 342, 4242, 9999], found=True)
    print(rows[:, 0], found)
    users.update(np.arange(5000), np.ones((5000, 8), np.float32), lr=0.25)
    print(users.get([17, 342, 4242])[:, 0], "at step", remote.commit())

for server in servers:
    server.terminate()
print("ended with", [server.wait() for server in servers])
