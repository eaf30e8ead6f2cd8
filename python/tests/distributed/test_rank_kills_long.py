"""Thirty kills of ranks at random moments, and one at each point of a commit: `make contests`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from test_rank_kills import killed_at_random, same_as_whole

from rankruns import Chain, manifests

pytestmark = pytest.mark.long


def test_thirty_kills_at_random_moments_leave_a_common_step_each_time(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 30, 30)


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
