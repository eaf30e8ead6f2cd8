"""Moves a bucket of keys from one server to another, while a client reads them all the time."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import embedrock
from embedrock.remote import buckets_of

BUCKET, KEYS = 17, np.arange(5000)
BEFORE, AFTER = {"a": "0-511", "b": "512-1023"}, {"a": "0-16,18-511", "b": "17,512-1023"}

with embedrock.open("shop.store", memory="16MiB") as store:
    users = store.table("user", 8, 10_000, optimizer="adagrad")
    users.update(KEYS, np.ones((5000, 8), np.float32), lr=0.25)
    store.commit(step=1)
    expected = users.get(KEYS)

addresses = {}
for node, buckets in BEFORE.items():
    embedrock.copy("shop.store", f"{node}.store", buckets=buckets)
    with socket.create_server(("127.0.0.1", 0)) as free:
        addresses[node] = f"127.0.0.1:{free.getsockname()[1]}"


def write_map(owned):
    """Says which server has which buckets."""
    nodes = [{"id": n, "address": addresses[n], "buckets": owned[n]} for n in owned]
    Path("map.json").write_text(json.dumps({"nodes": nodes}))


def reload_map(node):
    """Does the same as `redis-cli -p PORT EMB.CLUSTER RELOAD`."""
    host, _, port = addresses[node].partition(":")
    with socket.create_connection((host, int(port))) as server:
        server.sendall(b"*2\r\n$11\r\nEMB.CLUSTER\r\n$6\r\nRELOAD\r\n")
        assert server.recv(100) == b"+OK\r\n"


write_map(BEFORE)
servers = []
for node, address in addresses.items():
    command = [sys.executable, "-m", "embedrock", "serve", f"{node}.store", "--memory", "16MiB"]
    command += ["--listen", address, "--cluster", "map.json"]
    servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    servers[-1].stdout.readline()  # it listens

moved, answers = threading.Event(), []


def read():
    """Asks for all rows, over and over."""
    with embedrock.connect(f"redis://{addresses['a']}", cluster=True) as remote:
        while not moved.is_set():
            answers.append(np.array_equal(remote["user"].get(KEYS), expected))


reader = threading.Thread(target=read, daemon=True)
reader.start()

# Its rows, with the optimizer's state, go to the store of "b", whose server follows.
with (
    embedrock.open("a.store", memory="16MiB", read_only=True) as giving,
    embedrock.open("b.store", memory="16MiB") as taking,
):
    for name, table in giving.tables.items():
        for keys, values, state in table.items(state=True):
            own = buckets_of(keys, dense=table.num_embeddings is not None) == BUCKET
            taking.tables[name].put(keys[own], values[own], state=state[own])
    taking.commit(step=taking.step + 1)
with embedrock.connect(f"redis://{addresses['b']}") as remote:
    print("b is at step", remote.refresh())

# The new owner learns the new map first: until "a" does, both answer.
write_map(AFTER)
reload_map("b")
reload_map("a")
with embedrock.connect(f"redis://{addresses['a']}", cluster=True) as remote:
    print("moved:", np.array_equal(remote["user"].get(KEYS), expected))
moved.set()
reader.join()
print("always the same rows:", len(answers) > 0 and all(answers))

for server in servers:
    server.terminate()
    server.wait()
