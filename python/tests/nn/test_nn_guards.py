"""Refusals of modules, and their behaviour within torch's own machinery."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.errors import (  # noqa: E402
    KeyRangeError,
    MismatchError,
    MisuseError,
    UnsupportedError,
)

DIM = 4


@pytest.fixture
def model(store: embedrock.Store) -> Any:
    return torch.nn.Sequential(
        nn.EmbeddingBag(100, DIM, mode="sum", store=store, name="ads", optimizer="sgd"),
        torch.nn.Linear(DIM, 1),
    )


BATCH = torch.tensor([[1, 2], [3, 1]])


def test_state_dict_has_the_dense_part_only_and_loads_back(model: Any) -> None:
    model(BATCH).sum().backward()
    state = model.state_dict()
    assert sorted(state) == ["0._extra_state", "1.bias", "1.weight"]
    assert model.load_state_dict(state).missing_keys == []


def test_state_dict_of_torchs_module_is_refused_with_the_way_to_import_it(model: Any) -> None:
    state = {**model.state_dict(), "0.weight": torch.zeros(100, DIM)}
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"embedrock\.weights\.load"):
            model.load_state_dict(state, strict=strict)
    state = {**model.state_dict(), "0.bias": torch.zeros(DIM)}
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "0\.bias"'):
        model.load_state_dict(state)


def test_dense_parameters_are_those_that_are_not_rows(model: Any) -> None:
    before = list(nn.dense_parameters(model))
    model(BATCH).sum().backward()
    assert len(list(model.parameters())) == 3
    assert [id(p) for p in nn.dense_parameters(model)] == [id(p) for p in before]


def test_an_optimizer_that_takes_waiting_rows_is_warned_of(model: Any) -> None:
    def first_step(optimizer: torch.optim.Optimizer) -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            optimizer.step()
        assert all(each.filename == __file__ for each in told)
        return [str(each.message) for each in told]

    early = torch.optim.Adam(model.parameters())
    model(BATCH).sum().backward()
    tables = optim.SGD(model, lr=0.1)
    dense = torch.optim.Adam(nn.dense_parameters(model))
    both = optim.Together(torch.optim.SGD(nn.dense_parameters(model), lr=0.1), tables)
    late = torch.optim.Adam(model.parameters())
    assert first_step(early) == first_step(dense) == []
    said = first_step(late)
    assert len(said) == 1
    assert re.search(r"Adam was given the rows of table 'ads'.*nn\.dense_param", said[0])
    assert first_step(late) == first_step(both) == first_step(tables) == []
    tables.zero_grad()
    assert first_step(torch.optim.Adam(model.parameters())) == []


def test_a_group_that_takes_waiting_rows_later_is_warned_of(model: Any) -> None:
    dense = torch.optim.SGD(nn.dense_parameters(model), lr=0.1)
    dense.step()
    model(BATCH).sum().backward()
    kept = {id(parameter) for parameter in nn.dense_parameters(model)}
    rows = [parameter for parameter in model.parameters() if id(parameter) not in kept]
    dense.add_param_group({"params": rows})
    with pytest.warns(UserWarning, match="SGD was given the rows of table 'ads'"):
        dense.step()


def test_torchs_optimizers_have_no_method_of_ours() -> None:
    ours = str(Path(embedrock.__file__).parent)
    methods = [getattr(method, "__code__", None) for method in vars(torch.optim.Optimizer).values()]
    files = [code.co_filename for code in methods if code is not None]
    assert len(files) > 10 and not any(file.startswith(ours) for file in files)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickle.dumps])
def test_modules_and_optimizers_cannot_be_copied(model: Any, duplicate: Any) -> None:
    optimizer = optim.SGD(model, lr=0.1)
    with pytest.raises(MisuseError, match=r"table 'ads' cannot be .* embedrock\.save"):
        duplicate(model[0])
    with pytest.raises(MisuseError, match="cannot be copied or pickled"):
        duplicate(optimizer)


def test_conversion_to_another_dtype_is_refused(model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.float16.*dtype of rows is fixed"):
        model.half()
    assert model[0](BATCH).dtype == torch.float32


def test_outputs_follow_the_module_to_its_device(model: Any) -> None:
    model[0].to("meta")
    assert model[0].device.type == "meta"
    with torch.no_grad():
        output = model[0](BATCH)
    assert output.device.type == "meta" and output.shape == (2, DIM)
    model[0].to_empty(device="cpu")
    assert model[0](BATCH).device.type == "cpu"


def test_missing_weight_says_where_rows_are(model: Any) -> None:
    assert not hasattr(model[0], "weight")
    with pytest.raises(AttributeError, match=r"\.table\.get\(keys\)"):
        model[0].weight  # noqa: B018


def test_data_parallel_with_several_processes_is_refused(model: Any) -> None:
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        with pytest.raises(UnsupportedError, match=r"2 processes.*one process"):
            wrapped(BATCH)
        with torch.no_grad():
            assert wrapped(BATCH).shape == (2, 1)
        assert model(BATCH).requires_grad  # outside of the wrapper
    finally:
        dist.destroy_process_group()


def test_replicas_of_data_parallel_are_refused(model: Any) -> None:
    with pytest.raises(UnsupportedError, match="DataParallel"):
        model[0]._replicate_for_data_parallel()


def test_compiled_model_equals_the_uncompiled_one(model: Any) -> None:
    torch._dynamo.reset()
    optimizer = optim.SGD(model, lr=0.5)
    compiled = torch.compile(model, backend="eager")
    for ids in (BATCH, BATCH + 7, BATCH.repeat(3, 1)):
        expected = model(ids)
        output = compiled(ids)
        assert torch.equal(output, expected)
        optimizer.zero_grad()
        compiled(ids).sum().backward()
        before = model[0].table.get(ids)
        optimizer.step()
        assert not np.array_equal(model[0].table.get(ids), before)


def test_autocast_leaves_rows_in_float32(model: Any) -> None:
    optimizer = optim.SGD(model, lr=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(BATCH)
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    (rows,) = model[0].parameters()
    assert rows.grad.dtype == torch.float32
    optimizer.step()


@pytest.mark.parametrize("key", [-1, 100])
def test_id_outside_a_dense_table_is_named(model: Any, key: int) -> None:
    with pytest.raises(KeyRangeError, match=rf"{key}.*'ads'"):
        model(torch.tensor([[1], [key]]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_norm": 1.0}, UnsupportedError, "max_norm"),
        ({"dtype": torch.float64}, MisuseError, "dtype is float64"),
        ({"output_dtype": torch.int8}, MisuseError, "output_dtype is int8"),
        ({"padding_idx": 10}, MisuseError, "padding_idx is 10, expected -10 to 9"),
        ({"store": "path"}, MisuseError, r"embedrock\.open"),
        ({"embedding_dim": 5, "name": "there"}, MismatchError, "there"),
    ],
)
def test_unusable_arguments_are_named(
    store: embedrock.Store, arguments: Any, error: Any, message: str
) -> None:
    store.table("there", DIM, num_embeddings=10)
    defaults = {"num_embeddings": 10, "embedding_dim": DIM, "store": store, "name": "new"}
    with pytest.raises(error, match=message):
        nn.Embedding(**{**defaults, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor([1, 2]),), "one dimension needs offsets"),
        ((BATCH, torch.tensor([0])), "one dimension needs offsets"),
        ((torch.tensor(1), torch.tensor([0])), "one or two dimensions"),
        ((torch.tensor([1]), torch.tensor([0]), torch.ones(2)), "one for each id"),
        ((torch.tensor([1.0]), torch.tensor([0])), r"torch\.float32"),
        (([1, 2], torch.tensor([0])), "list"),
    ],
)
def test_malformed_bags_are_named(model: Any, arguments: Any, message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        model[0](*arguments)


def test_per_sample_weights_need_mode_sum(store: embedrock.Store) -> None:
    bag = nn.EmbeddingBag(10, DIM, store=store, name="mean")
    with pytest.raises(MisuseError, match="mode='mean'"):
        bag(BATCH, per_sample_weights=torch.ones(2, 2))


def test_module_opens_an_existing_table_as_it_is(store: embedrock.Store) -> None:
    store.table("there", DIM, optimizer="adam", initializer=0.25)
    module = nn.Embedding(None, DIM, store=store, name="there")
    assert module.table.optimizer["kind"] == "adam"
    assert module(torch.tensor([3])).tolist() == [[0.25] * DIM]


def test_new_table_starts_like_torchs(store: embedrock.Store) -> None:
    rows = nn.Embedding(4000, DIM, store=store, name="new")(torch.arange(4000))
    assert abs(rows.mean().item()) < 0.03 and abs(rows.std().item() - 1) < 0.03


def test_printed_module_shows_its_table(model: Any) -> None:
    assert "EmbeddingBag(100, 4, name='ads', optimizer='sgd', mode='sum')" in repr(model)
