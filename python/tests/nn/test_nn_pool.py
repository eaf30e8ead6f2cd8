"""Features that are pooled at once: what each one gives and trains is what it would alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:gradients of table")  # few have an optimizer

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.nn import pool as pooling  # noqa: E402

NAMES = ["a", "b", "c", "d"]
SIZES, DIM, BATCH = {"a": 9, "b": 40, "c": 7, "d": 300}, 5, 32


def batch_of(kind: str, seed: int = 0) -> dict[str, Any]:
    """Bags of one id, of three ids, or of lengths of their own, empty ones included."""
    generator = torch.Generator().manual_seed(seed)

    def ids(size: int, *shape: int) -> Any:
        return torch.randint(0, size, shape, generator=generator)

    found: dict[str, Any] = {}
    for i, (name, size) in enumerate(SIZES.items()):
        own = kind if kind != "mixed" else ("one", "three", "jagged", "single")[i]
        if own == "one":
            found[name] = ids(size, BATCH, 1)
        elif own == "three":
            found[name] = ids(size, BATCH, 3)
        elif own == "single":
            found[name] = (ids(size, BATCH), torch.arange(BATCH))
        else:
            lengths = torch.randint(0, 4, (BATCH,), generator=generator)
            found[name] = (ids(size, int(lengths.sum())), lengths.cumsum(0) - lengths)
    return found


def collection(store: embedrock.Store, prefix: str, **options: Any) -> Any:
    configs = [
        nn.EmbeddingBagConfig(prefix + name, DIM, [name], num_embeddings=size, optimizer="adam")
        for name, size in SIZES.items()
    ]
    bags = nn.EmbeddingBagCollection(configs, store=store, **options)
    return filled(bags.tables, bags)


def filled(tables: Any, made: Any) -> Any:
    for table in tables:
        generator = np.random.default_rng(table.num_embeddings)
        rows = generator.normal(size=(table.num_embeddings, DIM)).astype(np.float32)
        table.put(np.arange(table.num_embeddings), rows)
    return made


def alone(store: embedrock.Store, name: str) -> Any:
    bag = nn.EmbeddingBag(
        SIZES[name], DIM, mode="sum", store=store, name=f"alone_{name}", optimizer="adam"
    )
    return filled([bag.table], bag)


def parts(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, torch.Tensor) else given


def waiting(module: Any, slot: str) -> Any:
    found = module._pending[slot].gradient()
    return None if found is None else (found[0].tolist(), found[1])


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("kind", ["one", "three", "jagged", "mixed"])
def test_outputs_and_gradients_are_those_of_a_bag_alone(
    store: embedrock.Store, kind: str, joined: bool
) -> None:
    together = collection(store, "t_", concatenate=joined)
    batch = batch_of(kind)
    output = together(batch)
    outputs = dict(zip(NAMES, output.split(DIM, dim=1), strict=True)) if joined else output
    loss = torch.zeros(())
    for i, name in enumerate(NAMES):
        bag = alone(store, name)
        own = bag(*parts(batch[name]))
        assert torch.equal(own, outputs[name])
        weights = torch.randn(own.shape, generator=torch.Generator().manual_seed(i))
        (own * weights).sum().backward()
        loss = loss + (outputs[name] * weights).sum()
        outputs[name] = bag
    loss.backward()
    for i, name in enumerate(NAMES):
        keys, gradient = waiting(outputs[name], "rows")
        assert waiting(together, f"rows{i}")[0] == keys
        assert torch.equal(waiting(together, f"rows{i}")[1], gradient)


def test_features_whose_output_is_not_used_are_not_trained(store: embedrock.Store) -> None:
    together = collection(store, "t_")
    for kind in ("one", "mixed"):
        output = together(batch_of(kind))
        (output["b"].sum() + 2 * output["d"].sum()).backward()
        received = [waiting(together, f"rows{i}") is not None for i in range(4)]
        assert received == [False, True, False, True]
        (keys, gradient), ids = waiting(together, "rows3"), parts(batch_of(kind)["d"])[0]
        counts = torch.tensor([(ids == key).sum() for key in keys])
        assert torch.equal(gradient, 2.0 * counts[:, None].expand(-1, DIM))
        for pending in together._pending.values():
            pending.drop()


def test_outputs_may_be_changed_in_place(store: embedrock.Store) -> None:
    for joined in (False, True):
        together = collection(store, "t_", concatenate=joined)
        output = together(batch_of("one"))
        outputs = [output] if joined else list(output.values())
        for one in outputs:
            one.relu_()
        sum(one.sum() for one in outputs).backward()
        negative = sum((one == 0).sum() for one in outputs)
        total = sum(float(waiting(together, f"rows{i}")[1].sum()) for i in range(4))
        assert total == BATCH * 4 * DIM - int(negative)
        for pending in together._pending.values():
            pending.drop()


def test_second_backward_needs_the_graph(store: embedrock.Store) -> None:
    together = collection(store, "t_", concatenate=True)
    loss = together(batch_of("one")).sum()
    loss.backward(retain_graph=True)
    once = waiting(together, "rows0")[1].clone()
    loss.backward()
    assert torch.equal(waiting(together, "rows0")[1], 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_backward_limited_to_one_table_leaves_the_others(store: embedrock.Store) -> None:
    together = collection(store, "t_", concatenate=True)
    loss = together(batch_of("one")).sum()
    loss.backward(inputs=[together._pending["rows2"].parameter])
    received = [waiting(together, f"rows{i}") is not None for i in range(4)]
    assert received == [False, False, True, False]


def test_what_torch_has_to_pool_goes_with_what_is_pooled_at_once(store: embedrock.Store) -> None:
    weights = torch.linspace(0.5, 2, BATCH)
    for joined in (False, True):
        together = collection(store, "t_", concatenate=joined)
        batch = batch_of("one")
        batch["b"] = (batch["b"][:, 0], torch.arange(BATCH), weights)
        output = together(batch)
        outputs = dict(zip(NAMES, output.split(DIM, dim=1), strict=True)) if joined else output
        assert list(outputs) == NAMES
        for name in NAMES:
            assert torch.equal(outputs[name], alone(store, name)(*parts(batch[name])))


def test_offsets_that_torch_refuses_are_named(store: embedrock.Store) -> None:
    together = collection(store, "t_")
    for wrong in ([1, 2], [0, 9]):
        batch = batch_of("one")
        batch["c"] = (torch.tensor([1, 2, 3]), torch.tensor(wrong))
        with pytest.raises(embedrock.errors.MisuseError, match="'c' has offsets"):
            together(batch)


def test_training_alone_and_together_leave_the_same_rows(store: embedrock.Store) -> None:
    together, bags = collection(store, "t_"), {name: alone(store, name) for name in NAMES}
    ours = optim.Adam(together, lr=0.01)
    theirs = optim.Adam(torch.nn.ModuleDict(bags), lr=0.01)
    for seed in range(4):
        batch = batch_of("mixed", seed)
        outputs = together(batch)
        sum(one.square().sum() for one in outputs.values()).backward()
        ours.step()
        sum(bags[name](*parts(batch[name])).square().sum() for name in NAMES).backward()
        theirs.step()
    for table, name in zip(together.tables, NAMES, strict=True):
        keys = np.arange(SIZES[name])
        assert np.array_equal(table.get(keys), bags[name].table.get(keys))


def test_evaluation_in_inference_mode_before_training(store: embedrock.Store) -> None:
    # Data that a forward keeps for the next one of its size must not be an inference tensor.
    together = collection(store, "t_", concatenate=True)
    batch = batch_of("one")
    pooling._begins.cache_clear()
    with torch.inference_mode():
        expected = together(batch).clone()
    output = together(batch)
    assert torch.equal(output, expected)
    output.sum().backward()
    assert waiting(together, "rows0") is not None
