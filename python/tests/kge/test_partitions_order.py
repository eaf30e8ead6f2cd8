"""The order of partitions alone: no store, no edges."""

from __future__ import annotations

import numpy as np
import pytest

from embedrock.kge.partitions.order import Plan, beta_swaps, least_swaps, plan

SIZES = [(8, 2), (16, 4), (32, 8), (32, 16), (40, 4), (160, 16), (33, 7), (5, 5), (1, 1)]


def planned(counts: np.ndarray, buffer: int, order: str, seed: int = 0, logical: int = 1) -> Plan:
    return plan(counts, buffer, order, logical, np.random.default_rng(seed))


def full(partitions: int) -> np.ndarray:
    return np.ones((partitions + 1, partitions + 1), np.int64)


@pytest.mark.parametrize(("partitions", "buffer"), SIZES)
@pytest.mark.parametrize("order", ["beta", "comet"])
def test_every_bucket_is_trained_once_while_both_partitions_are_there(
    partitions: int, buffer: int, order: str
) -> None:
    logical = 2 if order == "comet" and buffer >= 4 else 1
    found = planned(full(partitions), buffer, order, logical=logical)
    assert all(len(state) <= buffer for state in found.states)
    assert found.state_of.min() >= 0
    for (head, tail), state in np.ndenumerate(found.state_of):
        there = {*found.states[state], partitions}
        assert {head, tail} <= there


@pytest.mark.parametrize(("partitions", "buffer"), SIZES)
def test_beta_has_the_swaps_of_its_paper(partitions: int, buffer: int) -> None:
    found = planned(full(partitions), buffer, "beta")
    assert found.swaps == beta_swaps(partitions, buffer)
    assert least_swaps(partitions, buffer) <= found.swaps


def test_the_papers_own_figures() -> None:
    found = [(beta_swaps(p, c), least_swaps(p, c)) for p, c in SIZES[2:6]]
    assert found == [(78, 67), (33, 26), (270, 258), (909, 840)]


def test_comet_passes_over_the_table_little_more_often_than_beta() -> None:
    for partitions, buffer in [(64, 16), (160, 16), (256, 64)]:
        counts = full(partitions)
        comet = planned(counts, buffer, "comet", logical=max(buffer // 8, 1))
        assert comet.swaps <= 1.1 * beta_swaps(partitions, buffer)


def test_orders_are_functions_of_the_generator_and_differ_between_epochs() -> None:
    for order in ("beta", "comet"):
        again = [planned(full(20), 6, order, seed, 2) for seed in (1, 1, 2)]
        assert again[0].states == again[1].states != again[2].states
        assert np.array_equal(again[0].state_of, again[1].state_of)


def test_comet_trains_buckets_in_any_state_that_has_them() -> None:
    found = planned(full(24), 8, "comet", logical=2)
    first = {}
    for number, state in enumerate(found.states):
        for head in state:
            for tail in state:
                first.setdefault((head, tail), number)
    later = sum(found.state_of[pair] > number for pair, number in first.items())
    assert later > len(first) / 20


def test_pairs_without_edges_need_no_swaps() -> None:
    # Two halves that have no edges with each other.
    counts = full(16)
    counts[:8, 8:16] = counts[8:16, :8] = 0
    found = planned(counts, 4, "beta")
    assert found.swaps < 0.6 * beta_swaps(16, 4)
    assert ((found.state_of >= 0) == (counts > 0)).all()
    # Nothing but edges with rows that stay: each partition comes once.
    counts = np.zeros((17, 17), np.int64)
    counts[16] = counts[:, 16] = 1
    found = planned(counts, 4, "beta")
    assert found.swaps == 16 - 4
    assert sorted({p for state in found.states for p in state}) == list(range(16))


def test_rows_of_most_edges_that_stay_save_swaps() -> None:
    """A power law, ids by degree: without its hubs few of the last partitions have edges left."""
    random, rows, partitions = np.random.default_rng(3), 20_000, 64
    ends = (rows * random.random((30_000, 2)) ** 4).astype(np.int64)

    def counts(hubs: int) -> np.ndarray:
        part = np.where(ends < hubs, partitions, ends * partitions // rows)
        flat = part[:, 0] * (partitions + 1) + part[:, 1]
        return np.bincount(flat, minlength=(partitions + 1) ** 2).reshape(partitions + 1, -1)

    without, with_hubs = (planned(counts(hubs), 8, "beta").swaps for hubs in (0, rows // 20))
    assert with_hubs < without <= beta_swaps(partitions, 8)


def test_random_order_is_one_state() -> None:
    found = planned(full(9), 3, "random")
    assert found.states == [tuple(range(9))]
    assert found.swaps == 0
