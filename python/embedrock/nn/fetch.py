"""From ids to rows: one engine call for all that a forward reads.

Owns the way of ids to the host and of rows to the module's device. Distinct keys keep the order of
their first occurrence, which is the order in which the engine lays rows out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._arguments import shown
from embedrock._distinct import distinct
from embedrock._rows import RowStore, RowTable
from embedrock.errors import MisuseError
from embedrock.nn.module import RowsModule
from embedrock.nn.pending import Visit
from embedrock.nn.pool import Part
from embedrock.pipeline.grouped_read import GroupedRead
from embedrock.pipeline.run import Run

__all__ = ["Ask", "Found", "expose", "fetch", "host_ids", "read", "to_host", "uncompiled"]

F = TypeVar("F", bound=Callable[..., Any])


class Ask(NamedTuple):
    """The rows that a forward reads from one table."""

    slot: str
    """The name of the table's pending rows within the module."""
    ids: npt.NDArray[np.int64]
    """(N,) ids on the host."""
    padding: int | None
    """The padding key."""


class Found(NamedTuple):
    """The rows of one ask, on the module's device."""

    rows: Tensor
    """(U, D) float32, the rows of the distinct ids."""
    inverse: Tensor
    """(N,) int64, each id's place among them."""
    padding: int | None
    """The padding key's place among them, if it occurs."""


_Read: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Tensor]


def fetch(module: RowsModule, asks: Sequence[Ask]) -> list[Found]:
    """Reads the distinct rows of all asks in one call of the engine.

    Under ``torch.compile`` this is a graph break, and the code before and after it is compiled.
    """
    found: list[Found] = uncompiled(_fetch)(module, asks)
    return found


def _fetch(module: RowsModule, asks: Sequence[Ask]) -> list[Found]:
    return expose(module, read(module, asks))


def read(module: RowsModule, asks: Sequence[Ask]) -> list[Part]:
    """The same, with rows that wait for an optimizer already, but no tensor for autograd yet."""
    records = module._records()
    pendings = [module._pending[ask.slot] for ask in asks]
    tables = [pending.table for pending in pendings]
    found = _read(module.store, tables, asks, module.device, ahead=records)
    parts = []
    for ask, pending, (keys, inverse, rows) in zip(asks, pendings, found, strict=True):
        padding = _place_of(ask.padding, keys)
        visit = None
        if records:
            visit = Visit(keys, rows, padding, (module, ask.slot))
            pending.add(visit)
        parts.append(Part(rows, inverse, padding, pending, visit))
    return parts


def expose(module: RowsModule, parts: Sequence[Part]) -> list[Found]:
    """Rows that were read, as tensors whose gradients come back to those that wait."""
    places = _places([part.inverse for part in parts], module.device)
    return [
        Found(
            part.rows if part.visit is None else part.pending.expose(part.visit),
            inverse,
            part.padding,
        )
        for part, inverse in zip(parts, places, strict=True)
    ]


def _read(
    store: RowStore,
    tables: Sequence[RowTable],
    asks: Sequence[Ask],
    device: torch.device,
    ahead: bool,
) -> list[_Read]:
    """Distinct ids, places among them and rows of all asks: those that a pipeline has read ahead,
    where it may be asked, or an earlier forward of the batch, and the others in one call of the
    engine."""
    run = store._listeners.find(Run) if ahead else None
    found: list[_Read | None] = [None] * len(asks)
    if run is not None:
        for i, (table, ask) in enumerate(zip(tables, asks, strict=True)):
            there = run.take(table, ask.ids)
            if there is not None:
                found[i] = (there[0], there[1], there[2].to(device))
    together = store._listeners.find(GroupedRead)
    if together is not None and not store._each_occurrence:
        taken = together.take([(t, a.ids) for t, a in zip(tables, asks, strict=True)])
        for i, some in enumerate(taken):
            if some is not None and found[i] is None:
                found[i] = (some[0], some[1], torch.from_numpy(some[2]).to(device))
    left = [i for i, there in enumerate(found) if there is None]
    if left:
        missing = [_once(store, asks[i]) for i in left]
        shapes = [
            (len(k), tables[i].embedding_dim) for i, (k, _) in zip(left, missing, strict=True)
        ]
        host = torch.empty(
            sum(u * d for u, d in shapes),
            dtype=torch.float32,
            device="cpu",
            pin_memory=device.type == "cuda",
        )
        parts = [part.view(shape) for part, shape in zip(_split(host, shapes), shapes, strict=True)]
        wanted = [(tables[i], keys) for i, (keys, _) in zip(left, missing, strict=True)]
        store.get(wanted, out=[part.numpy() for part in parts])
        if device.type != "cpu":
            there_flat = _split(host.to(device, non_blocking=True), shapes)
            parts = [part.view(shape) for part, shape in zip(there_flat, shapes, strict=True)]
        for i, (keys, inverse), rows in zip(left, missing, parts, strict=True):
            found[i] = (keys, inverse, rows)
    return [there for there in found if there is not None]


