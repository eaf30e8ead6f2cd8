"""How a run went: a bounded list of points, each the sums over some steps.

A point has the steps, samples and seconds that it covers, the mean loss, where the time went, and
what the engine counted. When there are too many points, neighbours are merged, so a run of any
length is described by 100 to 200 of them.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from embedrock.store import Store
from embedrock.training.engine import Counters
from embedrock.training.trainer import Trainer

_POINTS_MAX = 200

Point = dict[str, Any]


class History:
    """Takes every step of a run and keeps points."""

    def __init__(self, trainer: Trainer, store: Store | None, steps_per_point: int = 1) -> None:
        """Of a trainer, and of the store that its tables are in, if they are in one; a point is
        taken every so many steps to begin with."""
        self._trainer = trainer
        self._store = store
        self._points: list[Point] = []
        self._steps_per_point = steps_per_point
        self.resume()

    def resume(self) -> None:
        """Begins to count from here on: call it after anything that is no part of the run."""
        self._steps, self._samples, self._loss = 0, 0, 0.0
        self._time, self._seconds = perf_counter(), self._trainer.seconds.copy()
        self._counters = None if self._store is None else Counters.of(self._store)

    def step(self, loss: float, samples: int) -> None:
        """A step is complete."""
        self._steps += 1
        self._samples += samples
        self._loss += loss
        if self._steps >= self._steps_per_point:
            self.pause()

    def pause(self) -> None:
        """Closes the point under way; the next one begins with the next step."""
        if self._steps == 0:
            return
        point: Point = {"steps": self._steps, "samples": self._samples}
        point["loss"] = self._loss / self._steps
        point["seconds"] = perf_counter() - self._time
        point |= (self._trainer.seconds - self._seconds).as_dict()
        if self._store is not None and self._counters is not None:
            point["engine"] = (Counters.of(self._store) - self._counters).counted()
        self._points.append(point)
        if len(self._points) > _POINTS_MAX:
            self._points = [_merged(*self._points[i : i + 2]) for i in range(0, _POINTS_MAX, 2)] + (
                self._points[_POINTS_MAX:]
            )
            self._steps_per_point *= 2
        self.resume()

    def points(self) -> list[Point]:
        """All points so far, as JSON values, oldest first."""
        self.pause()
        return list(self._points)


def hit_rate(point: Point) -> float | None:
    """That of a point; None without a store or before rows exist."""
    if "engine" not in point:
        return None
    counters = Counters.from_dict(point["engine"])
    return counters.hit_rate if counters.hits + counters.rescued + counters.misses else None


def _merged(one: Point, two: Point) -> Point:
    steps = one["steps"] + two["steps"]
    merged: Point = {name: one[name] + two[name] for name in one if name not in ("loss", "engine")}
    merged["loss"] = (one["loss"] * one["steps"] + two["loss"] * two["steps"]) / steps
    if "engine" in one and "engine" in two:
        merged["engine"] = (
            Counters.from_dict(one["engine"]) + Counters.from_dict(two["engine"])
        ).counted()
    return merged
