"""What `embedrock train` can be told of a model of knowledge graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from embedrock.errors import MisuseError
from embedrock.kge.triples import UNKNOWN, Unknown
from embedrock.training.graph_recipes import GraphRecipe
from embedrock.training.run_options import RunOptions

#: Fields of a recipe that a run can go on with others of.
_CHANGEABLE = (
    *("epochs", "lr", "dense_lr", "lr_decay"),
    *("loss", "margin", "temperature", "regularization"),
)
_FIXED = tuple(field.name for field in fields(GraphRecipe) if field.name not in _CHANGEABLE)


@dataclass(frozen=True, kw_only=True)
class GraphOptions(RunOptions):
    """A training run on a knowledge graph."""

    model: str
    recipe: GraphRecipe
    given: frozenset[str] = frozenset(field.name for field in fields(GraphRecipe))
    #: What to do with triples to measure with that have names which training does not.
    unknown: Unknown = "refuse"

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        if self.unknown not in UNKNOWN:
            raise MisuseError(f"unknown is {self.unknown!r}, expected one of {', '.join(UNKNOWN)}")
        super().check()

    def fixed(self) -> dict[str, Any]:
        """What a continuation must have the same, as JSON; otherwise it would be another run."""
        recipe = asdict(self.recipe)
        values = {"model": self.model, "seed": self.seed, "unknown": self.unknown}
        return values | {name: recipe[name] for name in _FIXED}

    def changeable(self) -> dict[str, Any]:
        """The rest of the recipe, as JSON: what a continuation may have otherwise if it says so."""
        recipe = asdict(self.recipe)
        return {name: recipe[name] for name in _CHANGEABLE} | self._pipeline()

    def continuing(self, stored: Mapping[str, Any]) -> GraphOptions:
        """These options with all of the recipe that was not asked for as it is stored, by name."""
        names = [field.name for field in fields(GraphRecipe)]
        kept = {n: stored[n] for n in names if n in stored and n not in self.given}
        options = replace(self, recipe=replace(self.recipe, **kept))
        return options._with_pipeline_of(stored)
