"""train() and eval() change nothing for tables: gradients decide, as for torch's own modules.

Each loop trains a model over a store and its twin in memory, in the same modes.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402

ROWS, DIM, STEPS = 80, 4, 12


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two lookups and a part that modes do change."""

    def __init__(self, one: Any, bags: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.bags = one, bags
        self.norm = torch.nn.BatchNorm1d(2 * DIM)
        self.dropped = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(2 * DIM, 1)

    def forward(self, batch: dict[str, Any]) -> Any:
        bags = self.bags(batch["flat"], batch["offsets"])
        rows = torch.cat([self.one(batch["one"]), bags], dim=1)
        return self.last(self.dropped(self.norm(rows))).squeeze(1)


def batch_of(step: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(step)
    return {
        "one": torch.randint(ROWS, (16,), generator=random),
        "flat": torch.randint(ROWS, (50,), generator=random),
        "offsets": torch.arange(0, 48, 3),
    }


def twins(store: embedrock.Store) -> tuple[Any, Any]:
    """The model over the store and the one in memory, with the same rows and parameters."""
    options = {"store": store, "optimizer": "sgd"}
    ours = Model(
        nn.Embedding(ROWS, DIM, name="one", **options),
        nn.EmbeddingBag(ROWS, DIM, mode="mean", name="bags", **options),
    )
    theirs = Model(torch.nn.Embedding(ROWS, DIM), torch.nn.EmbeddingBag(ROWS, DIM, mode="mean"))
    for name in ("one", "bags"):
        weights.load(getattr(ours, name).table, getattr(theirs, name))
    theirs.last.load_state_dict(ours.last.state_dict())
    return ours, theirs


def optimizers(ours: Any, theirs: Any) -> tuple[Any, Any]:
    dense = torch.optim.SGD(nn.dense_parameters(ours), lr=0.1)
    return optim.Together(dense, optim.SGD(ours, lr=0.1)), torch.optim.SGD(
        theirs.parameters(), lr=0.1
    )


def eval_all_along(model: Any, step: int) -> None:
    model.eval()


def never_train_again(model: Any, step: int) -> None:
    if step == 3:  # a validation, after which nobody calls train()
        model.eval()
        with torch.no_grad():
            model(batch_of(100))


def flip(model: Any, step: int) -> None:
    model.train(step % 2 == 0)


def freeze_statistics(model: Any, step: int) -> None:
    model.train()
    model.norm.eval()


def only_tables_eval(model: Any, step: int) -> None:
    model.train()
    model.one.eval()
    model.bags.eval()


def look_under_gradients(model: Any, step: int) -> None:
    model.eval()
    model(batch_of(200 + step))  # nobody uses its output
    kept.append(model(batch_of(300 + step)).sum())  # and of this one nobody calls backward
    model.train()


kept: list[Any] = []


def plainly(model: Any, batch: Any) -> Any:
    loss = model(batch).square().mean()
    loss.backward()
    return loss.item()


def checkpointed(model: Any, batch: Any) -> Any:
    loss = checkpoint(model, batch, use_reentrant=False).square().mean()
    loss.backward()
    return loss.item()


def twice(model: Any, batch: Any) -> Any:
    """Two backward passes a step, as adversarial training has them."""
    first = plainly(model, batch)
    return first + plainly(model, {**batch, "one": batch["one"].flip(0)})


def functional(model: Any, batch: Any) -> Any:
    values = {name: value for name, value in model.named_parameters() if "one" not in name[:4]}
    values = {name: value for name, value in values.items() if not name.startswith("bags")}
    loss = torch.func.functional_call(model, values, (batch,)).square().mean()
    loss.backward()
    return loss.item()


def train(
    model: Any, optimizer: Any, mode: Callable[..., None], how: Any, batches: Iterable[Any]
) -> list[float]:
    losses = []
    for step, batch in enumerate(batches):
        mode(model, step)
        torch.manual_seed(step)  # of dropout
        losses.append(how(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    kept.clear()
    return losses


MODES = [
    eval_all_along,
    never_train_again,
    flip,
    freeze_statistics,
    only_tables_eval,
    look_under_gradients,
]


def a_third(others: list[Any]) -> list[Any]:
    """All pairs of a mode and one of these; by day a third of them, in which each of both comes."""
    return [
        pytest.param(mode, other, marks=[pytest.mark.long] if (at + number) % 3 else [])
        for at, mode in enumerate(MODES)
        for number, other in enumerate(others)
    ]


def assert_trained_alike(
    store: embedrock.Store, mode: Any, how: Any, wrap: Callable[..., Any]
) -> None:
    ours, theirs = twins(store)
    mine, other = optimizers(ours, theirs)
    batches = [batch_of(step) for step in range(STEPS)]
    expected = train(theirs, other, mode, how, copy.deepcopy(batches))
    found = train(ours, mine, mode, how, wrap(ours, batches))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for name in ("one", "bags"):
        rows = getattr(ours, name).table.get(np.arange(ROWS))
        weight = getattr(theirs, name).weight.detach().numpy()
        np.testing.assert_allclose(rows, weight, rtol=1e-4, atol=1e-5)
    for (_, one), (_, two) in zip(
        ours.norm.named_buffers(), theirs.norm.named_buffers(), strict=True
    ):
        torch.testing.assert_close(one, two)
    store.commit(1)


@pytest.mark.parametrize(("mode", "how"), a_third([plainly, checkpointed, twice, functional]))
def test_tables_are_trained_in_any_mode_as_torch_trains(
    store: embedrock.Store, mode: Any, how: Any
) -> None:
    assert_trained_alike(store, mode, how, lambda model, batches: batches)


@pytest.mark.parametrize(("mode", "way"), a_third(["overlapped", "alone", "announced", "both"]))
def test_pipelines_and_announced_batches_train_in_any_mode(
    store: embedrock.Store, mode: Any, way: str
) -> None:
    def keys_of(model: Any) -> Any:
        return lambda batch: {
            model.one: batch["one"],
            model.bags: (batch["flat"], batch["offsets"]),
        }

    def wrap(model: Any, batches: Any) -> Any:
        if way in ("announced", "both"):
            batches = embedrock.LookaheadLoader(
                batches, model, keys_of=keys_of(model), announce=True
            )
        if way == "announced":
            return batches
        found = None if way == "both" else keys_of(model)
        return embedrock.Pipeline(model, batches, overlap=way != "alone", keys_of=found)

    assert_trained_alike(store, mode, plainly, wrap)


def test_a_pipeline_reads_ahead_for_a_model_in_eval_mode(store: embedrock.Store) -> None:
    module = nn.Embedding(None, DIM, store=store, name="ads", optimizer="sgd").eval()
    optimizer = optim.SGD(module, lr=0.1)
    batches = [torch.tensor([i, i + 1]) for i in range(6)]
    found = lambda batch: {module: batch}  # noqa: E731
    pipeline = embedrock.Pipeline(module, batches, overlap=True, keys_of=found)
    for batch in pipeline:
        module(batch).sum().backward()
        optimizer.step()
    assert pipeline.stats()["forwards_ahead"] == len(batches)
    store.commit(1)


def test_outputs_that_nobody_uses_leave_their_rows_with_the_next_forward(
    store: embedrock.Store,
) -> None:
    module = nn.Embedding(None, DIM, store=store, name="ads", optimizer="sgd").eval()
    for i in range(20):
        module(torch.arange(10 * i, 10 * i + 10))
        assert [len(rows) for rows in module.parameters()] == [10]
    with torch.no_grad():
        module(torch.arange(500))
    assert [len(rows) for rows in module.parameters()] == [10]


def test_threads_may_serve_one_model_with_gradients_enabled(store: embedrock.Store) -> None:
    # In eval mode nothing was kept, so that no program had to disable gradients.
    module = nn.EmbeddingBag(None, DIM, mode="sum", store=store, name="ads", initializer=0.0)
    module.eval()
    module.table.put(np.arange(200), np.arange(200 * DIM, dtype=np.float32).reshape(200, DIM))
    wrong: list[str] = []

    def serve(place: int) -> None:
        random, outputs = np.random.default_rng(place), []
        try:
            for turn in range(150):
                asked = random.integers(0, 200, (3, 5))
                output = module(torch.from_numpy(asked))
                expected = module.table.get(asked).sum(axis=1)
                if not np.array_equal(output.detach().numpy(), expected):
                    wrong.append(f"thread {place}, turn {turn}")
                outputs = [*outputs[-2:], output]  # some graphs live on
        except Exception as error:
            wrong.append(f"thread {place}: {error!r}")

    threads = [threading.Thread(target=serve, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    store.commit(1)


def test_another_thread_reads_for_itself_beside_a_pipeline(store: embedrock.Store) -> None:
    module = nn.Embedding(None, DIM, store=store, name="ads", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(module, lr=1.0)
    found = lambda batch: {module: batch}  # noqa: E731
    pipeline = embedrock.Pipeline(module, [torch.tensor([1, 2])] * 3, overlap=True, keys_of=found)
    for step, batch in enumerate(pipeline):
        seen: list[Any] = []
        thread = threading.Thread(target=lambda out=seen: out.append(module(torch.tensor([1, 2]))))
        thread.start()
        thread.join()
        assert (seen[0] == -float(step)).all()
        module(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert pipeline.stats()["forwards_ahead"] == 3
    store.commit(1)
