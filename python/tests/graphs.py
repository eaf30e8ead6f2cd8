"""Small knowledge graphs, and what all ways of training on them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import embedrock
from embedrock import kge
from embedrock.kge.interactions import interaction

ENTITIES, RELATIONS, DIM = 300, 3, 8
OPTIMIZERS = {
    "sgd": (embedrock.optim.SGD, torch.optim.SGD),
    "adagrad": (embedrock.optim.Adagrad, torch.optim.Adagrad),
}


def triples_of(count: int = 400, seed: int = 0) -> npt.NDArray[np.int64]:
    """Distinct triples; each relation leads to the same few steps ahead on a ring, mostly."""
    random = np.random.default_rng(seed)
    heads = random.integers(0, ENTITIES, 3 * count)
    relations = random.integers(0, RELATIONS, 3 * count)
    tails = (heads + 7 * relations + 1 + random.integers(0, 3, 3 * count)) % ENTITIES
    found = np.unique(np.stack([heads, relations, tails], 1), axis=0)
    return random.permutation(found)[:count]


def write_graph(folder: Path, triples: npt.NDArray[np.int64], held: int = 40) -> None:
    """The triples as files: the last ones are those of ``valid`` and ``test``."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": triples[: -2 * held], "valid": triples[-2 * held : -held]}
    parts["test"] = triples[-held:]
    for name, part in parts.items():
        lines = [f"e{head}\tr{relation}\te{tail}\n" for head, relation, tail in part]
        (folder / f"{name}.tsv").write_text("".join(lines))


def model_of(
    name: str, store: embedrock.Store, *, optimizer: str = "sgd", entities: int = ENTITIES
) -> kge.KnowledgeGraphModel:
    """A model whose entities are in a store."""
    rows = embedrock.nn.Embedding(
        entities,
        DIM,
        store=store,
        name="entities",
        optimizer=optimizer,
        initializer=embedrock.initializers.uniform(-0.5, 0.5),
    )
    torch.manual_seed(1)
    relations = kge.dense_relations(name, RELATIONS, DIM, entity_bound=0.5)
    return kge.KnowledgeGraphModel(interaction(name), rows, relations)


def twin_of(model: kge.KnowledgeGraphModel) -> kge.KnowledgeGraphModel:
    """The same model in memory."""
    table: Any = model.entities.table
    rows = torch.from_numpy(table.get(np.arange(table.num_embeddings)))
    entities = torch.nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
    if isinstance(model.relations, embedrock.nn.Embedding):
        kinds: Any = model.relations.table
        first = torch.from_numpy(kinds.get(np.arange(kinds.num_embeddings)))
    else:
        first = model.relations.weight.detach().clone()
    relations = torch.nn.Embedding.from_pretrained(first, freeze=False)
    return kge.KnowledgeGraphModel(model.interaction, entities, relations)


def optimizers_of(model: kge.KnowledgeGraphModel, optimizer: str, lr: float) -> list[Any]:
    """One for the entities, one for the relations."""
    here, torchs = OPTIMIZERS[optimizer]
    # Without it, Adagrad makes steps of the learning rate of gradients that are nothing but
    # rounding.
    how: dict[str, float] = {"lr": lr, "eps": 1e-3} if optimizer == "adagrad" else {"lr": lr}
    if isinstance(model.entities, embedrock.nn.Embedding):
        rows: Any = here(model, **how)
    else:
        rows = torchs(model.entities.parameters(), **how)
    return [rows, torchs(model.relations.parameters(), **how)]
