"""Scores of triples: TransE, DistMult, ComplEx and RotatE in plain PyTorch.

Each makes one *query* of a relation and the end that is known; the other end is scored against it.
So candidates that many triples share, negatives or all entities, are scored with one product or one
matrix of distances. Invariants: a score depends on its query and its candidate alone, and a greater
score means a better fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from embedrock._arguments import shown
from embedrock.errors import MisuseError

__all__ = ["INTERACTIONS", "ComplEx", "DistMult", "Interaction", "RotatE", "TransE", "interaction"]


class Interaction(nn.Module):  # type: ignore[misc]
    """The base of all interactions. None of them has parameters of its own.

    Shapes: heads and tails ``(B, D)``, relations ``(B, relation_dim(D))``, queries ``(B, D)``.
    """

    name: ClassVar[str]
    """By which ``embedrock train --model`` knows it."""
    margin: ClassVar[float] = 0.0
    """The default margin that losses add to scores: scores that are negated distances need it."""
    is_complex: ClassVar[bool] = False
    """Rows are complex numbers: first all real parts, then all imaginary parts."""
    has_angles: ClassVar[bool] = False
    """Relations are angles, whose size says nothing."""

    def relation_dim(self, entity_dim: int) -> int:
        """Values per relation. Errors: ``MisuseError`` for entities of an odd width where rows are
        complex numbers."""
        if self.is_complex and entity_dim % 2:
            raise MisuseError(
                f"entity_dim is {entity_dim}, but rows of {type(self).__name__} are complex "
                f"numbers, two values each; expected an even number"
            )
        return entity_dim

    def reset_relations(self, relations: Tensor, entity_bound: float) -> None:
        """Fills new relations in place. ``entity_bound`` is that of uniform initial entities."""
        nn.init.uniform_(relations, -entity_bound, entity_bound)

    def of_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Queries whose candidates are tails."""
        raise NotImplementedError

    def of_heads(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Queries whose candidates are heads."""
        raise NotImplementedError

    def paired(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Each query with its own candidate: ``(B, D), (B, D) -> (B,)``."""
        raise NotImplementedError

    def crossed(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Each query with every candidate: ``(B, D), (N, D) -> (B, N)``."""
        raise NotImplementedError

    def absolute(self, rows: Tensor) -> Tensor:
        """The absolute values of what rows hold, for norms: of numbers, or of complex ones."""
        return _absolute(*rows.chunk(2, -1)) if self.is_complex else rows.abs()

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """The scores of triples, ``(B,)``."""
        return self.paired(self.of_tails(heads, relations), tails)


class TransE(Interaction):
    """Minus the distance from head + relation to tail, by the norm ``p``.

    Source: Bordes et al., "Translating Embeddings for Modeling Multi-relational Data", 2013.

    >>> import torch
    >>> head, relation, tail = torch.eye(3)
    >>> TransE(p=1)(head[None], relation[None], tail[None])
    tensor([-3.])
    """

    name = "transe"
    margin = 9.0

    def __init__(self, p: int = 1) -> None:
        """``p`` is 1 or 2."""
        super().__init__()
        if p not in (1, 2):
            raise MisuseError(f"p is {shown(p)}, expected 1 or 2")
        self.p = p

    def of_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Head + relation."""
        return heads + relations

    def of_heads(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Tail - relation."""
        return tails - relations

    def paired(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Minus the distance of each pair."""
        return -torch.linalg.vector_norm(queries - entities, self.p, -1)

    def crossed(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Minus all distances."""
        return -torch.cdist(queries, entities, self.p)

    def extra_repr(self) -> str:
        """The norm."""
        return f"p={self.p}"


class _Bilinear(Interaction):
    """Scores that are dot products of queries and candidates."""

    def paired(self, queries: Tensor, entities: Tensor) -> Tensor:
        """The dot product of each pair."""
        return (queries * entities).sum(-1)

    def crossed(self, queries: Tensor, entities: Tensor) -> Tensor:
        """All dot products."""
        return queries @ entities.T


class DistMult(_Bilinear):
    """The sum of head · relation · tail.

    Source: Yang et al., "Embedding Entities and Relations for Learning and Inference in Knowledge
    Bases", 2015.
    """

    name = "distmult"

    def of_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Head · relation."""
        return heads * relations

    def of_heads(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Tail · relation."""
        return tails * relations


class ComplEx(_Bilinear):
    """The real part of the sum of head · relation · conjugate of tail, of complex numbers.

    Source: Trouillon et al., "Complex Embeddings for Simple Link Prediction", 2016.
    """

    name = "complex"
    is_complex = True

    def of_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Head · relation."""
        return _times(heads, relations)

    def of_heads(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Tail · conjugate of relation."""
        return _times_conjugate(tails, relations)


class RotatE(Interaction):
    """Minus the distance from the head, turned by the relation, to the tail: the sum of the
    absolute values of complex numbers. A relation has an angle for each.

    Source: Sun et al., "RotatE: Knowledge Graph Embedding by Relational Rotation in Complex Space",
    2019.
    """

    name = "rotate"
    margin = 9.0
    is_complex = True
    has_angles = True

    def relation_dim(self, entity_dim: int) -> int:
        """An angle for each complex number."""
        return super().relation_dim(entity_dim) // 2

    def reset_relations(self, relations: Tensor, entity_bound: float) -> None:
        """Any angle."""
        nn.init.uniform_(relations, -math.pi, math.pi)

    def of_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """The head, turned."""
        return _times(heads, torch.cat([relations.cos(), relations.sin()], -1))

    def of_heads(self, tails: Tensor, relations: Tensor) -> Tensor:
        """The tail, turned back."""
        return _times_conjugate(tails, torch.cat([relations.cos(), relations.sin()], -1))

    def paired(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Minus the distance of each pair."""
        return -_absolute(*(queries - entities).chunk(2, -1)).sum(-1)

    def crossed(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Minus all distances."""
        distances: Tensor = _Turned.apply(queries, entities)
        return -distances


INTERACTIONS: dict[str, type[Interaction]] = {
    kind.name: kind for kind in (TransE, DistMult, ComplEx, RotatE)
}
"""All interactions by name."""


def interaction(given: str | Interaction) -> Interaction:
    """The interaction of that name, or the one that is given.

    Errors: ``MisuseError`` that lists the names.
    """
    if isinstance(given, Interaction):
        return given
    if isinstance(given, str) and given in INTERACTIONS:
        return INTERACTIONS[given]()
    raise MisuseError(
        f"interaction is {shown(given)}, expected one of {', '.join(INTERACTIONS)}, or an "
        f"Interaction"
    )


_TINY = 1e-12
"""Below the square root of distances, whose gradient at 0 would be infinite."""


_BLOCK_VALUES = 1 << 16
"""Complex numbers that all distances of RotatE are computed of at a time: they stay in the cache of
a processor, where those of a batch would fill the memory."""


class _Turned(torch.autograd.Function):  # type: ignore[misc]
    """All distances of complex vectors, ``(B, D), (N, D) -> (B, N)``, block by block: the gradient
    computes the differences again instead of keeping them."""

    @staticmethod
    def forward(context: Any, queries: Tensor, entities: Tensor) -> Tensor:
        context.save_for_backward(queries, entities)
        parts = [_absolute(a, b).sum(-1) for a, b in _differences(queries, entities)]
        return torch.cat(parts, 1) if parts else queries.new_zeros(len(queries), 0)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        queries, entities = context.saved_tensors
        of_queries, of_entities, begin = torch.zeros_like(queries), [], 0
        for real, imaginary in _differences(queries, entities):
            end = begin + real.shape[1]
            weight = gradient[:, begin:end, None] / _absolute(real, imaginary)
            both = torch.cat([real * weight, imaginary * weight], -1)
            of_queries += both.sum(1)
            of_entities.append(both.sum(0))
            begin = end
        return of_queries, -torch.cat(of_entities) if of_entities else torch.zeros_like(entities)


def _differences(queries: Tensor, entities: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Real and imaginary parts of queries - entities, by blocks of entities."""
    real, imaginary = (part[:, None] for part in queries.chunk(2, -1))
    size = max(1, _BLOCK_VALUES // max(1, queries.numel() // 2))
    for block in entities.split(size):
        other_real, other_imaginary = block.chunk(2, -1)
        yield real - other_real, imaginary - other_imaginary


def _absolute(real: Tensor, imaginary: Tensor) -> Tensor:
    return (real * real + imaginary * imaginary + _TINY).sqrt()


def _times(left: Tensor, right: Tensor) -> Tensor:
    (a, b), (c, d) = left.chunk(2, -1), right.chunk(2, -1)
    return torch.cat([a * c - b * d, a * d + b * c], -1)


def _times_conjugate(left: Tensor, right: Tensor) -> Tensor:
    (a, b), (c, d) = left.chunk(2, -1), right.chunk(2, -1)
    return torch.cat([a * c + b * d, b * c - a * d], -1)
