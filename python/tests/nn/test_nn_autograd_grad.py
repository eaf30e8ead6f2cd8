"""Gradients that torch.autograd.grad gives out, over all parameters of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402
from embedrock.errors import UnsupportedError  # noqa: E402

ROWS, DIM = 30, 3
MODES = ["sum", "mean", "max", "embedding", "collection"]
IDS = torch.tensor([[1, 2, 1], [5, 9, 2], [7, 7, 7], [2, 0, 1]])


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, rows: Any) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = rows
        self.head = torch.nn.Linear(DIM, 2)

    def forward(self, ids: Any) -> Any:
        if isinstance(self.rows, nn.EmbeddingBagCollection):
            return self.head(self.rows({"t": ids})["t"])
        found = self.rows(ids)
        return self.head(found if found.dim() == 2 else found.sum(1))


def twins(store: embedrock.Store, mode: str, **options: Any) -> tuple[Any, Any]:
    more: Any = {"store": store, "name": "t", "optimizer": "sgd"}
    if mode == "embedding":
        ours = nn.Embedding(ROWS, DIM, **options, **more)
        theirs = torch.nn.Embedding(ROWS, DIM, **options)
    elif mode == "collection":
        config = nn.EmbeddingBagConfig("t", DIM, num_embeddings=ROWS, optimizer="sgd", **options)
        ours = nn.EmbeddingBagCollection([config], store=store)
        theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", **options)
    else:
        ours = nn.EmbeddingBag(ROWS, DIM, mode=mode, **options, **more)
        theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, **options)
    weights.load(ours.tables[0], theirs)
    return Model(ours), Model(theirs)


def losses(model: Any) -> list[Any]:
    out = model(IDS)
    return [out[:, 0].square().mean(), (out[:, 1] - 1).square().mean()]


def surgery(model: Any) -> list[Any]:
    """The parameters, with gradients that two losses agree on (PCGrad of Yu et al. 2020)."""
    both = losses(model)
    parameters = list(model.parameters())
    parts = [torch.autograd.grad(each, parameters, retain_graph=True) for each in both]
    flat = [torch.cat([one.reshape(-1) for one in part]) for part in parts]
    product = flat[0] @ flat[1]
    for i in (0, 1):
        if product < 0:
            flat[i] = flat[i] - product / flat[1 - i].square().sum() * flat[1 - i]
    for parameter, own in zip(
        parameters, (flat[0] + flat[1]).split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = own.view_as(parameter)
    return parameters


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}], ids=["plain", "padding"])
def test_gradient_surgery_trains_rows_as_torch_does(
    store: embedrock.Store, mode: str, training: bool, options: Any
) -> None:
    # It ended in torch's words about leaf nodes and _will_engine_execute_node.
    ours, theirs = twins(store, mode, **options)
    ours.train(training)
    tables = optim.SGD(ours, lr=0.5)
    dense = torch.optim.SGD(nn.dense_parameters(ours), lr=0.5)
    other = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(3):
        surgery(ours)
        tables.step()
        dense.step()
        surgery(theirs)
        other.step()
        for each in (tables, dense, other):
            each.zero_grad()
    rows = torch.from_numpy(ours.rows.tables[0].get(np.arange(ROWS)))
    torch.testing.assert_close(rows, theirs.rows.weight.detach())
    torch.testing.assert_close(ours.head.weight, theirs.head.weight)


def test_gradients_that_are_given_out_train_nothing(store: embedrock.Store) -> None:
    ours, _ = twins(store, "sum")
    tables = optim.SGD(ours, lr=0.5)
    before = ours.rows.table.get(np.arange(ROWS))
    given = torch.autograd.grad(losses(ours)[0], list(ours.parameters()), allow_unused=True)
    assert all(each is not None for each in given) and len(given) == 3
    tables.step()
    assert (ours.rows.table.get(np.arange(ROWS)) == before).all()
    # Weighed by their norms (GradNorm), and then trained by one backward.
    both = losses(ours)
    rows = next(iter(ours.rows.parameters()))
    norms = [torch.autograd.grad(one, rows, retain_graph=True)[0].norm() for one in both]
    sum(one / norm for one, norm in zip(both, norms, strict=True)).backward()
    tables.step()
    assert (ours.rows.table.get(np.arange(ROWS)) != before).any()
    store.commit(1)


def test_rows_that_adam_read_make_their_step_whatever_their_gradient(
    store: embedrock.Store,
) -> None:
    module = nn.Embedding(None, 2, store=store, name="t", optimizer="adam", initializer=0.0)
    tables = optim.Adam(module, lr=0.1)
    for _ in range(2):
        out = module(torch.tensor([4, 5]))
        (rows,) = module.parameters()
        (rows.grad,) = torch.autograd.grad(out[0].sum() + 0.0 * out[1].sum(), rows)
        tables.step()
    assert module.table.contains([4, 5]).tolist() == [True, True]
    store.commit(1)


def test_what_cannot_be_given_out_is_refused_in_words(store: embedrock.Store) -> None:
    ours, _ = twins(store, "sum")
    first = losses(ours)[0]
    parameters = list(ours.parameters())
    with pytest.raises(UnsupportedError, match=r"create_graph=True\) over the rows of table 't'"):
        torch.autograd.grad(first, parameters, create_graph=True)
    ours.rows(torch.tensor([[20, 21, 22]]))  # adds rows to the parameter
    with pytest.raises(UnsupportedError, match="table 't' after several forwards"):
        torch.autograd.grad(first, parameters, retain_graph=True)
    dense = list(nn.dense_parameters(ours))
    assert len(torch.autograd.grad(first, dense)) == 2
