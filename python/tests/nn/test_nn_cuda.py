"""Modules on a CUDA device: ids and outputs there, rows through the host."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402

N, DIM, SEED = 500, 16, 9


def test_embedding_on_the_device_equals_torchs(store: embedrock.Store) -> None:
    theirs = torch.nn.Embedding(N, DIM, padding_idx=0).cuda()
    mine = nn.Embedding(N, DIM, padding_idx=0, store=store, name="t", device="cuda")
    weights.load(mine.table, theirs)
    ids = torch.randperm(N, generator=torch.Generator().manual_seed(SEED))[:200].cuda()
    expected, output = theirs(ids), mine(ids)
    assert output.is_cuda and torch.equal(output, expected)
    expected.square().sum().backward()
    output.square().sum().backward()
    keys, gradient = mine._pending["rows"].gradient()
    assert gradient.is_cuda
    assert torch.equal(gradient, theirs.weight.grad[torch.from_numpy(keys).cuda()])


@pytest.mark.parametrize("home", ["cpu", "cuda"])
def test_training_on_the_device_ends_at_torchs_rows(store: embedrock.Store, home: str) -> None:
    theirs = torch.nn.EmbeddingBag(N, DIM, mode="sum", sparse=True).cuda()
    bags = nn.EmbeddingBagCollection(
        [
            nn.EmbeddingBagConfig("t", DIM, num_embeddings=N, optimizer="adam"),
            nn.EmbeddingBagConfig("u", 2, optimizer="adam"),
        ],
        store=store,
    ).to("cuda")
    weights.load(bags.tables[0], theirs)
    optimizers: list[Any] = [
        optim.Adam(bags, lr=0.05),
        torch.optim.SparseAdam(theirs.parameters(), lr=0.05),
    ]
    scaler = torch.amp.GradScaler("cuda")
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(10):
        ids = torch.randint(0, N, (64, 3), generator=generator)
        batch = {"t": ids.to(home), "u": ids[:, :1].to(home)}
        for loss in (
            sum(rows.square().mean() for rows in bags(batch).values()),
            theirs(ids.cuda()).square().mean(),
        ):
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    rows = torch.from_numpy(bags.tables[0].get(torch.arange(N)))
    torch.testing.assert_close(rows, theirs.weight.detach().cpu(), rtol=1e-4, atol=1e-5)
