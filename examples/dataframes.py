"""Trains on a table of Arrow; a frame of polars or pandas, or a query of DuckDB, does as well."""

import numpy as np
import pyarrow as pa
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import embedrock
from embedrock.data import arrow

random = np.random.default_rng(0)
users, prices = random.integers(0, 300, 20_000), random.exponential(10, 20_000)
tags = [random.integers(0, 20, count).tolist() for count in random.integers(0, 4, 20_000)]
clicks = pa.table(
    {
        "click": users % 3 == 0,
        "user": [f"u{user}" if user else None for user in users],
        "tags": tags,
        "price": prices,
    }
)
data = arrow(clicks, "click", categorical=["user", "tags"], dense=["price"], holdout=0.1)


class Model(torch.nn.Module):
    """A table for each feature, whose bags are summed, beside the numbers."""

    def __init__(self, store):
        super().__init__()
        self.bags = torch.nn.ModuleList(
            embedrock.nn.EmbeddingBag(
                None, 8, mode="sum", include_last_offset=True, store=store, name=feature.name
            )
            for feature in data.features
        )
        self.score = torch.nn.Linear(8 * len(self.bags) + data.num_dense, 1)

    def forward(self, batch):
        """A batch of B samples -> logits (B,)."""
        found = [
            bags(
                torch.from_numpy(batch.feature_keys(feature)),
                torch.from_numpy(batch.feature_offsets(feature)),
            )
            for feature, bags in enumerate(self.bags)
        ]
        return self.score(torch.cat([*found, torch.from_numpy(batch.dense)], dim=1))[:, 0]


torch.manual_seed(0)
store = embedrock.open("frames.store", memory="4MiB")
model = Model(store)
optimizers = [
    torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.01),
    embedrock.optim.Adagrad(model, lr=0.1),
]
for epoch in range(1, 4):
    for batch in data.train_batches(256):
        loss = binary_cross_entropy_with_logits(model(batch), torch.from_numpy(batch.labels))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    embedrock.save(store, model, optimizers, step=epoch)

with torch.no_grad():
    right = [
        ((model(batch) > 0).numpy() == batch.labels).mean() for batch in data.test_batches(500)
    ]
print(
    f"{np.mean(right):.0%} of {sum(map(len, data.test_batches(500))):,} held-out clicks are right"
)
print([len(bags.table) for bags in model.bags], "users and tags have rows")
print("of u7:", store.table("user").get(embedrock.hash_keys(["u7"])).shape)
store.close()
