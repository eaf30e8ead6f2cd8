"""Area under the ROC curve, average precision and log loss, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """The probability that a random positive scores above a random negative; a tie counts half.

    Shapes: labels (N,) of 0 and 1, scores (N,). NaN when one of the two classes is absent.
    Errors: ValueError when a score is not a number, because then no order exists.
    """
    positive = np.asarray(labels) > 0.5
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError(f"{int(np.isnan(values).sum())} of {len(values)} scores are not numbers")
    positives = int(positive.sum())
    negatives = len(values) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mean_rank[inverse][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def average_precision(labels: ArrayLike, scores: ArrayLike) -> float:
    """The mean, over positives, of the share of positives among all that score as much or more.

    Shapes: as `auc`. NaN without positives.
    """
    positive = np.asarray(labels) > 0.5
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    ranked, hits = values[order], np.cumsum(positive[order])
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # of those that score alike
    if not len(hits) or hits[-1] == 0:
        return float("nan")
    gained = np.diff(hits[last], prepend=0)
    return float((gained * hits[last] / (last + 1)).sum() / hits[-1])


def log_loss(labels: ArrayLike, logits: ArrayLike) -> float:
    """Mean binary cross entropy of logits, stable for large ones."""
    y = np.asarray(labels, dtype=np.float64)
    z = np.asarray(logits, dtype=np.float64)
    return float(np.mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))))
