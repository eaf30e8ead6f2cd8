"""Trains on two ranks of which one dies, goes on from their common commit, and then on three."""

import os
import signal
import warnings

import torch
import torch._dynamo  # imported by optimizers: once, and not in each rank
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import embedrock
from embedrock import nn, optim


def train(rank, world, path, until, dies_at=None):
    """One rank."""
    dist.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/{path}-{until}", rank=rank, world_size=world
    )
    warnings.simplefilter("ignore")  # that generators are of other ranks, on three
    with embedrock.distributed.open(path, memory="16MiB") as shard:
        items = nn.EmbeddingBag(10_000, 8, store=shard, name="items", optimizer="adagrad")
        head = torch.nn.Linear(8, 1)
        model = torch.nn.ModuleList([items, head])
        optimizers = [optim.Adagrad(model, lr=0.1), torch.optim.SGD(head.parameters(), lr=0.1)]
        first = embedrock.resume(shard, model, optimizers)
        if rank == 0:
            print(f"{world} ranks begin at step {first}", flush=True)
        dense = DistributedDataParallel(head)
        for step in range(first + 1, until + 1):
            ids = torch.randint(0, 10_000, (64, 5))
            loss = (dense(items(ids)) - 1).square().mean()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if step == dies_at and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            embedrock.save(shard, model, optimizers, step)
    dist.destroy_process_group()


def start(world, *arguments):
    """Does the same as torchrun, in one machine."""
    mp.start_processes(train, (world, *arguments), nprocs=world, start_method="fork")


if __name__ == "__main__":
    try:
        start(2, "run", 6, 4)
    except mp.ProcessExitedException as error:
        print("rank", error.error_index, "ended by", error.signal_name)
    start(2, "run", 8)
    done = embedrock.distributed.reshard("run", "run-of-three", ranks=3)
    print(done["rows"], "rows at step", done["step"], "for", done["ranks"], "ranks")
    start(3, "run-of-three", 10)
