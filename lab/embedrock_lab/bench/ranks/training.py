"""A DLRM in Criteo's shape, trained by one rank or by several."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import embedrock
from embedrock.data import Batch, Position
from embedrock.data.criteo_shaped import CriteoShaped
from embedrock.models.dlrm import DLRM, DLRMConfig
from embedrock.remote import buckets_of
from embedrock.training.embeddings import StoreEmbeddings
from embedrock_lab.measure.noise import Timed

__all__ = ["Training"]

LR = 0.01
AHEAD = 32
COMPARED = 512
"""Ids of each table that are read again at the end, at most."""


class Head(nn.Module):  # type: ignore[misc]
    """The dense part, for ``DistributedDataParallel``: (dense, rows) → logits."""

    def __init__(self, model: DLRM) -> None:
        """Takes a model whose embeddings are elsewhere."""
        super().__init__()
        self.model = model

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The logits of a batch."""
        return self.model.head(dense, embedded)


class Way:
    """One model with its optimizers, over tables that others have too."""

    def __init__(self, store: Any, stream: CriteoShaped, dim: int, world: int) -> None:
        """Makes the tables where there are none yet."""
        self.store = store
        self.embeddings = StoreEmbeddings(store, stream.features, dim, optimizer="rowwise_adagrad")
        config = DLRMConfig(stream.num_dense, len(stream.features), dim)
        head = Head(DLRM(config, nn.Identity()))
        self.head: nn.Module = head
        if world > 1:
            self.head = nn.parallel.DistributedDataParallel(head)
        self.optimizers = [
            embedrock.optim.RowWiseAdagrad(self.embeddings, lr=LR),
            torch.optim.Adagrad(head.parameters(), lr=LR),
        ]

    def step(self, batch: Batch) -> None:
        """One step."""
        rows = self.embeddings(torch.from_numpy(batch.keys), torch.from_numpy(batch.offsets))
        logits = self.head(torch.from_numpy(batch.dense), rows)
        loss = F.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Training:
    """The ways, each with its model, on batches that are new in every round."""

    def __init__(self, stores: dict[str, Any], settings: dict[str, Any]) -> None:
        """Makes tables and models."""
        self._rank, self._world = settings["rank"], settings["world"]
        self._batch, self._rounds = settings["batch"], 0
        self._stream = CriteoShaped(
            settings["rows"], seed=settings["seed"], samples=1 << 40, test_samples=0
        )
        self._ways = {}
        for name, store in stores.items():
            torch.manual_seed(settings["seed"])
            self._ways[name] = Way(store, self._stream, settings["dim"], self._world)

    def round(self, way: str, steps: int) -> dict[str, Any]:
        """Trains on so many batches of this rank, which are made before."""
        one = self._ways["plain" if way == "ahead" else way]
        batches = self._batches(steps)
        sent, timed = _sent(one.store), Timed()
        loop: Iterable[Batch] = batches
        if self._world > 1:
            torch.distributed.barrier()
            finder = {"keys_of": one.embeddings.keys_of, "ahead": AHEAD} if way == "ahead" else {}
            loop = batches if way == "apart" else one.store.batches(batches, **finder)
        used = time.process_time()
        with timed:
            for batch in loop:
                one.step(batch)
        used = time.process_time() - used
        return {
            "seconds": timed.seconds,
            "cpu_seconds": used,
            "waited": timed.waited,
            "known": timed.known,
            "work": steps * self._batch,
            "bytes_sent": _sent(one.store) - sent,
            "mismatches": 0,
        }

    def compare(self) -> dict[str, Any]:
        """Digests of the dense parameters and of rows that all ranks have read, and how many of
        those rows are not what their owner has."""
        one, wrong = self._ways["plain"], 0
        rows, dense = hashlib.blake2b(), hashlib.blake2b()
        for parameter in one.head.parameters():
            dense.update(parameter.detach().numpy().tobytes())
        tables: Any = one.embeddings.collection.tables
        for table in tables:
            ids = np.linspace(0, table.num_embeddings - 1, COMPARED).astype(np.int64)
            found = table.get(ids)
            rows.update(found.tobytes())
            own = one.store.owners[buckets_of(ids, dense=True)] == self._rank
            here = one.store.store.table(table.name).get(ids[own])
            wrong += int((found[own] != here).any(axis=1).sum())
            wrong += not np.isfinite(found).all()
        return {"mismatches": wrong, "dense": dense.hexdigest(), "rows": rows.hexdigest()}

    def _batches(self, steps: int) -> list[Batch]:
        """Those of this rank, next to those of the others in the stream."""
        begin = self._rounds * steps * self._world + self._rank * steps
        self._rounds += 1
        found = self._stream.train_batches(self._batch, Position(0, begin))
        return [batch for batch, _ in zip(found, range(steps), strict=False)]


def _sent(store: Any) -> int:
    """Bytes to other ranks so far."""
    stats = store.stats()
    return int(stats.get("bytes_sent", 0))
