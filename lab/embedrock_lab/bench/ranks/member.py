"""One rank of ``bench ranks``: a process that is told what to do by lines on its standard input."""

from __future__ import annotations

import datetime
import json
import os
import sys
from typing import Any, TextIO

import torch
import torch.distributed as dist

import embedrock
from embedrock_lab.bench.ranks.exchanging import Exchanging
from embedrock_lab.bench.ranks.training import Training

__all__: list[str] = []

LIMIT_S = 120
MEMORY_FACTOR = 1.5
"""Memory ÷ bytes of all rows: every rank could hold them all."""


class Member:
    """The rank with its store."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Meets the other ranks, and makes and fills the tables."""
        os.sched_setaffinity(0, settings["cores"])
        torch.set_num_threads(1)
        torch.manual_seed(settings["seed"])
        dist.init_process_group(
            "gloo",
            init_method=f"file://{settings['meeting']}",
            rank=settings["rank"],
            world_size=settings["world"],
            timeout=datetime.timedelta(seconds=LIMIT_S),
        )
        row_bytes = 4 * (settings["dim"] + 1) * settings["rows"]
        row_bytes += 4 * settings["exchange_dim"] * settings["exchange_rows"]
        memory = int(MEMORY_FACTOR * row_bytes) + (64 << 20)
        store = embedrock.open(settings["store"], memory, seed=settings["seed"])
        stores: dict[str, Any] = {"plain": store, "narrow": store}
        if settings["world"] > 1:
            from embedrock.distributed import Shard

            stores = {
                "plain": Shard(store, timeout=LIMIT_S),
                "narrow": Shard(store, wire_dtype="bfloat16", timeout=LIMIT_S),
                "apart": embedrock.open(
                    settings["store"] + "-apart", memory, seed=settings["seed"]
                ),
            }
        self._training = Training(stores, settings)
        self._exchanging = Exchanging(stores, settings)

    def train(self, way: str, steps: int) -> dict[str, Any]:
        """Training, by a plain loop, with look-ahead, or with bfloat16 on the wire."""
        return self._training.round(way, steps)

    def exchange(self, way: str, batch: int, steps: int) -> dict[str, Any]:
        """Rows and gradients of uniform ids."""
        return self._exchanging.round(way, batch, steps)

    def compare(self) -> dict[str, Any]:
        """Values that ranks must agree on after training."""
        return self._training.compare()


def main(told: str, asked: TextIO, answers: TextIO) -> None:
    """Answers until there is nothing more to read."""
    member = Member(json.loads(told))
    print(json.dumps({}), file=answers, flush=True)
    for line in asked:
        wanted = json.loads(line)
        answer = getattr(member, wanted.pop("verb"))(**wanted)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin, sys.stdout)
