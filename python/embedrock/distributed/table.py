"""A table whose rows are divided among the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import choice, flag, whole
from embedrock._arrays import ArrayLike, Keys, as_keys, as_out, as_rows
from embedrock._distinct import distinct
from embedrock._verbs import NON_FINITE, Floats, NonFinite
from embedrock.clip import Clip, bounds
from embedrock.distributed.making import grow_table
from embedrock.optimizers import OptimizerSpec, factors
from embedrock.table import Table

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["ShardPart", "ShardTable"]

_HERE = "the rows of this rank alone are in shard.store.table(name)"
_ELSEWHERE = {
    "modify": f"its function would run on another rank; {_HERE}",
    "delete": _HERE,
    "lookahead": "shard.window.announce, or shard.batches(loader, model), read rows ahead",
    "promote": _HERE,
    "digest": _HERE,
}
"""Verbs of tables of a store, and why they are not there of one that ranks share."""


class ShardPart(NamedTuple):
    """One table's part of an optimizer step of a rank."""

    table: ShardTable
    keys: Keys | None
    """None: this rank has no gradient of the table."""
    gradients: Floats
    """(N, embedding_dim)."""
    factors: dict[str, Any]


class ShardTable:
    """A table of a :class:`Shard`: every key is on one rank, and any rank may ask for it.

    Keys are those of the whole model, dense ids ``0..num_embeddings`` on every rank. **Collective**
    are :meth:`get`, :meth:`put`, :meth:`update`, :meth:`contains`, ``len`` and ``in``: all ranks
    call them in one order, each with keys of its own, or none. An error on one of them raises
    :class:`~embedrock.errors.RankError` on all. :meth:`items` gives the rows of this rank alone.
    """

    def __init__(self, shard: Shard, table: Table) -> None:
        """Not for callers: tables come from a :class:`Shard`."""
        self._shard = shard
        self.local = table
        """The table in the store of this rank, with the rows of its buckets."""

    @property
    def store(self) -> Shard:
        """The shard that the table belongs to."""
        return self._shard

    @property
    def name(self) -> str:
        """The table's name."""
        return self.local.name

    @property
    def embedding_dim(self) -> int:
        """Values per row."""
        return self.local.embedding_dim

    @property
    def num_embeddings(self) -> int | None:
        """Rows of a dense table on all ranks together; None for a growing table."""
        return self.local.num_embeddings

    def grow(self, num_embeddings: int) -> None:
        """Gives a dense table more ids on all ranks, as :meth:`embedrock.Table.grow`. Collective.

        Errors: as there, on all ranks where one has them: those that could grow have grown then,
        so end the job without a commit; ``MismatchError`` where ranks ask for other numbers.

        Durability: with the next commit.
        """
        grow_table(self._shard, self.local, whole("num_embeddings", num_embeddings, 1))

    @property
    def dtype(self) -> str:
        """Type of the values as the ranks store them; rows cross as float32."""
        return self.local.dtype

    @property
    def optimizer(self) -> OptimizerSpec:
        """The optimizer whose state the rows carry, as ``embedrock.optimizers`` describes it."""
        return self.local.optimizer

    @property
    def initializer(self) -> dict[str, Any]:
        """The values of unwritten rows, as ``embedrock.initializers`` describes them."""
        return self.local.initializer

    def __getattr__(self, name: str) -> Any:
        """Says why a verb of a table of one store is not there."""
        reason = _ELSEWHERE.get(name)
        said = f"'ShardTable' has no {name!r}"
        raise AttributeError(f"{said}: {reason}" if reason else said, name=name, obj=self)

    def __repr__(self) -> str:
        ids = "growing" if self.num_embeddings is None else f"dense of {self.num_embeddings}"
        return (
            f"<embedrock.distributed.ShardTable {self.name!r} on rank {self._shard.rank} of "
            f"{self._shard.world}: {self.embedding_dim} {self.dtype}, {ids}, "
            f"{self.optimizer['kind']}>"
        )

    def __bool__(self) -> bool:
        """True: that a table is there has nothing to do with how many rows it has."""
        return True

    def __len__(self) -> int:
        """Number of written keys on all ranks together. Collective."""
        return self._shard._total(self, len(self.local))

    def __contains__(self, key: object) -> bool:
        """Whether this one key is written. Collective: all ranks ask, each for a key of its own."""
        return bool(self.contains(key).all())  # type: ignore[arg-type]

    @overload
    def get(self, keys: ArrayLike, out: None = None) -> Floats: ...

    @overload
    def get(self, keys: ArrayLike, out: Any) -> Any: ...

    def get(self, keys: ArrayLike, out: Any = None) -> Any:
        """The rows of these keys, in their order, from the ranks that have them. Collective.

        Each distinct key is asked for once. ``out`` is a float32 array to fill instead of a new
        one.

        Shapes: ``keys (*,) -> rows (*, embedding_dim) float32``.

        Blocking: until all ranks have called it, and have read what the others ask for.
        """
        with self._shard._refusing("get", self):
            asked = as_keys(keys)
            shape, meaning = self._shape(asked)
            new = np.empty(shape, np.float32) if out is None else out
            filled = as_out(new, shape, meaning, "out")
            once, places = distinct(asked.flat)
        (rows,) = self._shard.get([(self, once)])
        np.take(rows, places, axis=0, out=filled.reshape(-1, self.embedding_dim), mode="clip")
        return new

    def put(self, keys: ArrayLike, values: ArrayLike, *, non_finite: NonFinite = "refuse") -> None:
        """Writes rows, each on the rank that has its key. Collective.

        Of equal keys the last one wins, and that of a higher rank. Optimizer state stays.

        Shapes: ``keys (*,), values (*, embedding_dim) float32``.

        Errors: as :meth:`embedrock.Table.put`. Durability: with the next commit of all ranks.
        """
        with self._shard._refusing("put", self):
            asked = as_keys(keys)
            rows = as_rows(values, *self._shape(asked), "values", self.dtype)
            rows = rows.reshape(-1, self.embedding_dim)
            choice("non_finite", non_finite, NON_FINITE)
        self._shard._put(self, asked, rows, non_finite)

    def update(
        self,
        keys: ArrayLike,
        gradients: ArrayLike,
        *,
        lr: float,
        eps: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        other_norm: float = 0.0,
        **more: float,
    ) -> float | None:
        """One optimizer step on the rows that any rank has named here. Collective.

        Gradients of equal keys are summed, over the ranks in their order, and with
        ``reduction="mean"`` divided by how many there are. All ranks pass the same numbers, one
        without keys too. Returns the norm before it was scaled, where ``Clip.norm`` bounds it.

        Shapes: ``keys (*,), gradients (*, embedding_dim) float32``.

        Errors: as :meth:`embedrock.Table.update`.
        """
        with self._shard._refusing("update", self):
            numbers = factors(self.optimizer["kind"], lr, eps, betas, weight_decay, more)
            part = self._update_part(as_keys(keys), gradients, numbers)
            choice("non_finite", non_finite, NON_FINITE)
            within = bounds(clip, other_norm)
        return self._shard._update([part], non_finite, within, lambda _place: None)

    def contains(self, keys: ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each key is written, on the rank that owns it. Collective.

        Shapes: ``keys (*,) -> (*,) bool``.
        """
        with self._shard._refusing("contains", self):
            asked = as_keys(keys)
        return self._shard._contains(self, asked).reshape(asked.shape)

    def items(
        self, batch: int = 8192, *, unwritten: bool = False
    ) -> Iterator[tuple[npt.NDArray[np.int64], Floats]]:
        """Keys and rows of this rank, in portions, as :meth:`embedrock.Table.items` gives them.

        All ranks together give every key once. With ``unwritten=True`` a dense table gives all
        ids of the rank's buckets.
        """
        for keys, rows in self.local.items(batch, unwritten=flag("unwritten", unwritten)):
            own = self._shard._is_own(self, keys.view(np.uint64)) if unwritten else None
            if own is None or own.all():
                yield keys, rows
            elif own.any():
                yield keys[own], rows[own]

    def _update_part(self, keys: Keys, gradients: ArrayLike, factors: dict[str, Any]) -> ShardPart:
        """The table's part of an optimizer step, as ``Shard._update`` takes it."""
        rows = as_rows(gradients, *self._shape(keys), "gradients")
        return ShardPart(self, keys, rows.reshape(-1, self.embedding_dim), factors)

    def _local_part(
        self, keys: npt.NDArray[np.uint64], gradients: Floats, factors: dict[str, Any]
    ) -> Any:
        """The same for the store of this rank, with what all ranks have sent."""
        asked = Keys(keys, keys.shape, True)
        return self.local._update_part(asked, gradients, factors)

    def _buckets(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
        found: npt.NDArray[np.uint16] = _core.buckets_of(keys, self.num_embeddings is not None)
        return found

    def _shape(self, keys: Keys) -> tuple[tuple[int, ...], str]:
        meaning = f"keys.shape + (embedding_dim,) of table {self.name!r}"
        return (*keys.shape, self.embedding_dim), meaning
