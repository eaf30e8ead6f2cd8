"""Small tables that ``convert`` leaves with torch, and the rates at which they are trained.

They are dense parameters, so the optimizer of the others trains them, at its own rate. If that is
far from the rate of the tables in the store, the model differs from the intended one without any
error. Owns the comparison of these rates; it changes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from embedrock._warnings import warn

__all__ = ["Weights", "leave", "left", "note_dense", "note_tables"]

_MARK = "_embedrock_small"
"""The attribute of a module that says that ``convert`` left it as it is."""
_APART = 10.0
"""Rates that differ so many times are told."""

Weights = list[tuple[str, "weakref.ref[Any]"]]
_Optimizers = list[tuple[torch.optim.Optimizer, list[dict[str, Any]]]]
"""Optimizers of torch, with the groups to look at."""

_dense: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers of torch that have stepped."""
_tables: weakref.WeakKeyDictionary[Any, list[tuple[Weights, dict[str, Any]]]]
_tables = weakref.WeakKeyDictionary()
"""Optimizers of tables that have stepped, with the small tables of their models."""


def leave(module: nn.Module) -> None:
    """Notes that a module stays torch's because it has few rows."""
    setattr(module, _MARK, True)


def left(models: Any) -> Weights:
    """Names and weights of the small tables within a model, or several."""
    found: Weights = []
    for model in [models] if isinstance(models, nn.Module) else models:
        for path, module in model.named_modules():
            weight = module._parameters.get("weight") if getattr(module, _MARK, False) else None
            if weight is not None:
                found.append((path, weakref.ref(weight)))
    return found


def note_tables(optimizer: Any, left: list[tuple[Weights, dict[str, Any]]]) -> None:
    """Warns of small tables whose rate is far from that of their group of tables, which steps now.

    Rates may change until both optimizers step, so each two are compared when the second does.
    """
    groups = [(one, one.param_groups) for one in list(_dense)]
    for weights, group in left:
        _compare(weights, group, groups)
    _tables.setdefault(optimizer, []).extend(left)


def note_dense(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """The same, of an optimizer of torch that steps for the first time with these groups."""
    for weights, group in [each for left in list(_tables.values()) for each in left]:
        _compare(weights, group, [(optimizer, groups)])
    _dense.add(optimizer)


def _compare(weights: Weights, group: dict[str, Any], optimizers: _Optimizers) -> None:
    rate = _rate(group)
    apart: dict[tuple[str, float], list[str]] = {}
    for path, reference in weights:
        for kind, other in _rates(reference(), optimizers):
            if min(rate, other) > 0 and max(rate / other, other / rate) >= _APART:
                apart.setdefault((kind, other), []).append(path)
    for (kind, other), paths in apart.items():
        several = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        warn(
            f"convert left {paths[0]}{several} with torch, whose {kind} trains them at lr={other}, "
            f"and the tables of the store are trained at lr={rate}; give small tables an optimizer "
            f"or a parameter group of their own, as docs/how-to/convert.md shows"
        )


def _rates(weight: Any, optimizers: _Optimizers) -> Iterator[tuple[str, float]]:
    """The optimizers that step a parameter, with their rates."""
    if weight is None:
        return
    for optimizer, groups in optimizers:
        for group in groups:
            if any(each is weight for each in group["params"]):
                yield type(optimizer).__name__, _rate(group)


def _rate(group: dict[str, Any]) -> float:
    """The rate of a group before its schedule began."""
    return float(group.get("initial_lr", group.get("lr", 0.0)))
