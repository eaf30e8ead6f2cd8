"""Changes of rows: sending gradients and rows to the ranks that own them, and the step.

Invariants: each rank's store is called once for a verb, with or without keys, and errors that can
be known beforehand are raised on all ranks before one of them changes a row. If a rank's store
fails later (no room on its disk), all ranks are told after the others have made the step, and no
rank commits until all have gone back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embedrock._arrays import Keys
from embedrock._keys import KeysNamed
from embedrock._rows import Bounds
from embedrock._verbs import NON_FINITE, Floats, NonFinite
from embedrock.distributed.exchange import Verb
from embedrock.distributed.making import digest_of
from embedrock.distributed.payload import by_table, pieces_of, scatter, split_by
from embedrock.distributed.table import ShardPart, ShardTable
from embedrock.errors import EmbedrockError, FullError, NonFiniteError

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["Changes"]

_APART = (
    "; other ranks have made this change: go back to the last common commit on all of them before "
    "training goes on"
)
_COMMIT = re.compile(
    r"commit: \d+ bytes are outdated, which commits release; where that is not enough, "
)
"""Advice of a full store that is wrong for ranks, where committing releases nothing."""


class Changes:
    """The verbs of a shard that change rows."""

    def __init__(self, shard: Shard) -> None:
        """Takes the shard, which has the exchange."""
        self._shard = shard

    def update(
        self,
        parts: list[ShardPart],
        non_finite: NonFinite,
        within: Bounds,
        settled: Callable[[int], object],
    ) -> float | None:
        """One optimizer step of all ranks on these tables; the norm that was scaled, if any.

        ``settled`` is called with the places of tables that were updated, which any rank may have
        had a gradient of.
        """
        self._shard._listeners.before()
        places = sorted(range(len(parts)), key=lambda i: -parts[i].table.embedding_dim)
        parts = [parts[i] for i in places]
        verb = _verb_of("update", parts, non_finite, within)
        with self._shard.exchange:
            updated, local = self._collect(verb, parts, non_finite)
            if not updated:
                return None if within is None or within[2] is None else within[3]
            norm = None
            if within is not None and within[2] is not None:
                total, others = self._norms(verb, local, non_finite, within)
                within, norm = (*within[:3], others), total
            try:
                self._make(verb, local, non_finite, within)
            finally:
                for place in updated:
                    settled(places[place])
        self._shard._counts["updates"] += 1
        if self._shard._listeners.all:
            named = [(parts[i].table.name, parts[i].keys) for i in updated]
            empty = np.empty(0, np.uint64)
            self._shard._listeners.changed([(n, empty if k is None else k.flat) for n, k in named])
        return norm

    def gradient_norm(self, parts: list[ShardPart], non_finite: NonFinite, within: Bounds) -> float:
        """The norm of the gradients of all ranks, those of equal keys summed; changes nothing."""
        self._shard._listeners.before()
        parts = sorted(parts, key=lambda part: -part.table.embedding_dim)
        verb = _verb_of("norm", parts, non_finite, within)
        bounded = (None, None, None, 0.0) if within is None else within
        with self._shard.exchange:
            updated, local = self._collect(verb, parts, non_finite)
            return self._norms(verb, local, non_finite, bounded)[0] if updated else 0.0

    def _collect(
        self, verb: Verb, parts: Sequence[ShardPart], non_finite: NonFinite
    ) -> tuple[list[int], list[Any]]:
        """Sends gradients to the ranks that have their rows. Gives the places of tables of which
        any rank had some, and for each the part of what this one has to do."""
        tables, dims = [part.table for part in parts], [part.table.embedding_dim for part in parts]
        empty = Keys(np.empty(0, np.uint64), (0,), True)
        found = [(part.table, empty if part.keys is None else part.keys) for part in parts]
        failed: BaseException | None = None
        try:
            KeysNamed(*found).check()
            if non_finite == "refuse":
                _check_finite(parts)
        except EmbedrockError as error:
            failed = error
        route = self._shard._route(found)
        has = np.array([part.keys is not None for part in parts], np.int64)
        met = self._shard.exchange.meet(
            verb, failed=failed, counts=2 * route.counts + has, tables=len(parts)
        )
        theirs = met.counts >> 1
        updated = np.flatnonzero((met.counts & 1).any(axis=0)).tolist()
        if not updated:
            return [], []
        pieces = pieces_of(self._shard._payload.ids(verb, route, theirs), theirs)
        room = self._shard._payload.room(route.counts, dims, 0)
        scatter(room, route, dims, [part.gradients for part in parts])
        if self._shard.reduction == "mean" and self._shard.world > 1:
            room.div_(self._shard.world)
        came = self._shard._payload.rows(verb, room, route.counts, theirs, dims, 0)
        self._shard._counts["keys_sent"] += len(route.keys)
        self._shard._counts["keys_got"] += int(theirs.sum())
        rows = split_by(came.numpy(), theirs, dims, 0)
        return updated, [
            tables[i]._local_part(by_table(pieces, i), by_table(rows, i), parts[i].factors)
            for i in updated
        ]

    def _norms(
        self, verb: Verb, local: list[Any], non_finite: NonFinite, within: Any
    ) -> tuple[float, float]:
        """The norm of all gradients and of what else counts, and that without those of this rank.
        Nothing has changed where it fails."""
        value, row_norm, bound, others = within
        own, failed = 0.0, None
        try:
            own = self._shard.store._gradient_norm(local, non_finite, (value, row_norm, bound, 0.0))
        except EmbedrockError as error:
            failed = error
        norm = verb._replace(part="norm of ")
        met = self._shard.exchange.meet(norm, failed=failed, number=own)
        # In one order on all ranks, which scale dense gradients by it.
        total = math.hypot(others, *met.numbers.tolist())
        return total, math.hypot(others, *np.delete(met.numbers, self._shard.rank).tolist())

    def _make(self, verb: Verb, local: list[Any], non_finite: NonFinite, within: Any) -> None:
        """Makes the step in the store of this rank, and waits for the other ranks."""
        failed: BaseException | None = None
        try:
            self._shard.store._update(local, non_finite, within, lambda _place: None)
        except Exception as error:
            failed = error
        self._end(verb, failed)

    def _end(self, verb: Verb, failed: BaseException | None) -> None:
        """Waits until all ranks have changed their rows. If one has failed, no rank may commit."""
        try:
            self._shard.exchange.meet(
                verb._replace(part="end of "), failed=_without_commit(failed), beside=_APART
            )
        except BaseException as error:
            if self._shard.world > 1:
                self._shard._fail(
                    f"{verb} may be made by some ranks and not by others ({error}); go back to the "
                    f"last commit that all have, or end all ranks and start again"
                )
            raise

    def put(self, table: ShardTable, keys: Keys, rows: Floats, non_finite: NonFinite) -> None:
        """Writes rows ``(N, embedding_dim)`` on the ranks that have their keys."""
        self._shard._listeners.before()
        found, dims = [(table, keys)], [table.embedding_dim]
        verb = Verb("put", (table.name,), NON_FINITE.index(non_finite), f"{non_finite=}")
        failed: BaseException | None = None
        try:
            KeysNamed(*found).check()
            if non_finite == "refuse" and not np.isfinite(rows).all():
                raise NonFiniteError(f"values of table {table.name!r} are NaN or infinite")
        except EmbedrockError as error:
            failed = error
        route = self._shard._route(found)
        with self._shard.exchange:
            met = self._shard.exchange.meet(verb, failed=failed, counts=route.counts, tables=1)
            pieces = pieces_of(self._shard._payload.ids(verb, route, met.counts), met.counts)
            room = self._shard._payload.room(route.counts, dims, 0)
            scatter(room, route, dims, [rows])
            came = self._shard._payload.rows(
                verb, room, route.counts, met.counts, dims, 0, exact=True
            )
            own = by_table(pieces, 0)
            try:
                values = came.numpy().reshape(-1, table.embedding_dim)
                table.local.put(own, values, non_finite=non_finite)
            except Exception as error:
                failed = error
            self._end(verb, failed)
        if self._shard._listeners.all:
            self._shard._listeners.changed([(table.name, keys.flat)])


def _without_commit(error: BaseException | None) -> BaseException | None:
    """The same without the engine's advice to commit, which no rank may before it has gone back."""
    if not isinstance(error, FullError):
        return error
    told = FullError(_COMMIT.sub("", str(error)))
    told.__cause__ = error
    return told


