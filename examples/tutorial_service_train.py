"""Trains vectors of items that the same people like, and commits them."""

import sys

import torch

import embedrock

ITEMS, DIM, KINDS = 5_000, 16, 50  # item i is of kind i % 50, which is to be learned
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 30

torch.set_num_threads(1)
torch.manual_seed(0)
with embedrock.open("shop.store", memory="16MiB") as store:
    items = embedrock.nn.Embedding(
        ITEMS, DIM, store=store, name="items", initializer=embedrock.initializers.uniform(-0.1, 0.1)
    )
    optimizer = embedrock.optim.RowWiseAdagrad(items, lr=0.1)
    done = store.step or 0
    for _ in range(done, STEPS):
        first = torch.randint(ITEMS, (512,))
        same = (first + KINDS * torch.randint(ITEMS // KINDS, (512,))) % ITEMS
        other = torch.randint(ITEMS, (512,))
        one, liked, unknown = items(torch.stack([first, same, other]))
        gain = (one * (liked - unknown)).sum(dim=1)
        torch.nn.functional.softplus(-gain).mean().backward()
        optimizer.step()
    store.commit(step=STEPS)
    print(f"steps {done} to {STEPS}: {len(items.table):,} rows committed")
