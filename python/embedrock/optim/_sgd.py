"""Gradient descent on rows, with momentum or without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from embedrock._arguments import number
from embedrock._rows import RowTable
from embedrock._verbs import NonFinite
from embedrock.clip import Clip
from embedrock.errors import MismatchError, MisuseError
from embedrock.optim.base import Modules, RowOptimizer
from embedrock.optimizers import factors

__all__ = ["SGD"]


class SGD(RowOptimizer):
    """Gradient descent on touched rows: ``torch.optim.SGD``, lazily.

    With ``momentum`` the rows carry a buffer: tables have ``optimizer="momentum"``, which also
    takes steps without. The buffer of a row moves when the row has a gradient and not in between.
    ``weight_decay`` decays the rows that have a gradient, when they have one.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(10, 2, store=store, name="e", optimizer="momentum")
    >>> optimizer = embedrock.optim.SGD(embedding, lr=0.1, momentum=0.9)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    """

    kind = "sgd"
    _own_hyper = ("momentum", "dampening", "nesterov")

    def __init__(
        self,
        modules: Modules,
        lr: float = 1e-3,
        momentum: float = 0.0,
        *,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules, whose tables have ``optimizer="sgd"`` or ``"momentum"``."""
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(modules, defaults, non_finite, clip, dense)

    def _factors(self, table: RowTable, group: dict[str, Any], step: int) -> dict[str, Any]:
        if table.optimizer["kind"] == "momentum":
            return super()._factors(table, group, step)
        self._check_momentum(table, group)  # a scheduler may have changed it
        return factors("sgd", float(group["lr"]), 0.0, (0.9, 0.999), group["weight_decay"], {})

    def _kinds(self) -> tuple[str, ...]:
        return ("sgd", "momentum")

    def _check_table(self, table: RowTable, group: dict[str, Any]) -> None:
        super()._check_table(table, group)
        self._check_momentum(table, group)

    @staticmethod
    def _check_momentum(table: RowTable, group: dict[str, Any]) -> None:
        """Refuses momentum for rows without a buffer."""
        if group["momentum"] and table.optimizer["kind"] == "sgd":
            raise MismatchError(
                f"momentum is {group['momentum']}, but table {table.name!r} was created with "
                f"optimizer='sgd', whose rows have no room for it; create the table with "
                f"optimizer='momentum'"
            )

    @staticmethod
    def _validate(group: dict[str, Any]) -> None:
        RowOptimizer._validate(group)
        number("dampening", group["dampening"])
        if group["nesterov"] and (not group["momentum"] or group["dampening"]):
            raise MisuseError(
                f"nesterov is set with momentum={group['momentum']} and "
                f"dampening={group['dampening']}, expected momentum and no dampening"
            )
