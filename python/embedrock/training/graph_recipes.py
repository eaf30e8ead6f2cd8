"""How `embedrock train` trains a model of knowledge graphs, with defaults that depend on the model.

The registry of these models: a model is one that has a recipe here. Does not import PyTorch, so
that the command line can list them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from embedrock.errors import MisuseError
from embedrock.training.recipe_options import check_numbers, check_optimizer

__all__ = ["MODELS", "RECIPES", "GraphRecipe"]

LOSSES = ("nssa", "logistic", "softmax")


@dataclass(frozen=True)
class GraphRecipe:
    """Shape and training of a model."""

    epochs: int = 15
    #: Triples of a step, and entities that all of them are scored against.
    batch_size: int = 1024
    negatives: int = 256
    embedding_dim: int = 128
    #: Learning rates of entities, and of relations, which are in memory and have Adagrad.
    lr: float = 0.1
    dense_lr: float = 0.1
    #: Epsilon of the entities' optimizer; SGD has none.
    eps: float = 1e-10
    #: Factor on both rates from one epoch to the next.
    lr_decay: float = 1.0
    loss: str = "softmax"
    #: Added to scores by the losses nssa and logistic.
    margin: float = 0.0
    #: By which nssa weighs negatives.
    temperature: float = 1.0
    #: Weight of the N3 norm of head, relation and tail.
    regularization: float = 0.0
    #: Half the width of uniform initial rows.
    initial: float = 0.1
    #: Whether entities are kept at length 1, as TransE's paper has it.
    unit_rows: bool = False
    optimizer: str = "adagrad"
    #: Dtype of the values that the table of entities stores.
    dtype: str = "float32"

    @classmethod
    def of_model(cls, model: str, given: Mapping[str, Any] | None = None) -> GraphRecipe:
        """The defaults of a model with what is given (None means not given), checked.

        Errors: MisuseError naming the option, what came and what was expected.
        """
        if model not in RECIPES:
            raise MisuseError(f"model is {model!r}, expected one of {', '.join(RECIPES)}")
        chosen = {name: value for name, value in (given or {}).items() if value is not None}
        recipe = replace(RECIPES[model], **chosen)
        check_optimizer(recipe, chosen)
        if recipe.loss not in LOSSES:
            raise MisuseError(f"loss is {recipe.loss!r}, expected one of {', '.join(LOSSES)}")
        if recipe.unit_rows and model != "transe":
            raise MisuseError(f"unit_rows is for transe; {model} has rows of any length")
        check_numbers(recipe)
        return recipe


#: Chosen on FB15k-237 within 12 epochs: without the norm, DistMult is at its best after 5.
RECIPES: dict[str, GraphRecipe] = {
    "transe": GraphRecipe(loss="nssa", margin=9.0),
    "distmult": GraphRecipe(regularization=0.03),
    "complex": GraphRecipe(regularization=0.03),
    "rotate": GraphRecipe(loss="nssa", margin=9.0),
}
MODELS = tuple(RECIPES)
