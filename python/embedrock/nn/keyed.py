"""TorchRec's batches, ``KeyedJaggedTensor`` in and ``KeyedTensor`` out, without importing it.

They are recognised by what they have. The class of an answer is looked up beside that of the batch:
who has a batch has imported TorchRec, or has classes of the same interface.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from embedrock._arguments import shown
from embedrock.errors import MisuseError, UnsupportedError

__all__ = ["answer", "bags_of", "is_keyed"]

_SHAPED = "expected one number of bags for all of its features"


def is_keyed(features: Any) -> bool:
    """Whether it is a ``KeyedJaggedTensor``."""
    return hasattr(features, "to_dict") and hasattr(features, "stride_per_key")


def bags_of(
    features: Any, names: Sequence[str], *, weighted: bool
) -> dict[str, tuple[Tensor, ...]]:
    """The features that have these names as ``(values, offsets)``, and weights with ``weighted``.

    Offsets ``(B + 1,)`` have the end of the last bag, too. Other features are left out.

    Errors: ``UnsupportedError`` for batches of a variable number of bags, and for those that keep
    equal samples once; ``MisuseError`` for features that are missing.
    """
    named = type(features).__name__
    if features.variable_stride_per_key():
        raise UnsupportedError(
            f"{named} has a variable stride, {features.stride_per_key()}, {_SHAPED}; make it with "
            f"one stride, repeating samples"
        )
    if features.inverse_indices_or_none() is not None:
        raise UnsupportedError(
            f"{named} has inverse indices: it keeps equal samples once, {_SHAPED} and one for each "
            f"sample; make it without inverse_indices"
        )
    there = features.to_dict()
    missing = [name for name in names if name not in there]
    if missing:
        raise MisuseError(f"features {missing} are missing in {named}, which has {[*there]}")
    found: dict[str, tuple[Tensor, ...]] = {}
    for name in names:
        jagged = there[name]
        bag: tuple[Tensor, ...] = (jagged.values(), jagged.offsets())
        if weighted:
            weights = jagged.weights_or_none()
            if weights is None:
                raise MisuseError(
                    f"feature {name!r} of {named} has no weights, and the collection is weighted"
                )
            bag = (*bag, weights)
        found[name] = bag
    return found


def answer(features: Any, names: Sequence[str], dims: Sequence[int], rows: Tensor) -> Any:
    """A ``KeyedTensor`` of rows ``(B, sum of dims)``, for a batch that was a ``KeyedJaggedTensor``.

    Errors: ``UnsupportedError`` where there is no such class beside that of the batch.
    """
    for kind in type(features).__mro__:
        made = getattr(sys.modules.get(kind.__module__), "KeyedTensor", None)
        if made is not None:
            return made([*names], [*dims], rows)
    raise UnsupportedError(
        f"features is {shown(features)}, and no module of its class has a KeyedTensor for the "
        f"answer; pass a dict of features instead"
    )
