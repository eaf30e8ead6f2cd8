"""Save and resume: a run that goes on is the run that never stopped, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.errors import MismatchError, MisuseError  # noqa: E402

DIM, STEPS = 4, 10


class Loader:
    """A loader of batches that knows where it is."""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> Any:
        self.position += 1
        return torch.arange(self.position, self.position + 6) % 9

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Run:
    """A run with everything that has a state: dropout and noise from three generators included."""

    def __init__(self, path: Path) -> None:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        self.store = embedrock.open(path, memory="64MiB", seed=5)
        self.model = torch.nn.Sequential(
            nn.Embedding(None, DIM, store=self.store, name="ids", optimizer="adam"),
            torch.nn.BatchNorm1d(DIM),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(DIM, 1),
        )
        tables = optim.Adam(self.model, lr=0.1)
        dense = torch.optim.Adam(nn.dense_parameters(self.model), lr=0.05)
        self.optimizers = [tables, dense]
        self.parts = {
            "scheduler": [
                torch.optim.lr_scheduler.CosineAnnealingLR(tables, STEPS),
                torch.optim.lr_scheduler.OneCycleLR(dense, 0.1, STEPS, cycle_momentum=False),
            ],
            "scaler": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3),
            "loader": Loader(),
        }
        self.losses: list[float] = []

    def train(self, steps: range) -> None:
        scaler = self.parts["scaler"]
        for _ in steps:
            noise = float(np.random.rand()) + random.random()
            loss = (self.model(self.parts["loader"].next()) - noise).square().mean()
            scaler.scale(loss).backward()
            for optimizer, scheduler in zip(self.optimizers, self.parts["scheduler"], strict=True):
                scaler.step(optimizer)
                scheduler.step()
                optimizer.zero_grad()
            scaler.update()
            self.losses.append(loss.item())

    def save(self, step: int, **more: Any) -> Any:
        return embedrock.save(self.store, self.model, self.optimizers, step, **self.parts, **more)

    def resume(self, **more: Any) -> int:
        return embedrock.resume(self.store, self.model, self.optimizers, **self.parts, **more)

    def end(self) -> list[Any]:
        """All that the run has become, and closes its store."""
        self.save(99)
        state = self.model.state_dict()
        del state["0._extra_state"]  # it names the store
        dense = {name: value.tolist() for name, value in state.items()}
        digest = self.store.table("ids").digest()
        self.store.close()
        return [dense, digest, self.optimizers[0].state_dict(), self.losses[-2:]]


def test_run_that_goes_on_equals_the_run_that_never_stopped(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole")
    assert whole.resume() == 0
    whole.train(range(STEPS))

    first = Run(tmp_path / "parts")
    first.train(range(5))
    assert first.save(5).step == 5
    first.store.close()

    second = Run(tmp_path / "parts")
    _ = torch.rand(7), np.random.rand(7), random.random()  # generators have moved on
    assert second.resume() == 5
    second.train(range(5, STEPS))

    assert first.losses + second.losses == whole.losses
    assert second.end() == whole.end()


@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_steps_after_the_last_save_are_gone_with_all_they_did(tmp_path: Path) -> None:
    lost = Run(tmp_path / "store")
    lost.train(range(5))
    lost.save(5)
    lost.train(range(5, 8))
    lost.store.close()

    back = Run(tmp_path / "store")
    assert back.resume() == 5
    back.train(range(5, STEPS))
    whole = Run(tmp_path / "whole")
    whole.train(range(STEPS))
    assert back.end() == whole.end()


# A notebook's cell that opens, resumes and trains, run again: the open handle came back, model and
# optimizers went to the commit, and rows kept what came after it. The next save made that durable.
@pytest.mark.filterwarnings("ignore::embedrock.errors.UncommittedWarning")
def test_rows_that_went_on_since_the_commit_are_told_and_not_mixed_with_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "store")
    run.train(range(5))
    run.save(5)
    assert run.resume() == 5
    run.train(range(5, 8))
    dense = [value.tolist() for value in run.model.state_dict().values()]
    with pytest.raises(MisuseError, match=r"3 batches have changed .* commit of step 5, .*"):
        run.resume()
    assert [value.tolist() for value in run.model.state_dict().values()] == dense
    run.save(8)
    assert run.resume() == 8

    fresh = Run(tmp_path / "fresh")
    fresh.train(range(2))
    with pytest.warns(embedrock.UncommittedWarning, match="rows do not"):
        assert fresh.resume() == 0
    run.store.close()
    fresh.store.close()


def test_without_a_commit_resume_returns_zero_and_touches_nothing(store: embedrock.Store) -> None:
    model = torch.nn.Linear(2, 2)
    before = model.weight.tolist()
    state = torch.get_rng_state()
    assert embedrock.resume(store, model, None) == 0
    assert model.weight.tolist() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_extra_and_meta_come_back(store: embedrock.Store) -> None:
    embedrock.save(
        store, None, None, 3, extra={"auc": 0.75, "best": torch.ones(2)}, meta={"epoch": 1}
    )
    extra: dict[str, Any] = {"kept": 1}
    assert embedrock.resume(store, None, None, extra=extra) == 3
    assert extra["auc"] == 0.75 and extra["best"].tolist() == [1.0, 1.0] and extra["kept"] == 1
    assert store.meta == {"epoch": 1}
    assert embedrock.resume(store, None, None) == 3  # nobody has to take extra


def test_step_lower_than_that_of_the_last_commit_is_refused(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", memory="64MiB") as store:
        for step in (3, 7, 7):
            assert embedrock.save(store, None, None, step).step == step
        with pytest.raises(MisuseError, match=r"step is 6, but the last commit in .* of step 7;"):
            embedrock.save(store, None, None, 6)
        assert store.commits()[-1].step == 7
    with embedrock.open(tmp_path / "s", memory="64MiB") as store:
        for wrong, message in ((0, "step is 0, but"), ("8", "step is '8', expected a whole")):
            with pytest.raises(MisuseError, match=message):
                embedrock.save(store, None, None, wrong)  # type: ignore[arg-type]
        first = embedrock.save(store, None, None, 9)
        assert embedrock.save(store, None, None, 12).sequence == first.sequence + 1
    with embedrock.open(tmp_path / "s", memory="64MiB", step=9) as store:
        assert embedrock.save(store, None, None, 10).step == 10


def test_model_without_rows_in_its_state_is_small(store: embedrock.Store) -> None:
    model = nn.Embedding(100_000, 16, store=store, name="wide", optimizer="sgd")
    optimizer = optim.SGD(model, lr=0.1)
    model(torch.arange(1000)).sum().backward()
    commit = embedrock.save(store, model, optimizer, 1)
    assert commit.state_bytes < 50_000


@pytest.mark.parametrize(
    ("saved", "asked", "message"),
    [
        ({"scaler": True}, {}, "has scaler, which nobody takes"),
        ({}, {"scaler": True}, "has no scaler: it has model, random"),
        ({}, {"extra": {}}, "has no extra"),
    ],
)
def test_parts_that_do_not_match_are_named_before_anything_is_restored(
    store: embedrock.Store, saved: Any, asked: Any, message: str
) -> None:
    def parts(of: Any) -> Any:
        return {k: torch.amp.GradScaler("cpu") if k == "scaler" else v for k, v in of.items()}

    model = torch.nn.Linear(1, 1)
    embedrock.save(store, model, None, 4, **parts(saved))
    with torch.no_grad():
        model.weight.fill_(7.0)
    with pytest.raises(MismatchError, match=f"step 4 .*{message}"):
        embedrock.resume(store, model, None, **parts(asked))
    assert model.weight.item() == 7.0


def test_a_reader_may_take_the_model_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with embedrock.open(tmp_path / "s", memory="64MiB") as store:
        optimizer = torch.optim.Adam(model.parameters())
        embedrock.save(store, model, optimizer, 4, extra={"epoch": 2})
        with pytest.raises(MismatchError, match=r"optimizer\.0, which nobody takes;.* read_only"):
            embedrock.resume(store, model, None)
    with embedrock.open(tmp_path / "s", memory="64MiB", create=False, read_only=True) as store:
        assert store.read_only
        other = torch.nn.Linear(2, 1)
        torch.manual_seed(5)
        drawn = torch.random.get_rng_state()
        assert embedrock.resume(store, other, None) == 4
        assert torch.equal(torch.random.get_rng_state(), drawn)
        assert torch.equal(other.weight, model.weight)
        with pytest.raises(MismatchError, match="has no scaler"):
            embedrock.resume(store, other, None, scaler=torch.amp.GradScaler("cpu"))


def test_commit_that_save_did_not_make_is_refused(store: embedrock.Store) -> None:
    store.commit(1, state={"model": b"?"})
    with pytest.raises(MismatchError, match="has no random"):
        embedrock.resume(store, torch.nn.Linear(1, 1), None)
    store.commit(2, state={"model": b"?", "random": b"?"})
    with pytest.raises(MismatchError, match=r"not what embedrock\.save writes"):
        embedrock.resume(store, torch.nn.Linear(1, 1), None)


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"a": [1, {"b": np.ones(2)}]}, r"extra\['a'\]\[1\]\['b'\] is numpy\.ndarray"),
        ({"f": print}, r"extra\['f'\] is builtins\.builtin_function_or_method"),
    ],
)
def test_state_that_could_not_be_read_back_is_refused_before_the_commit(
    store: embedrock.Store, extra: Any, place: str
) -> None:
    with pytest.raises(MisuseError, match=place):
        embedrock.save(store, None, None, 1, extra=extra)
    assert store.step is None


def test_part_without_a_state_dict_is_refused(store: embedrock.Store) -> None:
    with pytest.raises(MisuseError, match=r"loader is 17.*extra="):
        embedrock.save(store, None, None, 1, loader=17)  # type: ignore[arg-type]
