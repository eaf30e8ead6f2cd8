"""The dense part of a model, which is the same on all ranks: compared before each saves its own.

Rows are shared by construction; dense parameters stay equal only if their gradients are averaged.
Without averaging, the ranks' models diverge, and a commit would hold different ones. Invariant: all
ranks raise, or none, with one message.

Compared are dense parameters of the model, and what optimizers of PyTorch keep of them. Not
compared is what may be each rank's own:

* Buffers. ``DistributedDataParallel`` gives ranks those of rank 0 before a forward, in which each
  changes its own: running statistics of ``BatchNorm`` differ afterwards.
* Parameters that ``DistributedDataParallel`` was told to leave out, and tensors that are a part of
  something (``DTensor``, ``FullyShardedDataParallel``).
* Random generators, loaders, schedulers, scalers, ``extra``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from embedrock._rows import WAITING
from embedrock._warnings import warn
from embedrock.distributed.all_gather import all_gather
from embedrock.distributed.exchange import Exchange, Verb
from embedrock.distributed.making import digest_of
from embedrock.errors import MismatchError

__all__ = ["SAVE", "check_same"]

SAVE = Verb("save")
_CHUNK = 1 << 20
"""Bytes of a tensor that cross at a time."""
_ROUNDED = 1e-4
"""Of a tensor's norm: what ranks may be apart by rounding alone, where their machines compute in
another order. A float32 has 6e-8 at each step."""
_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""Attribute in which ``DistributedDataParallel`` keeps the names of what it leaves to each rank."""


def check_same(exchange: Exchange, owners: Sequence[tuple[str, Any]]) -> None:
    """Refuses a save of ranks whose dense parts differ. ``owners`` are what is saved, by name, of
    this rank. Collective: one exchange of digests, and more only where they differ.

    Errors: ``MismatchError`` on all ranks, naming the first parameter that differs. Warns where
    ranks differ by rounding alone.
    """
    if exchange.world == 1:
        return
    failed: BaseException | None = None
    found: dict[str, Tensor] = {}
    told: dict[str, tuple[str, str]] = {}
    try:
        found = dict(_dense_of(owners))
        told = {name: (_digest(one), _described(one)) for name, one in found.items()}
    except Exception as error:
        failed = error
    with exchange:
        met = exchange.meet(SAVE, failed=failed, note=digest_of(json.dumps(told)))
        if (met.notes == met.notes[0]).all():
            return
        each = all_gather(exchange, SAVE, told)
        apart = 0.0, ""
        for name in dict.fromkeys(name for one in each for name in one):
            said = [one.get(name) for one in each]
            if any(other != said[0] for other in said):
                _check_kinds(name, said)
                apart = max(apart, _check_distance(exchange, name, found[name]))
    warn(
        f"dense parts of the ranks differ by rounding, {apart[1]} by {apart[0]:.1e} of its norm: "
        f"each rank saves its own; ranks on machines of one kind have the same bits"
    )


def _check_kinds(name: str, said: Sequence[Any]) -> None:
    """Refuses what a rank has not, or has of another shape or type."""
    for rank, other in enumerate(said):
        kinds = ["is not there" if one is None else f"is {one[1]}" for one in (said[0], other)]
        if kinds[0] != kinds[1]:
            raise _refusal(name, f"on rank 0 it {kinds[0]}, on rank {rank} it {kinds[1]}")


def _check_distance(exchange: Exchange, name: str, one: Tensor) -> tuple[float, str]:
    """Largest distance of any rank's tensor from that of rank 0. Collective.

    Errors: ``MismatchError`` if it is more than rounding.
    """
    own = _flat(one)
    apart = norm = 0.0
    for start in range(0, len(own), _CHUNK):
        part = own[start : start + _CHUNK]
        first = _of_first(exchange, part)
        mine, theirs = (_numbers(values, one.dtype) for values in (part, first))
        apart += float((mine - theirs).square().sum())
        norm += float(theirs.square().sum())
    own_share = math.sqrt(apart / norm) if norm else math.sqrt(apart)
    shares = exchange.meet(SAVE._replace(part="distance of "), number=own_share).numbers
    rank = int(shares.argmax())
    precision = torch.finfo(one.dtype).eps if one.dtype.is_floating_point else 0.0
    if not shares[rank] <= max(_ROUNDED, precision):
        raise _refusal(
            name, f"rank {rank} differs from rank 0 by {shares[rank]:.2g} of the norm of it"
        )
    return float(shares[rank]), name


