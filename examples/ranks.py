"""Trains one model on several ranks, each of which has a part of the rows.

torchrun --nproc-per-node 2 ranks.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import embedrock

dist.init_process_group("gloo")  # "nccl" where there are GPUs
rank, world = dist.get_rank(), dist.get_world_size()


class Loader:
    """Batches of this rank; it can tell and take its position, as torchdata's loaders can."""

    def __init__(self, count):
        self.count, self.done = count, 0

    def __iter__(self):
        while self.done < self.count:
            random = torch.Generator().manual_seed(1000 * rank + self.done)
            self.done += 1
            ads = torch.randint(0, 1_000_000, (64, 8), generator=random) ** 3 // 10**12
            yield {"ads": ads, "label": (ads % 2 == 0).float().mean(dim=1)}
        self.done = 0  # the next epoch

    def state_dict(self):
        """State that save keeps."""
        return {"done": self.done}

    def load_state_dict(self, state):
        """Takes the state that resume gives back."""
        self.done = state["done"]


# It takes reduction="sum", timeout=60 (seconds) and the like, too.
with embedrock.distributed.open("ads.ranks", memory="64MiB") as shard:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        embedrock.nn.EmbeddingBag(
            1_000_000, 16, mode="sum", store=shard, name="ads", initializer=0.0
        ),
        DistributedDataParallel(torch.nn.Linear(16, 1)),
    )
    optimizers = [
        embedrock.optim.RowWiseAdagrad(model, lr=0.1),
        torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.1),
    ]
    # Ranks have data of their own, and not as much of it.
    batches = shard.batches(Loader(60 + 5 * rank), model)
    first = embedrock.resume(shard, model, optimizers, loader=batches)
    print(f"rank {rank} of {world} goes on at step {first}", flush=True)
    for step, batch in enumerate(batches, first + 1):
        loss = (model(batch["ads"]).squeeze(1) - batch["label"]).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0:
            embedrock.save(shard, model, optimizers, step, loader=batches)
            print(f"rank {rank} of {world}: step {step}, loss {loss:.3f}, saved", flush=True)
    rows = len(model[0].table)  # of all ranks: they call it together
    print(
        f"rank {rank} of {world}: {batches.left_out} batches left out, "
        f"{len(model[0].table.local)} of {rows} rows here"
    )
