"""Loads data in worker processes, and reads rows in a forked child."""

import os

import torch
from torch.utils.data import DataLoader, Dataset

import embedrock


class Samples(Dataset):
    """Workers make keys and labels. They never see a store."""

    def __len__(self):
        return 2048

    def __getitem__(self, i):
        return torch.tensor([i % 1000, i * 7 % 1000]), torch.tensor([float(i % 2)])


if __name__ == "__main__":
    with embedrock.open("workers.store", memory="4MiB") as store:
        items = embedrock.nn.EmbeddingBag(1000, 8, mode="sum", store=store, name="items")
        model = torch.nn.Sequential(items, torch.nn.Linear(8, 1))
        rows = embedrock.optim.RowWiseAdagrad(model, lr=0.05)
        for ids, labels in DataLoader(Samples(), batch_size=128, num_workers=2):
            torch.nn.functional.mse_loss(model(ids), labels).backward()
            rows.step()
            rows.zero_grad()
        store.commit(step=1)

        if (child := os.fork()) == 0:
            try:
                items.table.get([1])
            except embedrock.errors.ForkedError:
                print("the parent's store is not the child's", flush=True)
            with embedrock.open("workers.store", memory="4MiB", read_only=True) as own:
                print("a store of its own has", len(own.table("items")), "rows", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
