"""Options of runs whose recipe depends on the model, and what such recipes have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from embedrock.errors import MisuseError
from embedrock.training.run_options import RunOptions, as_json, from_json

__all__ = ["OPTIMIZERS", "RecipeOptions", "check_numbers", "check_optimizer"]

Options = TypeVar("Options", bound="RecipeOptions")

#: Optimizers for tables.
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(RunOptions):
    """A training run of a model that has a recipe: batches are functions of seed and step."""

    model: str
    recipe: Any
    #: Fields of a recipe that a run can go on with others of.
    CHANGEABLE: ClassVar[tuple[str, ...]] = ()
    #: Fields of these options beside the recipe that a run has all along.
    OWN: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def files(self) -> dict[str, Path]:
        """The files that are read, by what they have. Errors: MisuseError, DataError."""

    def fixed(self) -> dict[str, Any]:
        """Options that a continuation must share, as JSON; otherwise it would be another run."""
        values = {"model": self.model, "seed": self.seed}
        values |= {name: getattr(self, name) for name in self.OWN}
        names = [name for name in self._recipe_names() if name not in self.CHANGEABLE]
        return values | {name: as_json(getattr(self.recipe, name)) for name in names}

    def changeable(self) -> dict[str, Any]:
        """The rest of the recipe, as JSON: what a continuation may have otherwise if it says so."""
        return {n: getattr(self.recipe, n) for n in self.CHANGEABLE} | self._pipeline()

    def continuing(self: Options, stored: Mapping[str, Any]) -> Options:
        """These options with all of the recipe that was not asked for as it is stored, by name."""
        names = self._recipe_names()
        kept = {n: from_json(stored[n]) for n in names if n in stored and n not in self.given}
        options = replace(self, recipe=replace(self.recipe, **kept))
        return options._with_pipeline_of(stored)

    def _recipe_names(self) -> list[str]:
        return [field.name for field in fields(self.recipe)]


def check_optimizer(recipe: Any, chosen: Mapping[str, Any]) -> None:
    """Errors: MisuseError naming the option, what came and what was expected."""
    if recipe.optimizer not in OPTIMIZERS:
        raise MisuseError(
            f"optimizer is {recipe.optimizer!r}, expected one of {', '.join(OPTIMIZERS)}"
        )
    if recipe.optimizer == "sgd" and "eps" in chosen:
        raise MisuseError(f"eps is {recipe.eps}, but optimizer is sgd, which has none")


def check_numbers(recipe: Any) -> None:
    """Whole numbers from 1 and floats from 0. Errors: MisuseError, as above."""
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        least = 0.0 if field.type == "float" else 1
        if field.type in ("int", "float") and not least <= value < math.inf:
            raise MisuseError(f"{field.name} is {value}, expected {least:g} or more")
