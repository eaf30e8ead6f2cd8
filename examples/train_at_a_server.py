"""Two trainers of one set of tables, which a server holds and commits."""

import subprocess
import sys
import threading

import torch

import embedrock

ITEMS, STEPS = 2_000, 150
worth = torch.rand(ITEMS, 1, generator=torch.Generator().manual_seed(0))  # to be learned


def train(url, seed, losses):
    """One trainer: in earnest a process, on any machine that reaches the server."""
    draw = torch.Generator().manual_seed(seed)
    with embedrock.connect(url) as store:
        items = embedrock.nn.EmbeddingBag(
            ITEMS, 1, mode="sum", store=store, name="worth", optimizer="sgd", initializer=0.0
        )
        optimizer = embedrock.optim.SGD(items, lr=0.2)
        for _ in range(STEPS):
            ids = torch.randint(ITEMS, (1024, 2), generator=draw)
            loss = (items(ids) - worth[ids].sum(dim=1)).square().sum() / 2
            loss.backward()
            optimizer.step()
            losses.append(loss.item() / len(ids))


with embedrock.open("shared.store", memory="16MiB") as store:
    store.commit(step=0)  # an empty store

command = [sys.executable, "-m", "embedrock", "serve", "shared.store", "--writable"]
command += ["--listen", "127.0.0.1:0", "--memory", "16MiB"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    url = "redis://" + server.stdout.readline().split("serving at ")[1].split(",")[0]
    losses = [[], []]
    trainers = [threading.Thread(target=train, args=(url, seed, losses[seed])) for seed in range(2)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    print(f"the first batch: loss {max(found[0] for found in losses):.2f}")
    for seed, found in enumerate(losses):
        print(f"trainer {seed}, its last batch: loss {found[-1]:.4f}")
    with embedrock.connect(url) as store:
        print("committed at step", store.commit(step=STEPS))
    server.terminate()