def _once(store: RowStore, ask: Ask) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct ids and each one's place among them; all of them for a store that is to get each
    gradient, but the padding key once."""
    if not store._each_occurrence:
        return distinct(ask.ids)
    taken = np.ones(len(ask.ids), np.bool_)
    if ask.padding is not None:
        padding = np.flatnonzero(ask.ids == _signed(ask.padding))
        taken[padding[1:]] = False
        places = np.cumsum(taken) - 1
        places[padding] = places[padding[:1]]
        return ask.ids[taken], places
    return ask.ids, np.arange(len(ask.ids))


# torch.compiler.disable would load the compiler; older versions have nothing else.
_disable = getattr(torch, "_disable_dynamo", None) or torch.compiler.disable


def uncompiled(function: F) -> F:
    """The function as a graph break of ``torch.compile``, where that is in use."""
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in _uncompiled:
        _uncompiled[function] = _disable(function)
    return cast(F, _uncompiled[function])


_uncompiled: dict[Any, Any] = {}

_ID_DTYPES = (torch.int64, torch.int32, getattr(torch, "uint64", torch.int64))


def host_ids(inputs: Mapping[str, Tensor]) -> list[npt.NDArray[np.int64]]:
    """Ids of any shape, by the name that errors call them, as flat int64 arrays on the host.

    Ids on other devices come with one transfer for all.

    Errors: ``MisuseError`` for anything but a tensor of int64, int32 or uint64, of which int64 and
    uint64 with the same bits are the same ids.

    Blocking: waits for the devices that ids are on.
    """
    for name, ids in inputs.items():
        if not isinstance(ids, Tensor):
            # A list becomes int64, and an array keeps its memory.
            way = "; torch.as_tensor(input) makes one" if _is_array(ids) else ""
            raise MisuseError(f"{name} is {shown(ids)}, expected an int64 or int32 tensor{way}")
        if ids.dtype not in _ID_DTYPES:
            raise MisuseError(f"{name} is {ids.dtype}, expected torch.int64 or torch.int32")
        if ids.layout != torch.strided or ids.is_nested or ids.is_meta:
            raise MisuseError(
                f"{name} is a tensor of {ids.layout} on {ids.device}, expected plain ids"
            )
    flat = [_as_int64(ids.detach().reshape(-1)) for ids in inputs.values()]
    try:
        return [tensor.numpy() for tensor in _copy_to_host(flat)]
    except (TypeError, RuntimeError) as error:
        if all(type(ids) is Tensor for ids in inputs.values()):
            raise
        raise MisuseError(f"{', '.join(inputs)}: a tensor without data to read: {error}") from error


def _is_array(given: object) -> bool:
    return isinstance(given, (np.ndarray, list, tuple)) or hasattr(given, "__array__")


def to_host(tensors: Sequence[Tensor]) -> list[npt.NDArray[np.float32]]:
    """Float32 tensors as contiguous arrays on the host, with one transfer for each device."""
    flat = _copy_to_host([tensor.detach().contiguous().reshape(-1) for tensor in tensors])
    return [part.view(like.shape).numpy() for part, like in zip(flat, tensors, strict=True)]


def _as_int64(ids: Tensor) -> Tensor:
    return ids.view(torch.int64) if ids.element_size() == 8 else ids.to(torch.int64)


def _copy_to_host(flat: Sequence[Tensor]) -> list[Tensor]:
    """Flat tensors of one dtype on the host: as they are where they are there already."""
    copies = list(flat)
    for device in {tensor.device for tensor in flat if tensor.device.type != "cpu"}:
        members = [i for i, tensor in enumerate(flat) if tensor.device == device]
        joined = torch.cat([flat[i] for i in members])
        if device.type == "cuda":
            host = torch.empty(joined.shape, dtype=joined.dtype, device="cpu", pin_memory=True)
            host.copy_(joined, non_blocking=True)
            torch.cuda.current_stream(device).synchronize()
        else:
            host = joined.cpu()
        parts = host.split([flat[i].numel() for i in members])
        for i, part in zip(members, parts, strict=True):
            copies[i] = part
    return copies


def _split(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    return list(flat.split([u * d for u, d in shapes]))


def _places(inverses: Sequence[npt.NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    tensors = [torch.from_numpy(inverse) for inverse in inverses]
    if device.type == "cpu":
        return tensors
    joined = torch.cat(tensors)
    if device.type == "cuda":
        joined = joined.pin_memory()
    return list(joined.to(device, non_blocking=True).split([len(each) for each in inverses]))


def _place_of(key: int | None, keys: npt.NDArray[np.int64]) -> int | None:
    if key is None:
        return None
    found = np.flatnonzero(keys == _signed(key))
    return int(found[0]) if found.size else None


def _signed(key: int) -> np.int64:
    """A key, which may be given as uint64 or as int64, as ids have it."""
    return np.uint64(key % 2**64).astype(np.int64)
