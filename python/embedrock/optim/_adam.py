"""Adam on rows, its row-wise form and the one with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor

from embedrock._arguments import choice
from embedrock._verbs import NonFinite
from embedrock.clip import Clip
from embedrock.optim.base import Modules, RowOptimizer

__all__ = ["Adam", "AdamW", "RowWiseAdam"]


class Adam(RowOptimizer):
    """Adam on touched rows: with ``bias_correction="global"`` that of ``torch.optim.SparseAdam``.

    ``"global"`` corrects the bias by the table's count of steps, ``"row"`` by the row's own; it is
    fixed with the table (``embedrock.optimizers.adam``).

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(10, 2, store=store, name="e", optimizer="adam")
    >>> optimizer = embedrock.optim.Adam(embedding, lr=0.1)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    """

    kind = "adam"

    def __init__(
        self,
        modules: Modules,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: Literal["global", "row"] = "global",
        maximize: bool = False,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules, whose tables have the optimizer of the class."""
        self._bias_correction = choice("bias_correction", bias_correction, ("row", "global"))
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(modules, defaults, non_finite, clip, dense)

    def _fixed(self) -> dict[str, Any]:
        return {"bias_correction": self._bias_correction}


class RowWiseAdam(Adam):
    """Adam on touched rows with one second moment per row: half of Adam's state.

    Source: FBGEMM's ``PARTIAL_ROWWISE_ADAM``.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(10, 2, store=store, name="e", optimizer="rowwise_adam")
    >>> optimizer = embedrock.optim.RowWiseAdam(embedding, lr=0.1)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    """

    kind = "rowwise_adam"


class AdamW(Adam):
    """Adam with decoupled weight decay on touched rows: ``torch.optim.AdamW``, lazily.

    A row that has a gradient first shrinks by ``lr * weight_decay``; the others stay as they are.
    ``bias_correction`` as for :class:`Adam`.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(10, 2, store=store, name="e", optimizer="adamw")
    >>> optimizer = embedrock.optim.AdamW(embedding, lr=0.1, weight_decay=0.05)
    >>> embedding(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    """

    kind = "adamw"

    def __init__(
        self,
        modules: Modules,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        bias_correction: Literal["global", "row"] = "global",
        maximize: bool = False,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules, whose tables have ``optimizer="adamw"``."""
        super().__init__(
            modules,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            bias_correction=bias_correction,
            maximize=maximize,
            non_finite=non_finite,
            clip=clip,
            dense=dense,
        )
