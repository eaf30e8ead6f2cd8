"""What `embedrock train` can be told of a model of the nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from embedrock.training.node_recipes import NodeRecipe
from embedrock.training.recipe_options import RecipeOptions


@dataclass(frozen=True, kw_only=True)
class NodeOptions(RecipeOptions):
    """A training run on the nodes or the links of a graph."""

    recipe: NodeRecipe
    given: frozenset[str] = frozenset(field.name for field in fields(NodeRecipe))

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("epochs", "lr", "dense_lr", "lr_decay")
