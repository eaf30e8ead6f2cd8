"""torch.set_default_device and set_default_dtype are the user's, for the user's own tensors.

The default device is torch's "meta" here, which shows on a machine without a GPU what "cuda" shows
on one with it: torch's own modules work there, for they name their device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402

ROWS, DIM = 50, 4


@pytest.fixture(params=["meta", "float64"])
def default(request: Any) -> Iterator[None]:
    if request.param == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def ids(*values: Any) -> Any:
    return torch.tensor(values, device="cpu")


@pytest.mark.usefixtures("default")
def test_modules_train_whatever_the_defaults_are(store: embedrock.Store) -> None:
    options: Any = {"store": store, "optimizer": "sgd", "device": "cpu", "initializer": 0.0}
    config = nn.EmbeddingBagConfig("c", DIM, num_embeddings=ROWS, optimizer="sgd", initializer=0.0)
    modules = {
        "one": nn.Embedding(ROWS, DIM, name="one", padding_idx=0, **options),
        "sum": nn.EmbeddingBag(None, DIM, mode="sum", name="sum", **options),
        "mean": nn.EmbeddingBag(ROWS, DIM, mode="mean", name="mean", **options),
        "max": nn.EmbeddingBag(ROWS, DIM, mode="max", name="max", **options),
        "c": nn.EmbeddingBagCollection([config], store=store, device="cpu"),
    }
    model = torch.nn.ModuleDict(modules)
    optimizer = optim.SGD(model, lr=1.0)
    flat, offsets = ids(1, 2, 3), ids(0, 2)
    for _ in range(2):
        outputs = [modules["one"](ids(1, 2, 0)), modules["sum"](flat, offsets)]
        outputs += [modules[name](flat, offsets) for name in ("mean", "max")]
        outputs.append(modules["c"]({"c": (flat, offsets)})["c"])
        outputs.append(modules["sum"](ids([7, 8], [9, 7])))
        assert all((rows.device.type, rows.dtype) == ("cpu", torch.float32) for rows in outputs)
        sum(rows.sum() for rows in outputs).backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1e9)
        optimizer.step()
        optimizer.zero_grad()
    assert modules["sum"].table.get([7, 8]).tolist() == [[-4.0] * DIM, [-2.0] * DIM]
    assert modules["one"].table.get([0]).tolist() == [[0.0] * DIM]
    state = model.state_dict()
    model.load_state_dict(state)
    for module in modules.values():
        assert module.to("cpu").device.type == "cpu"
    found = modules["one"].topk(torch.ones(1, DIM, device="cpu"), 3, exclude=[[5]])
    assert found.ids.device.type == "cpu" and found.ids.shape == (1, 3)
    assert modules["one"].scores(torch.ones(1, DIM, device="cpu")).shape == (1, ROWS)
    assert weights.to_torch(modules["one"].table).weight.device.type == "cpu"
    embedrock.save(store, model, optimizer, 1)
    assert embedrock.resume(store, model, optimizer) == 1


@pytest.mark.usefixtures("default")
@pytest.mark.parametrize("overlap", [True, False])
def test_pipelines_read_into_host_memory(store: embedrock.Store, overlap: bool) -> None:
    embedding = nn.Embedding(None, DIM, store=store, name="t", optimizer="sgd", device="cpu")
    optimizer = optim.SGD(embedding, lr=0.5)
    batches = [ids(i, i + 1, i + 2) for i in range(12)]
    pipeline = embedrock.Pipeline(
        embedding, batches, overlap=overlap, keys_of=lambda batch: {embedding: batch}
    )
    for batch in pipeline:
        embedding.table.put([int(batch[0])], np.ones((1, DIM), np.float32))  # read again
        assert (embedding(batch)[0] == 1).all()
        embedding(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    store.commit(1)


def test_a_module_without_a_device_follows_the_default_one(store: embedrock.Store) -> None:
    torch.set_default_device("meta")
    try:
        assert nn.Embedding(ROWS, DIM, store=store, name="t").device.type == "meta"
    finally:
        torch.set_default_device(None)
