"""Training under a budget that holds a tenth of the rows gives the bits of training in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402

USERS, DIM, STEPS, SEED = 20_000, 32, 50, 4


def train(path: Path, memory: str) -> tuple[list[float], list[int], dict[str, Any]]:
    """Losses, digests of the tables and counters of a run on both kinds of tables."""
    torch.manual_seed(SEED)
    with embedrock.open(path, memory=memory) as store:
        bags = nn.EmbeddingBagCollection(
            [
                nn.EmbeddingBagConfig("users", DIM, num_embeddings=USERS, optimizer="adam"),
                nn.EmbeddingBagConfig("pairs", DIM, optimizer="adam", expected_rows=40_000),
            ],
            store=store,
            concatenate=True,
        )
        optimizer = optim.Adam(bags, lr=0.05)
        losses = []
        for _ in range(STEPS):
            ids = torch.randint(0, USERS, (800, 2))
            loss = bags({"users": ids, "pairs": ids * 2**40}).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(bags.parameters(), 0.01)
            optimizer.step()
            losses.append(loss.item())
        counters = store.stats()
        store.commit(STEPS)
        return losses, [table.digest() for table in bags.tables], counters


def test_budget_does_not_change_a_bit_of_training(tmp_path: Path) -> None:
    losses, digests, roomy = train(tmp_path / "roomy", "128MiB")
    out_of_core, stored, tight = train(tmp_path / "tight", "3MiB")
    assert roomy["misses"] == 0 and tight["misses"] > 10_000
    assert out_of_core == losses
    assert stored == digests
