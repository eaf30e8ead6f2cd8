"""Ranks that die at any point of a commit: all go on from a step that all have, bit for bit.

``EMBEDROCK_RANK_KILLS`` sets how often a rank is killed at a random moment.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import embedrock
from rankruns import STEPS_PER_SAVE, Chain, Rank, manifests

DELAY_S_MAX = 0.12
"""Of a life after what was heard of it: some saves."""


def whole_run(folder: Path, until: int) -> dict[tuple[int, int], str]:
    """What the run is after each save, by rank and step, when nobody is killed."""
    chain = Chain(folder, "whole")
    assert chain.live(until) == [0, 0]
    return chain.saved


def same_as_whole(chain: Chain, folder: Path) -> None:
    """Every save that was said, and the last of each rank, are those of the run that never
    stopped."""
    until = max(step for _, step in chain.saved)
    whole = whole_run(folder, until)
    assert chain.saved.items() <= whole.items()
    assert {(0, until), (1, until)} <= chain.saved.keys()
    for store in sorted(chain.path.glob("buckets-*")):
        assert embedrock.check(store)["problems"] == []


def killed_at_random(folder: Path, kills: int, seed: int) -> None:
    moments, chain = random.Random(seed), Chain(folder, "killed")

    def kill(ranks: list[Rank]) -> int:
        chosen = moments.randrange(len(ranks))
        # Some in the opening, others in commits, wherever a save is.
        ranks[1 - chosen].hear(*moments.choice([("resumed", 0), ("resumed", 1), ("saved", 2)]))
        time.sleep(moments.uniform(0, DELAY_S_MAX))
        return chosen

    for _ in range(kills):
        chain.live(1_000_000, kill=kill)
    begun = max(chain.resumed, default=0)
    last = begun + 2 * STEPS_PER_SAVE
    while not {(0, last), (1, last)} <= chain.saved.keys():
        assert chain.live(last) == [0, 0]
        last = max(last, chain.resumed[-1] + STEPS_PER_SAVE)
    same_as_whole(chain, folder)
    print(f"{kills} kills, seed {seed}: resumed at {chain.resumed}, then to step {last}")


def test_ranks_killed_at_random_moments_go_on_from_a_common_step(tmp_path: Path) -> None:
    kills = int(os.environ.get("EMBEDROCK_RANK_KILLS", "4"))
    killed_at_random(tmp_path, kills, int(os.environ.get("EMBEDROCK_SEED", "1")))


def test_a_rank_that_dies_beside_each_commit_leaves_a_common_step(tmp_path: Path) -> None:
    """Trap 10: deaths before and after each thing of a commit that is durable, rank by rank."""
    chain = Chain(tmp_path, "killed")
    lives = [
        ["after:commit:1"],  # rank 0 has a store, rank 1 perhaps
        [],  # both are made
        ["", "before:commit:1"],  # rank 0 alone has the save of step 2
        ["before:commit:1"],  # and dies before it drops that
        ["after:commit:1"],  # or has just dropped it
        ["after:commit:1"],  # both have that of step 2, and nobody says so
        ["before:write_manifest:1"],  # that of step 4 has no manifest
        ["", "after:commit:1"],
    ]
    for points in lives:
        statuses = chain.live(1_000_000 if points else 0, points=points)
        assert not points or sorted(statuses) == [-signal.SIGKILL, 1], (points, statuses)
    assert chain.live(10) == [0, 0]
    assert chain.resumed == [0, 0, 0, 2, 4, 6]
    same_as_whole(chain, tmp_path)
    newest = manifests(chain.path)[-1]
    assert newest["step"] == max(step for _, step in chain.saved)
    assert newest["buckets"] == ["0-511", "512-1023"]
    assert newest["world"] == 2 and sorted(newest["tables"]) == ["hours", "items"]
    assert len(manifests(chain.path)) == 2, "those of commits that are kept"
