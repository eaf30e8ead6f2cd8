"""Trains a knowledge graph whose entities are on storage, and ranks what it predicts."""

from pathlib import Path

import numpy as np
import torch

import embedrock
from embedrock import kge

# A graph to learn: relation r leads a little further round a circle of 2,000 entities.
random = np.random.default_rng(0)
heads, kinds = random.integers(0, 2000, 20_000), random.integers(0, 4, 20_000)
tails = (heads + 50 * kinds + random.integers(1, 4, 20_000)) % 2000
lines = sorted({f"e{h}\tr{r}\te{t}\n" for h, r, t in zip(heads, kinds, tails, strict=True)})
random.shuffle(lines)
Path("train.tsv").write_text("".join(lines[500:]))
Path("test.tsv").write_text("".join(lines[:500]))

torch.manual_seed(0)
graph = kge.read("train.tsv", test="test.tsv")
with embedrock.open("graph.store", memory="1MiB") as store:
    entities = embedrock.nn.Embedding(
        len(graph.entities),
        32,
        store=store,
        name="entities",
        optimizer="adagrad",
        initializer=embedrock.initializers.uniform(-0.1, 0.1),
    )
    relations = kge.dense_relations("distmult", len(graph.relations), 32)
    model = kge.KnowledgeGraphModel("distmult", entities, relations)
    optimizers = [
        embedrock.optim.Adagrad(model, lr=0.1),
        torch.optim.Adagrad(embedrock.nn.dense_parameters(model), lr=0.1),
    ]
    batches = kge.TripleBatches(
        graph.train, len(graph.entities), batch_size=512, negatives=128, epochs=8
    )
    for batch in embedrock.LookaheadLoader(batches, model, keys_of=model.keys_of):
        model.loss(batch, "softmax").backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    embedrock.save(store, model, optimizers, step=len(batches))

    ranks = kge.rank(model, graph.test, known=graph.known())
    print(f"MRR {ranks.mrr():.2f}, Hits@10 {ranks.hits(10):.2f}, {ranks.scans} scan of the table")
