"""Warnings name the line of the user that led to them."""

from __future__ import annotations

import gc
import linecache
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import _warnings
from embedrock.errors import UncommittedWarning

PACKAGE = Path(embedrock.__file__).parent


def line_of(warning: warnings.WarningMessage) -> str:
    """The line that a warning names, which has to be one of this file."""
    assert warning.filename == __file__
    return linecache.getline(warning.filename, warning.lineno).strip()


@pytest.fixture
def model(store: embedrock.Store) -> Any:
    """A module of PyTorch with one of ours deep inside."""
    torch = pytest.importorskip("torch")
    inner = embedrock.nn.Embedding(None, 4, store=store, name="ads", optimizer="sgd")
    return torch.nn.Sequential(torch.nn.Identity(), torch.nn.Sequential(inner, torch.nn.Tanh()))


def ids(*numbers: int) -> Any:
    return pytest.importorskip("torch").tensor(numbers)


# It named a line of embedrock/nn/fetch.py.
def test_a_missing_optimizer_is_told_where_the_model_is_called(model: Any) -> None:
    model(ids(1)).sum().backward()
    with pytest.warns(UserWarning, match="nothing trains its rows") as told:
        model(ids(2)).sum()
    assert [line_of(one) for one in told] == ["model(ids(2)).sum()"]


def test_rows_frozen_by_hand_are_told_where_they_are_dropped(model: Any) -> None:
    optimizer = embedrock.optim.SGD(model, lr=1.0)
    model(ids(1))
    for rows in model.parameters():
        rows.requires_grad = False
    with pytest.warns(UserWarning, match="and ends with them") as told:
        optimizer.zero_grad()
    assert [line_of(one) for one in told] == ["optimizer.zero_grad()"]


def test_they_are_told_where_the_next_forward_drops_them_too(model: Any) -> None:
    held = model(ids(1))
    for rows in model.parameters():
        rows.requires_grad = False
    del held
    with pytest.warns(UserWarning, match="and ends with them") as told:
        model(ids(2))
    assert [line_of(one) for one in told] == ["model(ids(2))"]


def test_a_store_that_is_dropped_is_told_where_its_last_name_goes(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", memory="4MiB")
    store.table("t", 4).put([1], np.ones((1, 4), np.float32))
    gc.collect()
    with pytest.warns(UncommittedWarning) as told:
        del store
    assert [line_of(one) for one in told] == ["del store"]


def test_any_file_of_the_package_is_passed_over() -> None:
    code = compile("warn('said', UserWarning)", str(PACKAGE / "some.py"), "exec")
    with pytest.warns(UserWarning, match="said") as told:
        exec(code, {"warn": _warnings.warn})
    assert line_of(told[0]) == 'exec(code, {"warn": _warnings.warn})'


def test_no_module_counts_frames_for_itself() -> None:
    calls = re.compile(r"\bwarnings\.warn\(|\bstacklevel\b")
    found = [path for path in PACKAGE.rglob("*.py") if calls.search(path.read_text())]
    assert [path.name for path in found] == ["_warnings.py"]
