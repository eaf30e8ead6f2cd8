"""How `embedrock train` trains a model of the nodes of a graph, by model and task.

Does not import PyTorch, so that the command line can list these models at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from embedrock.data.graph_splits import FILE, PUBLIC, shares_of
from embedrock.errors import MisuseError
from embedrock.models.registry import NODE_MODELS, Kind, kind_of
from embedrock.training.recipe_options import check_numbers, check_optimizer

__all__ = ["AUTO", "MODELS", "ROWS", "TASKS", "NodeRecipe"]

MODELS = tuple(NODE_MODELS)
TASKS = ("nodes", "links")
AUTO = "auto"
ROWS = (AUTO, "features", "embeddings", "both")


@dataclass(frozen=True)
class NodeRecipe:
    """Shape and training of a model."""

    #: Prediction target: the labels of nodes, or links between pairs of nodes.
    task: str = "nodes"
    #: Input of nodes; "auto": features if there are some, else embeddings.
    rows: str = AUTO
    #: The held-out part: per cent of train, valid and test, a file, or the public split of
    #: Planetoid's graphs; "auto": the file if there is one.
    split: str = AUTO
    #: Whether neighbours are drawn along incoming edges alone.
    directed: bool = False
    epochs: int = 60
    #: Nodes, or edges, of a step.
    batch_size: int = 256
    #: Values of an embedding; for links also those that a node is told by.
    embedding_dim: int = 64
    #: Learning rates of embeddings, and of the layers, which have Adam.
    lr: float = 0.1
    dense_lr: float = 0.01
    #: Of the layers alone.
    weight_decay: float = 5e-4
    #: Epsilon of the embeddings' optimizer; SGD has none.
    eps: float = 1e-10
    #: Factor on both rates from one epoch to the next.
    lr_decay: float = 1.0
    #: Half the width of uniform initial embeddings.
    initial: float = 0.17
    optimizer: str = "adagrad"
    #: Dtype of the values that the table of embeddings stores.
    dtype: str = "float32"
    #: All options of the model.
    model_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: str, given: Mapping[str, Any] | None = None) -> NodeRecipe:
        """The defaults of a model and a task with what is given (None means not given), checked.

        Errors: MisuseError naming the option, what came and what was expected.
        """
        kind: Kind = kind_of(model, NODE_MODELS)
        chosen = {name: value for name, value in (given or {}).items() if value is not None}
        task = chosen.get("task", "nodes")
        if task not in TASKS:
            raise MisuseError(f"task is {task!r}, expected one of {', '.join(TASKS)}")
        begin = RECIPES[model, task]
        options = kind.checked({**begin.model_options, **chosen.pop("model_options", {})})
        recipe = replace(begin, **chosen, model_options=options)
        check_optimizer(recipe, chosen)
        check_numbers(recipe)
        if recipe.rows not in ROWS:
            raise MisuseError(f"rows is {recipe.rows!r}, expected one of {', '.join(ROWS)}")
        if recipe.split != AUTO:
            shares_of(recipe.split)
        if options["dropout"] >= 1:
            raise MisuseError(
                f"dropout of model {model} is {options['dropout']}, expected less than 1"
            )
        return recipe

    def split_with(self, has_file: bool) -> str:
        """The split, where there is a file with one or not."""
        if self.split != AUTO:
            return self.split
        return FILE if has_file else _SHARES[self.task]


_SHARES = {"nodes": "60-20-20", "links": "85-5-10"}
#: Rates, decay and dropout of nodes are those of both papers for Planetoid's graphs. Links are told
#: by embeddings that all edges train: less is dropped, and one layer is enough.
_LINKS = {"neighbors": (10,), "dropout": 0.0}
RECIPES: dict[tuple[str, str], NodeRecipe] = {
    ("graphsage", "nodes"): NodeRecipe(),
    ("gat", "nodes"): NodeRecipe(dense_lr=0.005),
    ("graphsage", "links"): NodeRecipe(
        task="links", epochs=20, batch_size=512, weight_decay=0.0, model_options=_LINKS
    ),
    ("gat", "links"): NodeRecipe(
        task="links", epochs=20, batch_size=512, weight_decay=0.0, model_options=_LINKS
    ),
}
SPLITS = (AUTO, FILE, PUBLIC)
