"""The options of `embedrock train` for a model of the nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from embedrock.data import graph_splits, graphs
from embedrock.errors import MisuseError
from embedrock.training.node_recipes import NodeRecipe
from embedrock.training.recipe_options import RecipeOptions


@dataclass(frozen=True, kw_only=True)
class NodeOptions(RecipeOptions):
    """A training run on the nodes or the links of a graph."""

    recipe: NodeRecipe
    given: frozenset[str] = frozenset(field.name for field in fields(NodeRecipe))

    #: Whether nodes and labels are names, which get numbers in the order in which they come.
    map_ids: bool = False

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("epochs", "lr", "dense_lr", "lr_decay")

    def files(self) -> dict[str, Path]:
        """The files that are read, by what they have. Errors: MisuseError, DataError."""
        if not self.data.is_dir():
            raise MisuseError(
                f"data is {self.data}, expected the folder with edges.tsv, .csv, .npy or .parquet"
            )
        if self.map_ids and graph_splits.file_of(self.data) and self.recipe.task == "nodes":
            raise MisuseError(
                "map_ids numbers nodes in the order in which they come, and split.npz has numbers "
                "or places of nodes; move it away, and give shares: split"
            )
        found = graphs.files_of(self.data, labels=self.recipe.task == "nodes")
        split = graph_splits.file_of(self.data)
        return found if split is None else {**found, "split": split}

    def fixed(self) -> dict[str, Any]:
        """As before; runs of older versions do not say that nodes have numbers."""
        return {**super().fixed(), **({"map_ids": True} if self.map_ids else {})}

    def continuing(self, stored: Mapping[str, Any]) -> NodeOptions:
        """As before; nodes have names where they had them."""
        return replace(super().continuing(stored), map_ids=bool(stored.get("map_ids", False)))
