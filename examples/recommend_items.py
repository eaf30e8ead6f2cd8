"""Recommends items by matrix factorization (BPR), all items ranked in one pass over their table.

`python recommend_items.py [FOLDER [EPOCHS]]`: `train_queries.txt.gz` and `test_queries.txt.gz` in
FOLDER have a line for each user: user, tab, items. Without a folder data are made.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch

import embedrock

DIM, BATCH, DRAWN, BEST, SMALL = 64, 4096, 256, 20, 0.005


def read(path):
    """Items (N,) of each user."""
    with gzip.open(path, "rt") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return {int(user): np.array(items.split(), np.int64) for user, items in rows}


def make():
    """Users who like one of 20 kinds of items: twelve to learn from, and four to be found."""
    random = np.random.default_rng(0)
    liked = [random.permutation(30)[:16] * 20 + user % 20 for user in range(1000)]
    return dict(enumerate(i[:12] for i in liked)), dict(enumerate(i[12:] for i in liked))


folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
names = ("train_queries.txt.gz", "test_queries.txt.gz")
known, wanted = [read(folder / name) for name in names] if folder else make()
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 30
who = torch.from_numpy(np.repeat(list(known), [len(items) for items in known.values()]))
what = torch.from_numpy(np.concatenate(list(known.values())))
num_users = max(max(known), max(wanted)) + 1
num_items = max(int(items.max()) for items in (what, *wanted.values()) if len(items)) + 1

torch.manual_seed(0)
store = embedrock.open("recommend.store", memory="8MiB")
start = {"optimizer": "adagrad", "initializer": embedrock.initializers.normal(std=0.1)}
users = embedrock.nn.Embedding(num_users, DIM, store=store, name="users", **start)
items = embedrock.nn.Embedding(num_items, DIM, store=store, name="items", **start)
model = torch.nn.ModuleList([users, items])
optimizer = embedrock.optim.Adagrad(model, lr=0.1)
for epoch in range(1, epochs + 1):
    total = 0.0
    for places in torch.randperm(len(who)).split(BATCH):
        drawn = torch.randint(num_items, (DRAWN,))  # the same for all users of a batch
        of_user = users(who[places])
        clicked, other = items(torch.cat([what[places], drawn])).split([len(places), DRAWN])
        margins = (of_user * clicked).sum(dim=1, keepdim=True) - of_user @ other.T
        sizes = sum(rows.square().sum() for rows in (of_user, clicked, other))
        loss = -torch.nn.functional.logsigmoid(margins).mean(dim=1).sum() + SMALL * sizes
        loss.backward()
        optimizer.step()
        total += loss.item()
    embedrock.save(store, model, optimizer, step=epoch)
    if epoch % max(1, epochs // 3) == 0:
        print(f"epoch {epoch}: loss {total / len(who):.3f}")

asked = [user for user, found in wanted.items() if len(found)]
queries = users(torch.tensor(asked)).detach()
best = items.topk(queries, BEST, exclude=[known.get(user) for user in asked]).ids.tolist()
shares = [
    len({*found} & {*wanted[user].tolist()}) / len(wanted[user])
    for user, found in zip(asked, best, strict=True)
]
print(f"Recall@{BEST} {np.mean(shares):.4f} of {len(asked):,} users, {num_items:,} items ranked")
store.close()
