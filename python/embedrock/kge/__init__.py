"""Knowledge graphs out of core: models whose entities live in a store.

A graph is read from text files (:func:`read`), batches are drawn with negatives that they share
(:class:`TripleBatches`), a model scores them (:class:`KnowledgeGraphModel`), and :func:`rank` says
how well it predicts: it reads the table of entities once, whatever is asked.

>>> import torch
>>> triples = np.random.default_rng(0).integers(0, 5, (64, 3)) * [200, 1, 200]
>>> entities = embedrock.nn.Embedding(1000, 8, store=store, name="entities", optimizer="adagrad")
>>> relations = embedrock.kge.dense_relations("distmult", 5, 8)
>>> model = embedrock.kge.KnowledgeGraphModel("distmult", entities, relations)
>>> optimizers = [
...     embedrock.optim.Adagrad(model, lr=0.1),
...     torch.optim.Adagrad(embedrock.nn.dense_parameters(model), lr=0.1),
... ]
>>> batches = embedrock.kge.TripleBatches(triples, 1000, batch_size=32, negatives=16, epochs=2)
>>> for batch in embedrock.LookaheadLoader(batches, store, keys_of=model.keys_of):
...     model.loss(batch).backward()
...     for optimizer in optimizers:
...         optimizer.step()
...         optimizer.zero_grad()
>>> embedrock.kge.rank(model, triples, known=[triples]).mrr() > 0
True
"""

from embedrock.kge.batches import TripleBatch, TripleBatches
from embedrock.kge.interactions import INTERACTIONS, ComplEx, DistMult, Interaction, RotatE, TransE
from embedrock.kge.losses import LOSSES, logistic, nssa, softmax
from embedrock.kge.model import KnowledgeGraphModel, RowConstraint, dense_relations, unit
from embedrock.kge.partitions import EdgeBatch
from embedrock.kge.ranking import Queries, Ranks, rank, rank_queries
from embedrock.kge.triples import Graph, Names, read

__all__ = [
    "INTERACTIONS",
    "LOSSES",
    "ComplEx",
    "DistMult",
    "EdgeBatch",
    "Graph",
    "Interaction",
    "KnowledgeGraphModel",
    "Names",
    "Queries",
    "Ranks",
    "RotatE",
    "RowConstraint",
    "TransE",
    "TripleBatch",
    "TripleBatches",
    "dense_relations",
    "logistic",
    "nssa",
    "rank",
    "rank_queries",
    "read",
    "softmax",
    "unit",
]
