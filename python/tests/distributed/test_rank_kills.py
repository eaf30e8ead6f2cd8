"""Ranks that die at any moment: all go on from a step that all have, bit for bit.

``test_rank_kills_long.py`` has them die at each point of a commit.
``EMBEDROCK_RANK_KILLS`` sets how often a rank is killed at a random moment.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import embedrock
from rankruns import STEPS_PER_SAVE, Chain, Rank

DELAY_S_MAX = 0.12
"""Of a life after what was heard of it: some saves."""


def whole_run(folder: Path, until: int) -> dict[tuple[int, int], str]:
    """Digests of the run after each save, by rank and step, when nobody is killed."""
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


@pytest.mark.long
def test_ranks_killed_at_random_moments_go_on_from_a_common_step(tmp_path: Path) -> None:
    kills = int(os.environ.get("EMBEDROCK_RANK_KILLS", "3"))
    killed_at_random(tmp_path, kills, int(os.environ.get("EMBEDROCK_SEED", "1")))
