"""The rows of all entities: some by their ids, and all of them once.

A table is read in the order of its pages where the engine iterates so: growing ones, and those
stored as an lsm. Rows that were never written come behind then, computed and not read. A dense
table stored as a log is read by ids, which lie in pages in the order of their writing: so in long
blocks, each of whose pages is read once. Any other module is asked for its ids in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from embedrock._arguments import function, shown, whole
from embedrock.errors import MisuseError
from embedrock.nn import Embedding
from embedrock.table import Table

__all__ = ["EntityRows"]

_BLOCK_BYTES = 64 << 20
"""Rows of a dense table that are read at a time."""

Ids: TypeAlias = npt.NDArray[np.int64]
Fresh: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


class EntityRows:
    """The rows of a module of entities, whose ids are ``0..len``."""

    def __init__(
        self, entities: nn.Module, num_entities: int | None = None, fresh: Fresh | None = None
    ) -> None:
        """``num_entities`` is needed where the module does not know; ``fresh`` is applied to rows
        that were never written. Errors: ``MisuseError``."""
        if not isinstance(entities, nn.Module):
            raise MisuseError(f"entities is {shown(entities)}, expected a module from ids to rows")
        count = getattr(entities, "num_embeddings", None) if num_entities is None else num_entities
        if count is None:
            raise MisuseError(
                "num_entities is None, and the entities do not say how many they are; pass it"
            )
        self._count = whole("num_entities", count, 1)
        own = getattr(entities, "num_embeddings", None)
        if own is not None and self._count > own:
            raise MisuseError(f"num_entities is {self._count}, but there are {own} entities")
        function("fresh", fresh, "rows that were never written")
        self._entities, self._fresh = entities, fresh
        self._table = getattr(entities, "table", None) if isinstance(entities, Embedding) else None

    def __len__(self) -> int:
        """How many entities there are."""
        return self._count

    @property
    def dim(self) -> int:
        """Values per row."""
        known = getattr(self._entities, "embedding_dim", None)
        return known if isinstance(known, int) else self.of(np.zeros(1, np.int64)).shape[1]

    def of(self, ids: npt.NDArray[Any]) -> Tensor:
        """The rows of some entities, ``(N,) -> (N, D)``, without gradients."""
        keys = np.ascontiguousarray(ids, np.int64)
        with torch.no_grad():
            rows: Tensor = self._entities(torch.from_numpy(keys)).detach()
        if self._fresh is not None and isinstance(self._table, Table):
            new = np.flatnonzero(~self._table.contains(keys))
            if len(new):
                values = self._freshened(self._table.get(keys[new]))
                rows[torch.from_numpy(new).to(rows.device)] = self._placed(values)
        return rows

    def scan(self, batch_size: int) -> Iterator[tuple[Ids, Tensor]]:
        """Every row once: ids ``(B,)`` and rows ``(B, D)``, B at most ``batch_size``.

        Errors: ``MisuseError`` when a table that is read by pages is written to meanwhile.
        """
        if not isinstance(self._table, Table):
            for begin in range(0, self._count, batch_size):
                ids = np.arange(begin, min(begin + batch_size, self._count))
                yield ids, self.of(ids)
            return
        if self._table.num_embeddings is not None and self._table.storage != "lsm":
            yield from self._by_ids(self._table, batch_size)
            return
        written = np.zeros(self._count, bool)
        for keys, values in self._table.items(batch_size):
            within = (keys >= 0) & (keys < self._count)
            if not within.all():
                keys, values = keys[within], values[within]
            written[keys] = True
            yield keys, self._placed(values)
        for begin in range(0, self._count, 1 << 20):
            new = begin + np.flatnonzero(~written[begin : begin + (1 << 20)])
            for at in range(0, len(new), batch_size):
                ids = new[at : at + batch_size]
                yield ids, self._placed(self._freshened(self._table.get(ids)))

    def _by_ids(self, table: Table, batch_size: int) -> Iterator[tuple[Ids, Tensor]]:
        size = max(batch_size, _BLOCK_BYTES // (4 * table.embedding_dim))
        for begin in range(0, self._count, size):
            ids = np.arange(begin, min(begin + size, self._count))
            values = table.get(ids)
            if self._fresh is not None:
                new = np.flatnonzero(~table.contains(ids))
                values[new] = self._freshened(values[new])
            for at in range(0, len(ids), batch_size):
                yield ids[at : at + batch_size], self._placed(values[at : at + batch_size])

    def _placed(self, values: npt.NDArray[np.float32]) -> Tensor:
        """Values of the table as the module gives them."""
        entities: Any = self._entities
        return torch.from_numpy(values).to(entities.device, entities.output_dtype)

    def _freshened(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Rows that were never written, as they count."""
        if self._fresh is None:
            return values
        return np.ascontiguousarray(self._fresh(values), np.float32)
