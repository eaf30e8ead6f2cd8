"""Rows of many tables into outputs, and gradients back, with one node of autograd for all.

Owns the fast path of forwards on the CPU: the rows of all tables are one matrix, the places of all
ids one index into it, so that pooling is one call and so is adding up gradients. It never reads
rows. Invariants:

* Outputs have the bits of torch's modules. Gradients of a key are added in the order in which its
  ids occur, as ``torch.nn.Embedding`` does; torch's bags do not define that order
  (:mod:`embedrock.nn`) and sort the ids, which costs more than all the rest of the step.
* Cases with different arithmetic are left to torch: weights, padding that occurs, ``mean`` of bags
  of several ids (whose products torch may round or not), ``max``, tables with several features
  (whose sums torch adds up), other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock.nn.pending import PendingRows, Visit, asks_for

__all__ = ["Bags", "Part", "bags_of", "gather", "pool"]

Places = npt.NDArray[np.int64]


class Part(NamedTuple):
    """The rows of one table, on the CPU."""

    rows: Tensor
    """(U, D) float32, the rows of distinct keys."""
    inverse: Places
    """(N,) each id's place among them."""
    padding: int | None
    """The padding key's place among them, if it occurs."""
    pending: PendingRows
    visit: Visit | None
    """None: nobody will train what is read here."""

    @property
    def trains(self) -> bool:
        """Whether a gradient is wanted."""
        return self.visit is not None and self.pending.parameter.requires_grad


class Bags(NamedTuple):
    """The begin and end of the bags of a feature."""

    total: int
    """B, how many there are."""
    each: int | None
    """Ids in each of them, where they all have as many."""
    begins: Places | None
    """(B,) otherwise: the place of each bag's first id; the last one ends with the ids."""


def bags_of(ids: Tensor, begins: Places | None, weights: Tensor | None, mode: str) -> Bags | None:
    """The bags of a feature, where :func:`pool` can pool them; None where torch has to.

    ``begins`` rise from 0 to at most the number of ids, of which the last bag has what is left.
    """
    if weights is not None or mode == "max" or ids.device.type != "cpu":
        return None
    if begins is None:
        count, each = ids.shape
        one = each == 1 or (each > 0 and mode == "sum")
        return Bags(count, each, None) if count and one else None
    count = len(begins)
    if not count:
        return None
    lengths = np.diff(begins, append=len(ids))
    if lengths.max() == lengths.min() == 1:
        return Bags(count, 1, None)
    return Bags(count, None, begins) if mode == "sum" else None


def gather(part: Part, shape: Sequence[int]) -> Tensor:
    """The rows of ids of this shape: ``(*shape, D)``, as ``torch.nn.functional.embedding``."""
    plan = _Plan([part], [len(part.rows)], len(part.inverse), 1, False)
    places = torch.from_numpy(part.inverse)
    return _run(plan, part.rows, places, None, True)[0].view(*shape, part.rows.shape[1])


def pool(parts: Sequence[Part], bags: Sequence[Bags], joined: bool) -> list[Tensor]:
    """The sums of the bags of F features, each of a table of its own: ``(B, D)`` for each, or with
    ``joined`` one tensor ``(B, F * D)``.

    All have the same B and D, and bags that :func:`bags_of` gave.
    """
    count, each, sizes = bags[0].total, bags[0].each, [part.rows.shape[0] for part in parts]
    plan = _Plan(list(parts), sizes, count, len(parts), joined)
    if len(parts) == 1 and each is not None:
        plan.each = each
        places_alone = torch.from_numpy(parts[0].inverse)
        return _run(plan, parts[0].rows, places_alone, _begins(count, each), False)
    rows = _one_matrix([part.rows for part in parts])
    bases = [0, *accumulate(sizes)]
    if each is not None and all(one.each == each for one in bags):
        # By bag where the output is: its memory is then that of the sums.
        shape = (count, len(parts), each) if joined else (len(parts), count, each)
        places = np.empty(shape, np.int64)
        for i, part in enumerate(parts):
            room = places[:, i] if joined else places[i]
            np.add(part.inverse.reshape(count, each), bases[i], out=room)
        plan.each = each
        offsets = _begins(count * len(parts), each)
        return _run(plan, rows, torch.from_numpy(places.reshape(-1)), offsets, False)
    places = np.concatenate([part.inverse + base for part, base in zip(parts, bases, strict=False)])
    begins, first = [], 0
    for part, one in zip(parts, bags, strict=True):
        own = one.begins if one.each is None else np.arange(count) * one.each
        assert own is not None
        begins.append(own + first)
        first += len(part.inverse)
    plan.ids = [len(part.inverse) for part in parts]
    offsets = torch.from_numpy(np.concatenate(begins))
    assert len(offsets) == count * len(parts)
    return _run(plan, rows, torch.from_numpy(places), offsets, False)


@lru_cache(maxsize=8)
def _begins(count: int, each: int) -> Tensor:
    """(B,) where bags of equal length begin."""
    return torch.arange(0, count * each, each, device="cpu")


@dataclass
class _Plan:
    """A node's knowledge of its features."""

    parts: list[Part]
    sizes: list[int]
    """U of each."""
    count: int
    """B."""
    features: int
    """F."""
    joined: bool
    each: int = 1
    """Ids in each bag, where ``ids`` is None."""
    ids: list[int] | None = None
    """Ids of each feature: bags have lengths of their own and are in the order of features."""


