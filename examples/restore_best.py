"""Trains, keeps the best model as trainers do, and goes back to it: dense part and rows."""

import copy

import torch

import embedrock

torch.manual_seed(0)
ids = torch.randint(0, 1000, (64, 4))
with embedrock.open("best.store", memory="16MiB", keep=10) as store:
    model = torch.nn.Sequential(
        embedrock.nn.EmbeddingBag(1000, 8, store=store, name="items", optimizer="sgd"),
        torch.nn.Linear(8, 1),
    )
    rows = embedrock.optim.SGD(model, lr=0.1)
    dense = torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.1)
    optimizer = embedrock.optim.Together(dense, rows)

    best = None
    for epoch, target in enumerate([0.5, 0.1, 2.0]):
        loss = (model(ids) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        store.commit(step=epoch)
        if best is None or loss.item() < best[0]:
            best = loss.item(), epoch, copy.deepcopy(model.state_dict())

    try:
        model.load_state_dict(best[2])
    except embedrock.errors.MismatchError as error:
        print("refused:", str(error).split("; ")[1])

    store.go_back(best[1])
    print(model.load_state_dict(best[2]), "at step", store.step)
