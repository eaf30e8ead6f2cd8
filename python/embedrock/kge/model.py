"""A model of a knowledge graph: entities out of core, relations, and an interaction of them.

The entities may be ``embedrock.nn.Embedding`` or ``torch.nn.Embedding``; the arithmetic is the
same. A training batch reads its entities with one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from embedrock._arguments import shown, whole
from embedrock.errors import MisuseError
from embedrock.kge.batches import TripleBatch
from embedrock.kge.interactions import Interaction, interaction
from embedrock.kge.losses import loss_of
from embedrock.kge.rows import looked_up
from embedrock.nn import Embedding
from embedrock.table import Table

__all__ = ["KnowledgeGraphModel", "RowConstraint", "dense_relations", "unit"]

BatchRows: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Heads, relations, tails and negatives."""
Constrain: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


class KnowledgeGraphModel(nn.Module):  # type: ignore[misc]
    """Scores of triples by an interaction.

    Args:
        interaction: A name of ``embedrock.kge.INTERACTIONS``, or an ``Interaction``.
        entities: A module from ids to rows.
        relations: The same for relations; :func:`dense_relations` makes it where there are few.

    Errors: ``MisuseError`` when widths do not fit the interaction.

    >>> import torch
    >>> entities = embedrock.nn.Embedding(1000, 8, store=store, name="entities", optimizer="sgd")
    >>> relations = embedrock.kge.dense_relations("complex", 5, 8)
    >>> model = embedrock.kge.KnowledgeGraphModel("complex", entities, relations)
    >>> model(torch.tensor([0, 7]), torch.tensor([4, 4]), torch.tensor([9, 0])).shape
    torch.Size([2])
    """

    def __init__(
        self, interaction: str | Interaction, entities: nn.Module, relations: nn.Module
    ) -> None:
        """Takes the parts."""
        super().__init__()
        self.interaction = _interaction(interaction)
        for name, module in (("entities", entities), ("relations", relations)):
            if not isinstance(module, nn.Module):
                raise MisuseError(f"{name} is {shown(module)}, expected a module from ids to rows")
        self.entities, self.relations = entities, relations
        width, wanted = _width(entities), None
        if width is not None:
            wanted = self.interaction.relation_dim(width)
        if wanted is not None and _width(relations) not in (None, wanted):
            raise MisuseError(
                f"relations have {_width(relations)} values, but {self.interaction.name} with "
                f"entities of {width} takes {wanted}"
            )

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """The scores of triples, ``(B,)``; a greater one is a better fit."""
        head, tail = looked_up(self.entities, torch.cat([heads, tails])).chunk(2)
        scores: Tensor = self.interaction(head, looked_up(self.relations, relations), tail)
        return scores

    def rows_of(self, batch: TripleBatch) -> BatchRows:
        """Heads, relations, tails ``(B, ...)`` and negatives ``(N, D)`` of a batch.

        Blocking: waits for the rows of entities that are not in memory.
        """
        ends = looked_up(self.entities, batch.entities())
        heads, tails, negatives = ends.split([len(batch), len(batch), len(batch.negatives)])
        return heads, looked_up(self.relations, batch.relations), tails, negatives

    def score(self, batch: TripleBatch) -> tuple[Tensor, Tensor]:
        """The scores of a batch: its triples ``(2 B,)``, once for each side, and their negatives
        ``(2 B, N)``: first those instead of tails, then those instead of heads."""
        return self._score(*self.rows_of(batch))

    def _score(
        self, heads: Tensor, relations: Tensor, tails: Tensor, negatives: Tensor
    ) -> tuple[Tensor, Tensor]:
        of_tails = self.interaction.of_tails(heads, relations)
        queries = torch.cat([of_tails, self.interaction.of_heads(tails, relations)])
        positive = self.interaction.paired(of_tails, tails)
        return positive.repeat(2), self.interaction.crossed(queries, negatives)

    def loss(
        self,
        batch: TripleBatch,
        name: str = "nssa",
        *,
        margin: float | None = None,
        temperature: float = 1.0,
        regularization: float = 0.0,
        rows: BatchRows | None = None,
    ) -> Tensor:
        """The loss of a batch, by a name of ``embedrock.kge.LOSSES``; without ``margin`` that of
        the interaction.

        ``regularization`` weighs the N3 norm: the sums of the cubed absolute values of head,
        relation (unless it is angles) and tail, a mean over the triples (Lacroix et al., "Canonical
        Tensor Decomposition for Knowledge Base Completion", 2018). ``rows`` are those of
        :meth:`rows_of`, where a caller has read them.

        Blocking: waits for the rows of entities that are not in memory.
        """
        margin = self.interaction.margin if margin is None else margin
        found = self.rows_of(batch) if rows is None else rows
        loss = loss_of(name)(*self._score(*found), margin=margin, temperature=temperature)
        if regularization:
            heads, relations, tails, _ = found
            sized = [heads, tails] if self.interaction.has_angles else [heads, relations, tails]
            cubes = sum(self.interaction.absolute(part).pow(3).sum() for part in sized)
            loss = loss + regularization * cubes / len(batch)
        return loss

    def keys_of(self, batch: TripleBatch) -> dict[Any, Any]:
        """The keys that a batch reads, positives and negatives, for look-ahead."""
        found: dict[Any, Any] = {}
        if isinstance(self.entities, Embedding):
            found[self.entities] = batch.entities()
        if isinstance(self.relations, Embedding):
            found[self.relations] = batch.relations
        return found


