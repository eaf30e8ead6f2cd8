"""FTRL-Proximal on rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from embedrock._arguments import number
from embedrock._verbs import NonFinite
from embedrock.clip import Clip
from embedrock.errors import MisuseError
from embedrock.optim.base import Modules, RowOptimizer, accumulator

__all__ = ["FTRL"]


class FTRL(RowOptimizer):
    """FTRL-Proximal on touched rows: with ``l1`` most values of rare rows become exactly zero.

    The values of a row follow from its state, so tables best start at ``initializer=0.0``.
    ``initial_accumulator_value`` is fixed with the table (``embedrock.optimizers.ftrl``); a number
    here must equal it, None takes what is stored.

    Source: McMahan et al., "Ad Click Prediction", KDD 2013; arguments and defaults are those of
    TensorFlow's ``Ftrl``, whose ``l2`` is half of the paper's.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(
    ...     10, 2, store=store, name="e", optimizer="ftrl", initializer=0.0
    ... )
    >>> optimizer = embedrock.optim.FTRL(embedding, lr=0.1, l1=0.5)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    """

    kind = "ftrl"
    _own_hyper = ("lr_power", "l1", "l2", "beta")

    def __init__(
        self,
        modules: Modules,
        lr: float = 1e-3,
        *,
        lr_power: float = -0.5,
        initial_accumulator_value: float | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
        maximize: bool = False,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules, whose tables have ``optimizer="ftrl"``."""
        self._initial_accumulator = accumulator(initial_accumulator_value)
        defaults = {
            "lr": lr,
            "lr_power": lr_power,
            "l1": l1,
            "l2": l2,
            "beta": beta,
            "maximize": maximize,
        }
        super().__init__(modules, defaults, non_finite, clip, dense)

    def _fixed(self) -> dict[str, Any]:
        return {"initial_accumulator": self._initial_accumulator}

    @staticmethod
    def _validate(group: dict[str, Any]) -> None:
        RowOptimizer._validate(group)
        if not group["lr"] > 0:
            raise MisuseError(f"lr is {group['lr']}, expected more than 0")
        if not -math.inf < number("lr_power", group["lr_power"]) <= 0:
            raise MisuseError(f"lr_power is {group['lr_power']}, expected at most 0")
