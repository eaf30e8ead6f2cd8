"""What `embedrock train` can be told of a model of knowledge graphs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from embedrock.errors import MisuseError
from embedrock.kge.triples import UNKNOWN, Unknown
from embedrock.training.graph_recipes import GraphRecipe
from embedrock.training.recipe_options import RecipeOptions


@dataclass(frozen=True, kw_only=True)
class GraphOptions(RecipeOptions):
    """A training run on a knowledge graph."""

    recipe: GraphRecipe
    given: frozenset[str] = frozenset(field.name for field in fields(GraphRecipe))
    #: What to do with triples to measure with that have names which training does not.
    unknown: Unknown = "refuse"

    CHANGEABLE: ClassVar[tuple[str, ...]] = (
        *("epochs", "lr", "dense_lr", "lr_decay"),
        *("loss", "margin", "temperature", "regularization"),
    )
    OWN: ClassVar[tuple[str, ...]] = ("unknown",)

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        if self.unknown not in UNKNOWN:
            raise MisuseError(f"unknown is {self.unknown!r}, expected one of {', '.join(UNKNOWN)}")
        super().check()
