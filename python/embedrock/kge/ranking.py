"""Ranks of true entities among all others, with one scan of the table for all queries.

The outer loop is over entities, the inner one over queries: the vectors of all queries stay in
memory, the table is read once, and each block of rows is scored against every query. So the cost of
reading does not depend on how many triples are ranked, and memory is that of the queries and of one
block of scores.

Invariant: scores that are compared come from the same code on blocks of the same shape, so an
entity with the same row as the answer has the same score, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._arguments import choice, iterated, shown, whole
from embedrock._memory import size_of
from embedrock.errors import MisuseError, NonFiniteError
from embedrock.kge.batches import checked_triples
from embedrock.kge.known import Known, ranges
from embedrock.kge.model import KnowledgeGraphModel
from embedrock.kge.rows import EntityRows, looked_up

__all__ = ["Queries", "Ranks", "rank", "rank_queries"]

RankKind: TypeAlias = Literal["realistic", "optimistic", "pessimistic"]
Side: TypeAlias = Literal["both", "head", "tail"]
Score: TypeAlias = Callable[[tuple[Tensor, ...], Tensor], Tensor]
"""From the parts of some queries ``(B, ...)`` and rows ``(N, D)`` to scores ``(B, N)``."""
Ids: TypeAlias = npt.NDArray[np.int64]

KINDS = ("realistic", "optimistic", "pessimistic")
SIDES = ("head", "tail")
_BLOCK, _CHUNK = 256, 4096
_QUERY_BYTES = 1 << 30
_GATHERED = 8192
"""Triples whose queries are made at a time."""


@dataclass
class Ranks:
    """The ranks of the answers, by side: ``head`` for predicted heads, and ``tail``."""

    greater: dict[str, Ids]
    """By side, ``(Q,)``: how many other candidates score more than the answer."""
    equal: dict[str, Ids]
    """By side, ``(Q,)``: how many others score the same."""
    candidates: dict[str, Ids]
    """By side, ``(Q,)``: how many candidates there were, the answer included."""
    scans: int = 0
    """Number of passes over the table: one, unless the queries did not fit ``query_bytes``."""
    inexact: int = 0
    """Answers whose score among all others was not, to the bit, the one that others were compared
    with: their ties may be counted wrong. 0 for the interactions of this package, as far as a
    processor's matrix product does not depend on the place in a matrix."""

    def ranks(self, kind: RankKind = "realistic", side: Side = "both") -> npt.NDArray[np.float64]:
        """From 1 on: before those with the same score, behind them, or between the two. Those of
        both sides are the heads', then the tails'."""
        choice("kind", kind, KINDS)
        place = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}[kind]
        found = [self.greater[one] + place * self.equal[one] + 1 for one in self._sides(side)]
        return np.concatenate(found) if found else np.empty(0)

    def mrr(self, kind: RankKind = "realistic", side: Side = "both") -> float:
        """The mean of 1 ÷ rank; NaN where nothing was asked."""
        return _mean(1 / self.ranks(kind, side))

    def hits(self, k: int, kind: RankKind = "realistic", side: Side = "both") -> float:
        """The share of answers of rank ``k`` or better."""
        return _mean(self.ranks(kind, side) <= whole("k", k, 1))

    def mean_rank(self, kind: RankKind = "realistic", side: Side = "both") -> float:
        """The mean of ranks."""
        return _mean(self.ranks(kind, side))

    def adjusted_mean_rank_index(self, side: Side = "both") -> float:
        """1 for answers that are all first, 0 for ranks as if by chance.

        Source: Berrendorf et al., "On the Ambiguity of Rank-Based Evaluation of Entity Alignment or
        Link Prediction Methods", 2020.
        """
        candidates = [self.candidates[one] for one in self._sides(side)]
        by_chance = _mean((np.concatenate(candidates) + 1) / 2)
        return 1 - (self.mean_rank(side=side) - 1) / (by_chance - 1)

    def summary(self, kind: RankKind = "realistic") -> dict[str, float]:
        """MRR and Hits@1, 3 and 10 of both sides, and how many answers there were."""
        found = {"queries": float(len(self.ranks(kind))), "mrr": self.mrr(kind)}
        return found | {f"hits_at_{k}": self.hits(k, kind) for k in (1, 3, 10)}

    def _sides(self, side: Side) -> list[str]:
        choice("side", side, ("both", *SIDES))
        return [one for one in SIDES if one in self.greater and side in ("both", one)]


