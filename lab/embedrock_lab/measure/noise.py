"""Timing on machines that others use too.

A section of work is timed together with how long its thread was runnable without a core. A round
in which that was more than 3 % of the time is void and run again, for as long as the caller has
patience; systems run one after another within a round, and what counts is the median over rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["WAIT_SHARE_MAX", "Rounds", "Timed", "interleave"]

WAIT_SHARE_MAX = 0.03
"""A run whose measured thread waited longer for a core is void."""

PAUSE_S = 0.2
"""After a void round, so that a neighbour's burst can pass."""


class Timed:
    """Adds up timed sections of the thread that made it, and what was done in them.

    >>> timed = Timed()
    >>> with timed:
    ...     timed.work += sum([1, 2, 3])
    >>> timed.work, timed.seconds > 0
    (6.0, True)
    """

    def __init__(self) -> None:
        """Nothing timed yet."""
        self.seconds = 0.0
        self.waited = 0.0
        self.work = 0.0
        self.known = True
        self._schedstat = _open_schedstat()
        self.began = 0.0
        self.ended = 0.0
        self._waited_before = 0.0

    def __enter__(self) -> Timed:
        """Begins a section."""
        self._waited_before = self._waited_so_far()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.ended = time.perf_counter()
        self.seconds += self.ended - self.began
        self.waited += self._waited_so_far() - self._waited_before

    def __del__(self) -> None:
        """Closes the file of the kernel's count."""
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / self.seconds

    @property
    def wait_share(self) -> float | None:
        """Share of the time without a core; None where the kernel does not count it."""
        return self.waited / self.seconds if self.known and self.seconds else None

    def _waited_so_far(self) -> float:
        if self._schedstat is None:
            self.known = False
            return 0.0
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9


def _open_schedstat() -> int | None:
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return None
    if len(os.pread(file, 100, 0).split()) < 2:
        os.close(file)
        return None
    return file


@dataclass
class Rounds:
    """Measurements of ``interleave``: for each round, one result a system."""

    counted: list[list[Timed]]
    """The rounds that the medians are over."""
    void: int
    """Rounds that were thrown away."""
    busy: bool = False
    """Some that count waited for a core."""
    quiet: int | None = None
    """Number of counted rounds that did not, the first ones; None: all."""
    notes: list[str] = field(default_factory=list)
    """Notes for readers of the rounds."""

    def ratio(self, numerator: int, denominator: int) -> float:
        """Median over rounds of one system's rate divided by another's."""
        return statistics.median(r[numerator].rate / r[denominator].rate for r in self.counted)

    def quiet_ratio(self, numerator: int, denominator: int) -> float | None:
        """As :meth:`ratio`, over those rounds alone that did not wait; None without any."""
        rounds = self.counted[: self.quiet]
        if not rounds:
            return None
        return statistics.median(r[numerator].rate / r[denominator].rate for r in rounds)

    def rate(self, system: int) -> float:
        """Median over rounds of a system's rate."""
        return statistics.median(r[system].rate for r in self.counted)

    def summary(self) -> dict[str, object]:
        """For the report: how quiet it was."""
        shares = [_wait_share(one) for one in self.counted]
        known = [share for share in shares if share is not None]
        return {
            "rounds": len(self.counted),
            "void_rounds": self.void,
            "wait_share_max": round(max(known), 4) if known else None,
        }


def interleave(
    systems: Sequence[Callable[[], Timed]],
    rounds: int,
    patience_s: float,
    limit_s: float | None = None,
) -> Rounds:
    """Lets the systems run, one after another, until ``rounds`` rounds were quiet.

    Every other round begins with the last system. When patience ends first, the quietest of the
    void rounds fill up what is missing, and the notes say so. After ``limit_s`` no round begins but
    the first: fewer may count than ``rounds`` then.
    """
    quiet: list[list[Timed]] = []
    void: list[list[Timed]] = []
    begin = time.monotonic()
    while len(quiet) < rounds:
        late = limit_s is not None and time.monotonic() - begin > limit_s
        if late and (quiet or void):
            break
        places = range(len(systems))
        order = places if (len(quiet) + len(void)) % 2 == 0 else reversed(places)
        done = {i: systems[i]() for i in order}
        one = [done[i] for i in places]
        share = _wait_share(one)
        if share is None or share <= WAIT_SHARE_MAX:
            quiet.append(one)
            continue
        void.append(one)
        if len(quiet) + len(void) >= rounds and time.monotonic() - begin > patience_s:
            break
        time.sleep(PAUSE_S)
    void.sort(key=lambda one: _wait_share(one) or 0.0)
    filled = void[: rounds - len(quiet)]
    found = Rounds(quiet + filled, len(void) - len(filled), bool(filled), len(quiet))
    if filled:
        worst = max(_wait_share(one) or 0.0 for one in filled)
        found.notes.append(
            f"the machine was busy: {len(filled)} of {len(found.counted)} rounds waited for a core "
            f"more than {WAIT_SHARE_MAX:.0%} of the time, up to {worst:.0%}, the quietest of "
            f"{len(quiet) + len(void)} tried"
        )
    if any(_wait_share(one) is None for one in found.counted):
        found.notes.append("this kernel does not count waiting for a core: no round could be void")
    return found


def _wait_share(one: Sequence[Timed]) -> float | None:
    shares = [timed.wait_share for timed in one]
    known = [share for share in shares if share is not None]
    return max(known) if len(known) == len(shares) else None
