"""Scores of queries against all rows of a table, in blocks, as a product with ``weight`` in torch.

Owns the pass over the table and its results. Invariants: rows come in storage order, each once, so
that the disk is read once for all queries; beside the result, memory is that of a block of rows and
of a part of its scores. Rows of a dense table that were never written count with the values that
``get`` reads; the pass is ``Table.items(unwritten=True)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._arguments import shown, whole
from embedrock._arrays import as_keys
from embedrock._distinct import distinct
from embedrock._rows import RowStore, RowTable, here
from embedrock.errors import MisuseError
from embedrock.table import Table

__all__ = ["TopK", "scores", "topk"]

BLOCK = 8192
"""Rows that are read at once."""
_SCORES_MAX = 1 << 22
"""Scores that are held at once, for which queries are taken in parts: 16 MiB."""
_K_MAX = 1 << 20
"""The answer, and what is kept of each block, is that wide; whoever wants more wants ``scores``."""
_ABSENT = -1

Ids = npt.NDArray[np.int64]


class OneTable(Protocol):
    """A module over a single table."""

    store: RowStore
    table: RowTable
    embedding_dim: int
    padding_idx: int | None

    @property
    def device(self) -> torch.device:
        """The device of answers."""


class TopK(NamedTuple):
    """The best rows of each query, best first."""

    scores: Tensor
    """(Q, k) float32; -inf where fewer than k rows are left."""
    ids: Tensor
    """(Q, k) int64; -1 where the score is -inf."""


class _Excluded(NamedTuple):
    """Pairs of a query and an id that it leaves out, by id."""

    ids: Ids
    queries: Ids

    def of_block(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """(queries, columns) of the pairs in a block of these ids."""
        begin = np.searchsorted(self.ids, ids, "left")
        count = np.searchsorted(self.ids, ids, "right") - begin
        ends = np.cumsum(count)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total) + np.repeat(begin - (ends - count), count)
        columns = np.repeat(np.arange(len(ids)), count)
        return torch.from_numpy(self.queries[places]), torch.from_numpy(columns)


def scores(module: OneTable, queries: Tensor, ids: Any) -> Tensor:
    """See ``Embedding.scores``."""
    vectors = _vectors(module, queries)
    if ids is not None:
        wanted = as_keys(ids, "ids").flat.view(np.int64)
        out = vectors.new_empty(len(vectors), len(wanted))
        for begin in range(0, len(wanted), BLOCK):
            part = wanted[begin : begin + BLOCK]
            out[:, begin : begin + len(part)] = vectors @ _get(module, part).T
        return out
    size = module.table.num_embeddings
    if size is None:
        raise MisuseError(
            f"scores of table {module.table.name!r}, which grows, have a column for each of ids=, "
            f"which are not given; topk ranks all of its rows"
        )
    out = vectors.new_empty(len(vectors), size)
    for found, rows in _blocks(module, BLOCK):
        columns = torch.from_numpy(found).to(out.device)
        out.index_copy_(1, columns, vectors @ rows.T)
    return out


def topk(module: OneTable, queries: Tensor, k: Any, exclude: Any, ids: Any, block: Any) -> TopK:
    """See ``Embedding.topk``."""
    vectors, most = _vectors(module, queries), whole("block", block, 1)
    wanted = whole("k", k, 1)
    if wanted > _K_MAX:
        raise MisuseError(f"k is {wanted}, expected 1 to {_K_MAX}; scores has all of them")
    excluded = _excluded(exclude, len(vectors))
    best = [
        TopK(
            part.new_empty(len(part), 0), torch.empty(len(part), 0, dtype=torch.int64, device="cpu")
        )
        for part in _parts(vectors, most)
    ]
    blocks = _blocks(module, most) if ids is None else _chosen(module, ids, most)
    for found, rows in blocks:
        keys, rows = _by_id(found, rows, module.padding_idx)
        if not len(keys):
            continue
        queried, columns = (None, None) if excluded is None else excluded.of_block(keys)
        there, first = torch.from_numpy(keys), 0
        for place, part in enumerate(_parts(vectors, most)):
            scored = part @ rows.T
            if queried is not None and columns is not None:
                inside = (queried >= first) & (queried < first + len(part))
                scored[queried[inside] - first, columns[inside]] = -torch.inf
            best[place] = _merged(best[place], _best(scored, there, wanted), wanted)
            first += len(part)
    found_scores = torch.cat([one.scores for one in best])
    found_ids = torch.cat([one.ids for one in best]).to(found_scores.device)
    found_ids[found_scores == -torch.inf] = _ABSENT
    missing = wanted - found_scores.shape[1]
    if missing > 0:
        pad = (0, missing)
        found_scores = torch.nn.functional.pad(found_scores, pad, value=-torch.inf)
        found_ids = torch.nn.functional.pad(found_ids, pad, value=_ABSENT)
    return TopK(found_scores, found_ids)


def _vectors(module: OneTable, queries: Any) -> Tensor:
    """The queries (Q, D) float32, on the module's device. Errors: ``MisuseError``."""
    dim = module.embedding_dim
    if not is_plain(queries) or not queries.is_floating_point():
        raise MisuseError(f"queries is {shown(queries)}, expected a tensor (Q, {dim}) of floats")
    if queries.dim() != 2 or queries.shape[1] != dim:
        raise MisuseError(
            f"queries has shape {tuple(queries.shape)}, expected (Q, {dim}): a row for each query "
            f"of the width of table {module.table.name!r}"
        )
    try:
        found: Tensor = queries.detach().to(module.device, torch.float32)
        finite = bool(torch.isfinite(found).all())
    except (AssertionError, RuntimeError, TypeError) as error:
        raise MisuseError(f"queries is a tensor without data to read: {error}") from error
    if not finite:
        raise MisuseError("queries hold NaN or infinity, for which rows have no order")
    return found


