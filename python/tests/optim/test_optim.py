"""Optimizers of tables: torch's interface, torch's arithmetic, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim, optimizers, weights  # noqa: E402
from embedrock.errors import MismatchError, MisuseError, NonFiniteError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

N, DIM, SEED = 40, 5, 8

PAIRS = {
    "sgd": (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd_maximize": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    "adagrad": (optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1}),
    "adagrad_decay": (optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "adam": (optim.Adam, torch.optim.SparseAdam, {"lr": 0.05}),
    "adam_betas": (
        optim.Adam,
        torch.optim.SparseAdam,
        {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-3, "maximize": True},
    ),
}


def embedding(store: embedrock.Store, name: str = "t", **options: Any) -> Any:
    return nn.Embedding(N, DIM, store=store, name=name, **{"optimizer": "sgd", **options})


def rows_of(module: Any) -> Any:
    return torch.from_numpy(module.table.get(torch.arange(N)))


def pull(module: Any, *ids: int) -> None:
    """One backward whose gradient is one in each value."""
    module(torch.tensor(ids)).sum().backward()


@pytest.mark.parametrize("name", PAIRS)
def test_steps_are_those_of_torchs_optimizer_with_sparse_gradients(
    store: embedrock.Store, name: str
) -> None:
    make_mine, make_theirs, options = PAIRS[name]
    theirs = torch.nn.Embedding(N, DIM, sparse=True)
    mine = embedding(store, optimizer=make_mine.kind)
    weights.load(mine.table, theirs)
    optimizers_ = [make_mine(mine, **options), make_theirs(theirs.parameters(), **options)]
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(20):
        for _ in range(2):
            ids = torch.randint(0, N, (12,), generator=generator)
            scale = torch.randn(12, DIM, generator=generator)
            for module in (mine, theirs):
                (module(ids) * scale).sum().backward()
        for optimizer in optimizers_:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(rows_of(mine), theirs.weight.detach(), rtol=2e-6, atol=2e-6)


def test_weight_decay_is_torchs_where_every_row_has_a_gradient(store: embedrock.Store) -> None:
    theirs = torch.nn.Embedding(N, DIM)
    mine = embedding(store)
    weights.load(mine.table, theirs)
    options = {"lr": 0.1, "weight_decay": 0.2}
    pairs = [
        (mine, optim.SGD(mine, **options)),
        (theirs, torch.optim.SGD(theirs.parameters(), **options)),
    ]
    for _ in range(5):
        for module, optimizer in pairs:
            pull(module, *range(N))
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(rows_of(mine), theirs.weight.detach(), rtol=1e-6, atol=1e-6)


EVERY_ROW = {
    "momentum": (optim.SGD, torch.optim.SGD, "momentum", {"lr": 0.1, "momentum": 0.9}),
    "dampening": (
        optim.SGD,
        torch.optim.SGD,
        "momentum",
        {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.2, "maximize": True},
    ),
    "nesterov": (
        optim.SGD,
        torch.optim.SGD,
        "momentum",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ),
    "adamw": (optim.AdamW, torch.optim.AdamW, "adamw", {"lr": 0.05}),
    "adamw_betas": (
        optim.AdamW,
        torch.optim.AdamW,
        "adamw",
        {"lr": 0.05, "betas": (0.4, 0.9), "eps": 1e-3, "weight_decay": 0.3},
    ),
}


@pytest.mark.parametrize("name", EVERY_ROW)
def test_steps_are_torchs_where_every_row_has_a_gradient(store: embedrock.Store, name: str) -> None:
    make_mine, make_theirs, kind, options = EVERY_ROW[name]
    theirs = torch.nn.Embedding(N, DIM)
    mine = embedding(store, optimizer=kind)
    weights.load(mine.table, theirs)
    optimizers_ = [make_mine(mine, **options), make_theirs(theirs.parameters(), **options)]
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(20):
        ids = torch.randperm(N, generator=generator)
        scale = torch.randn(N, DIM, generator=generator)
        for module in (mine, theirs):
            (module(ids) * scale).sum().backward()
        for optimizer in optimizers_:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(rows_of(mine), theirs.weight.detach(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("make", "kind", "options"),
    [
        (optim.SGD, "momentum", {"momentum": 0.9, "weight_decay": 0.5}),
        (optim.AdamW, "adamw", {"weight_decay": 0.5}),
        (optim.RowWiseAdam, "rowwise_adam", {}),
        (optim.FTRL, "ftrl", {"l1": 0.1}),
    ],
)
def test_rows_without_a_gradient_stand_still(
    store: embedrock.Store, make: Any, kind: str, options: dict[str, float]
) -> None:
    module = embedding(store, optimizer=kind)
    optimizer = make(module, lr=0.1, **options)
    pull(module, 1, 2)
    optimizer.step()
    values, state = module.table.get([1], state=True)
    for _ in range(3):
        pull(module, 2)
        optimizer.step()
    again, same = module.table.get([1], state=True)
    assert (values == again).all()
    assert (state == same).all()
    assert not module.table.contains(np.arange(3, N)).any()


def test_sgd_without_momentum_trains_tables_that_have_room_for_it(store: embedrock.Store) -> None:
    first, second = embedding(store, "a"), embedding(store, "b", optimizer="momentum")
    plain = optim.SGD([first, second], lr=1.0)
    for module in (first, second):
        weights.load(module.table, np.zeros((N, DIM), np.float32))
        pull(module, 3)
        pull(module, 3)
    plain.step()
    assert [module.table.get([3])[0, 0] for module in (first, second)] == [-2.0, -2.0]
    with pytest.raises(MismatchError, match=r"momentum is 0\.9, but table 'a'.*'momentum'"):
        optim.SGD([first, second], momentum=0.9)
    with pytest.raises(MismatchError, match=r"momentum is 0\.5, but table 'a'"):
        plain.param_groups[0]["momentum"] = 0.5  # as a scheduler does
        pull(first, 3)
        plain.step()
    assert first.table.get([3])[0, 0] == -2.0


def test_schedules_that_cycle_momentum_reach_the_engine(store: embedrock.Store) -> None:
    module = embedding(store, optimizer="momentum", initializer=0.0)
    optimizer = optim.SGD(module, lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.CyclicLR(
        optimizer, 1.0, 1.0, 1, base_momentum=0.25, max_momentum=0.75
    )
    expected, buffer = 0.0, 0.0
    for _ in range(4):
        pull(module, 1)
        buffer = optimizer.param_groups[0]["momentum"] * buffer + 1
        expected -= buffer
        optimizer.step()
        schedule.step()
    assert module.table.get([1])[0, 0] == pytest.approx(expected)


def test_ftrl_follows_the_paper(store: embedrock.Store) -> None:
    lr, l1, l2, beta = 0.2, 0.4, 0.05, 0.5
    module = embedding(store, optimizer="ftrl", initializer=0.0)
    optimizer = optim.FTRL(module, lr=lr, l1=l1, l2=l2, beta=beta)
    rng = np.random.default_rng(SEED)
    w, z = np.zeros((N, DIM)), np.zeros((N, DIM))
    n = np.full((N, DIM), np.float32(0.1), np.float64)
    for _ in range(15):
        ids = rng.choice(N, 9, replace=False)
        g = rng.standard_normal((9, DIM), np.float32) * np.float32(0.3)
        (module(torch.from_numpy(ids)) * torch.from_numpy(g)).sum().backward()
        optimizer.step()
        sigma = (np.sqrt(n[ids] + g.astype(float) ** 2) - np.sqrt(n[ids])) / lr
        z[ids] += g - sigma * w[ids]
        n[ids] += g.astype(float) ** 2
        shrunk = (np.sign(z[ids]) * l1 - z[ids]) / ((beta + np.sqrt(n[ids])) / lr + 2 * l2)
        w[ids] = np.where(np.abs(z[ids]) > l1, shrunk, 0.0)
    rows = module.table.get(np.arange(N))
    np.testing.assert_allclose(rows, w, atol=2e-6)
    assert ((rows == 0) == (w == 0)).all()
    assert 0.2 < (rows == 0).mean() < 0.9


def test_row_wise_adam_keeps_one_second_moment(store: embedrock.Store) -> None:
    module = embedding(store, optimizer="rowwise_adam", initializer=1.0)
    optimizer = optim.RowWiseAdam(module, lr=0.5, betas=(0.9, 0.99))
    gradient = torch.arange(DIM, dtype=torch.float32)
    (module(torch.tensor([3])) * gradient).sum().backward()
    optimizer.step()
    values, state = module.table.get([3], state=True)
    mean = (gradient**2).mean().item()
    np.testing.assert_allclose(state[0], [*(0.1 * gradient).tolist(), 0.01 * mean], rtol=1e-5)
    np.testing.assert_allclose(values[0], 1 - 0.5 * gradient.numpy() / mean**0.5, rtol=1e-5)


def test_row_wise_adagrad_keeps_one_sum_of_mean_squares(store: embedrock.Store) -> None:
    module = embedding(store, optimizer="rowwise_adagrad", initializer=1.0)
    optimizer = optim.RowWiseAdagrad(module, lr=0.5)
    gradient = torch.arange(DIM, dtype=torch.float32)
    (module(torch.tensor([3])) * gradient).sum().backward()
    optimizer.step()
    values, state = module.table.get([3], state=True)
    assert state.tolist() == [[pytest.approx((gradient**2).mean().item())]]
    expected = 1 - 0.5 * gradient / ((gradient**2).mean().sqrt() + 1e-8)
    np.testing.assert_allclose(values[0], expected.numpy(), rtol=1e-6)


def test_adam_by_row_corrects_by_the_rows_own_steps(store: embedrock.Store) -> None:
    module = embedding(store, optimizer=optimizers.adam(bias_correction="row"), initializer=0.0)
    optimizer = optim.Adam(module, lr=0.1, bias_correction="row")
    for keys in ([1], [1], [1, 2]):
        pull(module, *keys)
        optimizer.step()
    # A constant gradient moves a row by lr a step; row 2 took its first step at the table's third.
    assert module.table.get([1, 2])[:, 0] == pytest.approx([-0.3, -0.1], rel=1e-4)


def test_all_tables_are_updated_in_one_call(store: embedrock.Store) -> None:
    model = torch.nn.ModuleList([embedding(store, "a"), embedding(store, "b")])
    optimizer = optim.SGD([{"params": model[0], "lr": 1.0}, {"params": [model[1]]}], lr=0.5)
    for module in model:
        weights.load(module.table, np.zeros((N, DIM), np.float32))
        pull(module, 3)
    engine = mock.Mock(wraps=store._core)
    with mock.patch.object(store, "_core", engine):
        optimizer.step()
    assert engine.update.call_count == 1
    assert [module.table.get([3])[0, 0] for module in model] == [-1.0, -0.5]


def test_group_added_later_takes_defaults(store: embedrock.Store) -> None:
    first, second = embedding(store, "a", initializer=0.0), embedding(store, "b", initializer=0.0)
    optimizer = optim.SGD(first, lr=0.5)
    optimizer.add_param_group({"params": second})
    pull(second, 1)
    optimizer.step()
    assert second.table.get([1])[0, 0] == -0.5
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [first]})


def test_scheduler_of_torch_changes_the_learning_rate(store: embedrock.Store) -> None:
    module = embedding(store, initializer=0.0)
    optimizer = optim.SGD(module, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    seen = []
    for _ in range(3):
        pull(module, 1)
        optimizer.step()
        scheduler.step()
        seen.append(module.table.get([1])[0, 0])
    assert seen == [-1.0, -1.5, -1.75]


def test_step_takes_a_closure_and_runs_hooks(store: embedrock.Store) -> None:
    module = embedding(store, initializer=0.0)
    optimizer = optim.SGD(module, lr=1.0)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = module(torch.tensor([2])).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 0.0
    assert module.table.get([2])[0, 0] == -1.0
    assert calls == ["pre", "post"]


def test_step_skipped_for_infinities_applies_and_counts_nothing(store: embedrock.Store) -> None:
    module = embedding(store, optimizer="adam")
    optimizer = optim.Adam(module, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss = module(torch.tensor([1])).sum() * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert len(module.table) == 0
    assert optimizer.state_dict()["state"] == {}
    optimizer.zero_grad()
    scaler.scale(module(torch.tensor([1])).sum()).backward()
    before = module.table.get([1])[0]
    scaler.step(optimizer)
    np.testing.assert_allclose(before - module.table.get([1])[0], 0.1, rtol=1e-4)  # a first step


def test_scaler_unscales_before_clipping(store: embedrock.Store) -> None:
    module = embedding(store, initializer=0.0)
    optimizer = optim.SGD(module, lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(module(torch.tensor([1])).sum()).backward()
    scaler.unscale_(optimizer)
    assert torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0).item() == pytest.approx(
        DIM**0.5
    )
    scaler.step(optimizer)
    assert np.linalg.norm(module.table.get([1])) == pytest.approx(1.0, rel=1e-5)


def test_scaler_takes_a_batch_without_ids(store: embedrock.Store) -> None:
    module = embedding(store)
    optimizer = optim.SGD(module, lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(module(torch.empty(0, dtype=torch.int64)).sum()).backward()
    scaler.step(optimizer)
    assert len(module.table) == 0


def two_tables(
    store: embedrock.Store, other: embedrock.Store | None = None, prefix: str = ""
) -> Any:
    """A model of two tables, perhaps of two stores, and a dense part, all at known values."""
    model = torch.nn.ModuleDict(
        {
            "a": embedding(store, f"{prefix}a", initializer=0.0),
            "b": embedding(other or store, f"{prefix}b", initializer=0.0),
            "dense": torch.nn.Linear(DIM, 3, bias=False),
        }
    )
    torch.nn.init.ones_(model["dense"].weight)
    return model


def lose(model: Any) -> Any:
    """A loss with gradients in both tables and the dense part; keys occur more than once."""
    scale = torch.arange(3.0)[:, None] - 1.5
    first = (model["a"](torch.tensor([1, 2, 1])) * scale).sum()
    second = (model["b"](torch.tensor([7])) * 4).sum()
    return first + second + model["dense"](torch.ones(DIM)).sum() * 0.5


@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
def test_engine_clips_rows_and_dense_gradients_as_torch_does(
    tmp_path: Path, store: embedrock.Store, stores: int, max_norm: float
) -> None:
    with embedrock.open(tmp_path / "other", memory="64MiB", max_disk_bytes=100 << 20) as other:
        second = other if stores == 2 else None
        mine, theirs = two_tables(store, second), two_tables(store, second, "their ")
        dense = list(nn.dense_parameters(mine))
        optimizer = optim.SGD(mine, lr=1.0, clip=embedrock.Clip(norm=max_norm), dense=dense)
        reference = optim.SGD(theirs, lr=1.0)
        for _ in range(3):
            for model in (mine, theirs):
                model["dense"].zero_grad()
                lose(model).backward()
            expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
            reference.step()
            optimizer.step()
            assert optimizer.norm == pytest.approx(expected.item(), rel=1e-6)
            torch.testing.assert_close(mine["dense"].weight.grad, theirs["dense"].weight.grad)
            for name in ("a", "b"):
                torch.testing.assert_close(rows_of(mine[name]), rows_of(theirs[name]))
        other.commit(1)


def test_rows_are_clipped_by_value_and_by_their_own_norm(store: embedrock.Store) -> None:
    module = embedding(store, initializer=0.0)
    clip = embedrock.Clip(value=3.0, row_norm=4.0)
    optimizer = optim.SGD(module, lr=1.0, clip=clip)
    scale = torch.tensor([[5.0], [0.5], [-2.0], [-2.0]])
    (module(torch.tensor([1, 2, 3, 3])) * scale).sum().backward()
    optimizer.step()
    assert optimizer.norm is None
    within = 4.0 / DIM**0.5  # 3 in each value, and -4 brought to -3, exceed the norm of a row
    np.testing.assert_allclose(
        module.table.get([1, 2, 3])[:, 0], [-within, -0.5, within], rtol=1e-6
    )


def test_dense_gradients_that_are_not_finite_leave_rows_alone(store: embedrock.Store) -> None:
    for choice in ("refuse", "skip", "apply"):
        model = two_tables(store)
        dense = list(nn.dense_parameters(model))
        clip = embedrock.Clip(norm=1.0)
        optimizer = optim.SGD(model, lr=1.0, non_finite=choice, clip=clip, dense=dense)
        (lose(model) + model["dense"](torch.full((DIM,), float("inf"))).sum()).backward()
        if choice == "refuse":
            with pytest.raises(NonFiniteError, match="dense gradients is inf; no row has changed"):
                optimizer.step()
            optimizer.zero_grad()
        else:
            optimizer.step()
        assert (len(model["a"].table) > 0) == (choice == "apply")
    assert not model["a"].table.get([1]).any()  # scaled by 0, as torch does


# One parameter was taken for the list of its rows, views without a gradient: the norm was that of
# the embeddings alone, and the dense gradient stayed as it was.
def test_dense_parameters_are_a_list_of_leaves(store: embedrock.Store) -> None:
    model = two_tables(store)
    parameter = next(iter(nn.dense_parameters(model)))
    clip = embedrock.Clip(norm=0.25)
    with pytest.raises(MisuseError, match=r"dense is a .*Parameter.*expected a list of parameters"):
        optim.SGD(model, clip=clip, dense=parameter)
    with pytest.raises(MisuseError, match=r"dense is a .*Tensor.*expected a list of parameters"):
        optim.SGD(model, clip=clip, dense=torch.zeros(2, DIM))
    for computed in (parameter[0], parameter * 2, parameter.view(-1)):
        with pytest.raises(MisuseError, match="was computed from others"):
            optim.SGD(model, clip=clip, dense=[parameter, computed])
    assert optim.SGD(model, clip=clip, dense=[parameter]).dense == [parameter]


def test_dense_parameters_are_clipped_when_no_rows_wait(store: embedrock.Store) -> None:
    model = two_tables(store)
    dense = list(nn.dense_parameters(model))
    optimizer = optim.SGD(model, clip=embedrock.Clip(norm=0.25), dense=dense)
    model["dense"](torch.ones(DIM)).sum().backward()
    optimizer.step()
    assert model["dense"].weight.grad.norm().item() == pytest.approx(0.25, rel=1e-5)
    with pytest.raises(MisuseError, match="without clip"):
        optim.SGD(model, dense=dense)


def test_refused_gradient_changes_no_table_and_can_be_dropped(store: embedrock.Store) -> None:
    model = torch.nn.ModuleList([embedding(store, "a"), embedding(store, "b")])
    optimizer = optim.SGD([{"params": model[0]}, {"params": model[1], "lr": 2.0}], lr=1.0)
    pull(model[0], 1)
    (model[1](torch.tensor([1])) * float("nan")).sum().backward()
    with pytest.raises(NonFiniteError):
        optimizer.step()
    assert len(model[0].table) == len(model[1].table) == 0
    optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize(("choice", "updated"), [("skip", [False, True]), ("apply", [True, True])])
def test_gradient_that_is_not_finite_is_skipped_or_applied(
    store: embedrock.Store, choice: str, updated: list[bool]
) -> None:
    module = embedding(store)
    optimizer = optim.SGD(module, lr=1.0, non_finite=choice)
    scale = torch.tensor([[float("inf")], [1.0]])
    (module(torch.tensor([1, 2])) * scale).sum().backward()
    optimizer.step()
    assert module.table.contains([1, 2]).tolist() == updated


def test_state_dict_restores_hyperparameters_and_counts(store: embedrock.Store) -> None:
    def make() -> Any:
        return optim.Adagrad(module, lr=0.1, lr_decay=1.0)

    module = embedding(store, optimizer="adagrad")
    first = make()
    first.param_groups[0]["lr"] = 0.25
    pull(module, 1)
    first.step()
    state = first.state_dict()
    assert state["param_groups"][0]["tables"] == ["t"]
    second = make()
    second.load_state_dict(state)
    assert second.state_dict() == state
    seen = []
    for _ in range(2):
        before = module.table.get([5 + len(seen)])[0]
        pull(module, 5 + len(seen))
        second.step()
        seen.append(float((before - module.table.get([5 + len(seen)])[0])[0]))
    assert seen == pytest.approx([0.25 / 2, 0.25 / 3], rel=1e-4)


def test_state_of_other_tables_is_refused(store: embedrock.Store) -> None:
    state = optim.SGD(embedding(store, "a")).state_dict()
    with pytest.raises(MismatchError, match=r"\['a'\].*\['b'\]"):
        optim.SGD(embedding(store, "b")).load_state_dict(state)


def test_optimizer_of_another_kind_is_refused_with_the_way_out(store: embedrock.Store) -> None:
    module = embedding(store, optimizer="adam")
    with pytest.raises(MismatchError, match=r"'adam'.*SGD needs 'sgd'.*use embedrock\.optim\.Adam"):
        optim.SGD(module)
    with pytest.raises(MismatchError, match=r"AdamW needs 'adamw'.*use embedrock\.optim\.Adam,"):
        optim.AdamW(module)
    with pytest.raises(MismatchError, match="bias_correction='global'"):
        optim.Adam(module, bias_correction="row")
    untrained = embedding(store, "none", optimizer="none")
    with pytest.raises(MismatchError, match="to train it, create the table with optimizer='sgd'"):
        optim.SGD(untrained)
    summed = embedding(store, "sums", optimizer=optimizers.adagrad(initial_accumulator=0.5))
    optim.Adagrad(summed)
    optim.Adagrad(summed, initial_accumulator_value=0.5)
    with pytest.raises(MismatchError, match=r"initial_accumulator=0\.5"):
        optim.Adagrad(summed, initial_accumulator_value=0.0)


def test_arguments_that_no_step_could_take_are_refused(store: embedrock.Store) -> None:
    module = embedding(store)
    for options, message in (
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"non_finite": "ignore"}, "non_finite is 'ignore'"),
    ):
        with pytest.raises(MisuseError, match=message):
            optim.SGD(module, **options)
    with pytest.raises(MisuseError, match="nesterov is set with momentum=0"):
        optim.SGD(module, nesterov=True)
    ftrl = embedding(store, "ftrl", optimizer="ftrl")
    for options, message in (({"lr": 0.0}, "lr is 0"), ({"lr_power": 0.5}, "lr_power is 0.5")):
        with pytest.raises(MisuseError, match=message):
            optim.FTRL(ftrl, **options)
    with pytest.raises(MisuseError, match="betas"):
        optim.Adam(embedding(store, "adam", optimizer="adam"), betas=(0.9, 1.0))


def test_what_holds_no_tables_is_refused(store: embedrock.Store) -> None:
    linear = torch.nn.Linear(2, 2)
    with pytest.raises(MisuseError, match=r"no embedrock\.nn module"):
        optim.SGD(linear)
    with pytest.raises(MisuseError, match="dense_parameters"):
        optim.SGD(linear.parameters())
    with pytest.raises(MisuseError, match="Tensor"):
        optim.SGD(torch.zeros(2))


def test_torch_optimizer_made_before_the_first_forward_takes_dense_parameters_only(
    store: embedrock.Store,
) -> None:
    model = torch.nn.Sequential(embedding(store), torch.nn.Linear(DIM, 1))
    dense = torch.optim.Adam(model.parameters())
    assert sum(len(group["params"]) for group in dense.param_groups) == 2


def found_by_registries(base: type) -> Iterator[type]:
    """Classes that ``class_resolver``, with which PyKEEN registers optimizers, finds below a class:
    none of private modules, and none of other packages than that of the parent."""
    for one in base.__subclasses__():
        yield from found_by_registries(one)
        private = any(part.startswith("_") for part in [*one.__module__.split("."), one.__name__])
        if not private and one.__module__.split(".")[0] == base.__module__.split(".")[0]:
            yield one


# Behind embedrock.optim PyKEEN could not be imported: there were two optimizers named Adam.
def test_registries_of_torchs_optimizers_find_none_of_ours() -> None:
    found = {*found_by_registries(torch.optim.Optimizer)}
    assert torch.optim.Adam in found
    assert [one for one in found if one.__module__.startswith("embedrock")] == []
