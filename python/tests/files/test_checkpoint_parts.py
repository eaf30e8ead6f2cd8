"""Parts of a commit beside rows: taking them over, their allowed content, and their order."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock._states import plain  # noqa: E402
from embedrock.errors import MismatchError, MisuseError  # noqa: E402

DIM = 4


class Run:
    """A model with a dense part over a store, and its optimizers."""

    def __init__(self, folder: Path, dense: bool = True) -> None:
        self.store = embedrock.open(folder / "run.store", memory="8MiB")
        bag = nn.EmbeddingBag(100, DIM, mode="sum", store=self.store, name="t", optimizer="sgd")
        parts = [bag, torch.nn.Linear(DIM, 1)] if dense else [bag]
        self.model = torch.nn.Sequential(*parts)
        self.optimizers: list[Any] = [optim.SGD(self.model, lr=0.1)]
        if dense:
            dense_ones = nn.dense_parameters(self.model)
            self.optimizers.append(torch.optim.Adam(dense_ones, lr=0.1))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def step(self) -> None:
        self.model(torch.randint(0, 100, (8, 3))).square().mean().backward()
        for each in self.optimizers:
            each.step()
            each.zero_grad()

    def save(self, step: int, **more: Any) -> Any:
        return embedrock.save(self.store, self.model, self.optimizers, step, **more)

    def resume(self) -> int:
        return embedrock.resume(self.store, self.model, self.optimizers)


def begun(folder: Path, **options: Any) -> None:
    with Run(folder, **options) as run:
        run.step()
        run.save(3)


def test_a_forgotten_resume_is_told_before_the_dense_part_is_lost(tmp_path: Path) -> None:
    # Rows of step 3 went on with a dense part that began anew, and nobody said so.
    begun(tmp_path)
    with Run(tmp_path) as run:
        run.step()
        with pytest.raises(MisuseError, match=r"commit of step 3 .*'1.weight' and 1 more.*resume"):
            run.save(4)
        with pytest.raises(MisuseError, match="new_model=True"):
            embedrock.save(run.store, None, None, 4)  # this would leave it behind, too
        assert run.store.step == 3
        assert run.save(4, new_model=True).step == 4  # it was meant
        run.step()
        assert run.save(5).step == 5


@pytest.mark.parametrize("way", ["resume", "go_back", "by hand"])
def test_who_takes_the_dense_part_over_may_save(tmp_path: Path, way: str) -> None:
    begun(tmp_path)
    with Run(tmp_path) as run:
        if way == "resume":
            assert run.resume() == 3
        elif way == "go_back":
            run.store.go_back(3)
        else:
            assert "model" in run.store.state()
        run.step()
        assert run.save(4, wait=False).wait().step == 4


def test_a_resume_that_was_refused_took_nothing_over(tmp_path: Path) -> None:
    begun(tmp_path)
    with Run(tmp_path) as run:
        with pytest.raises(MismatchError):
            embedrock.resume(run.store, run.model, None)
        with pytest.raises(MisuseError, match="nobody has restored"):
            run.save(4)


def test_what_has_no_dense_part_needs_no_resume(tmp_path: Path) -> None:
    begun(tmp_path, dense=False)
    with Run(tmp_path, dense=False) as run:
        run.step()
        run.save(4)
    with Run(tmp_path) as run:  # rows alone were committed by hand
        run.store.commit(5, state={"model": b"my own"})
    with Run(tmp_path) as run:
        assert run.save(6).step == 6


def test_a_commit_of_this_handle_is_taken_over(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        for step in (1, 2):
            run.step()
            run.save(step)


NUMBERS = [
    np.float64(0.5),
    np.float32(0.5),
    np.float16(0.5),
    np.int64(7),
    np.uint8(7),
    np.bool_(True),
    np.complex128(1j),
    np.str_("words"),
    np.array(0.25),
    np.array(3),
]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_that_numpy_made_are_saved_as_pythons(store: embedrock.Store, number: Any) -> None:
    given = {"best": number, "all": [number, (number, {"deep": number})], "tensor": torch.ones(2)}
    embedrock.save(store, None, None, 1, extra=given)
    found: dict[str, Any] = {}
    embedrock.resume(store, None, None, extra=found)
    expected = number.item()
    assert type(found["best"]) is type(expected) and found["best"] == expected
    assert found["all"] == [expected, (expected, {"deep": expected})]
    assert given["best"] is number  # the caller's are as they were


def test_numpys_keys_and_zero_dimensional_tensors_are_saved(store: embedrock.Store) -> None:
    given = {"by id": {np.int64(3): np.float64(1.5)}, "tensor": torch.tensor(2.5)}
    embedrock.save(store, None, None, 1, extra=given)
    found: dict[str, Any] = {}
    embedrock.resume(store, None, None, extra=found)
    assert found["by id"] == {3: 1.5} and found["tensor"].item() == 2.5


def test_a_mapping_with_numpys_numbers_stays_what_it_is() -> None:
    """A defaultdict was a TypeError, and a state dict lost its versions."""
    counted = defaultdict(int, a=np.int64(3))
    found = plain(counted, "extra")
    assert type(found) is defaultdict and found == {"a": 3} and type(found["a"]) is int
    assert found.default_factory is int and type(counted["a"]) is np.int64
    state = torch.nn.BatchNorm1d(2).state_dict()
    versions = state._metadata  # type: ignore[attr-defined]
    state["rate"] = np.float64(0.5)  # type: ignore[assignment]
    found = plain(state, "state")
    assert type(found) is OrderedDict and list(found) == list(state)
    assert found._metadata == versions  # type: ignore[attr-defined]
    assert type(found["rate"]) is float
    assert plain(Counter(a=np.int64(2)), "extra") == Counter(a=2)


@pytest.mark.parametrize("wrong", [np.arange(3), np.datetime64("2020-01-01"), np.array(["a"])])
def test_arrays_are_refused_with_the_ways_to_save_them(store: embedrock.Store, wrong: Any) -> None:
    with pytest.raises(MisuseError, match=r"extra\['it'\]\[0\] is numpy.*from_numpy.*tolist"):
        embedrock.save(store, None, None, 1, extra={"it": [wrong]})


def test_rates_that_numpy_computed_go_through_save_and_resume(tmp_path: Path) -> None:
    def scheduled(run: Run) -> Any:
        both = optim.Together(*run.optimizers)
        rule = lambda step: 0.5 * (1 + np.cos(np.pi * step / 10))  # noqa: E731
        return both, torch.optim.lr_scheduler.LambdaLR(both, rule)

    with Run(tmp_path) as run:
        run.optimizers[0].param_groups[0]["lr"] = np.logspace(-1, -2, 4)[0]
        run.optimizers[1].param_groups[0]["lr"] = np.float32(0.1)
        both, schedule = scheduled(run)
        run.optimizers = [both]
        for _ in range(3):
            run.step()
            schedule.step()
        embedrock.save(run.store, run.model, both, 3, scheduler=schedule)
        rates = [group["lr"] for group in both.param_groups]
    with Run(tmp_path) as run:
        both, schedule = scheduled(run)
        embedrock.resume(run.store, run.model, both, scheduler=schedule)
        found = [group["lr"] for group in both.param_groups]
        assert found == rates and all(math.isfinite(rate) for rate in found)
        run.optimizers = [both]
        run.step()
        schedule.step()
        embedrock.save(run.store, run.model, both, 4, scheduler=schedule)


def test_optimizers_in_another_order_are_named_before_anything_is_restored(tmp_path: Path) -> None:
    begun(tmp_path)
    with Run(tmp_path) as run:
        before = run.model[1].weight.detach().clone()
        swapped = run.optimizers[::-1]
        with pytest.raises(
            MismatchError,
            match=r"optimizer.0 is Adam of 2 parameters, and the commit's is of tables \['t'\]; it "
            r"fits what is saved as optimizer.1: give optimizers in the order of save",
        ):
            embedrock.resume(run.store, run.model, swapped)
        assert torch.equal(run.model[1].weight, before)
        other = torch.optim.Adam([run.model[1].weight])
        with pytest.raises(MismatchError, match=r"optimizer.1 is Adam of 1 parameters.*same param"):
            embedrock.resume(run.store, run.model, [run.optimizers[0], other])
        with pytest.raises(MismatchError, match=r"optimizer.0 is Together of .* and 2 parameters"):
            embedrock.resume(run.store, run.model, [optim.Together(*run.optimizers), other])
        assert run.resume() == 3


def test_parts_of_together_in_another_order_are_named(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.optimizers = [optim.Together(*run.optimizers)]
        run.step()
        run.save(1)
    with Run(tmp_path) as run:
        swapped = optim.Together(*run.optimizers[::-1])
        with pytest.raises(
            MismatchError, match=r"of 2 parameters and tables \['t'\], and the comm"
        ):
            embedrock.resume(run.store, run.model, swapped)


@pytest.mark.parametrize("wait", [True, False])
def test_a_commit_may_be_pinned_as_it_is_saved(tmp_path: Path, wait: bool) -> None:
    with Run(tmp_path) as run:
        run.save(1, pin="best")
        for step in range(2, 6):
            saved = run.save(step, wait=wait, pin="newest" if step == 5 else None)
            if not wait:
                saved.wait()
        assert run.store.pins() == {"best": 1, "newest": 5}
