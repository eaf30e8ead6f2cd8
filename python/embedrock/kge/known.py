"""The true answers of queries, which do not count in filtered ranks.

Queries with the same relation and the same known end have the same true answers: they are a *group*
here, and lie side by side. Memory: 12 bytes for each true answer of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Known", "ranges"]

Ids: TypeAlias = npt.NDArray[np.int64]


def ranges(values: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> tuple[Ids, Ids]:
    """All occurrences of each wanted value in sorted values: pairs (index in wanted, index in
    values)."""
    first, last = np.searchsorted(values, wanted, "left"), np.searchsorted(values, wanted, "right")
    return _spans(first, last)


def _spans(first: Ids, last: Ids) -> tuple[Ids, Ids]:
    """The numbers from ``first`` to ``last`` of each span, with the span's place."""
    counts = np.maximum(last - first, 0)
    spans = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    return spans, np.arange(int(counts.sum())) - np.repeat(begins - first, counts)


def _placed(ids: Ids, wanted: npt.NDArray[Any]) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Places in rising ids, and which are there."""
    found = np.asarray(wanted).astype(np.int64)
    if not len(ids):
        return np.zeros(len(found), np.int64), np.zeros(len(found), np.bool_)
    places = np.searchsorted(ids, found).clip(max=len(ids) - 1)
    return places, ids[places] == found


class Known:
    """The true answers of queries, by group."""

    def __init__(self, groups: Ids, of_pairs: Ids, entities: Ids) -> None:
        """``groups`` has the group of each query, ``(Q,)``, from 0 on without gaps; a pair of
        ``of_pairs`` and ``entities`` says that this entity is an answer of that group."""
        self.order = np.argsort(groups, kind="stable")
        """The queries, group by group."""
        self.groups = groups
        count = int(groups.max()) + 1 if len(groups) else 0
        # Of a group, its first query in that order; behind the last, where they end.
        self._starts = np.searchsorted(groups[self.order], np.arange(count + 1))
        pairs = np.unique(np.stack([entities, of_pairs], 1), axis=0)
        self._entities, self._of = pairs[:, 0], pairs[:, 1].astype(np.int32)

    @classmethod
    def of(cls, side: str, asked: npt.NDArray[Any], known: Sequence[npt.NDArray[Any]]) -> Known:
        """For the heads or the tails of triples, from arrays of true triples."""
        given, answer = (2, 0) if side == "head" else (0, 2)
        # Ends and relations count by their places among those that are asked for: numbers of
        # pairs of these are below the square of the queries, whatever the ids are.
        ends, by_end = np.unique(asked[:, given].astype(np.int64), return_inverse=True)
        relations, by_relation = np.unique(asked[:, 1].astype(np.int64), return_inverse=True)
        keys = by_end.reshape(-1) * len(relations) + by_relation.reshape(-1)
        distinct, groups = np.unique(keys, return_inverse=True)
        of_pairs, entities = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for triples in known if len(asked) else ():
            end, is_end = _placed(ends, triples[:, given])
            relation, is_relation = _placed(relations, triples[:, 1])
            of_triples = end * len(relations) + relation
            place = np.searchsorted(distinct, of_triples).clip(max=len(distinct) - 1)
            there = is_end & is_relation & (distinct[place] == of_triples)
            of_pairs.append(place[there])
            entities.append(triples[there, answer].astype(np.int64))
        return cls(groups.reshape(-1), np.concatenate(of_pairs), np.concatenate(entities))

    def others(self, answers: Ids) -> Ids:
        """Number of true answers of each query beside its own, ``(Q,)``."""
        counts = np.bincount(self._of, minlength=len(self._starts) - 1)
        size = np.int64(max(len(counts), 1))
        ids = np.unique(self._entities)
        place, there = _placed(ids, answers)
        own = np.searchsorted(ids, self._entities) * size + self._of
        is_known = there & np.isin(place * size + self.groups, own)
        return counts[self.groups] - is_known

    def among(self, ids: Ids) -> KnownAmong:
        """The true answers that are among these entities."""
        columns, places = ranges(self._entities, ids)
        groups = self._of[places].astype(np.int64)
        order = np.argsort(groups, kind="stable")
        return KnownAmong(self._starts, groups[order], columns[order])


class KnownAmong:
    """True answers among some entities."""

    def __init__(self, starts: Ids, groups: Ids, columns: Ids) -> None:
        """Groups in order, each with the column of an entity."""
        self._starts, self._groups, self._columns = starts, groups, columns

    def of_queries(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """For queries from ``begin`` to ``end`` of the order: pairs (query - begin, column)."""
        first_group = np.searchsorted(self._starts, begin, "right") - 1
        last_group = np.searchsorted(self._starts, end, "left")
        first, last = np.searchsorted(self._groups, [first_group, last_group])
        groups, columns = self._groups[first:last], self._columns[first:last]
        begins = np.maximum(self._starts[groups], begin)
        ends = np.minimum(self._starts[groups + 1], end)
        pairs, queries = _spans(begins, ends)
        return queries - begin, columns[pairs]