def is_plain(given: Any) -> bool:
    """Whether it is a tensor whose values lie in memory one beside the other."""
    return (
        isinstance(given, Tensor)
        and given.layout == torch.strided
        and not given.is_nested
        and not given.is_meta
    )


def _parts(vectors: Tensor, block: int) -> tuple[Tensor, ...]:
    """The queries, so many at once that their scores against a block are few enough."""
    if not len(vectors):
        return (vectors,)
    return tuple(vectors.split(max(1, _SCORES_MAX // block)))


def _blocks(module: OneTable, most: int) -> Iterator[tuple[Ids, Tensor]]:
    """All rows of a table: ids (B,) and rows (B, D)."""
    table = module.table
    size = table.num_embeddings
    if isinstance(table, Table):
        for found in table.items(most, unwritten=size is not None):
            yield found[0], torch.from_numpy(found[1]).to(module.device)
        return
    if size is None:
        here(module.store, f"ranking all rows of table {table.name!r}, which grows; ids=")
    assert size is not None
    for begin in range(0, size, most):
        found_ids = np.arange(begin, min(begin + most, size))
        yield found_ids, _get(module, found_ids)


def _chosen(module: OneTable, ids: Any, most: int) -> Iterator[tuple[Ids, Tensor]]:
    """The rows of these ids, each once."""
    wanted, _ = distinct(as_keys(ids, "ids").flat.view(np.int64))
    for begin in range(0, len(wanted), most):
        part = wanted[begin : begin + most]
        yield part, _get(module, part)


def _get(module: OneTable, ids: Ids) -> Tensor:
    (rows,) = module.store.get([(module.table, ids)])
    return torch.from_numpy(rows).to(module.device)


def _by_id(ids: Ids, rows: Tensor, padding: int | None) -> tuple[Ids, Tensor]:
    """A block in the order of ids, without the padding row: of equal scores the first column is
    then the smallest id."""
    order = np.argsort(ids, kind="stable")
    if padding is not None:
        order = order[ids[order] != as_keys([padding % 2**64]).flat.view(np.int64)]
    if len(order) == len(ids) and bool((order[1:] > order[:-1]).all()):
        return ids, rows
    return ids[order], rows[torch.from_numpy(order).to(rows.device)]


def _best(scored: Tensor, ids: Tensor, k: int) -> TopK:
    """The best columns of scores (Q, B), of equal ones the first; in no order."""
    if scored.shape[1] <= k:
        return TopK(scored, ids.expand(len(scored), -1))
    values, columns = scored.topk(k, dim=1)
    # torch takes any of several that are equal at the end.
    crowded = torch.nonzero((scored >= values[:, -1:]).sum(1) > k).squeeze(1)
    if len(crowded):
        ordered = scored[crowded].sort(dim=1, descending=True, stable=True)
        values[crowded], columns[crowded] = ordered.values[:, :k], ordered.indices[:, :k]
    return TopK(values, ids[columns.cpu()])


def _merged(one: TopK, other: TopK, k: int) -> TopK:
    """The best of both, in their order."""
    found, ids = torch.cat([one.scores, other.scores], 1), torch.cat([one.ids, other.ids], 1)
    by_id = ids.argsort(dim=1, stable=True)
    found, ids = found.gather(1, by_id.to(found.device)), ids.gather(1, by_id)
    by_score = found.argsort(dim=1, descending=True, stable=True)[:, :k]
    return TopK(found.gather(1, by_score), ids.gather(1, by_score.cpu()))


def _excluded(exclude: Any, queries: int) -> _Excluded | None:
    """The exclusions of each query, from any of the accepted forms.

    Errors: ``MisuseError``.
    """
    if exclude is None:
        return None
    if isinstance(exclude, tuple) and len(exclude) == 2 and isinstance(exclude[1], Tensor):
        ids = as_keys(exclude[0], "exclude[0]").flat.view(np.int64)
        offsets = as_keys(exclude[1], "exclude[1]").flat.view(np.int64)
        counts = np.diff(offsets)
        fits = len(offsets) == queries + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
        if not fits or (len(counts) and counts.min() < 0):
            raise MisuseError(
                f"exclude has {len(offsets)} offsets for {len(ids)} ids, expected {queries + 1} "
                f"that rise from 0 to {len(ids)}: one for each of {queries} queries and the end"
            )
    elif isinstance(exclude, np.ndarray) or is_plain(exclude):
        if exclude.ndim != 2 or len(exclude) != queries:
            raise MisuseError(
                f"exclude has shape {tuple(exclude.shape)}, expected ({queries}, N): ids for each "
                f"query"
            )
        ids = as_keys(exclude, "exclude").flat.view(np.int64)
        counts = np.full(queries, exclude.shape[1])
    else:
        if not isinstance(exclude, Sequence) or isinstance(exclude, (str, bytes)):
            raise MisuseError(
                f"exclude is {shown(exclude)}, expected ids for each query: a list of them, a "
                f"tensor ({queries}, N), or (ids, offsets)"
            )
        if len(exclude) != queries:
            raise MisuseError(
                f"exclude has {len(exclude)} entries, expected {queries}: one for each query"
            )
        empty = np.empty(0, np.int64)
        parts = [
            empty if one is None else as_keys(one, f"exclude[{place}]").flat.view(np.int64)
            for place, one in enumerate(exclude)
        ]
        ids = np.concatenate(parts) if parts else empty
        counts = np.array([len(part) for part in parts], np.int64)
    of_query = np.repeat(np.arange(queries), counts)
    order = np.argsort(ids, kind="stable")
    return _Excluded(ids[order], of_query[order])
