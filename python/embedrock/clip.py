"""Gradient clipping: what bounds gradients before the engine applies them.

>>> clip = embedrock.Clip(norm=1.0)
>>> report = table.update([7, 8], np.ones((2, 4), np.float32), lr=0.1, clip=clip)
>>> round(report["norm"], 3)
2.828
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from embedrock._arguments import number, shown
from embedrock.errors import MisuseError

__all__ = ["Clip"]


@dataclass(frozen=True)
class Clip:
    """Bounds on gradients, applied in this order once the gradients of equal keys are summed.

    Errors: ``MisuseError`` for a bound that is not a finite number above 0.

    Source: ``torch.nn.utils.clip_grad_value_`` and ``clip_grad_norm_``, whose formulas these are;
    norms are summed in double precision.
    """

    value: float | None = None
    """Every element is brought into ``-value`` to ``value``."""
    row_norm: float | None = None
    """The gradient of each row is scaled down to this norm."""
    norm: float | None = None
    """All gradients of the call, of all its tables, are scaled down together to this norm."""

    def __post_init__(self) -> None:
        """Checks the bounds."""
        for name in ("value", "row_norm", "norm"):
            bound = getattr(self, name)
            if bound is None:
                continue
            found = number(f"clip {name}", bound)
            if not 0 < found < math.inf:
                raise MisuseError(f"clip {name} is {found}, expected a finite number above 0")
            object.__setattr__(self, name, found)


def bounds(
    clip: Clip | None, other_norm: float
) -> tuple[float | None, float | None, float | None, float] | None:
    """The bounds as the engine takes them.

    Errors: ``MisuseError`` for ``other_norm`` without a norm that it could count for.
    """
    if clip is not None and not isinstance(clip, Clip):
        given = shown(clip)
        raise MisuseError(f"clip is {given}, expected embedrock.Clip(value=, row_norm=, norm=)")
    others = number("other_norm", other_norm)
    if others and (clip is None or clip.norm is None):
        raise MisuseError(f"other_norm is {others} without clip=Clip(norm=...) to count for")
    if clip is None:
        return None
    return (clip.value, clip.row_norm, clip.norm, others)


def coefficient(bound: float, norm: float) -> float:
    """By how much a norm is scaled to stay within a bound, at most 1; NaN for a norm of NaN."""
    scale = bound / (norm + 1e-6)
    return 1.0 if scale > 1.0 else scale
