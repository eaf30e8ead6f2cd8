"""Whether announcing pays: the choice, on made-up times of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embedrock.pipeline.announcing import Announcing, Reads, Verdict

USED = 10_000
#: Reads and waits of steps without announcements.
OUT_OF_CORE = Reads(USED, 1000, 0.004)
RESIDENT = Reads(USED, 0, 0.0)
#: Announced steps until the window is filled.
FILLING = 60


class Loop:
    """A loop whose steps take as long as the test says."""

    def __init__(self, announce: bool | None = None) -> None:
        self.announcing = Announcing(announce)
        self.made: list[tuple[bool, float]] = []
        self.verdicts: list[Verdict] = []
        self.since = 0

    def run(
        self, steps: int, seconds: Callable[[int, bool], float], reads: Reads = OUT_OF_CORE
    ) -> None:
        for step in range(steps):
            announced = self.announcing.announce
            took = seconds(step, announced)
            self.made.append((announced, took))
            # Steps do not wait for rows that were read ahead.
            seen = Reads(reads.used, reads.read, 0.0) if announced else reads
            verdict = self.announcing.step(took, seen, announced and self.since >= FILLING)
            if verdict is not None:
                self.verdicts.append(verdict)
            self.since = self.since + 1 if self.announcing.announce == announced else 0

    def share(self, begin: int = 0) -> float:
        made = self.made[begin:]
        return sum(announced for announced, _ in made) / len(made)

    def cost(self, best: float, begin: int = 0) -> float:
        """Time beyond that of the faster way, as a share of it."""
        made = self.made[begin:]
        return sum(took for _, took in made) / (best * len(made)) - 1


@pytest.mark.parametrize(
    ("announced", "plain"), [(0.06, 0.1), (0.1, 0.06), (0.1, 0.09), (0.8, 0.1)]
)
def test_the_faster_way_is_kept_and_trying_the_other_costs_little(
    announced: float, plain: float
) -> None:
    loop = Loop()
    loop.run(20_000, lambda _, way: announced if way else plain)
    assert (loop.share() > 0.95) == (announced < plain)
    assert (loop.share() < 0.07) == (announced > plain)
    assert loop.cost(min(announced, plain), 2000) < 0.02
    assert {way for way, _ in loop.made[10_000:]} == {True, False}  # and it is tried again
    assert bool(loop.verdicts) == (announced > plain)


def test_nothing_is_announced_while_rows_are_in_memory_and_soon_once_they_are_missed() -> None:
    loop = Loop()
    loop.run(5000, lambda _, way: 0.02 if way else 0.01, RESIDENT)
    assert loop.share() == 0 and loop.announcing.resident and not loop.verdicts
    loop.run(200, lambda _, way: 0.01 if way else 0.02)
    assert loop.share(5050) == 1 and not loop.announcing.resident


def test_a_cache_that_fits_all_but_a_few_rows_is_one_that_fits_all() -> None:
    few = Reads(USED, 5, 0.0001)
    loop = Loop()
    loop.run(1000, lambda *_: 0.01, few)
    assert loop.share() == 0
    loop.run(1000, lambda _, way: 0.01 if way else 0.02)
    assert loop.announcing.announce
    loop.run(400, lambda *_: 0.01, few)
    assert not loop.announcing.announce and loop.announcing.resident


def test_groups_that_are_read_all_at_once_are_not_taken_for_rows_in_memory() -> None:
    loop = Loop()
    loop.run(100, lambda *_: 0.02)
    for _ in range(40):
        loop.run(1, lambda _, way: 0.2 if way else 0.02, Reads(USED, 100_000, 0.004))
        loop.run(127, lambda _, way: 0.01 if way else 0.02, RESIDENT)
    assert loop.share() > 0.9


def test_waits_at_the_borders_of_groups_count() -> None:
    # Most steps are faster with look-ahead; what the few at borders wait makes it slower.
    loop = Loop()
    loop.run(6000, lambda step, way: (0.15 if step % 40 == 0 else 0.008) if way else 0.01)
    assert loop.share() < 0.15
    assert loop.cost(0.01, 1000) < 0.03


@pytest.mark.parametrize("gain", [0.6, 1.6])
def test_noise_and_slow_steps_do_not_mislead_it(gain: float) -> None:
    for seed in range(10):
        random = np.random.default_rng(seed)

        def seconds(step: int, way: bool, random: np.random.Generator = random) -> float:
            slow = 3.0 if step % 500 == 499 else 0.0  # an evaluation
            return slow + 0.01 * random.lognormal(0, 0.4) / (gain if way else 1)

        loop = Loop()
        loop.run(8000, seconds)
        assert (loop.share() > 0.8) == (gain > 1), seed
        assert (loop.share() < 0.2) == (gain < 1), seed


def test_a_way_as_fast_as_the_other_is_not_changed_by_noise() -> None:
    random = np.random.default_rng(5)
    loop = Loop()
    loop.run(20_000, lambda *_: 0.01 * random.lognormal(0, 0.2))
    changes = sum(a[0] != b[0] for a, b in zip(loop.made, loop.made[1:], strict=False))
    assert changes < 24


def test_what_was_set_aside_is_tried_soon_where_steps_wait_far_longer_than_then() -> None:
    loop = Loop()
    loop.run(1000, lambda _, way: 0.013 if way else 0.01, Reads(USED, 50, 0.0004))
    assert not loop.announcing.announce and len(loop.verdicts) == 1
    loop.run(300, lambda _, way: 0.01 if way else 0.02, Reads(USED, 3000, 0.008))
    assert loop.announcing.announce


def test_a_machine_that_gets_busy_ends_look_ahead_before_it_is_due() -> None:
    loop = Loop()
    loop.run(4000, lambda _, way: 0.006 if way else 0.01)
    assert loop.announcing.announce
    loop.run(600, lambda _, way: 0.03 if way else 0.012)
    assert not loop.announcing.announce and len(loop.verdicts) == 1
    assert loop.verdicts[0].plain_s == pytest.approx(0.012)


# Other programs had the cores while batches were announced, and not while the plain loop was
# measured: look-ahead that was 1.6 times as fast was set aside for a thousand steps.
def test_what_others_do_meanwhile_sets_nothing_aside() -> None:
    loop = Loop()

    def seconds(step: int, way: bool) -> float:
        others = way and not any(plain for plain in checks) and loop.since > 150
        checks.append(not way and step > 100)
        return (0.03 if others else 0.01) if way else 0.016

    checks: list[bool] = []
    loop.run(1000, seconds)
    assert any(checks) and loop.share(500) > 0.8 and not loop.verdicts


def test_a_window_that_passes_batches_over_is_left_alone_for_a_while() -> None:
    loop = Loop()
    loop.run(60, lambda *_: 0.01)
    assert loop.announcing.announce
    loop.announcing.pass_over()
    loop.run(400, lambda *_: 0.01)
    assert loop.share(60) == 0


@pytest.mark.parametrize("way", [True, False])
def test_what_is_decided_is_never_measured(way: bool) -> None:
    loop = Loop(announce=way)
    loop.run(3000, lambda _, way: 0.2 if way else 0.01)
    loop.announcing.pass_over()
    assert loop.share() == float(way) and loop.announcing.announce == way
