"""Reads rows of the store that the tutorial trained, and asks its model."""

import torch

import embedrock

with embedrock.open("tutorial.store", memory="10%", create=False, read_only=True) as store:
    table = store.table("items")
    print(table)
    print("row 7 begins with", table.get([7])[0, :3])

    items = embedrock.nn.EmbeddingBag(200_000, 32, mode="sum", store=store, name="items")
    model = torch.nn.Sequential(
        items, torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    step = embedrock.resume(store, model, None)
    with torch.no_grad():
        chance = torch.sigmoid(model.eval()(torch.tensor([[1, 2, 3, 4]])))
    print(f"after {step} steps the chance of a click is {chance.item():.2f}")

    embedrock.weights.export(table, "items.npy")
