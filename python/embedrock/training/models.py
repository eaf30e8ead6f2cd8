"""Models over tables in a store, as a recipe has them."""

from __future__ import annotations

import torch

from embedrock.data import Dataset
from embedrock.initializers import InitializerLike
from embedrock.models.base import ClickModel, Shape
from embedrock.models.dlrm import DLRM, DLRMConfig
from embedrock.models.registry import kind_of
from embedrock.store import Store
from embedrock.training.embeddings import SequenceEmbeddings, StoreEmbeddings
from embedrock.training.options import Recipe


def over_store(
    recipe: Recipe,
    store: Store,
    dataset: Dataset,
    *,
    initializer: InitializerLike,
    seed: int,
) -> ClickModel:
    """The model of a recipe for these data, its tables opened or created. Weights of its dense part
    depend on the seed alone."""
    kind = kind_of(recipe.model)
    embeddings = (SequenceEmbeddings if kind.sequences else StoreEmbeddings)(
        store,
        dataset.features,
        kind.row_dim(recipe.embedding_dim),
        optimizer=recipe.optimizer,
        initializer=initializer,
        dtype=getattr(torch, recipe.dtype),
    )
    torch.manual_seed(seed)
    return model_over(recipe, dataset, embeddings)


def model_over(recipe: Recipe, dataset: Dataset, embeddings: torch.nn.Module) -> ClickModel:
    """The model of a recipe over embeddings that are there, its weights from torch's generator."""
    pooled = sum(not feature.is_sequence for feature in dataset.features)
    if recipe.model == "dlrm":
        sizes = (dataset.num_dense, pooled, recipe.embedding_dim)
        return DLRM(DLRMConfig(*sizes, recipe.bottom, recipe.top), embeddings)
    shape = Shape(dataset.num_dense, pooled, recipe.embedding_dim, len(dataset.targets))
    kind = kind_of(recipe.model)
    model: ClickModel = kind.make(shape, embeddings, recipe.model_options)
    return model
