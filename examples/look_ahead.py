"""Reads the rows of coming batches early, and says whether that happened."""

import torch

import embedrock

ROWS = 100_000
generator = torch.Generator().manual_seed(0)
batches = [
    (torch.rand(256, 4, generator=generator) ** 3 * ROWS).long() for _ in range(100)
]  # any loader

with embedrock.open("ahead.store", memory="4MiB") as store:
    items = embedrock.nn.EmbeddingBag(ROWS, 32, mode="sum", store=store, name="items")
    model = torch.nn.Sequential(items, torch.nn.Linear(32, 1))
    optimizers = [
        torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=1e-3),
        embedrock.optim.RowWiseAdagrad(model, lr=0.05),
    ]
    loader = embedrock.LookaheadLoader(batches, model, keys_of=lambda ids: {items: ids})
    for ids in loader:
        model(ids).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    embedrock.save(store, model, optimizers, step=len(batches))

    counts = loader.stats()
    print(f"announced {counts['announced']} of {counts['handed_out']} batches")
    print(f"passed over {counts['skipped']}")
