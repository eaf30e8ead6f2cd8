"""The model of a demo over tables in a store, or over plain PyTorch tables in memory.

Dense weights depend on the seed alone, so that all runs start from the same ones.
"""

from __future__ import annotations

import torch

import embedrock
from embedrock.data import Dataset
from embedrock.models.dlrm import DLRM, DLRMConfig
from embedrock.store import Store
from embedrock.training.embeddings import MemoryEmbeddings, StoreEmbeddings
from embedrock.training.trainer import Trainer
from embedrock_lab.demo import stores
from embedrock_lab.demo.settings import Settings

_OPTIMIZERS = {
    "adagrad": embedrock.optim.Adagrad,
    "rowwise_adagrad": embedrock.optim.RowWiseAdagrad,
}


def over_store(settings: Settings, store: Store, dataset: Dataset) -> Trainer:
    """A trainer whose tables are in the store."""
    recipe = settings.recipe
    embeddings = StoreEmbeddings(
        store,
        dataset.features,
        recipe.embedding_dim,
        optimizer=settings.optimizer,
        initializer=stores.INITIALIZER,
    )
    model = _model(settings, dataset, embeddings)
    tables = _OPTIMIZERS[settings.optimizer](model, lr=recipe.lr, eps=recipe.eps)
    return Trainer(model, [tables, _dense(settings, model)])


def in_memory(settings: Settings, dataset: Dataset, weights: list[torch.Tensor]) -> Trainer:
    """A trainer over `torch.nn.EmbeddingBag(sparse=True)` with these rows, by dense id, and
    `torch.optim.Adagrad`; the first of its optimizers is that of the tables."""
    recipe = settings.recipe
    model = _model(settings, dataset, MemoryEmbeddings(weights))
    tables = torch.optim.Adagrad(model.embeddings.parameters(), lr=recipe.lr, eps=recipe.eps)
    return Trainer(model, [tables, _dense(settings, model)])


def _model(settings: Settings, dataset: Dataset, embeddings: torch.nn.Module) -> DLRM:
    torch.manual_seed(settings.seed)
    sizes = (dataset.num_dense, len(dataset.features), settings.recipe.embedding_dim)
    return DLRM(DLRMConfig(*sizes, settings.recipe.bottom, settings.recipe.top), embeddings)


def _dense(settings: Settings, model: DLRM) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.dense_modules().parameters(), lr=settings.recipe.dense_lr)