def _run(
    plan: _Plan, rows: Tensor, places: Tensor, offsets: Tensor | None, plain: bool
) -> list[Tensor]:
    if all(part.trains for part in plan.parts):
        parameters = [part.pending.parameter for part in plan.parts]
        output = _Lookup.apply(plan, plain, rows, places, offsets, *parameters)
        return [output] if isinstance(output, Tensor) else list(output)
    with torch.no_grad():
        return list(_outputs(plan, plain, rows, places, offsets))


def _outputs(
    plan: _Plan, plain: bool, rows: Tensor, places: Tensor, offsets: Tensor | None
) -> tuple[Tensor, ...]:
    if plain:
        return (rows.index_select(0, places),)
    sums = torch.embedding_bag(rows, places, offsets, False, 0, False, None)[0]
    width = rows.shape[1]
    if plan.features == 1:
        return (sums,)
    if not plan.joined:
        # A view would refuse to be changed in place, as one of several outputs.
        return tuple(some.data for some in sums.view(plan.features, plan.count, width))
    if plan.ids is not None:
        sums = sums.view(plan.features, plan.count, width).transpose(0, 1).contiguous()
    return (sums.view(plan.count, plan.features * width).data,)


class _Lookup(torch.autograd.Function):  # type: ignore[misc]
    """Outputs of rows; its backward leaves their gradients with the pending rows.

    The parameters are inputs for autograd's sake, as in ``pending``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        plan: _Plan,
        plain: bool,
        rows: Tensor,
        places: Tensor,
        offsets: Tensor | None,
        *parameters: Tensor,
    ) -> Any:
        ctx.set_materialize_grads(False)  # an output that nobody used trains nothing
        ctx.plan = plan
        # Begins of equal bags are shared, perhaps with an inference mode, which autograd refuses.
        ctx.save_for_backward(places, None if plan.ids is None else offsets)
        outputs = _outputs(plan, plain, rows, places, offsets)
        return outputs[0] if len(outputs) == 1 else outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        places, offsets = ctx.saved_tensors
        plan: _Plan = ctx.plan
        nodes = [node for node, _ in ctx.next_functions][-len(plan.parts) :]
        wanted = _wanted(nodes, gradients)
        given: list[Tensor | None] = [None] * len(plan.parts)
        if any(each is not False for each in wanted):
            width = plan.parts[0].rows.shape[1]
            source, where = _sources(plan, gradients, places, offsets, width)
            sums = source.new_zeros(sum(plan.sizes), width).index_add_(0, where, source)
            by_part = (sums,) if len(plan.parts) == 1 else sums.split(plan.sizes)
            for i, (part, own) in enumerate(zip(plan.parts, by_part, strict=True)):
                if wanted[i] is False:
                    continue
                assert part.visit is not None
                if part.padding is not None:
                    own[part.padding] = 0
                if wanted[i] is None:
                    given[i] = part.pending.give(part.visit, own, nodes[i])
                else:
                    part.pending.receive(part.visit, own)
        return (*(None,) * 5, *given)


def _wanted(nodes: Sequence[Any], gradients: Sequence[Tensor | None]) -> list[bool | None]:
    """Whether the gradient of each input exists and is needed, as a backward may be limited to some
    parameters. None: the gradient is passed on."""
    asked = [asks_for(node) for node in nodes]
    if len(gradients) == 1:
        return asked if gradients[0] is not None else [False] * len(asked)
    there = [one is not None for one in gradients]
    return [yes if is_there else False for yes, is_there in zip(asked, there, strict=True)]


def _sources(
    plan: _Plan,
    gradients: Sequence[Tensor | None],
    places: Tensor,
    offsets: Tensor | None,
    width: int,
) -> tuple[Tensor, Tensor]:
    """A gradient ``(N, D)`` for each id, and the places ``(N,)`` of the ids."""
    where = places
    if plan.ids is None:
        ids, lengths = [plan.count * plan.each] * plan.features, None
    else:
        assert offsets is not None
        ids, lengths = plan.ids, torch.diff(offsets, append=offsets.new_tensor([len(where)]))
    if len(gradients) == 1:
        (given,) = gradients
        assert given is not None
        of_bags = given.detach()
        if plan.joined and plan.ids is not None:
            of_bags = of_bags.view(plan.count, plan.features, width).transpose(0, 1)
        of_bags = of_bags.reshape(-1, width)
    else:
        of_bags = torch.cat([one.detach() for one in gradients if one is not None])
        if any(one is None for one in gradients):
            there = [one is not None for one in gradients]
            where = torch.cat([w for w, yes in zip(where.split(ids), there, strict=True) if yes])
            if lengths is not None:
                by_feature = lengths.split(plan.count)
                lengths = torch.cat([n for n, yes in zip(by_feature, there, strict=True) if yes])
    if lengths is not None:
        return of_bags.repeat_interleave(lengths, dim=0), where
    if plan.each > 1:
        of_bags = of_bags.unsqueeze(1).expand(-1, plan.each, -1).reshape(-1, width)
    return of_bags.contiguous(), where


def _one_matrix(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts ``(sum of U, D)``: where they lie, if they lie behind each other."""
    first, end = parts[0], parts[0].storage_offset()
    same = all(part.is_contiguous() for part in parts)
    memory = first.untyped_storage().data_ptr()
    for part in parts:
        same = same and part.untyped_storage().data_ptr() == memory and part.storage_offset() == end
        end += part.numel()
    if not same:
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), first.shape[1]), (first.shape[1], 1))
