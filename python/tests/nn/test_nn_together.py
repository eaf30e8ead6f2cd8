"""A module for each field, whose rows the first forward of a batch reads for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.errors import KeyRangeError, MisuseError  # noqa: E402

NAMES, ROWS, DIM, BATCH = ["a", "b", "c"], 50, 4, 16


class Fields(torch.nn.Module):
    """The usual model: one module for each field."""

    def __init__(self, store: embedrock.Store) -> None:
        super().__init__()
        self.fields = torch.nn.ModuleDict(
            {
                "a": nn.Embedding(ROWS, DIM, store=store, name="a", optimizer="adam"),
                "b": nn.EmbeddingBag(ROWS, DIM, mode="sum", store=store, name="b"),
                "c": nn.Embedding(ROWS, DIM, store=store, name="c", padding_idx=3),
            }
        )

    def forward(self, batch: dict[str, Any]) -> Any:
        return sum(field(batch[name]).sum(dim=1) for name, field in self.fields.items())


def batch_of(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    found = {name: torch.randint(0, ROWS, (BATCH,), generator=generator) for name in NAMES}
    found["b"] = torch.randint(0, ROWS, (BATCH, 2), generator=generator)
    return found


@contextmanager
def calls(store: embedrock.Store) -> Iterator[Any]:
    """The engine, counting its calls."""
    engine = mock.Mock(wraps=store._core)
    with mock.patch.object(store, "_core", engine):
        yield engine


def optimizers(model: Any) -> list[Any]:
    return [
        optim.Adam(model.fields["a"], lr=0.1),
        optim.RowWiseAdagrad([model.fields["b"], model.fields["c"]], lr=0.1),
    ]


@pytest.mark.parametrize("kind", ["loader", "hook", "pipeline"])
def test_forwards_of_a_batch_make_one_call(store: embedrock.Store, kind: str) -> None:
    model = Fields(store)
    tables = optim.RowWiseAdagrad(torch.nn.ModuleList([model.fields["b"], model.fields["c"]]))
    batches: Any = [batch_of(i) for i in range(4)]
    if kind == "hook":
        nn.read_together(model)
    elif kind == "loader":
        batches = embedrock.LookaheadLoader(batches, model, announce=True)
    else:
        batches = embedrock.Pipeline(model, batches, overlap=False)
    with calls(store) as engine:
        for i, batch in enumerate(batches, 1):
            model(batch).square().sum().backward()
            tables.step()
            for pending in model.fields["a"]._pending.values():
                pending.drop()
            assert (engine.get.call_count, engine.update.call_count) == (i, i)
            assert len(engine.get.call_args.args[0]) == 3
    assert not store._listeners


def train(path: Path, kind: str) -> tuple[list[float], list[Any]]:
    """Losses, and rows at the end, of steps with all that may come in between."""
    losses = []
    with embedrock.open(path, memory="8MiB") as store:
        model = Fields(store)
        steppers = optimizers(model)
        batches: Any = [batch_of(i) for i in range(12)]
        handle = nn.read_together(model) if kind == "hook" else None
        if kind == "loader":
            batches = embedrock.LookaheadLoader(batches, model, depth=2)
        elif kind == "pipeline":
            batches = embedrock.Pipeline(model, batches, overlap=False)
        for step, batch in enumerate(batches):
            a = model.fields["a"]
            if step % 4 == 1:  # rows change between two forwards of the batch
                first = a(batch["a"]).sum()
                model.fields["b"].table.update([5, 6], np.ones((2, DIM), np.float32), lr=0.5)
                model.fields["c"].table.put(batch["c"][:3], np.full((3, DIM), 2.0, np.float32))
                loss = first + model(batch).square().sum()
            elif step % 4 == 2:  # a module twice, once with ids of its own
                model.fields["b"].requires_grad_(False)
                loss = (a(batch["a"]) * a(batch["a"].flip(0))).sum() + model(batch).square().sum()
                model.fields["b"].requires_grad_(True)
            elif step % 4 == 3:  # two steps in a batch, and a look at it before
                with torch.no_grad():
                    losses.append(float(model.eval()(batch).sum()))
                model.train()
                model(batch).sum().backward()
                for one in steppers:
                    one.step()
                other = {**batch, "c": batch["c"].flip(0)}
                loss = model(other).square().sum()
            else:
                loss = model(batch).square().sum()
            losses.append(loss.item())
            loss.backward()
            for one in steppers:
                one.step()
        if handle is not None:
            handle.remove()
        keys = np.arange(ROWS)
        rows = [store.table(name).get(keys) for name in NAMES]
        assert not store._listeners
        store.commit(1)
    return losses, rows


@pytest.mark.parametrize("kind", ["loader", "hook", "pipeline"])
def test_results_are_those_of_modules_that_read_for_themselves(tmp_path: Path, kind: str) -> None:
    losses, rows = train(tmp_path / "alone", "alone")
    found, found_rows = train(tmp_path / "together", kind)
    assert found == losses
    for one, other in zip(found_rows, rows, strict=True):
        assert np.array_equal(one, other)


def test_a_step_between_two_forwards_of_a_batch_is_seen(store: embedrock.Store) -> None:
    model = Fields(store)
    steppers = optimizers(model)
    batch = batch_of(0)
    for i, given in enumerate(embedrock.LookaheadLoader([batch, batch_of(0)], model)):
        if i == 0:
            model(given).sum().backward()  # its step comes in the middle of the next batch
            continue
        model.fields["a"](given["a"])
        for one in steppers:
            one.step()
        field = model.fields["c"]
        assert torch.equal(
            field(given["c"]).detach(), torch.from_numpy(field.table.get(batch["c"]))
        )


def test_a_bad_id_is_an_error_of_its_own_module(store: embedrock.Store) -> None:
    # Reading for all at the first forward must not raise what a later one would have.
    model = Fields(store)
    nn.read_together(model)
    batch = {**batch_of(0), "c": torch.full((BATCH,), ROWS)}
    seen: list[str] = []
    for name, field in model.fields.items():
        field.register_forward_pre_hook(lambda *_, name=name: seen.append(name))
    with pytest.raises(KeyRangeError, match="'c'"):
        model(batch)
    assert seen == NAMES
    assert not store._listeners


def test_a_model_with_arguments_by_name_and_keys_of(store: embedrock.Store) -> None:
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user = nn.Embedding(ROWS, DIM, store=store, name="user")
            self.item = nn.Embedding(ROWS, DIM, store=store, name="item")

        def forward(self, users: Any, item: Any) -> Any:
            return (self.user(users) * self.item(item)).sum(dim=1)

    model, ids = Pair(), torch.arange(8)
    nn.read_together(model, lambda given: {model.user: given[0], "item": given[1]["item"]})
    with calls(store) as engine:
        model(ids, item=ids)
        assert engine.get.call_count == 1


def test_read_together_refuses_what_has_no_tables(store: embedrock.Store) -> None:
    with pytest.raises(MisuseError, match="no module of embedrock"):
        nn.read_together(torch.nn.Linear(2, 2))
    with pytest.raises(MisuseError, match="model is"):
        nn.read_together(store)
