"""Gives a table more ids, another name, and drops one, while a model is trained on."""

import torch

import embedrock

store = embedrock.open("tables.store", memory="8MiB")
items = embedrock.nn.Embedding(1_000, 16, store=store, name="items")
optimizer = embedrock.optim.Adagrad(items, lr=0.1)


def train(ids: torch.Tensor, step: int) -> None:
    """One step on these ids, and a commit."""
    items(ids).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    embedrock.save(store, items, optimizer, step)


train(torch.arange(1_000), 1)
before = items.table.get([7], state=True)

items.grow(1_500)  # 500 new items; the old ones stay as they are
same = all((a == b).all() for a, b in zip(before, items.table.get([7], state=True), strict=True))
train(torch.arange(900, 1_500), 2)
print(items.num_embeddings, "ids,", len(items.table), "rows trained, old rows the same:", same)

store.table("old", 4).put([1], [[0.0] * 4])
store.drop("old")  # with all its rows
store.rename("items", "products")  # the module goes on
train(torch.arange(10), 3)
print(list(store.tables), "at step", store.step)
store.close()
