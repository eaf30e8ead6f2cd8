"""Whether overlapping pays: the choice, on made-up times of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embedrock.pipeline.pace import Pace

#: Batches between being drawn and being the one at hand, while they are overlapped.
DRAWN_AHEAD = 3


def overlapped_steps(
    pace: Pace, steps: int, seconds: Callable[[int, bool], float]
) -> list[tuple[bool, float]]:
    """Makes steps that take ``seconds(step, overlapped)``; how each was made, and its time."""
    waiting: list[bool] = []
    made = []
    for step in range(steps):
        while len(waiting) <= (DRAWN_AHEAD - 1 if pace.overlap else 0):
            waiting.append(pace.overlap)
        overlapped = waiting.pop(0)
        took = seconds(step, overlapped)
        pace.step(took, overlapped)
        made.append((overlapped, took))
    return made


def share(made: list[tuple[bool, float]]) -> float:
    return sum(overlapped for overlapped, _ in made) / len(made)


def cost(made: list[tuple[bool, float]], best: float) -> float:
    """Time beyond that of the faster way, as a share of it."""
    return sum(took for _, took in made) / (best * len(made)) - 1


@pytest.mark.parametrize(("overlapped", "alone"), [(0.06, 0.1), (0.1, 0.06), (0.1, 0.09)])
def test_the_faster_way_is_kept_and_trying_the_other_costs_little(
    overlapped: float, alone: float
) -> None:
    made = overlapped_steps(Pace(None), 20_000, lambda _, way: overlapped if way else alone)
    assert (share(made) > 0.98) == (overlapped < alone)
    assert (share(made) < 0.02) == (overlapped > alone)
    assert cost(made[64:], min(overlapped, alone)) < 0.01
    assert len({way for way, _ in made[10_000:]}) == 2  # and it is tried again


@pytest.mark.parametrize(("slower", "least"), [(0.052, 128), (0.075, 400), (0.1, 800)])
def test_a_way_that_is_much_slower_is_tried_again_later(slower: float, least: int) -> None:
    made = overlapped_steps(Pace(None), 2000, lambda _, way: slower if way else 0.05)
    starts = [step for step in range(1, 2000) if made[step][0] and not made[step - 1][0]]
    end_of_first, second, third, *_ = starts
    assert 60 < second - end_of_first < 120  # the first is the beginning, and says little
    assert least <= third - second < least + 80


def test_a_disturbance_of_one_trial_puts_off_the_next_one_no_longer_than_usual() -> None:
    def seconds(step: int, overlapped: bool) -> float:
        # The second trial falls on a commit, which makes the way that it tries look slow.
        return 0.3 if overlapped and 100 < step < 200 else 0.052 if overlapped else 0.05

    made = overlapped_steps(Pace(None), 600, seconds)
    starts = [step for step in range(1, 600) if made[step][0] and not made[step - 1][0]]
    assert 100 < starts[1] < 200
    assert 128 <= starts[2] - starts[1] < 220


@pytest.mark.parametrize("overlapped", [0.04, 0.06])
def test_who_stands_aside_begins_the_other_way_and_measures_later(overlapped: float) -> None:
    pace = Pace(None)
    before = overlapped_steps(pace, 6, lambda _, __: 0.05)
    pace.stand_aside()
    made = overlapped_steps(pace, 5000, lambda _, way: overlapped if way else 0.05)
    assert all(way for way, _ in before)
    starts = [step for step in range(1, 5000) if made[step][0] and not made[step - 1][0]]
    assert 64 <= starts[0] < 128
    assert (share(made[starts[0] :]) > 0.9) == (overlapped < 0.05)
    pace.stand_aside()  # measured means measured
    assert pace.overlap == (overlapped < 0.05)


def test_what_the_caller_has_chosen_stays() -> None:
    pace = Pace(True)
    pace.stand_aside()
    assert pace.overlap


def test_as_fast_either_way_it_stays_as_it_is() -> None:
    assert share(overlapped_steps(Pace(None), 5000, lambda _, __: 0.05)) > 0.97


@pytest.mark.parametrize("gain", [0.85, 1.15])
def test_noise_and_slow_steps_do_not_mislead_it(gain: float) -> None:
    right = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        noise = random.lognormal(0, 0.1, 2000) + (random.random(2000) < 0.05) * 5  # and commits
        times = {True: gain, False: 1.0}
        made = overlapped_steps(Pace(None), 2000, lambda i, way, n=noise, t=times: t[way] * n[i])
        right += (share(made[64:]) > 0.5) == (gain < 1)
    assert right >= 38


def test_a_table_that_outgrows_its_memory_is_noticed_before_the_next_trial_is_due() -> None:
    def seconds(step: int, overlapped: bool) -> float:
        if step < 3000:
            return 0.09 if overlapped else 0.05
        return 0.1 if overlapped else 0.15

    made = overlapped_steps(Pace(None), 3300, seconds)
    assert not made[2990][0]
    assert share(made[3150:]) > 0.85  # and alone is tried again soon, in 16 of these steps


def test_what_was_faster_while_memory_filled_does_not_stay_for_long() -> None:
    def seconds(step: int, overlapped: bool) -> float:
        faster = overlapped == (step < 60)
        return 0.05 if faster else 0.058  # too little to be noticed without trying

    made = overlapped_steps(Pace(None), 600, seconds)
    assert share(made[:60]) > 0.5
    assert share(made[160:]) < 0.12


@pytest.mark.parametrize("way", [True, False])
def test_what_is_decided_is_never_measured(way: bool) -> None:
    made = overlapped_steps(Pace(way), 1000, lambda _, overlapped: 2.0 if overlapped == way else 1)
    assert {overlapped for overlapped, _ in made} == {way}
