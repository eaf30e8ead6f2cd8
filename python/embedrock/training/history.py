"""Course of a run: a bounded list of points, each the sums over some steps (`report.points`).

When there are too many, neighbours are merged, so a run of any length is described by 100 to 200.
"""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

from embedrock.report.counters import Counters
from embedrock.report.points import Point, merged
from embedrock.store import Store
from embedrock.training.trainer import Seconds

_POINTS_MAX = 200


class Timed(Protocol):
    """A trainer, of whatever model."""

    seconds: Seconds
    """The time of all its steps so far, by cause."""


class History:
    """Takes every step of a run and keeps points. Its clock runs from `resume` to `pause`."""

    def __init__(self, trainer: Timed, store: Store | None, steps_per_point: int = 1) -> None:
        """Of a trainer, and of the store that its tables are in, if they are in one; a point is
        taken every so many steps to begin with. The clock runs from here on."""
        self._trainer = trainer
        self._store = store
        self._points: list[Point] = []
        self._steps_per_point = steps_per_point
        self.resume()

    def resume(self) -> None:
        """Starts the clock: what came before is no part of the run."""
        self._running = True
        self._steps, self._samples, self._loss = 0, 0, 0.0
        self._time, self._seconds = perf_counter(), self._trainer.seconds.copy()
        self._counters = None if self._store is None else Counters.of(self._store)

    def step(self, loss: float, samples: int) -> None:
        """A step is complete."""
        self._steps += 1
        self._samples += samples
        self._loss += loss
        if self._steps >= self._steps_per_point:
            self._close()

    def pause(self) -> None:
        """Stops the clock; time since the last step, of a commit for example, counts with it."""
        if self._running:
            self._close()
            self._running = False

    def points(self) -> list[Point]:
        """All points so far, as JSON values, oldest first."""
        return list(self._points)

    def _close(self) -> None:
        """Makes a point of what came since the last one."""
        if self._steps == 0 and not self._points:
            return
        point: Point = {"steps": self._steps, "samples": self._samples}
        point["loss"] = self._loss / max(self._steps, 1)
        point["seconds"] = perf_counter() - self._time
        point |= (self._trainer.seconds - self._seconds).as_dict()
        if self._store is not None and self._counters is not None:
            point["engine"] = (Counters.of(self._store) - self._counters).counted()
        if self._steps == 0:
            point = merged(self._points.pop(), point)
        self._points.append(point)
        if len(self._points) > _POINTS_MAX:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            last = self._points[-1:] if len(self._points) % 2 else []
            self._points = [merged(*pair) for pair in pairs] + last
            self._steps_per_point *= 2
        self.resume()
