"""Several optimizers as one: the twin with torch's tables, schedulers, scalers, and its state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim, weights  # noqa: E402
from embedrock.errors import MismatchError, MisuseError, NonFiniteError  # noqa: E402

N, DIM = 30, 4


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = rows
        self.score = torch.nn.Linear(DIM, 1)

    def forward(self, ids: Any) -> Any:
        return self.score(self.rows(ids)).squeeze(1)


def fresh(store: embedrock.Store) -> Model:
    torch.manual_seed(4)
    return Model(nn.Embedding(N, DIM, store=store, name="t", optimizer="sgd"))


def twins(store: embedrock.Store) -> tuple[Model, Model]:
    torch.manual_seed(4)
    theirs = Model(torch.nn.Embedding(N, DIM))
    mine = fresh(store)
    weights.load(mine.rows.table, theirs.rows)
    mine.score.load_state_dict(theirs.score.state_dict())
    return mine, theirs


def together(model: Model, lr: float = 0.1, **options: Any) -> optim.Together:
    dense = torch.optim.SGD(nn.dense_parameters(model), lr=lr)
    return optim.Together(dense, optim.SGD(model, lr=lr, **options))


def batches(count: int) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, N, (8,), generator=generator) for _ in range(count)]


def train(model: Model, optimizer: Any, schedule: Any, steps: list[Any]) -> list[float]:
    losses = []
    for ids in steps:
        loss = (model(ids) - ids.float().cos()).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_a_model_trains_as_with_torchs_tables(store: embedrock.Store) -> None:
    mine, theirs = twins(store)
    optimizers = together(mine), torch.optim.SGD(theirs.parameters(), lr=0.1)
    losses = [
        train(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), batches(12))
        for model, optimizer in zip((mine, theirs), optimizers, strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    rows = torch.from_numpy(mine.rows.table.get(torch.arange(N)))
    torch.testing.assert_close(rows, theirs.rows.weight.detach(), rtol=0, atol=1e-6)
    assert [group["lr"] for group in optimizers[0].param_groups] == [0.1 * 0.5**4] * 2


def test_a_saved_run_goes_on_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    steps = batches(8)
    with embedrock.open(tmp_path / "whole", memory="4MiB") as store:
        mine = fresh(store)
        optimizer = together(mine)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
        whole = train(mine, optimizer, schedule, steps)
        store.commit(8)
    for begin, end in ((0, 4), (4, 8)):
        with embedrock.open(tmp_path / "parts", memory="4MiB") as store:
            mine = fresh(store)
            optimizer = together(mine)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
            assert embedrock.resume(store, mine, optimizer, scheduler=schedule) == begin
            assert train(mine, optimizer, schedule, steps[begin:end]) == whole[begin:end]
            embedrock.save(store, mine, optimizer, end, scheduler=schedule)


def test_a_closure_is_called_once_and_its_loss_returned(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    optimizer, calls = together(mine), []

    def closure() -> Any:
        calls.append(1)
        optimizer.zero_grad()
        loss = mine(torch.tensor([1, 2])).square().mean()
        loss.backward()
        return loss

    before = mine.rows.table.get([1])
    loss = optimizer.step(closure)
    assert (len(calls), loss.item() > 0) == (1, True)
    assert (mine.rows.table.get([1]) != before).all()


def test_a_refused_gradient_changes_nothing_at_all(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    optimizer = together(mine)
    (mine(torch.tensor([3])) * torch.nan).sum().backward()
    before = [parameter.detach().clone() for parameter in mine.score.parameters()]
    with pytest.raises(NonFiniteError):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, mine.score.parameters(), strict=True))


def test_a_bound_of_rows_scales_dense_gradients_before_they_are_used(
    store: embedrock.Store,
) -> None:
    mine, theirs = twins(store)
    dense = list(nn.dense_parameters(mine))
    rows = optim.SGD(mine, lr=0.1, clip=embedrock.Clip(norm=0.01), dense=dense)
    optimizer = optim.Together(torch.optim.SGD(dense, lr=0.1), rows)
    for model in (mine, theirs):
        model(torch.arange(8)).sum().backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    optimizer.step()
    torch.testing.assert_close(mine.score.weight, theirs.score.weight)


def test_a_scaler_skips_a_step_of_all_parts(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    optimizer = together(mine)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    rows, weight = mine.rows.table.get([5]), mine.score.weight.detach().clone()
    for factor, changes in ((torch.inf, False), (1.0, True)):
        scaler.scale((mine(torch.tensor([5])) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert bool((mine.rows.table.get([5]) != rows).any()) is changes
        assert torch.equal(mine.score.weight, weight) is not changes


def test_the_state_is_plain_and_goes_to_the_parts(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    adam = torch.optim.Adam(nn.dense_parameters(mine), lr=0.1)
    optimizer = optim.Together(adam, optim.SGD(mine, lr=0.2))
    mine(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert optimizer.state[mine.score.weight] is adam.state[mine.score.weight]
    # As trainers do that move a state to a device.
    for parameter, value in list(optimizer.state.items()):
        optimizer.state[parameter] = dict(value)
    assert len(optimizer.state) == len(list(optimizer.state)) == 3
    with pytest.raises(KeyError):
        optimizer.state[torch.zeros(1)]
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    assert [group["lr"] for group in saved["param_groups"]] == [0.1, 0.2]
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 7.0
    optimizer.load_state_dict(saved)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_hooks_are_called(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    optimizer, seen = together(mine), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("state"))
    optimizer.register_load_state_dict_post_hook(lambda _: seen.append("loaded"))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before", "after", "state", "loaded"]


def test_groups_go_to_the_part_that_takes_them(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    optimizer = together(mine)
    more = nn.Embedding(9, DIM, store=store, name="more", optimizer="sgd")
    bias = torch.nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": more, "lr": 0.3})
    optimizer.add_param_group({"params": [bias], "lr": 0.4})
    dense, rows = optimizer.optimizers
    assert (dense.param_groups[1]["lr"], rows.param_groups[1]["lr"]) == (0.4, 0.3)
    with pytest.raises(MisuseError, match=r"add an optimizer of embedrock\.optim"):
        optim.Together(dense).add_param_group({"params": [more]})
    with pytest.raises(MisuseError, match='expected a dict with "params"'):
        optimizer.add_param_group({"lr": 1.0})


def test_what_cannot_work_is_refused(store: embedrock.Store) -> None:
    mine, _ = twins(store)
    dense = torch.optim.SGD(nn.dense_parameters(mine), lr=0.1)
    again = torch.optim.SGD(nn.dense_parameters(mine), lr=0.1)
    with pytest.raises(MisuseError, match="both have a parameter of shape"):
        optim.Together(dense, again)
    with pytest.raises(MisuseError, match="one or more"):
        optim.Together()
    with pytest.raises(MisuseError, match=r"expected a torch\.optim\.Optimizer"):
        optim.Together(dense, mine)  # type: ignore[arg-type]
    optimizer = together(mine)
    with pytest.raises(MismatchError, match="of 1 optimizers, this one has 2"):
        optimizer.load_state_dict(optim.Together(dense).state_dict())
    with pytest.raises(MisuseError, match=r"expected what Together\.state_dict"):
        optimizer.load_state_dict(dense.state_dict())
    with pytest.raises(MisuseError, match="cannot be copied or pickled"):
        torch.save(optimizer, io.BytesIO())
