"""The stores of ranks behind a cluster client: what ranks have trained is what clients read."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import embedrock
import ranks
import servers
from clusters import free_ports
from embedrock.remote import buckets_of

DIM, IDS = 8, 5000
DENSE, KEYS = np.arange(0, IDS, 3), np.arange(IDS) * 7919


def train(rank: int, world: int, folder: str) -> Any:
    """A step on a dense and a growing table; then what a rank reads of both, and its buckets."""
    from embedrock.distributed import Shard

    store = embedrock.open(Path(folder) / f"{rank}.store", "32MiB", seed=5)
    with Shard(store) as shard:
        found = []
        for name, ids, keys in (("user", IDS, DENSE), ("item", None, KEYS)):
            table = shard.table(name, DIM, ids, optimizer="adagrad")
            own = keys[rank::world]
            table.update(own, np.ones((len(own), DIM), np.float32), lr=0.25)
            found.append(table.get(keys))
        store.commit(4)
        return found, shard.buckets.tolist()


def test_stores_of_ranks_are_served_as_one(tmp_path: Path) -> None:
    trained = ranks.run(2, train, str(tmp_path))
    (users, items), _ = trained[0]
    nodes = [
        {
            "id": f"rank-{rank}",
            "address": f"127.0.0.1:{port}",
            "buckets": f"{buckets[0]}-{buckets[-1]}",
        }
        for rank, ((_, buckets), port) in enumerate(zip(trained, free_ports(2), strict=True))
    ]
    (tmp_path / "map.json").write_text(json.dumps({"nodes": nodes}))
    with contextlib.ExitStack() as stack:
        for rank, node in enumerate(nodes):
            options = ["--listen", node["address"], "--cluster", str(tmp_path / "map.json")]
            served = servers.serving(tmp_path / f"{rank}.store", *options, "--threads", "1")
            stack.enter_context(served)
        remote = stack.enter_context(
            embedrock.connect([f"redis://{node['address']}" for node in nodes])
        )
        assert remote["user"].num_embeddings == IDS
        np.testing.assert_array_equal(remote["user"].get(DENSE), users)
        np.testing.assert_array_equal(remote["item"].get(KEYS), items)
        # Nobody has written these: they read as on any rank, by the id alone.
        rest = np.setdiff1d(np.arange(IDS), DENSE)
        rows, found = remote["user"].get(rest, found=True)
        assert not found.any()
        with embedrock.open(tmp_path / "0.store", "32MiB", read_only=True) as store:
            np.testing.assert_array_equal(rows, store.table("user").get(rest))
            here = np.concatenate(list(store.table("user").keys()))
            assert 0 < len(here) < len(DENSE) and (buckets_of(here, dense=True) < 512).all()
