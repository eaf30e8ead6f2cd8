"""The rows of all entities: some by their ids, and all of them once.

A table is read in the order of its pages, each once. Rows that were never written come behind the
others, computed and not read. Any other module is asked for its ids in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from embedrock._arguments import function, shown, whole
from embedrock.errors import MisuseError
from embedrock.nn import Embedding
from embedrock.table import Table

__all__ = ["EntityRows", "looked_up"]

Ids: TypeAlias = npt.NDArray[np.int64]
Fresh: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def looked_up(module: nn.Module, ids: Tensor) -> Tensor:
    """The rows of some ids, which are brought to where the module looks them up."""
    if not isinstance(module, Embedding):  # ours takes ids on any device
        place = next(chain(module.parameters(), module.buffers()), None)
        ids = ids if place is None else ids.to(place.device)
    rows: Tensor = module(ids)
    return rows


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
        """Number of entities."""
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
            rows = looked_up(self._entities, torch.from_numpy(keys)).detach()
        if self._fresh is not None and isinstance(self._table, Table):
            new = np.flatnonzero(~self._table.contains(keys))
            if len(new):
                values = self._freshened(self._table.get(keys[new]))
                rows[torch.from_numpy(new).to(rows.device)] = self._placed(values)
        return rows

    def scan(self, batch_size: int) -> Iterator[tuple[Ids, Tensor]]:
        """Every row once: ids ``(B,)`` and rows ``(B, D)``, B at most ``batch_size``.

        Errors: ``MisuseError`` when a table is written to meanwhile.

        Blocking: changed rows of a table are written to the disk first, without a commit.
        """
        table = self._table
        if not isinstance(table, Table):
            for begin in range(0, self._count, batch_size):
                ids = np.arange(begin, min(begin + batch_size, self._count))
                yield ids, self.of(ids)
            return
        for keys, values, is_new in self._stored(table, batch_size):
            within = (keys >= 0) & (keys < self._count)
            if not within.all():
                keys, values = keys[within], values[within]
            yield keys, self._placed(self._freshened(values) if is_new else values)

    def _stored(
        self, table: Table, batch_size: int
    ) -> Iterator[tuple[Ids, npt.NDArray[np.float32], bool]]:
        """Ids and values in the order of storage, and whether they were never written."""
        if table._by_id:
            written, given = len(table), 0
            for keys, values in table.items(batch_size, unwritten=True):
                yield keys, values, given >= written
                given += len(keys)
            return
        seen = np.zeros(self._count, bool)
        for keys, values in table.items(batch_size):
            seen[keys[(keys >= 0) & (keys < self._count)]] = True
            yield keys, values, False
        for begin in range(0, self._count, 1 << 20):
            new = begin + np.flatnonzero(~seen[begin : begin + (1 << 20)])
            for at in range(0, len(new), batch_size):
                ids = new[at : at + batch_size]
                yield ids, table.get(ids), True

    def _placed(self, values: npt.NDArray[np.float32]) -> Tensor:
        """Values of the table as the module gives them."""
        entities: Any = self._entities
        return torch.from_numpy(values).to(entities.device, entities.output_dtype)

    def _freshened(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Rows that were never written, as they count."""
        if self._fresh is None:
            return values
        return np.ascontiguousarray(self._fresh(values), np.float32)