def _refusal(name: str, told: str) -> MismatchError:
    return MismatchError(
        f"{name} is not the same on all ranks: {told}; nothing was saved, for ranks that part "
        f"train as many models. Wrap the dense part in "
        f"torch.nn.parallel.DistributedDataParallel, or average its gradients over the ranks "
        f"before each step. What is meant to be each rank's own goes to extra="
    )


def _of_first(exchange: Exchange, own: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """These bytes of a tensor as rank 0 has them. Collective."""
    into, size = torch.empty(len(own), dtype=torch.uint8, device="cpu"), len(own)
    given = torch.from_numpy(np.tile(own, exchange.world if exchange.rank == 0 else 0))
    sent = [size if exchange.rank == 0 else 0] * exchange.world
    exchange.send(SAVE, into, given, [size] + [0] * (exchange.world - 1), sent)
    theirs: npt.NDArray[np.uint8] = into.numpy()
    return theirs


def _numbers(values: npt.NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """Real numbers, so that what is not finite is far from all that is."""
    typed = torch.from_numpy(values.copy()).view(dtype)
    real = torch.view_as_real(typed).reshape(-1) if typed.is_complex() else typed
    return torch.nan_to_num(real.double(), nan=1e150, posinf=2e150, neginf=-2e150)


def _digest(one: Tensor) -> str:
    return hashlib.blake2b(_flat(one).data, digest_size=8).hexdigest()


def _described(one: Tensor) -> str:
    return f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}"


def _flat(one: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor, on the host."""
    flat = one.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    found: npt.NDArray[np.uint8] = flat.numpy()
    return found


def _dense_of(owners: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors that must be equal on all ranks among those to save, by name."""
    modules = [owner for _, owner in owners if isinstance(owner, nn.Module)]
    if any(
        type(part).__name__ == "FullyShardedDataParallel"
        for one in modules
        for part in one.modules()
    ):
        return  # its parameters and their optimizer's state are parts, one of each rank
    names: dict[int, str] = {}
    left_out: set[int] = set()
    for model in modules:
        ignored = _ignored_by(model)
        for name, one in model.named_parameters():
            if name not in ignored and _is_whole(one) and not hasattr(one, WAITING):
                names[id(one)] = name
                yield f"parameter {name} of the model", one
            else:
                left_out.add(id(one))
    for name, owner in owners:
        if isinstance(owner, torch.optim.Optimizer):
            yield from _state_of(name, owner, names, left_out)


def _state_of(
    name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str], left_out: set[int]
) -> Iterator[tuple[str, Tensor]]:
    """State of an optimizer for parameters that must be equal on all ranks."""
    given = [one for group in optimizer.param_groups for one in group["params"]]
    for place, one in enumerate(given):
        if id(one) in left_out or hasattr(one, WAITING) or one not in optimizer.state:
            continue
        of = names.get(id(one), f"number {place}")
        for key, value in optimizer.state[one].items():
            if isinstance(value, (bool, int, float)):
                value = torch.tensor(float(value), dtype=torch.float64, device="cpu")
            if isinstance(value, Tensor) and _is_whole(value):
                yield f"{key} of parameter {of} in {name}", value


def _is_whole(one: Tensor) -> bool:
    """Whether it is a tensor like any other, and not the part of one that this rank has."""
    is_plain = type(one) in (Tensor, nn.Parameter) and one.layout == torch.strided
    return is_plain and not (one.is_meta or one.is_quantized)


def _ignored_by(model: nn.Module) -> set[str]:
    """Names of parameters that ``DistributedDataParallel`` leaves to each rank."""
    return {
        f"{name}.{one}" if name else one
        for name, module in model.named_modules()
        for one in getattr(module, _IGNORED, ())
    }
