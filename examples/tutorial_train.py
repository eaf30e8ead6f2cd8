"""Trains a click model on 200,000 items, with a tenth of their rows in memory."""

import sys

import numpy as np
import torch

import embedrock

ITEMS, STEPS = 200_000, int(sys.argv[1]) if len(sys.argv) > 1 else 2000
liked = torch.from_numpy(np.random.default_rng(0).random(ITEMS) < 0.5)  # to be learned


def batch_of(step):
    """256 samples of four items each. They depend on the number of the step alone."""
    random = np.random.default_rng(step)
    ids = torch.from_numpy((random.random((256, 4)) ** 4 * ITEMS).astype(np.int64))
    return ids, (liked[ids].sum(1, keepdim=True) >= 2).float()


torch.set_num_threads(1)
torch.manual_seed(0)
store = embedrock.open("tutorial.store", memory="10%")
items = embedrock.nn.EmbeddingBag(ITEMS, 32, mode="sum", store=store, name="items")
model = torch.nn.Sequential(items, torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
dense = torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=1e-3)
optimizers = [dense, embedrock.optim.RowWiseAdagrad(model, lr=0.1)]

done = embedrock.resume(store, model, optimizers)
print(f"{done} steps are done", flush=True)
for step in range(done + 1, STEPS + 1):
    ids, clicked = batch_of(step)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if step % 250 == 0:
        embedrock.save(store, model, optimizers, step)
        print(f"step {step}: loss {loss.item():.3f}, committed", flush=True)
store.close()