def _verb_of(name: str, parts: Sequence[ShardPart], non_finite: str, within: Bounds) -> Verb:
    numbers = [float(number) for part in parts for number in part.factors.values()]
    numbers += [-1.0 if bound is None else bound for bound in within or ()]
    detail = digest_of(np.array([NON_FINITE.index(non_finite), *numbers]).tobytes())
    names = tuple(part.table.name for part in parts)
    return Verb(name, names, detail, _Told([part.factors for part in parts], non_finite, within))


class _Told:
    """Arguments of an update, formatted as text on demand."""

    def __init__(
        self, factors: Sequence[Mapping[str, Any]], non_finite: str, within: Bounds
    ) -> None:
        self._parts = (factors, non_finite, within)

    def __str__(self) -> str:
        factors, non_finite, within = self._parts
        told = [
            ", ".join(f"{name}={value}" for name, value in of_table.items()) for of_table in factors
        ]
        if len(set(told)) == 1:  # as of most models: once is enough
            told = told[:1]
        return f"{' and '.join(told)}, {non_finite=}, bounds {within}"


def _check_finite(parts: Sequence[ShardPart]) -> None:
    """Refuses gradients that are NaN or infinite, before any rank applies its own."""
    for part in parts:
        flat = part.gradients.reshape(-1)
        if math.isfinite(float(np.dot(flat, flat))):
            continue
        bad = np.flatnonzero(~np.isfinite(part.gradients).all(axis=1))
        if bad.size and part.keys is not None:
            keys = part.keys.flat.view(np.int64) if part.keys.signed else part.keys.flat
            raise NonFiniteError(
                f"gradients of {bad.size} of {len(part.gradients)} rows of table "
                f"{part.table.name!r} are NaN or infinite, the first for key {keys[bad[0]]}; "
                f"nothing was changed on any rank; the loss is probably not finite: lower the "
                f"learning rate or clip gradients; non_finite='skip' would leave such rows out"
            )
