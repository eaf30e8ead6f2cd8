"""Bags as passed by callers: checked before anything is read, and pooled by torch.

Owns the meaning of ids, offsets and weights. Invariant: torch gets only bags that it pools as
documented. It does not check for decreasing offsets, and with these its result depends on the mode:
sums of other bags, means of too many ids, gradients from uninitialized memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from embedrock._arguments import choice, shown
from embedrock.errors import MisuseError
from embedrock.nn.fetch import host_ids

__all__ = ["Bag", "InBags", "check_bags", "check_mode", "in_bags", "pool_bags"]

_MODES = ("sum", "mean", "max")
_OFFSETS = (torch.int64, torch.int32)

Ids = npt.NDArray[np.int64]


class Bag(NamedTuple):
    """The bags of one feature of a batch."""

    ids: Tensor
    """(B, N), or (N,) with offsets."""
    offsets: Tensor | None
    """(B,) where each bag begins, the last one ending with the ids."""
    weights: Tensor | None
    """Of the shape of the ids."""


class InBags(NamedTuple):
    """The same without ids that are in no bag, and what the host knows of it."""

    bag: Bag
    flat: Ids
    """(N,) the ids."""
    begins: Ids | None
    """(B,) the offsets."""


def check_mode(mode: str) -> None:
    """Refuses a mode that torch does not have."""
    choice("mode", mode, _MODES)


def check_bags(
    name: str, ids: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str
) -> None:
    """Refuses bags of the wrong shape before anything is read."""
    if not isinstance(ids, Tensor):
        host_ids({name: ids})  # its error says how to make a tensor of it
    if not _is_plain(ids) or ids.dim() not in (1, 2):
        shape = tuple(ids.shape) if _is_plain(ids) else shown(ids)
        raise MisuseError(f"{name} is {shape}, expected a plain tensor of one or two dimensions")
    if offsets is not None and not (
        _is_plain(offsets) and offsets.dim() == 1 and offsets.dtype in _OFFSETS
    ):
        raise MisuseError(f"{name} has offsets {_told(offsets)}, expected a tensor (B,) of int64")
    if weights is not None and not (_is_plain(weights) and weights.is_floating_point()):
        raise MisuseError(
            f"{name} has per_sample_weights {_told(weights)}, expected a tensor of floats"
        )
    if (ids.dim() == 1) != (offsets is not None):
        raise MisuseError(
            f"{name} has {ids.dim()} dimensions and offsets "
            f"{'missing' if offsets is None else 'given'}; one dimension needs offsets, two "
            f"dimensions are bags of equal length without them"
        )
    if weights is not None and mode != "sum":
        raise MisuseError(f"{name} has per_sample_weights with mode={mode!r}, expected mode='sum'")
    if weights is not None and weights.shape != ids.shape:
        raise MisuseError(
            f"{name} has per_sample_weights of shape {tuple(weights.shape)}, expected "
            f"{tuple(ids.shape)}: one for each id"
        )


def in_bags(bags: Mapping[str, Bag], include_last: bool) -> dict[str, InBags]:
    """Bags of the right shape, by the names that errors call them, with their ids on the host.

    With ``include_last`` the last of the offsets is where the last bag ends. Ids behind it are in
    no bag and left out, and so is that offset.

    Errors: ``MisuseError`` for offsets that do not say where bags begin, and for tensors without
    values.

    Blocking: waits for the devices that ids and offsets are on, with one transfer from each.
    """
    wanted = {name: bag.ids for name, bag in bags.items()}
    with_offsets = [name for name, bag in bags.items() if bag.offsets is not None]
    for name in with_offsets:
        wanted[f"offsets of {name}"] = bags[name].offsets
    flat = host_ids(wanted)
    ids = dict(zip(bags, flat, strict=False))
    begins = dict(zip(with_offsets, flat[len(bags) :], strict=True))
    return {
        name: _in_bags(name, bag, ids[name], begins.get(name), include_last)
        for name, bag in bags.items()
    }


def _in_bags(name: str, bag: Bag, ids: Ids, begins: Ids | None, include_last: bool) -> InBags:
    if begins is None:
        return InBags(bag, ids, None)
    _check_offsets(name, begins, len(ids), include_last)
    if not include_last:
        return InBags(bag, ids, begins)
    assert bag.offsets is not None
    end = int(begins[-1])
    offsets, weights = bag.offsets[:-1], bag.weights
    if end == len(ids):
        return InBags(Bag(bag.ids, offsets, weights), ids, begins[:-1])
    some = Bag(bag.ids[:end], offsets, None if weights is None else weights[:end])
    return InBags(some, ids[:end], begins[:-1])


def _check_offsets(name: str, offsets: Ids, ids: int, include_last: bool) -> None:
    """Refuses offsets that do not rise from 0 to at most the number of ids."""
    if not len(offsets):
        if include_last:
            raise MisuseError(
                f"{name} has no offsets, expected the end of the last bag at least: "
                f"include_last_offset is True"
            )
        if ids:
            raise MisuseError(f"{name} has {ids} ids and no offsets: they are in no bag")
        return
    what = "where bags begin and the last one ends" if include_last else "where bags begin"
    expected = f"expected {what}, rising from 0 to at most {ids}, the number of its ids"
    if offsets[0] != 0:
        raise MisuseError(f"{name} has offsets that begin with {offsets[0]}, {expected}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        place = int(falls[0])
        raise MisuseError(
            f"{name} has offsets[{place}] = {offsets[place]} before offsets[{place + 1}] = "
            f"{offsets[place + 1]}, {expected}"
        )
    if offsets[-1] > ids:
        raise MisuseError(f"{name} has offsets that end with {offsets[-1]}, {expected}")


def pool_bags(name: str, places: Tensor, rows: Tensor, bag: Bag, **options: Any) -> Tensor:
    """``embedding_bag`` of torch over rows on their device, of bags that :func:`in_bags` gave.

    Errors: ``MisuseError`` for weights without values.
    """
    offsets, weights = bag.offsets, bag.weights
    try:
        return F.embedding_bag(
            places,
            rows,
            None if offsets is None else offsets.to(rows.device, torch.int64),
            per_sample_weights=None if weights is None else weights.float(),
            **options,
        )
    except (AssertionError, RuntimeError) as error:
        if weights is None or _has_values(weights):
            raise
        raise MisuseError(f"{name} has per_sample_weights without values to read") from error


def _has_values(given: Tensor) -> bool:
    try:
        given.tolist()
    except (AssertionError, RuntimeError, TypeError):
        return False
    return True


def _is_plain(given: Any) -> bool:
    return isinstance(given, Tensor) and given.layout == torch.strided and not given.is_nested


def _told(given: Any) -> str:
    if _is_plain(given):
        return f"of {given.dtype} and shape {tuple(given.shape)}"
    return f"that are {shown(given)}"
