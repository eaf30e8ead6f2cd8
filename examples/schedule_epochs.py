"""Trains with and without a schedule, and counts the pages that are read."""

import torch

import embedrock

ROWS, SAMPLES, EPOCHS = 100_000, 16_000, 3
ids = (torch.rand(SAMPLES, 8, generator=torch.Generator().manual_seed(0)) ** 2 * ROWS).long()


def train(name, schedule):
    """The pages that the last epoch reads, and what the table is worth in the end."""
    with embedrock.open(f"{name}.store", memory="4MiB", page_bytes=4096) as store:
        items = embedrock.nn.EmbeddingBag(
            ROWS, 32, mode="sum", store=store, name="items", optimizer="sgd", initializer=0.5
        )
        tables = embedrock.optim.SGD(items, lr=0.01)
        shuffled = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(ids),
            batch_size=64,
            shuffle=True,
            generator=torch.Generator().manual_seed(1),  # its own: the next epoch is known, too
        )
        loader = embedrock.LookaheadLoader(
            shuffled,
            items,
            keys_of=lambda batch: {items: batch[0]},
            announce=True,
            schedule=schedule,
        )
        for _ in range(EPOCHS):
            before = store.stats()["pages_read"]
            for (batch,) in loader:
                items(batch).square().mean().backward()
                tables.step()
                tables.zero_grad()
        store.commit(step=EPOCHS)
        return store.stats()["pages_read"] - before, store.table("items").digest()


plain, rows = train("plain", None)
scheduled, same = train("scheduled", "epoch")
print(f"{plain:,} pages without a schedule, {scheduled:,} with one")
print("the same rows:", rows == same)
