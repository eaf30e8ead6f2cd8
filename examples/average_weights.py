"""Keeps an exponential moving average of the dense parameters, beside rows as they are."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import embedrock

torch.manual_seed(0)
ids, wanted = torch.randint(0, 1000, (256, 4)), torch.rand(256)
with embedrock.open("averages.store", memory="16MiB") as store:
    model = torch.nn.Sequential(
        embedrock.nn.EmbeddingBag(1000, 8, store=store, name="items", mode="sum"),
        torch.nn.Linear(8, 1),
    )
    optimizer = embedrock.optim.Together(
        torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.1),
        embedrock.optim.RowWiseAdagrad(model, lr=0.1),
    )
    with embedrock.nn.by_reference():
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    losses = []
    for _ in range(50):
        loss = (model(ids).squeeze(1) - wanted).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)

    with torch.no_grad():
        loss = (averaged(ids).squeeze(1) - wanted).square().mean()
    print("the average has learned:", loss.item() < losses[0] / 4)
    print("rows are shared:", averaged.module[0] is model[0])
    embedrock.save(store, model, optimizer, 50, extra={"averaged": averaged.state_dict()})
