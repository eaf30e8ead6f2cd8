"""Asks a server for items that go with some others, and for the rows of a few keys."""

import sys

import numpy as np
import torch

import embedrock

ITEMS, DIM, KINDS = 5_000, 16, 50
URL = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6380"

with embedrock.connect(URL) as store:
    table = store["items"]  # keep it: each get is one request then
    rows, found = table.get([17, 42, 99], found=True)
    print("row 17 begins with", np.round(rows[0, :3], 3), "written:", found)

    items = embedrock.nn.Embedding(ITEMS, DIM, store=store, name="items").eval()
    basket = torch.tensor([7, 57, 107])  # three items of kind 7
    with torch.no_grad():
        scores = items(basket).sum(dim=0) @ items(torch.arange(ITEMS)).T
    best = scores.topk(20).indices
    print(f"{int((best % KINDS == 7).sum())} of the 20 best are of the basket's kind")
