"""Trains GraphSAGE on files of a graph by the command line, and reads what nodes have learned."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import embedrock

NODES, KINDS = 2_000, 4
random = np.random.default_rng(0)
kinds = random.integers(0, KINDS, NODES)
edges = random.integers(0, NODES, (2, 12 * NODES))
alike = kinds[edges[0]] == kinds[edges[1]]
edges = edges[:, alike | (random.random(len(alike)) < 0.1)]  # most join nodes of one kind

folder = Path("graph")
folder.mkdir(exist_ok=True)
lines = [f"{first},{second}\n" for first, second in edges.T]
(folder / "edges.csv").write_text("source,target\n" + "".join(lines))
np.save(folder / "labels.npy", kinds)
features = random.standard_normal((NODES, 16)).astype(np.float32)
features[np.arange(NODES), kinds] += 1
np.save(folder / "features.npy", features)

command = "train --model graphsage --data graph --rows both --epochs 5 --split 60-20-20"
command += " --store nodes.store --memory 8MiB --model-option neighbors=8-4"
subprocess.run([sys.executable, "-m", "embedrock", *command.split()], check=True)

with embedrock.open("nodes.store", memory="8MiB", create=False, read_only=True) as store:
    table = store.table("nodes")
    print(f"step {store.step}: tables {', '.join(sorted(store.tables))}")
    print(f"{len(table):,} of {NODES:,} nodes have learned {table.embedding_dim} values")
