"""Trains one model on several ranks, each of which has a part of the rows.

torchrun --nproc-per-node 2 ranks.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import embedrock

dist.init_process_group("gloo")  # "nccl" where there are GPUs
rank, world = dist.get_rank(), dist.get_world_size()

# Ranks have data of their own, and not as much of it.
random = torch.Generator().manual_seed(rank)
loader = []
for _ in range(60 + 5 * rank):
    ads = torch.randint(0, 1_000_000, (64, 8), generator=random) ** 3 // 10**12
    loader.append({"ads": ads, "label": (ads % 2 == 0).float().mean(dim=1)})

with embedrock.distributed.open("ads.ranks", memory="64MiB") as shard:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        embedrock.nn.EmbeddingBag(
            1_000_000, 16, mode="sum", store=shard, name="ads", initializer=0.0
        ),
        DistributedDataParallel(torch.nn.Linear(16, 1)),
    )
    tables = embedrock.optim.RowWiseAdagrad(model, lr=0.1)
    dense = torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.1)
    losses = []
    batches = shard.batches(loader, model)
    for batch in batches:
        loss = (model(batch["ads"]).squeeze(1) - batch["label"]).square().mean()
        dense.zero_grad()
        loss.backward()
        tables.step()
        dense.step()
        losses.append(loss.item())
    rows = len(model[0].table)  # of all ranks: they call it together
    print(
        f"rank {rank} of {world}: {len(losses)} steps, loss {losses[0]:.2f} to {losses[-1]:.3f}, "
        f"{batches.left_out} batches left out, {len(model[0].table.local)} of {rows} rows here"
    )
    shard.commit(step=(shard.step or 0) + len(losses))
