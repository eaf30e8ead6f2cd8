"""The loss functions: scores of true triples against those of their negatives.

Shapes: positive ``(B,)``, negative ``(B, N)`` -> a scalar. ``margin`` is added to all scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor

from embedrock._arguments import shown
from embedrock.errors import MisuseError

__all__ = ["LOSSES", "Loss", "logistic", "nssa", "softmax"]

Loss: TypeAlias = Callable[..., Tensor]


def nssa(
    positive: Tensor, negative: Tensor, *, margin: float = 0.0, temperature: float = 1.0
) -> Tensor:
    """Logistic loss whose negatives are weighed by how well they score: self-adversarial sampling.

    ``temperature`` multiplies scores before the softmax that makes weights of them; 0 weighs all
    negatives alike.

    Source: Sun et al., RotatE, 2019 (equations 5 and 6).
    """
    weights = (negative.detach() * temperature).softmax(-1)
    of_negatives = -(weights * F.logsigmoid(-(negative + margin))).sum(-1)
    return (of_negatives.mean() - F.logsigmoid(positive + margin).mean()) / 2


def logistic(
    positive: Tensor, negative: Tensor, *, margin: float = 0.0, temperature: float = 1.0
) -> Tensor:
    """Binary cross entropy; positives weigh as much as all negatives. ``temperature`` is ignored.

    Source: Trouillon et al., ComplEx, 2016 (equation 3), with the mean of the negatives.
    """
    return (F.softplus(negative + margin).mean() + F.softplus(-(positive + margin)).mean()) / 2


def softmax(
    positive: Tensor, negative: Tensor, *, margin: float = 0.0, temperature: float = 1.0
) -> Tensor:
    """Cross entropy of the true entity among its negatives. ``margin`` and ``temperature`` are
    ignored.

    Source: Toutanova and Chen, "Observed versus latent features for knowledge base and text
    inference", 2015.
    """
    return (negative.logsumexp(-1).logaddexp(positive) - positive).mean()


LOSSES: dict[str, Loss] = {"nssa": nssa, "logistic": logistic, "softmax": softmax}
"""All losses by name."""


def loss_of(name: Any) -> Loss:
    """The loss of that name. Errors: ``MisuseError`` that lists the names."""
    if isinstance(name, str) and name in LOSSES:
        return LOSSES[name]
    raise MisuseError(f"loss is {shown(name)}, expected one of {', '.join(LOSSES)}")
