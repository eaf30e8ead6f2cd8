"""Adagrad on rows, by element and by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from embedrock._rows import RowTable
from embedrock._verbs import NonFinite
from embedrock.clip import Clip
from embedrock.optim.base import Modules, RowOptimizer, accumulator

__all__ = ["Adagrad", "RowWiseAdagrad"]


class Adagrad(RowOptimizer):
    """Element-wise Adagrad on touched rows: ``torch.optim.Adagrad`` with sparse gradients.

    ``lr_decay`` counts the steps that this optimizer has made on the table.
    ``initial_accumulator_value`` is fixed with the table (``embedrock.optimizers.adagrad``); a
    number here must equal it, None takes what is stored.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(10, 2, store=store, name="e", optimizer="adagrad")
    >>> optimizer = embedrock.optim.Adagrad(embedding, lr=0.1)
    >>> schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    >>> schedule.step()
    """

    kind = "adagrad"

    def __init__(
        self,
        modules: Modules,
        lr: float = 1e-2,
        *,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float | None = None,
        eps: float = 1e-10,
        maximize: bool = False,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules, whose tables have the optimizer of the class."""
        self._initial_accumulator = accumulator(initial_accumulator_value)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(modules, defaults, non_finite, clip, dense)

    def _factors(self, table: RowTable, group: dict[str, Any], step: int) -> dict[str, Any]:
        lr = group["lr"] / (1 + (step - 1) * group["lr_decay"])
        return super()._factors(table, {**group, "lr": lr}, step)

    def _fixed(self) -> dict[str, Any]:
        return {"initial_accumulator": self._initial_accumulator}


class RowWiseAdagrad(Adagrad):
    """Adagrad with one sum per row, of the mean squared gradient: 4 bytes of state per row.

    Source: FBGEMM's ``EXACT_ROWWISE_ADAGRAD``.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(10, 2, store=store, name="e")
    >>> optimizer = embedrock.optim.RowWiseAdagrad(embedding, lr=0.1)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    """

    kind = "rowwise_adagrad"

    def __init__(
        self,
        modules: Modules,
        lr: float = 1e-2,
        *,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float | None = None,
        eps: float = 1e-8,
        maximize: bool = False,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules, whose tables have ``optimizer="rowwise_adagrad"``."""
        super().__init__(
            modules,
            lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
            non_finite=non_finite,
            clip=clip,
            dense=dense,
        )
