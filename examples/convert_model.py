"""Builds a model without memory for its big table, and trains it over a store."""

import torch

import embedrock


class Ranker(torch.nn.Module):
    """Anyone's model, as it was written for PyTorch alone."""

    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(10_000_000, 64)  # 2.4 GiB
        self.hours = torch.nn.Embedding(24, 64)
        self.score = torch.nn.Linear(64, 1)
        torch.nn.init.normal_(self.items.weight, std=0.01)

    def forward(self, items, hours):
        """Items and hours (B,) int64 -> scores (B, 1)."""
        return self.score(self.items(items) * self.hours(hours))


store = embedrock.open("converted.store", memory="160MiB")
with embedrock.nn.deferred(min_rows=1_000_000):
    model = Ranker()
made = embedrock.nn.convert(model, store, min_rows=1_000_000)
print(made)

small = [model.hours.weight]  # stays torch's, and is trained as the tables are
dense = [p for p in embedrock.nn.dense_parameters(model) if not any(p is w for w in small)]
optimizer = embedrock.optim.Together(
    torch.optim.Adam(dense, lr=1e-3),
    torch.optim.Adagrad(small, lr=0.05),
    embedrock.optim.RowWiseAdagrad(model, lr=0.05),
)
for _ in range(10):
    items, hours = torch.randint(0, 10_000_000, (64,)), torch.randint(0, 24, (64,))
    loss = (model(items, hours) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(made["items"].table), "rows were trained, and none of the others was ever written")
embedrock.save(store, model, optimizer, step=10)
store.close()
