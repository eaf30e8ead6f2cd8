"""Points of a run's history: sums over some steps, as JSON values, and what follows from them.

| key | content |
|---|---|
| `steps`, `samples`, `seconds` | what the point covers |
| `loss` | mean over its steps |
| `embedding`, `computing`, `updating` | seconds, as `training.trainer.Seconds` says |
| `engine` | what the engine counted (`report.counters`), for tables in a store |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embedrock.report.counters import Counters

Point = dict[str, Any]


def merged(one: Mapping[str, Any], two: Mapping[str, Any]) -> Point:
    """The point that covers both, which follow each other."""
    steps = one["steps"] + two["steps"]
    point: Point = {name: one[name] + two[name] for name in one if name not in ("loss", "engine")}
    point["loss"] = (one["loss"] * one["steps"] + two["loss"] * two["steps"]) / steps
    if "engine" in one and "engine" in two:
        first, second = (Counters.from_dict(some["engine"]) for some in (one, two))
        point["engine"] = (first + second).counted()
    return point


def hit_rate(point: Mapping[str, Any]) -> float | None:
    """That of a point; None without a store, or when no row was asked for that exists."""
    if "engine" not in point:
        return None
    counters = Counters.from_dict(point["engine"])
    return counters.hit_rate if counters.hits + counters.rescued + counters.misses else None


def time_split(points: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of a run by what they went into. Waiting for reads is taken out of the others: it
    happens while embeddings are fetched, and where an update must read rows that left memory."""
    waiting = sum(point["engine"]["read_wait_s"] for point in points if "engine" in point)
    embedding, computing, updating, seconds = (
        sum(point[name] for point in points)
        for name in ("embedding", "computing", "updating", "seconds")
    )
    fetching = min(waiting, embedding)
    return {
        "waiting_for_reads": waiting,
        "computing": computing + embedding - fetching,
        "updating": max(updating - (waiting - fetching), 0.0),
        "batches_and_commits": max(seconds - embedding - computing - updating, 0.0),
    }
