"""When rows are seen by ``parameters()``, and when they are gone."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402

DIM = 3
NO_OPTIMIZER = pytest.mark.filterwarnings("ignore:gradients of table")


@pytest.fixture
def module(store: embedrock.Store) -> Any:
    return nn.Embedding(None, DIM, store=store, name="ads", optimizer="sgd", initializer=0.0)


def ids(*values: int) -> Any:
    return torch.tensor(values)


def test_nothing_waits_before_the_first_forward(module: Any) -> None:
    assert list(module.parameters()) == []


def test_forward_exposes_its_distinct_rows(module: Any) -> None:
    module(ids(7, 8, 7))
    (rows,) = module.parameters()
    assert rows.shape == (2, DIM)
    assert rows.requires_grad and rows.is_leaf and rows.grad is None


def test_backward_leaves_the_gradient_in_the_exposed_rows(module: Any) -> None:
    module(ids(7, 8, 7)).sum().backward()
    ((name, rows),) = module.named_parameters()
    assert name == "rows"
    assert rows.grad.tolist() == [[2.0] * DIM, [1.0] * DIM]


@pytest.mark.parametrize("training", [True, False])
def test_without_gradients_nothing_is_kept(module: Any, training: bool) -> None:
    module.train(training)
    with torch.no_grad():
        assert not module(ids(1)).requires_grad
    with torch.inference_mode():
        module(ids(1))
        with torch.enable_grad():  # inference mode has no graph for it
            assert not module(ids(1)).requires_grad
    assert list(module.parameters()) == []


def test_eval_exposes_rows_as_training_does(module: Any) -> None:
    # eval() alone stopped their training, without a word, where torch goes on.
    module.eval()
    output = module(ids(7, 8, 7))
    assert output.requires_grad and [len(rows) for rows in module.parameters()] == [2]


def test_frozen_module_keeps_nothing_until_it_is_thawed(module: Any) -> None:
    module.requires_grad_(False)
    assert not module(ids(1)).requires_grad
    module.requires_grad_(True)
    assert module(ids(1)).requires_grad


@pytest.mark.parametrize("waits", [False, True])
def test_freezing_a_model_freezes_the_tables_within(module: Any, waits: bool) -> None:
    # It had no effect on tables while no rows waited, and lasted for good when rows did.
    model = torch.nn.Sequential(torch.nn.Sequential(module), torch.nn.Linear(DIM, 1))
    optimizer = optim.SGD(model, lr=1.0)
    if waits:
        model(ids(1))
    assert model.requires_grad_(False) is model
    assert not any(parameter.requires_grad for parameter in model.parameters())
    optimizer.zero_grad()
    assert not model(ids(1)).requires_grad
    assert len(list(module.parameters())) == 0
    model.requires_grad_()
    model(ids(1)).sum().backward()
    assert all(parameter.requires_grad for parameter in model.parameters())
    optimizer.step()
    assert len(module.table) == 1


def test_frozen_module_leaves_another_on_its_table_training(
    store: embedrock.Store, module: Any
) -> None:
    other = nn.Embedding(None, DIM, store=store, name="ads")
    optimizer = optim.SGD(other, lr=1.0)
    module(ids(1))
    torch.nn.Sequential(module).requires_grad_(False)
    (rows,) = module.parameters()
    assert not rows.requires_grad
    other(ids(2)).sum().backward()
    optimizer.step()
    assert module.table.contains([1, 2]).tolist() == [False, True]


def test_backward_of_a_module_that_was_frozen_since_keeps_its_gradient(module: Any) -> None:
    optimizer = optim.SGD(module, lr=1.0)
    loss = module(ids(1)).sum()
    module.requires_grad_(False)
    loss.backward()
    optimizer.step()
    assert module.table.get([1]).tolist() == [[-1.0] * DIM]
    assert not module(ids(1)).requires_grad


def test_freezing_waiting_rows_by_hand_ends_with_them_and_is_warned_of(module: Any) -> None:
    optimizer = optim.SGD(module, lr=1.0)
    output = module(ids(1))
    for rows in module.parameters():
        rows.requires_grad = False
    assert output.requires_grad  # as that of any module which is frozen after its forward
    assert not module(ids(2)).requires_grad
    with pytest.warns(UserWarning, match=r"rows of table 'ads' .*requires_grad_\(False\) on its"):
        optimizer.zero_grad()
    assert module(ids(1)).requires_grad


@NO_OPTIMIZER
def test_two_forwards_are_merged_by_key_in_one_parameter(module: Any) -> None:
    module(ids(1, 2)).sum().backward()
    module(ids(3, 2)).sum().backward()
    (rows,) = module.parameters()
    assert rows.grad[:, 0].tolist() == [1.0, 2.0, 1.0]
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1e9)
    assert norm.item() == pytest.approx((DIM * 6) ** 0.5)


def test_parameter_list_taken_early_sees_later_gradients(module: Any) -> None:
    module(ids(5))
    early = list(module.parameters())
    module(ids(1, 2)).sum().backward()
    assert early[0].grad is not None


def test_modules_on_one_table_share_one_parameter(store: embedrock.Store, module: Any) -> None:
    other = nn.EmbeddingBag(None, DIM, mode="sum", store=store, name="ads")
    model = torch.nn.ModuleList([module, other])
    (module(ids(1)).sum() + other(ids(1, 2), ids(0)).sum()).backward()
    (rows,) = model.parameters()
    assert sorted(rows.grad[:, 0].tolist()) == [1.0, 2.0]


def test_zero_grad_between_forward_and_backward_loses_nothing(module: Any) -> None:
    optimizer = optim.SGD(module, lr=1.0)
    loss = module(ids(4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert module.table.get([4]).tolist() == [[-1.0] * DIM]


def test_step_between_forward_and_backward_loses_nothing(module: Any) -> None:
    optimizer = optim.SGD(module, lr=1.0)
    late = module(ids(4)).sum()
    module(ids(5)).sum().backward()
    optimizer.step()
    late.backward()
    optimizer.step()
    assert module.table.get([4, 5])[:, 0].tolist() == [-1.0, -1.0]


def test_step_and_zero_grad_drop_what_waits(module: Any) -> None:
    optimizer = optim.SGD(module, lr=1.0)
    module(ids(4)).sum().backward()
    optimizer.zero_grad()
    assert list(module.parameters()) == []
    optimizer.step()
    assert len(module.table) == 0
    module(ids(4)).sum().backward()
    optimizer.step()
    assert list(module.parameters()) == []
    optimizer.step()
    assert module.table.get([4])[0, 0] == -1.0


def test_models_zero_grad_drops_gradients_at_the_next_forward(module: Any) -> None:
    model = torch.nn.Sequential(module)
    optimizer = optim.SGD(model, lr=1.0)
    model(ids(4)).sum().backward()
    model.zero_grad()
    model(ids(5)).sum().backward()
    optimizer.step()
    assert module.table.contains([4, 5]).tolist() == [False, True]


def test_forward_without_backward_is_forgotten(module: Any) -> None:
    optimizer = optim.SGD(module, lr=1.0)
    for key in range(50):
        output = module(ids(key))
    (rows,) = module.parameters()
    assert len(rows) <= 2  # this forward and the one whose output was still held
    output.sum().backward()
    optimizer.step()
    assert module.table.contains(np.arange(50)).sum() == 1


def test_key_that_was_only_read_is_not_updated(store: embedrock.Store) -> None:
    # Adam moves a row even by a gradient of zero.
    module = nn.Embedding(None, DIM, store=store, name="adam", optimizer="adam")
    optimizer = optim.Adam(module, lr=0.1)
    kept = module(ids(1))
    module(ids(2)).sum().backward()
    optimizer.step()
    assert kept.shape == (1, DIM)
    assert module.table.contains([1, 2]).tolist() == [False, True]


def test_backward_twice_through_a_kept_graph_adds_twice(module: Any) -> None:
    loss = module(ids(1)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    (rows,) = module.parameters()
    assert rows.grad.tolist() == [[2.0] * DIM]


def test_backward_limited_to_parameters_reaches_rows(module: Any) -> None:
    loss = module(ids(1)).sum()
    loss.backward(inputs=list(module.parameters()))
    (rows,) = module.parameters()
    assert rows.grad.tolist() == [[1.0] * DIM]


def test_penalty_on_parameters_reaches_rows(module: Any) -> None:
    module.table.put([1, 2], np.full((2, DIM), 3.0, np.float32))
    optimizer = optim.SGD(module, lr=0.5)
    output = module(ids(1, 2))
    penalty = sum(rows.square().sum() for rows in module.parameters())
    (output[0].sum() + penalty).backward()
    optimizer.step()
    assert module.table.get([1, 2])[:, 0].tolist() == [-0.5, 0.0]


def test_gradient_penalty_with_double_backward(module: Any) -> None:
    module.table.put([1], np.full((1, DIM), 2.0, np.float32))
    x = torch.ones(DIM, requires_grad=True)
    output = (module(ids(1))[0] * x.square()).sum()
    (slope,) = torch.autograd.grad(output, x, create_graph=True)
    slope.sum().backward()  # d/drow of 2 * row * x is 2 * x
    (rows,) = module.parameters()
    assert rows.grad.tolist() == [[2.0] * DIM]


def test_checkpointed_forward_counts_once(module: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    module.table.put([1], np.full((1, DIM), 3.0, np.float32))
    optimizer = optim.SGD(module, lr=0.25)
    checkpoint(lambda x: module(x).square(), ids(1, 1), use_reentrant=False).sum().backward()
    optimizer.step()
    assert module.table.get([1]).tolist() == [[3.0 - 0.25 * 12] * DIM]


def test_padding_row_starts_at_zero_and_is_never_updated(store: embedrock.Store) -> None:
    module = nn.Embedding(None, DIM, -1, store=store, name="adam", optimizer="adam")
    assert module.table.get([-1]).tolist() == [[0.0] * DIM]
    optimizer = optim.Adam(module, lr=0.1, weight_decay=0.5)
    ones = np.ones((1, DIM), np.float32)
    module.table.put([-1], ones, state=np.ones((1, 2 * DIM), np.float32))
    module(ids(-1, 5, -1)).sum().backward()
    optimizer.step()  # would move it even by a gradient of zero
    values, state = module.table.get([-1], state=True)
    assert values.tolist() == ones.tolist() and (state == 1).all()
    nn.Embedding(None, DIM, -1, store=store, name="adam")  # a second module keeps the row
    assert module.table.get([-1]).tolist() == ones.tolist()


def test_gradients_that_no_optimizer_takes_are_warned_of_once(
    module: Any, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(3):
        module(ids(1)).sum().backward()
        torch.nn.Sequential(module).zero_grad()
    messages = [str(each.message) for each in recwarn if "nothing trains" in str(each.message)]
    assert len(messages) == 1 and "'ads'" in messages[0]


def test_dead_modules_leave_no_pending_rows(store: embedrock.Store, module: Any) -> None:
    from embedrock.nn import pending

    def left() -> int:  # others' may go at any time
        return sum(each.table.store is store for each in pending._REGISTRY)

    before = left()
    other = nn.Embedding(None, DIM, store=store, name="other")
    other(ids(1)).sum().backward()
    assert left() == before + 1
    del other
    gc.collect()
    assert left() == before