def dense_relations(
    interaction: str | Interaction,
    num_relations: int,
    entity_dim: int,
    *,
    entity_bound: float = 0.1,
    sparse: bool = False,
) -> nn.Embedding:
    """Relations in memory, as ``torch.nn.Embedding``, filled as the interaction wants them with
    numbers of torch's generator. ``entity_bound`` is the bound of uniform initial entities."""
    kind = _interaction(interaction)
    width = kind.relation_dim(whole("entity_dim", entity_dim, 1))
    relations = nn.Embedding(whole("num_relations", num_relations, 1), width, sparse=sparse)
    with torch.no_grad():
        kind.reset_relations(relations.weight, entity_bound)
    return relations


def unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows divided by their Euclidean length; zeros stay zeros, as with torch's ``normalize``."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    normalised: npt.NDArray[np.float32] = rows / np.maximum(lengths, np.float32(1e-12))[:, None]
    return normalised


class RowConstraint:
    """Keeps rows of entities within a constraint, such as TransE's: at Euclidean length 1.

    A constraint maps a row that is within to itself, so only rows that changed need it: those of
    the last step. Rows that were never written are brought within before a step first reads them.

    >>> import torch
    >>> entities = embedrock.nn.Embedding(1000, 8, store=store, name="entities", optimizer="sgd")
    >>> constraint = embedrock.kge.RowConstraint(entities)
    >>> constraint.before(torch.tensor([3, 4]))  # and .after(...) behind the optimizer's step
    >>> np.linalg.norm(entities.table.get([3, 4]), axis=1).round(5).tolist()
    [1.0, 1.0]

    Args:
        entities: A module whose table is in a store that is open here.
        function: From rows ``(U, D)`` float32 to rows within the constraint, each for itself.

    Source: Bordes et al., TransE, 2013 (algorithm 1, line 5).
    """

    def __init__(self, entities: nn.Module, function: Constrain = unit) -> None:
        """Changes nothing yet."""
        if not isinstance(entities, Embedding) or not isinstance(entities.table, Table):
            raise MisuseError(
                f"entities is {shown(entities)}, expected an embedrock.nn.Embedding over a store "
                f"that is open here"
            )
        if not callable(function):
            raise MisuseError(f"function is {shown(function)}, expected one from rows to rows")
        self.table = entities.table
        self.function = function

    def before(self, ids: Tensor) -> None:
        """Writes the initial rows of those ids that have none yet, brought within.

        Blocking: may read to tell which have none.
        """
        keys = np.unique(_keys(ids))
        new = keys[~self.table.contains(keys)]
        if len(new):
            self.table.modify(new, lambda values, state: self.function(values))

    def after(self, ids: Tensor) -> None:
        """Brings the rows within that a step has changed; they are in memory as a rule."""
        self.table.modify(_keys(ids), lambda values, state: self.function(values))


def _keys(ids: Tensor) -> npt.NDArray[np.int64]:
    keys: npt.NDArray[np.int64] = ids.detach().reshape(-1).cpu().numpy()
    return keys


def _width(module: nn.Module) -> int | None:
    width = getattr(module, "embedding_dim", None)
    return width if isinstance(width, int) else None


_interaction: Callable[[str | Interaction], Interaction] = interaction
"""The function, where an argument has its name."""
