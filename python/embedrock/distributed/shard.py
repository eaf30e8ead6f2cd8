"""``Shard``: one model's tables, divided among the ranks of ``torch.distributed``.

Owns the verbs: sending requests to the ranks that own the keys, and serving received ones.
Invariants:

* A verb of the ranks calls the store of each rank once, for all tables and all ranks together.
* Every rank takes part in every verb, one without keys too; so a store makes as many updates of a
  table as one store with the global batch would, whose count stochastic rounding and bias
  corrections hash and use.
* Keys are global everywhere: a rank's table has the ids of the whole model, and rows of the rank's
  buckets alone. Initial rows and rounding hash the key, so they do not depend on where it is.
* Gradients of equal keys are summed by the engine in the order of ranks: equal worlds give equal
  bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from embedrock import initializers as _initializers
from embedrock import optimizers as _optimizers
from embedrock._arguments import choice, flag, instance, whole
from embedrock._arrays import ArrayLike, Keys, as_keys, as_out
from embedrock._keys import KeysNamed
from embedrock._listeners import Listeners
from embedrock._ranks import BUCKETS
from embedrock._rows import Bounds
from embedrock._verbs import Floats, NonFinite
from embedrock.commits import Commit
from embedrock.distributed.ahead import ShardWindow
from embedrock.distributed.batches import ShardBatches
from embedrock.distributed.binding import owners_of, runs_of
from embedrock.distributed.changes import Changes
from embedrock.distributed.commits import RankCommits
from embedrock.distributed.exchange import Exchange, Verb, group_of, waiting_limit
from embedrock.distributed.making import digest_of, make_table
from embedrock.distributed.payload import Payload, gather, pieces_of, split_by
from embedrock.distributed.routing import Ranks, Route
from embedrock.distributed.scaling import unscale_together
from embedrock.distributed.table import ShardPart, ShardTable
from embedrock.errors import EmbedrockError, MisuseError
from embedrock.pipeline.keys import KeysOf
from embedrock.store import Store
from embedrock.store.batches import arrays_for, batches_of

__all__ = ["Binding", "Shard"]

B = TypeVar("B")

_GAP = 1
"""Rows behind those for each rank: whether the rank that sends them could read them."""
_ELSEWHERE = {
    "lookahead": "shard.window.announce, or shard.batches(loader, model), read rows ahead",
    "permits": "a bound of staleness holds among the threads of one process",
    "put": "write table by table: shard[name].put(keys, values)",
    "update": "update table by table: shard[name].update(keys, gradients, lr=...)",
    "record": "shard.store.record() is of this rank alone",
}
"""Features of a store of one process that ranks do not share, with the reason or the
replacement."""


class Binding(Protocol):
    """Assignment of buckets to ranks."""

    @property
    def owners(self) -> npt.NDArray[Any]:
        """(1024,) the rank of each bucket."""


class Shard(RankCommits):
    """The stores of all ranks as one: pass it as ``store=`` of modules, and train as with one.

    Call :func:`embedrock.distributed.open`, which opens the store of each rank and makes its shard.
    A shard that is made by hand, of a store that ``embedrock.open`` has opened, trains, but
    **cannot commit**: nothing would tie the stores of its ranks together. ``embedrock.save`` and
    :meth:`commit` refuse it.

    Each key is in one of 1,024 buckets for ever, and each rank has a run of them. A forward
    asks the ranks for its rows, an optimizer's step sends each its gradients, and the rank that has
    a row makes one step for it, with the gradients of all ranks. Dense parameters are
    ``DistributedDataParallel``'s.

    **Collective.** All ranks make, read and step modules in one order, a rank without ids or
    gradients too; :meth:`batches` ends all loops together. An error on one rank raises
    :class:`~embedrock.errors.RankError` on all, and calls that differ raise an error, too. Errors
    of a module before it reads (offsets of bags, types of ids) are raised on its rank alone, as are
    those of a program's own code: that rank should end, instead of going on a batch behind the
    others.

    Args:
        store: The store of this rank, open to write. All are made with one ``seed``.
        group: The ranks; None: all of them. Rows cross through a gloo group of its own, of host
            tensors, whatever the backend of this one.
        reduction: ``"mean"`` divides gradients of rows by the number of ranks, as
            ``DistributedDataParallel`` does for dense parameters; ``"sum"`` does not.
        wire_dtype: ``"bfloat16"`` halves the bytes of rows and gradients between ranks, and keeps 8
            bits of each value: a relative error of 2**-9 at most. Stored values are not rounded.
        presum: Whether a rank sums its gradients of equal ids before it sends them. Sums of floats
            depend on their order: without, rows of a table that a step reads for one feature
            alone, once, have the same bits for any number of ranks over the same global batch, for
            more bytes. Those of several features come rank by rank, and round as that goes.
        binding: Assignment of buckets to ranks; None: runs in the order of ranks.
        timeout: Seconds that a rank waits for the others in a call; None: as long as the backend
            does by itself, 30 minutes.

    Errors: ``MisuseError`` without a process group, and where ranks were made with other arguments.

    Blocking: until all ranks are there.
    """

    _elsewhere: str | None = (
        "shared by several ranks: train in a plain loop, over shard.batches(loader, model) to read "
        "rows ahead on every rank"
    )
    _collective = True

    def __init__(
        self,
        store: Store,
        group: dist.ProcessGroup | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        wire_dtype: Any = None,
        presum: bool = True,
        binding: Binding | None = None,
        timeout: float | None = None,
    ) -> None:
        """Meets the other ranks."""
        instance("store", store, Store)
        self.store = store
        """The store of this rank."""
        self.reduction: str = choice("reduction", reduction, ("mean", "sum"))
        wire = "float32" if wire_dtype is None else str(wire_dtype).removeprefix("torch.")
        if wire not in ("float32", "bfloat16"):
            raise MisuseError(f"wire_dtype is {wire_dtype!r}, expected None or 'bfloat16'")
        self.wire_dtype = wire
        """The type of rows and gradients between ranks."""
        self._each_occurrence = not flag("presum", presum)
        limit = waiting_limit(timeout)
        self.exchange = Exchange(group_of(group, limit))
        """The collective calls of the ranks."""
        self.group = self.exchange.group
        """A gloo group of the ranks, which the shard alone uses."""
        self.rank, self.world = self.exchange.rank, self.exchange.world
        self._bind(binding)
        self.owners = _owners_of(binding, self.world)
        """(1024,) the rank of each bucket."""
        self._payload = Payload(self.exchange, getattr(torch, wire))
        self._changes = Changes(self)
        self._listeners = Listeners()
        self._counts = dict.fromkeys(("gets", "gets_ahead", "updates", "keys_sent", "keys_got"), 0)
        self.window = ShardWindow(self, group_of(group, limit))
        """Reads rows of batches to come on all ranks."""
        owners = int.from_bytes(self.owners.tobytes(), "little")
        detail = hash((owners, presum, self.reduction == "mean", wire == "float32"))
        told = f"{reduction=}, wire_dtype={wire!r}, {presum=}, owners {_shown(self.owners)}"
        verb = Verb("Shard", (), detail, told)
        own = np.array([digest_of(store.id), store._branch], np.int64)
        with self.exchange:
            met = self.exchange.meet(verb, counts=np.tile(own, (self.world, 1)), tables=2)
        # Of all stores together, whichever rank has which.
        self._id, self._branch = np.bitwise_xor.reduce(met.counts, axis=0).tolist()
        if self._binding is not None:
            self._id = digest_of(self._binding.run)
        self._returned = store._returns

    def __repr__(self) -> str:
        return (
            f"<embedrock.distributed.Shard rank {self.rank} of {self.world} with store "
            f"{self.store.path}>"
        )

    def __enter__(self) -> Shard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends look-ahead and closes the store of this rank."""
        self.window._close()
        self.store.close()

    def __getitem__(self, name: str) -> ShardTable:
        """The table of that name. Collective. Errors: ``NotFoundError``."""
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        """Whether this rank has a table of that name. Not collective."""
        return isinstance(name, str) and self.store._has_table(name)

    def __iter__(self) -> Iterator[str]:
        """The names of all tables, in order of creation on this rank. Not collective."""
        return iter(self.store.tables)

    def __getattr__(self, name: str) -> Any:
        """Says why what a store of one process has is not there."""
        reason = _ELSEWHERE.get(name)
        said = f"'Shard' has no {name!r}"
        raise AttributeError(f"{said}: {reason}" if reason else said, name=name, obj=self)

    @property
    def buckets(self) -> npt.NDArray[np.int64]:
        """The buckets of this rank, ascending."""
        return np.flatnonzero(self.owners == self.rank)

    @property
    def tables(self) -> dict[str, ShardTable]:
        """All tables by name, in order of creation on this rank."""
        return {name: ShardTable(self, table) for name, table in self.store.tables.items()}

    def table(
        self,
        name: str,
        embedding_dim: int | None = None,
        num_embeddings: int | None = None,
        *,
        expected_rows: int | None = None,
        optimizer: _optimizers.OptimizerLike | None = None,
        initializer: _initializers.InitializerLike | None = None,
        dtype: Any = None,
        rounding: Literal["stochastic", "nearest"] | None = None,
        storage: Literal["log", "lsm", "pmem"] | None = None,
        capacity: int | None = None,
    ) -> ShardTable:
        """The table of that name, created on all ranks if there is none. Collective.

        Arguments are those of :meth:`embedrock.Store.table`; ``num_embeddings``, ``expected_rows``
        and ``capacity`` are of all ranks together.

        Errors: as there; ``MismatchError`` where ranks ask for different tables, or have other
        ones of that name, or stores of another ``seed``.
        """
        asked = {
            "embedding_dim": embedding_dim,
            "num_embeddings": num_embeddings,
            "expected_rows": expected_rows,
            "optimizer": optimizer,
            "initializer": initializer,
            "dtype": dtype,
            "rounding": rounding,
            "storage": storage,
            "capacity": capacity,
        }
        return ShardTable(self, make_table(self, name, asked))

    def get(
        self, batches: Sequence[tuple[ShardTable, ArrayLike]], out: Sequence[Any] | None = None
    ) -> list[Any]:
        """Rows of several tables in one exchange. Collective.

        Every key is sent as it comes: whoever has equal ones asks for each once
        (``embedrock.distinct``), as modules and :meth:`ShardTable.get` do.

        Shapes: ``[(table, keys (*,)), ...] -> [rows (*, embedding_dim) float32, ...]``.

        Blocking: until all ranks have called it, and have read what the others ask for.
        """
        failed: BaseException | None = None
        found: list[tuple[ShardTable, Keys]] = []
        answers: list[Any] = []
        flat: list[Floats] = []
        self._listeners.before()
        try:
            found = self._keys_of(batches_of(batches, 2))
            given = [None] * len(found) if out is None else arrays_for(found, out)
            for i, ((table, keys), array) in enumerate(zip(found, given, strict=True)):
                shape, meaning = table._shape(keys)
                answers.append(np.empty(shape, np.float32) if array is None else array)
                filled = as_out(answers[-1], shape, meaning, f"out[{i}]")
                flat.append(filled.reshape(-1, table.embedding_dim))
        except Exception as error:
            failed = error
        by = sorted(range(len(found)), key=lambda i: -found[i][0].embedding_dim)
        tables = [found[i][0] for i in by]
        verb = Verb("get", tuple(table.name for table in tables))
        route = self._route([found[i] for i in by]) if failed is None else None
        with self.exchange:
            self._get(verb, tables, route, failed, [flat[i] for i in by] if route else [])
        return answers

    def stats(self) -> dict[str, int]:
        """Counts since the shard was made.

        ``gets`` and ``updates`` of this rank, and of the gets those whose ids were there already
        (``gets_ahead``); ``keys_sent`` to ranks and ``keys_got`` from them, this one included;
        ``bytes_sent`` to others.
        """
        sent = self.exchange.bytes_sent + self.window._exchange.bytes_sent
        return {**self._counts, "bytes_sent": sent}

    def go_back(self, step: int) -> Commit:
        """Goes back to a commit that all ranks have, in place. Collective; returns this rank's.

        As :meth:`embedrock.Store.go_back`, but later commits are dropped at once on all ranks.
        Within a loop over :meth:`batches` their ids stay known; rows that were read ahead do not.

        Errors: the same on all ranks: as there; ``MisuseError`` if ranks give different steps. If
        the store of one rank has failed, no rank commits before all have gone back.
        """
        made = super().go_back(step)
        self.window._forget_rows()
        return made

    def batches(
        self,
        loader: Iterable[B],
        model: Any = None,
        *,
        keys_of: KeysOf | None = None,
        ahead: int = 32,
        schedule: Literal["epoch"] | None = None,
    ) -> ShardBatches[B]:
        """The batches of this rank's loader, as many as every rank has. Iterating is collective.

        Loaders of ranks may have other numbers of batches: all loops end when the first one has no
        more, and ``left_out`` says how many batches were drawn in vain. An error of one loader is
        raised on all ranks.

        With ``model``, or ``keys_of`` (:mod:`embedrock.pipeline`), ``ahead`` batches are drawn
        before they are used, their ids exchanged on a thread, and their rows read ahead on the
        ranks that have them. Results are the same.

        With ``schedule="epoch"`` the ranks look at the ids of a whole pass before it begins: then
        each knows when its rows are used next (``docs/lookahead.md``). Loaders are those that
        :class:`embedrock.LookaheadLoader` takes a schedule for. Give it some hundred batches
        ``ahead``, 512 at most: stretches of a schedule are a third of them. Where one rank cannot
        know its batches all go on without, with a ``LookaheadWarning``.

        >>> for batch in shard.batches(loader, model):  # doctest: +SKIP
        ...     loss = criterion(model(batch), batch["label"])
        """
        return ShardBatches(self, loader, model, keys_of, ahead, schedule)

    def loss_weight(self, count: int) -> float:
        """Factor for a mean loss over ``count`` samples if ranks have batches of different sizes:
        ``count * world / samples of all ranks``. Collective.

        A mean over ranks of means over their batches gives samples of a small batch more weight.
        With it, rows and dense parameters get the gradient of the mean over all samples.
        """
        with self._refusing("loss_weight"):
            own = whole("count", count, 0)
        with self.exchange as exchange:
            total = int(exchange.meet(Verb("loss_weight"), note=own).notes.sum())
        return own * self.world / total if total else 0.0

    def unscale_(self, scaler: Any, *optimizers: torch.optim.Optimizer) -> None:
        """``scaler.unscale_`` of these optimizers, with what all ranks have found. Collective.

        Call it between ``backward`` and ``scaler.step`` of each of them: a ``GradScaler`` sees the
        gradients of its rank, so one rank alone would skip its step and change its scale.
        """
        unscale_together(self, scaler, optimizers)

    @property
    def _returns(self) -> int:
        return self.store._returns

    def _history(self) -> list[int]:
        step = self.step
        at = [0, -1] if step is None else [step, step]
        branch = self._branch + self.store._returns - self._returned
        return [0, self._id, *at, 0, int(self.uncommitted[0] > 0), branch]

    def _has_table(self, name: str) -> bool:
        return self.store._has_table(name)

    def _absent_part(self, table: ShardTable, factors: dict[str, Any]) -> ShardPart:
        """A table's part of a step of a rank that has no gradient of it."""
        return ShardPart(table, None, np.empty((0, table.embedding_dim), np.float32), factors)

    @contextmanager
    def _refusing(self, verb: str, *tables: ShardTable) -> Iterator[None]:
        """Reports an error raised before a call begins to the ranks that wait within that call."""
        try:
            yield
        except Exception as error:
            with self.exchange as exchange:
                exchange.meet(Verb(verb, tuple(table.name for table in tables)), failed=error)
            raise

    def _keys_of(self, batches: Sequence[Any]) -> list[tuple[ShardTable, Keys]]:
        """The tables and keys of batches, which must be of this shard and lie in range."""
        for table, *_ in batches:
            if not isinstance(table, ShardTable) or table.store is not self:
                raise MisuseError(f"a batch is of {table!r:.200}, expected a table of {self!r}")
        found = [(table, as_keys(keys)) for table, keys in batches]
        KeysNamed(*found).check()
        return found

    def _route(self, found: Sequence[tuple[ShardTable, Keys]]) -> Route:
        keys = [keys.flat for _, keys in found]
        ranks = [self.owners[table._buckets(keys.flat)] for table, keys in found]
        return Route(keys, ranks, self.world)

    def _is_own(self, table: ShardTable, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        own: npt.NDArray[np.bool_] = self.owners[table._buckets(keys)] == self.rank
        return own

    def _get(
        self,
        verb: Verb,
        tables: Sequence[ShardTable],
        route: Route | None,
        failed: BaseException | None,
        outs: Sequence[Floats],
    ) -> None:
        """Fills ``outs`` with the rows of a route."""
        exchange, dims = self.exchange, [table.embedding_dim for table in tables]
        kept = None if route is None else self.window._kept_for(tables, route)
        met = exchange.meet(
            verb,
            failed=failed,
            note=0 if kept is None else kept.number,
            counts=None if route is None else route.counts,
            tables=len(tables),
        )
        if not tables:
            return
        assert route is not None
        if kept is not None and (met.notes == kept.number).all():
            pieces = kept.asked_of(verb.tables)
            self._counts["gets_ahead"] += 1
        else:
            pieces = pieces_of(self._payload.ids(verb, route, met.counts), met.counts)
        room = self._payload.room(met.counts, dims, _GAP)
        failed = self._read(tables, pieces, room.numpy(), met.counts)
        came = self._payload.rows(verb, room, met.counts, route.counts, dims, _GAP)
        self._counts["gets"] += 1
        self._counts["keys_sent"] += len(route.keys)
        self._counts["keys_got"] += int(met.counts.sum())
        ends = np.cumsum(route.counts @ np.array(dims) + _GAP * dims[-1]) - 1
        if came.numpy()[ends].any():
            exchange.raise_failure(verb, failed)
        gather(came, route, dims, _GAP, outs)

    def _read(
        self,
        tables: Sequence[ShardTable],
        pieces: Sequence[Sequence[npt.NDArray[np.uint64]]],
        room: Floats,
        counts: npt.NDArray[np.int64],
    ) -> BaseException | None:
        """Reads what ranks ask for into a room, and says behind the rows of each how it went."""
        dims = [table.embedding_dim for table in tables]
        views = split_by(room, counts, dims, _GAP)
        wanted, into = [], []
        for keys_of_rank, rows_of_rank in zip(pieces, views, strict=True):
            for table, keys, rows in zip(tables, keys_of_rank, rows_of_rank, strict=True):
                if len(keys):
                    wanted.append((table.local, keys))
                    into.append(rows)
        failed: BaseException | None = None
        try:
            self.store.get(wanted, out=into)
        except Exception as error:
            failed = error
            room[:] = 0.0
        ends = np.cumsum(counts @ np.array(dims) + _GAP * dims[-1])
        for end in ends.tolist():
            room[end - dims[-1] : end] = failed is not None
        return failed

    def _update(
        self,
        parts: list[ShardPart],
        non_finite: NonFinite,
        within: Bounds,
        settled: Callable[[int], object],
    ) -> float | None:
        return self._changes.update(parts, non_finite, within, settled)

    def _gradient_norm(
        self, parts: list[ShardPart], non_finite: NonFinite, within: Bounds
    ) -> float:
        return self._changes.gradient_norm(parts, non_finite, within)

    def _put(self, table: ShardTable, keys: Keys, rows: Floats, non_finite: NonFinite) -> None:
        self._changes.put(table, keys, rows, non_finite)

    def _contains(self, table: ShardTable, keys: Keys) -> npt.NDArray[np.bool_]:
        verb, found = Verb("contains", (table.name,)), [(table, keys)]
        failed: BaseException | None = None
        try:
            KeysNamed(*found).check()
        except EmbedrockError as error:
            failed = error
        route = self._route(found)
        with self.exchange:
            met = self.exchange.meet(verb, failed=failed, counts=route.counts, tables=1)
            asked = self._payload.ids(verb, route, met.counts)
            answer = np.zeros(len(asked), np.uint8)
            try:
                answer[:] = table.local.contains(asked)
            except Exception as error:
                failed = error
            self.exchange.meet(verb._replace(part="end of "), failed=failed)
            came = torch.empty(len(route.keys), dtype=torch.uint8, device="cpu")
            splits = [each.sum(axis=1).tolist() for each in (route.counts, met.counts)]
            self.exchange.send(verb, came, torch.from_numpy(answer), *splits)
        there = np.empty(len(route.keys), np.bool_)
        there[route.order] = came.numpy()
        return there

    def _total(self, table: ShardTable, own: int) -> int:
        with self.exchange:
            return int(self.exchange.meet(Verb("len", (table.name,)), note=own).notes.sum())


def _owners_of(binding: Binding | None, world: int) -> Ranks:
    if binding is None:
        if world > BUCKETS:
            raise MisuseError(f"{world} ranks, expected at most {BUCKETS}: one for each bucket")
        return owners_of(runs_of(world))
    owners = np.asarray(binding.owners)
    if owners.shape != (BUCKETS,) or owners.dtype.kind not in "iu":
        raise MisuseError(f"owners have shape {owners.shape}, expected ({BUCKETS},) of ranks")
    if owners.min() < 0 or owners.max() >= world:
        raise MisuseError(f"owners name rank {owners.max()}, expected 0 to {world - 1}")
    return owners.astype(np.uint16)


def _shown(owners: Ranks) -> str:
    """Runs of buckets and their ranks, for messages."""
    starts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist()]
    ends = [*starts[1:], BUCKETS]
    runs = [f"{a}-{b - 1}: {owners[a]}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(runs[:8]) + (" and more" if len(runs) > 8 else "")
