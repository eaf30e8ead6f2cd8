"""Moves the tables of a model of PyTorch into a store, and trains on."""

import torch

import embedrock


class Ranker(torch.nn.Module):
    """A model as it was written for PyTorch alone."""

    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(20_000, 16)
        self.items = torch.nn.Embedding(50_000, 16)
        self.score = torch.nn.Linear(32, 1)

    def forward(self, users, items):
        """Users and items (B,) int64 -> scores (B, 1)."""
        return self.score(torch.cat([self.users(users), self.items(items)], dim=1))


model = Ranker()  # trained, say, with torch.load
users, items = torch.randint(0, 20_000, (64,)), torch.randint(0, 50_000, (64,))
before = model(users, items).detach()

store = embedrock.open("brought.store", memory="1MiB")
for name in ("users", "items"):
    old = getattr(model, name)
    rows, dim = old.weight.shape
    new = embedrock.nn.Embedding(rows, dim, store=store, name=name)
    embedrock.weights.load(new.table, old)
    setattr(model, name, new)
print("largest difference", (model(users, items).detach() - before).abs().max().item())

optimizers = [
    torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=1e-3),
    embedrock.optim.RowWiseAdagrad(model, lr=0.05),
]
model(users, items).square().mean().backward()
for optimizer in optimizers:
    optimizer.step()
    optimizer.zero_grad()
embedrock.save(store, model, optimizers, step=1)
store.close()
