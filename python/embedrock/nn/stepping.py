"""Warnings about rows among the parameters of a torch optimizer, before its first step.

Rows are among a model's parameters while they wait, and an optimizer that is made then takes them.
Torch has no hook for that moment, but a global one before each step, which is installed with the
first module over a table. Owns the set of checked optimizers; changes none.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from embedrock._rows import WAITING
from embedrock._warnings import warn
from embedrock.nn import small

__all__ = ["watch"]

_hooks: list[Any] = []
"""The hook of this process, once there is a table. It stays: torch may be going through its hooks
whenever one could be taken away, and refuses to go on then."""
_looked_at: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
"""Optimizers, and how many of their groups are known: a step looks at new ones alone."""


def watch() -> None:
    """Looks at each optimizer before its first step."""
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
    groups = optimizer.param_groups
    known = _looked_at.get(optimizer, 0)
    if known == len(groups):
        return
    _looked_at[optimizer] = len(groups)
    if any("tables" in group for group in groups):  # an optimizer of embedrock.optim
        return
    fresh = groups[known:]
    names = [getattr(each, WAITING, None) for group in fresh for each in group["params"]]
    rows = ", ".join(repr(name) for name in names if name is not None)
    if rows:
        warn(
            f"{type(optimizer).__name__} was given the rows of table {rows} that wait for an "
            f"optimizer of embedrock.optim, and steps them as dense parameters; make it of "
            f"embedrock.nn.dense_parameters(model)"
        )
    small.note_dense(optimizer, fresh)