@dataclass
class Queries:
    """Questions with one entity as the answer.

    Shapes: each part ``(Q, ...)``, answers ``(Q,)``.
    """

    parts: tuple[Tensor, ...]
    answers: Ids
    score: Score
    known: Known
    """The other true answers, which do not count."""

    def __len__(self) -> int:
        return len(self.answers)


def rank(
    model: KnowledgeGraphModel,
    triples: Any,
    *,
    known: Iterable[Any] = (),
    sides: Sequence[str] = SIDES,
    num_entities: int | None = None,
    block: int = _BLOCK,
    chunk: int = _CHUNK,
    query_bytes: int | str = _QUERY_BYTES,
    fresh: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None = None,
) -> Ranks:
    """Ranks the head and the tail of each triple among all entities.

    Args:
        model: The model; its rows are read as they are, without gradients.
        triples: ``(N, 3)`` ids, those to measure with.
        known: Arrays of true triples. Other true candidates for an answer do not count (*filtered*
            ranks); without any, ranks are raw.
        sides: The end to predict: ``"head"``, ``"tail"`` or both.
        num_entities: Candidates are the ids below; None: as many as the entities have.
        block: Queries that are scored at a time.
        chunk: Entities that are scored at a time.
        query_bytes: Memory limit of the queries; beyond it the table is read again for the next
            ones, and ``Ranks.scans`` counts these passes.
        fresh: A function applied to rows that were never written before they are scored, such as
            ``embedrock.kge.unit`` if :class:`RowConstraint` keeps the others.

    Errors: ``KeyRangeError`` for an entity that is not there, ``MisuseError``, and
    ``NonFiniteError`` when a score is NaN or infinite.

    Blocking: reads the rows of the triples, and the table once, page after page. Changed rows are
    written to the disk first, without a commit; rows that were never written are computed.

    >>> import torch
    >>> entities = torch.nn.Embedding.from_pretrained(torch.eye(3))
    >>> relations = torch.nn.Embedding.from_pretrained(torch.zeros(1, 3))
    >>> model = embedrock.kge.KnowledgeGraphModel("transe", entities, relations)
    >>> ranks = embedrock.kge.rank(model, [[0, 0, 0], [1, 0, 2]], sides=["tail"])
    >>> ranks.ranks("optimistic"), ranks.ranks("pessimistic")
    (array([1., 2.]), array([1., 3.]))
    """
    if not isinstance(model, KnowledgeGraphModel):
        raise MisuseError(f"model is {shown(model)}, expected an embedrock.kge.KnowledgeGraphModel")
    wanted = _sides(sides)
    rows = EntityRows(model.entities, num_entities, fresh)
    asked = checked_triples("triples", triples, len(rows))
    filters = [
        checked_triples("known", one, len(rows))
        for one in iterated("known", known, "arrays of triples")
    ]
    interaction = model.interaction
    ask = {"head": interaction.of_heads, "tail": interaction.of_tails}

    def score(parts: tuple[Tensor, ...], entities: Tensor) -> Tensor:
        return interaction.crossed(parts[0], entities)

    # Each is there twice: as it was made, and in the order in which it is asked.
    width = 2 * 4 * rows.dim * len(wanted)
    most = max(block, size_of("query_bytes", query_bytes, 1) // width)
    found: list[Ranks] = []
    for begin in range(0, len(asked), most):
        some = asked[begin : begin + most]
        queries = {}
        for side in wanted:
            ends = some[:, 2 if side == "head" else 0]
            with torch.no_grad():
                vectors = [
                    ask[side](
                        rows.of(ends[at : at + _GATHERED]),
                        looked_up(model.relations, _ids(some[at : at + _GATHERED, 1])),
                    )
                    for at in range(0, len(some), _GATHERED)
                ]
            queries[side] = Queries(
                (torch.cat(vectors),), _answers(some, side), score, Known.of(side, some, filters)
            )
        found.append(rank_queries(queries, rows, block=block, chunk=chunk))
    return _joined(found, wanted)


@torch.no_grad()  # type: ignore[untyped-decorator]
def rank_queries(
    queries: Mapping[str, Queries],
    rows: EntityRows,
    *,
    block: int = _BLOCK,
    chunk: int = _CHUNK,
) -> Ranks:
    """Ranks the answers of queries by side, with one scan of the rows.

    Like :func:`rank`, but with the caller's own score function: that of another library's model for
    example.

    Errors, Blocking: as for :func:`rank`.
    """
    whole("block", block, 1)
    whole("chunk", chunk, 1)
    sides = {side: _Side(one, rows, block, chunk) for side, one in queries.items()}
    if any(len(one) for one in queries.values()):
        for ids, tile in _tiles(rows, chunk):
            _check_finite(ids, tile)
            for side in sides.values():
                side.count(ids, tile)
    results = {side: one.results() for side, one in sides.items()}
    return Ranks(
        {side: one[0] for side, one in results.items()},
        {side: one[1] for side, one in results.items()},
        {side: one[2] for side, one in results.items()},
        scans=1,
        inexact=sum(side.inexact for side in sides.values()),
    )


class _Side:
    """The queries of one side while the entities come by."""

    def __init__(self, queries: Queries, rows: EntityRows, block: int, chunk: int) -> None:
        self.size, self.block, self.chunk = len(queries), block, chunk
        self.known, self.score = queries.known, queries.score
        # Queries that share their known answers lie together.
        self.order = self.known.order
        place = torch.from_numpy(self.order)
        self.parts = tuple(part[place.to(part.device)] for part in queries.parts)
        self.answers = queries.answers[self.order]
        self.answer_order = np.argsort(self.answers, kind="stable")
        self.candidates = len(rows) - self.known.others(queries.answers)[self.order]
        self.greater = np.zeros(self.size, np.int64)
        self.equal = np.zeros(self.size, np.int64)
        self.inexact = 0
        self.own = self._own_scores(rows)

    def count(self, ids: Ids, tile: Tensor) -> None:
        """Compares the scores of these entities with those of the answers; rows of the tile behind
        the ids are no entities."""
        known = self.known.among(ids)
        answered, columns = self._answered(ids)
        for begin in range(0, self.size, self.block):
            end = min(begin + self.block, self.size)
            scores = self._scores(begin, end, tile)[: end - begin, : len(ids)]
            own = self.own[begin:end]
            first, last = np.searchsorted(answered, [begin, end])
            if first < last:
                at = (_ids(answered[first:last] - begin), _ids(columns[first:last]))
                self.inexact += int((scores[at] != own[at[0]]).sum())
                scores[at] = -math.inf
            masked = known.of_queries(begin, end)
            if len(masked[0]):
                scores[_ids(masked[0]), _ids(masked[1])] = -math.inf
            self.greater[begin:end] += _count(scores > own[:, None])
            self.equal[begin:end] += _count(scores == own[:, None])

    def results(self) -> tuple[Ids, Ids, Ids]:
        """Greater, equal and candidates, in the order of the queries."""
        found = np.empty((3, self.size), np.int64)
        found[:, self.order] = self.greater, self.equal, self.candidates
        return found[0], found[1], found[2]

    def _own_scores(self, rows: EntityRows) -> Tensor:
        found = []
        for begin in range(0, self.size, self.block):
            for at in range(begin, min(begin + self.block, self.size), self.chunk):
                end = min(at + self.chunk, begin + self.block, self.size)
                tile = _padded(rows.of(self.answers[at:end]), self.chunk)
                scores = self._scores(begin, min(begin + self.block, self.size), tile)
                found.append(scores[at - begin : end - begin].diagonal().clone())
        own = torch.cat(found) if found else torch.empty(0, device="cpu")
        if not bool(own.isfinite().all()):
            place = int(torch.nonzero(~own.isfinite())[0])
            raise NonFiniteError(
                f"the score of query {int(self.order[place])} with its answer, entity "
                f"{int(self.answers[place])}, is {float(own[place])}: rows or relations of the "
                f"model are not finite, or too large"
            )
        return own

    def _scores(self, begin: int, end: int, tile: Tensor) -> Tensor:
        """The scores of a block of queries, always of one shape, as bits may depend on it."""
        parts = tuple(_padded(part[begin:end], self.block) for part in self.parts)
        scores = self.score(parts, tile)
        if scores.shape != (self.block, len(tile)):
            raise MisuseError(
                f"score returned shape {tuple(scores.shape)}, expected ({self.block}, {len(tile)})"
            )
        return scores

    def _answered(self, ids: Ids) -> tuple[Ids, Ids]:
        """Queries whose answers are among these entities, in their order, and the columns."""
        columns, places = ranges(self.answers[self.answer_order], ids)
        queries = self.answer_order[places]
        order = np.argsort(queries, kind="stable")
        return queries[order], columns[order]


def _tiles(rows: EntityRows, chunk: int) -> Iterator[tuple[Ids, Tensor]]:
    """All rows in tiles of one shape, the last one with zeros behind its rows."""
    tile: Tensor | None = None
    held: list[Ids] = []
    filled = 0
    for ids, values in rows.scan(chunk):
        taken = 0
        while taken < len(ids):
            if tile is None:
                tile, held, filled = values.new_zeros(chunk, *values.shape[1:]), [], 0
            size = min(len(ids) - taken, chunk - filled)
            tile[filled : filled + size] = values[taken : taken + size]
            held.append(ids[taken : taken + size])
            filled, taken = filled + size, taken + size
            if filled == chunk:
                yield np.concatenate(held), tile
                tile = None
    if tile is not None:
        yield np.concatenate(held), tile


def _check_finite(ids: Ids, tile: Tensor) -> None:
    """A candidate whose score is NaN would be beaten by every answer.

    Errors: ``NonFiniteError`` that names the first entity.
    """
    is_finite = tile.isfinite()
    if not bool(is_finite.all()):
        place = int(torch.nonzero(~is_finite)[0][0])
        raise NonFiniteError(
            f"the row of entity {int(ids[place])} has NaN or infinite values, with which no rank "
            f"means anything; go back to a commit before them, or put other rows"
        )


def _padded(rows: Tensor, size: int) -> Tensor:
    """Rows with zeros behind them, in memory of their own."""
    if len(rows) == size:
        return rows.contiguous()
    padded = rows.new_zeros(size, *rows.shape[1:])
    padded[: len(rows)] = rows
    return padded


def _count(flags: Tensor) -> Ids:
    counts: Ids = flags.sum(1).cpu().numpy()
    return counts


def _ids(ids: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids, np.int64))


def _answers(triples: npt.NDArray[Any], side: str) -> Ids:
    return np.ascontiguousarray(triples[:, 0 if side == "head" else 2], np.int64)


def _sides(given: Sequence[str]) -> list[str]:
    wanted = iterated("sides", given, "some of head and tail")
    if not wanted or len(set(map(str, wanted))) != len(wanted):
        raise MisuseError(f"sides is {shown(given)}, expected head, tail or both, each once")
    for side in wanted:
        choice("sides", side, SIDES)
    return [side for side in SIDES if side in wanted]


def _joined(parts: Sequence[Ranks], sides: Sequence[str]) -> Ranks:
    def join(name: str) -> dict[str, Ids]:
        none = np.empty(0, np.int64)
        return {s: np.concatenate([none, *(getattr(one, name)[s] for one in parts)]) for s in sides}

    return Ranks(
        join("greater"),
        join("equal"),
        join("candidates"),
        scans=sum(one.scans for one in parts),
        inexact=sum(one.inexact for one in parts),
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
