"""The options of `embedrock train` for a model of knowledge graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from embedrock.data.triple_files import UNKNOWN, Unknown, files_of
from embedrock.errors import MisuseError
from embedrock.training.graph_recipes import GraphRecipe
from embedrock.training.recipe_options import RecipeOptions


@dataclass(frozen=True, kw_only=True)
class GraphOptions(RecipeOptions):
    """A training run on a knowledge graph."""

    recipe: GraphRecipe
    given: frozenset[str] = frozenset(field.name for field in fields(GraphRecipe))
    #: Handling of validation and test triples with names that the training triples do not have.
    unknown: Unknown = "refuse"
    #: Partitions that triples are trained by, or "auto"; None: triples come in random order.
    partitions: int | str | None = None
    #: The order of partitions, "comet" or "beta"; None: the former, or that of a resumed run.
    order: str | None = None

    CHANGEABLE: ClassVar[tuple[str, ...]] = (
        *("epochs", "lr", "dense_lr", "lr_decay"),
        *("loss", "margin", "temperature", "regularization"),
    )
    OWN: ClassVar[tuple[str, ...]] = ("unknown",)

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        if self.unknown not in UNKNOWN:
            raise MisuseError(f"unknown is {self.unknown!r}, expected one of {', '.join(UNKNOWN)}")
        if self.partitions is None and self.order is not None:
            raise MisuseError(
                f"order is {self.order!r} without partitions, whose order it is; set partitions, "
                f"or leave it out"
            )
        if self.partitions is not None and self.pipeline:
            raise MisuseError(
                "pipeline is for triples in random order: partitions are in memory before they "
                "are trained; leave one of the two out"
            )
        if self.partitions is not None and self.schedule:
            raise MisuseError(
                "schedule is for triples in random order: partitions are in memory before they "
                "are trained; leave one of the two out"
            )
        super().check()

    def files(self) -> dict[str, Path]:
        """The files that are read, by part. Errors: DataError."""
        return files_of(self.data) if self.data.is_dir() else {"train": self.data}

    def fixed(self) -> dict[str, Any]:
        """As before, with partitions where there are any."""
        values = super().fixed()
        if self.partitions is not None:
            values |= {"partitions": self.partitions, "order": self.order or "comet"}
        return values

    def continuing(self, stored: Mapping[str, Any]) -> GraphOptions:
        """As before; partitions that were not asked for are the stored ones, too."""
        options = super().continuing(stored)
        partitions, order = options.partitions, options.order
        return replace(
            options,
            partitions=stored.get("partitions") if partitions is None else partitions,
            order=stored.get("order") if order is None else order,
        )
