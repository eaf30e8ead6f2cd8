"""Initial rows: what a key reads as before it is first written.

An initial row is a pure function of the store's seed, the table and the key, so nothing is stored
by reading it and every run sees the same bits. Each function returns the description that
``Store.table(initializer=...)`` takes; a number alone stands for that constant.

>>> embedrock.initializers.normal(std=0.01)
{'normal': {'mean': 0.0, 'std': 0.01}}
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, TypeAlias

from embedrock._arguments import number, shown
from embedrock.errors import MisuseError

__all__ = ["InitializerLike", "constant", "normal", "truncated_normal", "uniform"]

InitializerLike: TypeAlias = float | dict[str, Any]


def constant(value: float) -> dict[str, Any]:
    """Every value of the row is ``value``."""
    return {"constant": _finite("value", value)}


def uniform(low: float = -0.05, high: float = 0.05) -> dict[str, Any]:
    """Values drawn evenly from ``low`` (included) to ``high`` (excluded)."""
    if not _finite("low", low) <= _finite("high", high):
        raise MisuseError(f"uniform has low={low} above high={high}")
    return {"uniform": {"low": float(low), "high": float(high)}}


def normal(mean: float = 0.0, std: float = 1.0) -> dict[str, Any]:
    """Values drawn from a normal distribution; ``torch.nn.Embedding`` starts with std 1."""
    if _finite("std", std) < 0:
        raise MisuseError(f"normal has std={std}, expected 0 or more")
    return {"normal": {"mean": _finite("mean", mean), "std": float(std)}}


def truncated_normal(
    mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> dict[str, Any]:
    """Values drawn from a normal distribution of which only those from ``a`` to ``b`` are kept.

    ``a`` and ``b`` are values, not deviations: ``std=0.02, a=-0.04, b=0.04`` cuts at two of them.

    Source: ``torch.nn.init.trunc_normal_``.
    """
    if _finite("std", std) <= 0:
        raise MisuseError(f"truncated_normal has std={std}, expected more than 0")
    if not _finite("a", a) < _finite("b", b):
        raise MisuseError(f"truncated_normal has a={a}, expected less than b={b}")
    values = {"mean": _finite("mean", mean), "std": float(std), "a": float(a), "b": float(b)}
    return {"truncated_normal": values}


def resolve(initializer: InitializerLike) -> dict[str, Any]:
    """The description that a number or a description stands for."""
    if isinstance(initializer, numbers.Real):
        return constant(initializer)  # type: ignore[arg-type]
    if isinstance(initializer, dict) and len(initializer) == 1:
        ((name, value),) = initializer.items()
        if isinstance(name, str) and name == "constant":
            return constant(value)
        if isinstance(name, str) and name in _MAKERS and isinstance(value, dict):
            make, fields = _MAKERS[name]
            if set(value) == fields:
                return make(**value)
    raise MisuseError(
        f"initializer is {shown(initializer)}, expected a number or one of embedrock.initializers: "
        f"constant, {', '.join(_MAKERS)}"
    )


def _finite(name: str, value: float) -> float:
    found = number(name, value)
    if not math.isfinite(found):
        raise MisuseError(f"{name} is {found}, expected a finite number")
    return found


_MAKERS: dict[str, tuple[Callable[..., dict[str, Any]], set[str]]] = {
    "uniform": (uniform, {"low", "high"}),
    "normal": (normal, {"mean", "std"}),
    "truncated_normal": (truncated_normal, {"mean", "std", "a", "b"}),
}
