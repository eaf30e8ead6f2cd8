from __future__ import annotations

import math

import numpy as np
import pytest

from embedrock.training.auc import auc, average_precision, log_loss


def brute_force(labels: np.ndarray, scores: np.ndarray) -> float:
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative[None, :]).sum()
    ties = (positive[:, None] == negative[None, :]).sum()
    return float((wins + ties / 2) / (len(positive) * len(negative)))


@pytest.mark.parametrize("levels", [2, 5, 1000, None])
@pytest.mark.parametrize("seed", range(4))
def test_auc_is_the_share_of_ordered_pairs_with_ties_as_halves(levels: int | None, seed: int):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 400)
    scores = rng.normal(size=400) + labels
    if levels is not None:
        scores = np.round(scores * levels / 6)
    assert auc(labels, scores) == pytest.approx(brute_force(labels, scores), abs=1e-12)


def test_auc_of_known_orders():
    assert auc([0, 0, 1, 1], [1, 2, 3, 4]) == 1.0
    assert auc([1, 1, 0, 0], [1, 2, 3, 4]) == 0.0
    assert auc([0, 1, 0, 1], [7, 7, 7, 7]) == 0.5


def test_auc_without_one_of_the_classes_is_not_a_number():
    assert math.isnan(auc([1, 1], [0.1, 0.2]))
    assert math.isnan(auc([], []))


def test_auc_refuses_scores_that_have_no_order():
    with pytest.raises(ValueError, match="1 of 3 scores"):
        auc([0, 1, 1], [0.1, float("nan"), 0.3])


def test_log_loss_is_the_mean_cross_entropy_and_stable_for_large_logits():
    labels, logits = np.array([0.0, 1.0, 1.0]), np.array([0.3, -2.0, 5.0])
    p = 1 / (1 + np.exp(-logits))
    expected = -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))
    assert log_loss(labels, logits) == pytest.approx(expected, rel=1e-12)
    assert log_loss([0, 1], [-1000.0, 1000.0]) == 0.0
    assert log_loss([1], [-1000.0]) == 1000.0


def test_average_precision_is_the_mean_share_of_positives_above_each() -> None:
    assert average_precision([0, 1, 0, 1], [1, 4, 3, 2]) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision([1, 1, 0, 0], [4, 3, 2, 1]) == 1.0
    assert average_precision([0, 1, 0, 1], [7, 7, 7, 7]) == 0.5  # in any order of what ties
    assert math.isnan(average_precision([0, 0], [1, 2]))
    assert math.isnan(average_precision([], []))
