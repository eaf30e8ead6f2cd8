"""Whether overlapping pays, by measuring.

Owns the choice between two ways of working that give the same results: batches that are read and
updated beside the loop, and batches of which the loop does all itself. Overlapping hides the disk
and costs switching between threads, and which of them is more depends on the model, the cores, the
device and what is in memory. So both are tried on the training itself: some steps as it is, some
the other way, some as it was again, and the one with the lower median is kept for a while. It
has no clock and no thread: who makes steps says how long they took.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

__all__ = ["Pace"]

_SETTLE = 4
"""Steps after a change that say nothing: batches of the old way are still under way."""
_TRIAL = 12
"""Steps of which a median is taken."""
_GAIN = 0.98
"""The other way is taken when its median is below this share of the present one's."""
_HOLD_MIN, _HOLD_MAX = 64, 4096
"""Steps until the other way is tried again: at least doubled each time that nothing has changed.
The first trial says little, for caches and windows are still being filled."""
_COST = 0.02
"""Trying a way that two trials in a row have found slower takes at most this share of the time, as
far as `_HOLD_MAX` allows: the slower it was, the later it is tried again."""
_WORSE = 1.3
"""A median this much above the one that decided ends the wait, but not before `_HOLD_MIN` steps: a
table has outgrown its memory, say."""


class Pace:
    """Says for each batch that is drawn whether it is read and updated beside the loop."""

    def __init__(self, overlap: bool | None) -> None:
        """Overlaps always, never, or, with None, where that is faster."""
        self.overlap = True if overlap is None else overlap
        """Whether the next batch that is drawn is to be overlapped."""
        self.measures = overlap is None
        """Whether the choice is made here."""
        self.measured = False
        """Whether either way was tried, or the first one given up."""
        self._recent: deque[float] = deque(maxlen=_TRIAL)
        self._unsettled = _SETTLE
        self._medians: list[float] = []
        """Of the trial under way: as it was, the other way, as it was again."""
        self._hold = _HOLD_MIN
        self._left = 0
        """Steps until the next trial may begin; none while one is under way."""
        self._reference = 0.0
        self._slower = 1.0
        """Slowdown of the other way relative to the chosen one, in the last trial."""

    def step(self, seconds: float, overlapped: bool) -> None:
        """Takes note of how long the step of one batch took, and how it was made."""
        if not self.measures or overlapped != self.overlap:
            return
        if self._unsettled > 0:
            self._unsettled -= 1
            return
        self._recent.append(seconds)
        self._left = max(self._left - 1, 0)
        if len(self._recent) < _TRIAL or not self._due():
            return
        self._medians.append(median(self._recent))
        if len(self._medians) < 3:
            self._turn()
        else:
            self._decide()

    def stand_aside(self) -> None:
        """Begins without overlapping where it is likely not to pay, and measures that as late as if
        it had been measured now. Does nothing once something was."""
        if self.measures and self.overlap and not self.measured:
            self.measured = True
            self._turn()
            self._medians = []
            self._left = self._hold = _HOLD_MIN
            self._reference = math.inf  # no step is too slow beside what was not measured

    def _due(self) -> bool:
        if self._left == 0:
            return True
        passed = self._hold - self._left
        if passed < _HOLD_MIN or passed % _TRIAL:
            return False
        if median(self._recent) <= _WORSE * self._reference:
            return False
        self._left, self._hold, self._slower = 0, _HOLD_MIN, 1.0
        return True

    def _turn(self) -> None:
        self.overlap = not self.overlap
        self._recent.clear()
        self._unsettled = _SETTLE

    def _decide(self) -> None:
        before, other, after = self._medians
        self._medians, self.measured = [], True
        present = (before + after) / 2
        if other < _GAIN * present:
            self._turn()
            self._hold = _HOLD_MIN
            self._reference, self._slower = other, present / max(other, 1e-9)
        else:
            slower = other / max(present, 1e-9)
            # The result of one trial alone may be a disturbance.
            self._hold = self._longer(min(slower, self._slower)) if self._reference else _HOLD_MIN
            self._reference, self._slower = present, slower
        self._left = self._hold

    def _longer(self, slower: float) -> int:
        """Steps until the next trial, when two have found the other way so much slower."""
        worth = int((_SETTLE + _TRIAL) * (slower - 1) / _COST)
        return min(max(2 * self._hold, worth), _HOLD_MAX)
