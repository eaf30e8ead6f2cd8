"""Rows and ids on their way between ranks.

Owns the memory layout of payloads (:mod:`embedrock.distributed.routing` says which place a key
has) and the type of rows on the wire. Rows of all tables of a call go at once: by rank, within a
rank by table. Behind the rows for each rank may be one more, which says how it went.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._verbs import Floats
from embedrock.distributed.exchange import Exchange, Verb
from embedrock.distributed.routing import Counts, Keys, Route, widths_of

T = TypeVar("T", bound=np.generic)

__all__ = ["Payload", "by_table", "gather", "pieces_of", "scatter", "split_by"]


class Payload:
    """Sends ids and rows of one exchange, in buffers that are kept."""

    def __init__(self, exchange: Exchange, wire: torch.dtype) -> None:
        """Takes the exchange, and the type of rows on the wire."""
        self._exchange = exchange
        self._wire = wire

    def ids(self, verb: Verb, route: Route, theirs: Counts) -> Keys:
        """The ids that ranks request from this one: ``theirs (W, T)`` ids, by rank and within it by
        table. The next call reuses their buffer."""
        count, expected = len(route.keys), int(theirs.sum())
        given = self._exchange.buffer("ids", count, torch.int64)
        np.take(route.keys.view(np.int64), route.order, out=given.numpy(), mode="clip")
        into = self._exchange.buffer("asked", expected, torch.int64)
        into_splits, splits = theirs.sum(axis=1).tolist(), route.counts.sum(axis=1).tolist()
        self._exchange.send(verb, into, given, into_splits, splits)
        asked: Keys = into.numpy().view(np.uint64)
        return asked

    def room(self, counts: Counts, dims: Sequence[int], gap: int) -> Tensor:
        """A float32 buffer for rows to send."""
        return self._exchange.buffer("rows", sum(_splits(counts, dims, gap)), torch.float32)

    def rows(
        self,
        verb: Verb,
        given: Tensor,
        mine: Counts,
        theirs: Counts,
        dims: Sequence[int],
        gap: int,
        *,
        exact: bool = False,
    ) -> Tensor:
        """Sends what lies in a :meth:`room` of ``mine (W, T)`` rows, and gives those of ``theirs``,
        as flat float32. ``exact`` keeps them float32 on the wire."""
        splits, into_splits = _splits(mine, dims, gap), _splits(theirs, dims, gap)
        expected = sum(into_splits)
        into = self._exchange.buffer("received", expected, torch.float32)
        if exact or self._wire == torch.float32:
            self._exchange.send(verb, into, given, into_splits, splits)
            return into
        narrow = self._exchange.buffer("narrow", len(given), self._wire).copy_(given)
        came = self._exchange.buffer("came", expected, self._wire)
        self._exchange.send(verb, came, narrow, into_splits, splits)
        return into.copy_(came)


def gather(
    flat: Tensor, route: Route, dims: Sequence[int], gap: int, outs: Sequence[Floats]
) -> None:
    """Brings rows that came for the keys of a route into the arrays of its tables."""
    runs = widths_of(dims)
    ends = [0, *accumulate(route.lengths.tolist())]
    if len(runs) == 1:
        _select(flat.numpy().reshape(-1, dims[0]), route.places(gap), ends, outs)
        return
    pieces = split_by(flat.numpy(), route.counts, dims, gap)
    for _dim, first, last in runs:
        some = [own[table] for own in pieces for table in range(first, last)]
        matrix = np.concatenate(some)
        own = _part(route, ends, first, last)
        bounds = [end - ends[first] for end in ends[first : last + 1]]
        _select(matrix, own.places(), bounds, outs[first:last])


def scatter(flat: Tensor, route: Route, dims: Sequence[int], rows: Sequence[Floats]) -> None:
    """Brings rows of the keys of a route into a room, in the order in which they go."""
    runs = widths_of(dims)
    if len(runs) == 1:
        room = flat.numpy().reshape(-1, dims[0])
        np.take(_matrix(rows), route.order, axis=0, out=room, mode="clip")
        return
    ends = [0, *accumulate(route.lengths.tolist())]
    pieces = split_by(flat.numpy(), route.counts, dims, 0)
    for _dim, first, last in runs:
        own = _part(route, ends, first, last)
        ordered = np.take(_matrix(rows[first:last]), own.order, axis=0)
        begin = 0
        for of_rank in pieces:
            for table in range(first, last):
                piece = of_rank[table]
                piece[...] = ordered[begin : begin + len(piece)]
                begin += len(piece)


def split_by(flat: Floats, counts: Counts, dims: Sequence[int], gap: int) -> list[list[Floats]]:
    """Views ``(n, embedding_dim)`` of a flat payload, by rank and table."""
    found, begin = [], 0
    for of_rank in counts.tolist():
        own = []
        for count, dim in zip(of_rank, dims, strict=True):
            end = begin + count * dim
            own.append(flat[begin:end].reshape(count, dim))
            begin = end
        begin += gap * dims[-1]
        found.append(own)
    return found


def pieces_of(ids: Keys, counts: Counts) -> list[list[Keys]]:
    """Views of ids that came, by rank and table."""
    ends = [0, *accumulate(counts.reshape(-1).tolist())]
    tables = counts.shape[1]
    flat = [ids[begin:end] for begin, end in pairwise(ends)]
    return [flat[i : i + tables] for i in range(0, len(flat), tables)]


def by_table(pieces: Sequence[Sequence[npt.NDArray[T]]], table: int) -> npt.NDArray[T]:
    """The received data of one table, from the first rank to the last; contiguous."""
    some = [own[table] for own in pieces if len(own[table])]
    if len(some) == 1:
        return some[0]
    return np.concatenate(some) if some else pieces[0][table]


def _splits(counts: Counts, dims: Sequence[int], gap: int) -> list[int]:
    """Elements for each rank."""
    found: list[int] = (counts @ np.array(dims, np.int64) + gap * dims[-1]).tolist()
    return found


def _part(route: Route, ends: Sequence[int], first: int, last: int) -> Route:
    """The way of some of the tables."""
    tables = [slice(ends[i], ends[i + 1]) for i in range(first, last)]
    return Route(
        [route.keys[one] for one in tables], [route.ranks[one] for one in tables], route.world
    )


def _select(
    matrix: Floats, places: npt.NDArray[np.int64], ends: Sequence[int], outs: Sequence[Floats]
) -> None:
    whole = _behind_each_other(outs)
    if whole is not None:
        np.take(matrix, places, axis=0, out=whole, mode="clip")
        return
    for begin, end, out in zip(ends, ends[1:], outs, strict=False):
        np.take(matrix, places[begin:end], axis=0, out=out, mode="clip")


def _matrix(rows: Sequence[Floats]) -> Floats:
    """Rows of several tables as one matrix, copied only where they lie apart."""
    whole = _behind_each_other(rows)
    return np.concatenate(rows) if whole is None else whole


def _behind_each_other(arrays: Sequence[Floats]) -> Floats | None:
    """One array over the memory of all, which have one width, where each begins where the one
    before ends."""
    some = [array for array in arrays if len(array)]
    if len(some) < 2:
        return (some or arrays)[0]
    end = some[0].__array_interface__["data"][0]
    for array in some:
        if array.__array_interface__["data"][0] != end:
            return None
        end += array.nbytes
    first, shape = some[0], (sum(map(len, some)), some[0].shape[1])
    # The memory behind the first is that of the others, which the caller holds for the call.
    return np.lib.stride_tricks.as_strided(first, shape, first.strides)
