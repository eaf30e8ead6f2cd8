"""The decision whether announcing batches pays, from counted reads and measured steps.

Owns the choice of `LookaheadLoader` between announcing batches and passing them through, which give
the same results. Announcing hides waits for rows. It costs a look at the keys of each batch, the
window's memory, and time of its threads. So nothing is announced while steps hardly wait for rows.
If they do, steps with announced batches are compared with those before; if they are not faster,
announcing is set aside, and tried again later. It has no clock and no thread: its caller, which
hands batches out, reports the time of steps and the reads meanwhile.

Times are means: with look-ahead, waits come all at once where a group of batches begins.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

__all__ = ["Announcing", "Reads", "Verdict"]

_WAIT_SHARE = 0.02
"""Batches are announced where steps wait for rows this share of their time: what announcing can
save must be more than it costs."""
_RESIDENT = 1 / 1024
"""They are not any more where no larger share of the rows that are used has to be read."""
_SETTLE = 4
"""Steps after a change that say nothing, at least."""
_FILL = (24, 160)
"""With announced batches, steps until the window is filled: so many at least, and at most."""
_LOOK = 16
"""Steps of which a look at waits is made."""
_TRIAL = 64
"""Steps of which a mean is taken."""
_KEEP, _SET_ASIDE = 0.95, 0.97
"""Announcing begins to stay when its mean is below the first share of that without, and ends when
the mean without is below the second share of its own: equal ones change nothing."""
_EXCESS = 24.0
"""A way on trial is given up once it has taken the time of so many steps more than the other."""
_CLEARLY = 1.25
"""The plain loop is not measured any longer once its mean is above this share of the other."""
_OUTLIER = 16.0
"""A step counts as so many at most: it may have had an evaluation or a commit within."""
_COST = 0.02
"""Trials take at most this share of the time, as far as `_HOLD` allows."""
_HOLD = (512, 8192)
"""Steps until the other way is tried again: twice as many each time that nothing has changed."""
_WATCH = 256
"""Announced steps that are looked at together: rows of several groups of batches are read in so
many."""
_MORE_WAITING = 2.0
"""Waits that have grown so much since announcing was set aside end that after `_TRIAL` steps: a
table has outgrown its memory, say."""


@dataclass(frozen=True)
class Reads:
    """The reads of verbs and of the window of a store, as far as counted."""

    used: int = 0
    """Rows used by verbs."""
    read: int = 0
    """Rows read, by verbs and ahead of them."""
    wait_s: float = 0.0
    """Seconds in which verbs were blocked in reads."""

    def __add__(self, other: Reads) -> Reads:
        """Of both."""
        return Reads(self.used + other.used, self.read + other.read, self.wait_s + other.wait_s)

    def __sub__(self, other: Reads) -> Reads:
        """The reads since ``other``."""
        return Reads(self.used - other.used, self.read - other.read, self.wait_s - other.wait_s)


@dataclass(frozen=True)
class Verdict:
    """Announcing was measured to be no faster."""

    announced_s: float
    """Seconds of a step with announced batches, on average."""
    plain_s: float
    """Without."""
    steps: int
    """Steps of the former that were measured."""
    hold: int
    """Steps until it is tried again."""


class _Phase(Enum):
    PLAIN = "passes batches through"
    TRIAL = "announces them, to be compared with the steps before"
    KEPT = "announces them"
    CHECK = "passes them through, to be compared with the steps before"


class _Mean:
    """Mean of the last steps; what takes far longer than they counts as little more than they."""

    def __init__(self, steps: int) -> None:
        self._seconds: deque[float] = deque(maxlen=steps)

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, seconds: float) -> None:
        """Takes note of a step."""
        if len(self) >= _SETTLE:
            seconds = min(seconds, _OUTLIER * self.value)
        self._seconds.append(seconds)

    @property
    def value(self) -> float:
        """Seconds of a step; infinite before the first."""
        return sum(self._seconds) / len(self) if self._seconds else math.inf

    def clear(self) -> None:
        self._seconds.clear()


class Announcing:
    """Says whether the batches that are drawn next are announced."""

    def __init__(self, announce: bool | None) -> None:
        """Announces always, never, or, with None, where it pays."""
        self.announce = bool(announce)
        """Whether the next batches are announced."""
        self.decides = announce is None
        """Whether the choice is made here."""
        self.times = True
        """Whether steps are compared. Otherwise it goes by what they read alone."""
        self._phase = _Phase.PLAIN
        self._plain, self._announced = _Mean(_TRIAL), _Mean(_WATCH)
        self._reads: deque[tuple[float, Reads]] = deque(maxlen=_WATCH)
        self._unsettled = _SETTLE
        self._steps = 0
        """Of this phase, once they are settled."""
        self._all_steps = 0
        """Of this phase, all."""
        self._excess = 0.0
        """Accumulated excess of its steps over those of the other way, in steps."""
        self._checked = self._doubted = False
        """Whether this trial comes after a check, or is the second one in a row."""
        self._measured: tuple[float, int] | None = None
        """Seconds of an announced step, and how many there were, when announcing was set aside, as
        long as it is not known how long steps take since."""
        self._left = 0
        """Steps until the other way may be tried."""
        self._hold = _HOLD[0]
        self._set_aside = False
        self._waited_then = 0.0
        """Share of their time that steps waited before announcing was tried last."""

    @property
    def needs_window(self) -> bool:
        """Whether batches are announced, or may be again in a moment."""
        return self.announce or self._phase is _Phase.CHECK

    @property
    def resident(self) -> bool:
        """Whether batches are passed through because steps hardly wait for rows, or nobody has
        looked whether they do."""
        return self.decides and self._phase is _Phase.PLAIN and not self._set_aside

    def step(self, seconds: float, reads: Reads, filled: bool) -> Verdict | None:
        """Takes note of a step: its seconds without drawing, what was read meanwhile, and whether
        all is announced that is going to be. Tells when announcing is set aside."""
        if not self.decides:
            return None
        self._reads.append((seconds, reads))
        self._left = max(self._left - 1, 0)
        self._excess += min(seconds / self._other, _OUTLIER) - 1
        self._all_steps += 1
        if self._unsettled > 0:
            self._settle(filled)
            if self._phase is _Phase.TRIAL:
                self._give_up()
            return None
        self._steps += 1
        if self.announce:
            self._announced.add(seconds)
            self._announced_step()
            return None
        self._plain.add(seconds)
        return self._plain_step()

    def pass_over(self) -> None:
        """The window passes batches over: announcing does nothing, and is tried again as late as
        if it had been slower. Does nothing where the choice was the caller's."""
        if self.decides and self.announce:
            self._set_aside = True
            self._turn(_Phase.PLAIN, _SETTLE)
            self._put_off()

    def settle(self, steps: int) -> None:
        """The next steps have what was read ahead of them: they say nothing."""
        self._unsettled = max(self._unsettled, steps)

    @property
    def _other(self) -> float:
        """Seconds of a step of the way that the present one is compared with."""
        return self._plain.value if self.announce else self._announced.value

    def _settle(self, filled: bool) -> None:
        self._unsettled -= 1
        least, most = _FILL
        if self.announce and self._unsettled <= most - least and filled:
            self._unsettled = 0

    def _plain_step(self) -> Verdict | None:
        if self._phase is _Phase.CHECK:
            self._check()
            return None
        told = None
        if self._measured is not None and self._steps == _TRIAL:
            told, self._measured = self._confirm(*self._measured), None
        if self._steps % (_LOOK // 2) == 0 and self._steps >= _LOOK:
            waited = self._wait_share()
            more = self._steps >= _TRIAL and waited > _MORE_WAITING * self._waited_then
            if waited > _WAIT_SHARE and (self._left == 0 or more):
                self._set_aside, self._waited_then, self._measured = False, waited, None
                self._turn(_Phase.TRIAL, _FILL[1])
        return told

    def _announced_step(self) -> None:
        if self._steps >= _WATCH and self._steps % _LOOK == 0 and self._is_resident():
            self._turn(_Phase.PLAIN, _SETTLE)
            return
        if not self.times:
            return
        if self._phase is _Phase.TRIAL:
            self._try()
            return
        whole = len(self._announced) == _WATCH
        slower = whole and self._announced.value > _KEEP * self._plain.value
        if self._left == 0 or slower:
            self._turn(_Phase.CHECK, _SETTLE)

    def _wait_share(self) -> float:
        """Share of their time that the last steps waited for rows."""
        last = list(self._reads)[-_LOOK:]
        seconds = sum(seconds for seconds, _ in last)
        return sum(reads.wait_s for _, reads in last) / max(seconds, 1e-9)

    def _is_resident(self) -> bool:
        """Whether hardly any row has to be read."""
        used = sum(reads.used for _, reads in self._reads)
        return sum(reads.read for _, reads in self._reads) <= _RESIDENT * used

    def _try(self) -> None:
        """Whether announced batches stay."""
        if self._steps < _TRIAL:
            self._give_up()
        elif self._announced.value >= _KEEP * self._plain.value:
            self._put_aside(self._announced.value)
        else:
            # Caches may have been cold before the first trial.
            self._left = self._worth(self._excess) if self._checked else _WATCH
            self._phase, self._doubted = _Phase.KEPT, False

    def _give_up(self) -> None:
        """Sets announcing aside where it has been much slower for a while."""
        if self.times and self._excess > _EXCESS:
            self._put_aside(self._plain.value * (1 + self._excess / self._all_steps))

    def _check(self) -> None:
        """Whether batches are announced again: to be compared once more where they seem slower, for
        others may have had the cores meanwhile."""
        plain, announced = self._plain.value, self._announced.value
        faster = plain < _SET_ASIDE * announced
        clear = (self._steps >= _LOOK and plain > _CLEARLY * announced) or self._excess > _EXCESS
        if self._steps < _TRIAL and (faster or not clear):
            return
        self._checked = True
        if faster:
            self._turn(_Phase.TRIAL, _FILL[1])
            return
        self._hold = min(2 * self._hold, _HOLD[1])
        spent = self._excess
        self._turn(_Phase.KEPT, _FILL[1])
        self._left = self._worth(spent)

    def _put_aside(self, announced: float) -> None:
        spent, self._measured = self._excess, (announced, self._all_steps)
        self._set_aside, self._checked = True, False
        self._turn(_Phase.PLAIN, _SETTLE)
        self._put_off(spent)

    def _confirm(self, announced: float, steps: int) -> Verdict | None:
        """Whether announcing was slower than the plain loop is since, too: others may have had the
        cores. If not, it is tried once more."""
        self._doubted = not self._doubted and announced < _KEEP * self._plain.value
        if self._doubted:
            self._left = 0
            return None
        return Verdict(announced, self._plain.value, steps, self._left)

    def _put_off(self, spent: float = 0.0) -> None:
        self._left = self._worth(spent)
        self._hold = min(2 * self._hold, _HOLD[1])

    def _worth(self, spent: float) -> int:
        """Steps until the next trial, of which the last has cost the time of so many."""
        return min(max(self._hold, int(spent / _COST)), _HOLD[1])

    def _turn(self, phase: _Phase, unsettled: int) -> None:
        self._phase = phase
        self.announce = phase in (_Phase.TRIAL, _Phase.KEPT)
        self._unsettled, self._steps, self._all_steps, self._excess = unsettled, 0, 0, 0.0
        (self._announced if self.announce else self._plain).clear()
        self._reads.clear()
