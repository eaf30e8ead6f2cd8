"""Commits everything that a run needs, and goes on behind the last commit."""

import torch

import embedrock


def train(until):
    """Trains up to a step, from wherever the store is. Returns the step it began behind."""
    with embedrock.open("resumed.store", memory="1MiB") as store:
        items = embedrock.nn.EmbeddingBag(50_000, 16, mode="sum", store=store, name="items")
        model = torch.nn.Sequential(items, torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
        optimizers = [
            torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=1e-3),
            embedrock.optim.RowWiseAdagrad(model, lr=0.05),
        ]
        schedulers = [torch.optim.lr_scheduler.StepLR(each, 10, 0.5) for each in optimizers]
        kept = {"best": float("inf")}
        begun = embedrock.resume(store, model, optimizers, scheduler=schedulers, extra=kept)
        commit = None
        for step in range(begun + 1, until + 1):
            loss = model(torch.randint(0, 50_000, (32, 4))).square().mean()
            loss.backward()
            for part in (*optimizers, *schedulers):
                part.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            kept["best"] = min(kept["best"], loss.item())
            if step % 10 == 0:
                commit = embedrock.save(
                    store,
                    model,
                    optimizers,
                    step,
                    scheduler=schedulers,
                    extra=kept,
                    meta={"best": round(kept["best"], 6)},
                    wait=False,  # training goes on while the disk writes
                )
        if commit is not None:
            commit.wait()  # durable from here on
        print([(each.step, each.meta["best"]) for each in store.commits()])
        return begun


print("began behind step", train(until=30))
print("began behind step", train(until=50))
