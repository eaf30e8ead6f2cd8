"""Tables of all ranks: made together, and compared before anybody uses them."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from embedrock._arguments import text
from embedrock._ranks import BUCKETS
from embedrock.distributed.exchange import Verb
from embedrock.distributed.routing import destinations, ids_of
from embedrock.errors import MismatchError
from embedrock.store.specs import asked_of
from embedrock.table import Table

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["digest_of", "grow_table", "make_table", "spec_of_table"]

_SPREAD = 4.0
"""Standard deviations that a rank's part of a growing table's rows may be above its share."""
_LOOKED_AT = 4096
"""Rows of a table that is opened, of which none may be another rank's."""
_COMPARED = np.arange(8, dtype=np.uint64)
"""Keys whose initial rows tell one seed from another."""


def make_table(shard: Shard, name: str, asked: dict[str, Any]) -> Table:
    """The table of a name in the store of this rank, the same on all. Collective.

    Errors: see ``Shard.table``.
    """
    failed: BaseException | None = None
    wanted, options = "", ""
    try:
        wanted = text("name", name)
        if asked["embedding_dim"] is not None:
            options = json.dumps(asked_of(**asked), sort_keys=True)
    except Exception as error:
        failed = error
    table: Table | None = None
    with shard.exchange as exchange:
        exchange.meet(
            Verb("opening", (wanted,), digest_of(options), options or "no embedding_dim"),
            failed=failed,
        )
        spec, rows = "", 0
        try:
            table = shard.store.table(wanted, **_here(shard, wanted, asked))
            _check_rows(shard, table)
            spec = json.dumps(spec_of_table(table), sort_keys=True)
            rows = 0 if len(table) else digest_of(table.get(_COMPARED[: _size(table)]).tobytes())
        except Exception as error:
            failed = error
        verb = Verb("opening", (wanted,), digest_of(spec), spec, part="end of ")
        met = exchange.meet(verb, failed=failed, note=rows)
    assert table is not None
    known = met.notes[met.notes != 0]
    if len(known) and (known != known[0]).any():
        raise MismatchError(
            f"table {wanted!r}: the stores of the ranks have other initial rows; make all of them "
            f"with one seed (embedrock.open(seed=...))"
        )
    return table


def grow_table(shard: Shard, table: Table, num_embeddings: int) -> None:
    """Gives a dense table more ids on every rank. Collective.

    Errors: see ``ShardTable.grow``.
    """
    failed: BaseException | None = None
    with shard.exchange as exchange:
        exchange.meet(Verb("growing", (table.name,), num_embeddings, num_embeddings))
        try:
            table.grow(num_embeddings)
        except Exception as error:
            failed = error
        exchange.meet(Verb("growing", (table.name,), part="end of "), failed=failed)


def _check_rows(shard: Shard, table: Table) -> None:
    """Refuses a table with rows of other ranks' buckets, which nobody would read: a look at its
    first rows, as stores that were given to other ranks have them everywhere."""
    if table.name in shard._looked_at:
        return
    found = next(iter(table.items(_LOOKED_AT)), None)
    keys = np.empty(0, np.uint64) if found is None else found[0].view(np.uint64)
    ranks = destinations(keys, shard.owners, dense=table.num_embeddings is not None)
    strange = keys[ranks != shard.rank]
    if len(strange):
        raise MismatchError(
            f"table {table.name!r} of {shard.store.path} has rows of other ranks' buckets, as of "
            f"key {strange[0]}: it is the store of another rank, or was made by another number of "
            f"ranks; give as many ranks their own stores back. embedrock.distributed.open does so "
            f"by itself, and embedrock reshard divides what it has made for another number"
        )
    shard._looked_at.add(table.name)


def spec_of_table(table: Table) -> dict[str, Any]:
    """The properties of a table that must be the same on all ranks."""
    names = "embedding_dim num_embeddings optimizer initializer dtype rounding storage"
    return {name: getattr(table, name) for name in ("name", *names.split())}


def digest_of(content: str | bytes) -> int:
    """A number that another content has by rare chance alone; never 0."""
    encoded = content.encode() if isinstance(content, str) else content
    digest = hashlib.blake2b(encoded, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def _here(shard: Shard, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the store of this rank: sizes are of its part of the rows."""
    if asked["embedding_dim"] is None or shard.store._has_table(name):
        return {**asked, "expected_rows": None, "capacity": None}
    size, expected = asked["num_embeddings"], asked["expected_rows"]
    share = len(shard.buckets) / BUCKETS

    def of_rank(rows: int | None) -> int | None:
        if rows is None or share == 1.0:
            return rows
        mean = rows * share
        most = math.ceil(mean + _SPREAD * math.sqrt(mean)) + 1
        return most if size is None else min(most, max(ids_of(shard.buckets, size), 1))

    if size is not None and expected is None and share < 1.0:
        expected = size
    return {**asked, "expected_rows": of_rank(expected), "capacity": of_rank(asked["capacity"])}


def _size(table: Table) -> int:
    size = table.num_embeddings
    return len(_COMPARED) if size is None else min(size, len(_COMPARED))
