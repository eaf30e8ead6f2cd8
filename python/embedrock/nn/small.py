"""Small tables that ``convert`` leaves with torch, and the rates at which they are trained.

They are dense parameters, so the optimizer of the others takes them, at its own rate. Where that is
far from the rate of the tables in the store, the model is not the one that was meant, and nothing
fails. Owns what is compared for that; it changes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from embedrock._warnings import warn

__all__ = ["compare", "leave", "left", "watch"]

_MARK = "_embedrock_small"
"""The attribute of a module that says that ``convert`` left it as it is."""
_APART = 10.0
"""Rates that differ so many times are told."""

Weights = list[tuple[str, "weakref.ref[Any]"]]

_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers of torch that were made so far."""


def leave(module: nn.Module) -> None:
    """Notes that a module stays torch's because it has few rows."""
    setattr(module, _MARK, True)


def watch(optimizer: torch.optim.Optimizer) -> None:
    """Notes an optimizer that takes dense parameters."""
    _optimizers.add(optimizer)


def left(models: Any) -> Weights:
    """Names and weights of the small tables within a model, or several."""
    found: Weights = []
    for model in [models] if isinstance(models, nn.Module) else models:
        for path, module in model.named_modules():
            weight = module._parameters.get("weight") if getattr(module, _MARK, False) else None
            if weight is not None:
                found.append((path, weakref.ref(weight)))
    return found


def compare(weights: Weights, group: dict[str, Any]) -> None:
    """Warns of small tables whose rate is far from that of a group of tables."""
    rate = _rate(group)
    apart: dict[tuple[str, float], list[str]] = {}
    for path, reference in weights:
        for kind, other in _rates(reference()):
            if min(rate, other) > 0 and max(rate / other, other / rate) >= _APART:
                apart.setdefault((kind, other), []).append(path)
    for (kind, other), paths in apart.items():
        several = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        warn(
            f"convert left {paths[0]}{several} with torch, whose {kind} trains them at lr={other}, "
            f"and the tables of the store are trained at lr={rate}; give small tables an optimizer "
            f"or a parameter group of their own, as docs/how-to/convert.md shows"
        )


def _rates(weight: Any) -> Iterator[tuple[str, float]]:
    """Which optimizers step a parameter, and at which rates."""
    if weight is None:
        return
    for optimizer in list(_optimizers):
        for group in optimizer.param_groups:
            if any(each is weight for each in group["params"]):
                yield type(optimizer).__name__, _rate(group)


def _rate(group: dict[str, Any]) -> float:
    """The rate of a group before its schedule began."""
    return float(group.get("initial_lr", group.get("lr", 0.0)))
