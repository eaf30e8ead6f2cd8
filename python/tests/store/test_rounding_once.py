"""Doubles that a table stores in 16 bits are rounded once, whatever brings them.

Through float32 they were rounded twice: one near the middle of two neighbours became the middle,
which goes to the even one, be that the farther.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock
from embedrock import weights
from embedrock.errors import MisuseError, NonFiniteError

DIM = 4
Doubles = npt.NDArray[np.float64]


def doubles(dtype: str) -> Doubles:
    """Middles of neighbours and what is just beside them, subnormal ones too, ends and numbers by
    chance: ``(N, DIM)``."""
    random = np.random.default_rng(7)
    kept, least = (11, -24) if dtype == "float16" else (8, -133)
    exponents = random.integers(least, 15 if dtype == "float16" else 127, 600)
    unit = 2.0 ** np.maximum(exponents - kept + 1, least)
    numbers = np.floor(2.0**exponents * random.uniform(1, 2, 600) / unit) * unit
    middles = numbers + unit / 2
    beside = [middles, middles * (1 + 2.0**-40), middles * (1 - 2.0**-40), numbers]
    found = np.concatenate([*beside, random.normal(size=800), [0.0, -0.0, 2.0**-200, 1e-46]])
    found *= random.choice([-1.0, 1.0], len(found))
    return found[: len(found) // DIM * DIM].reshape(-1, DIM)


def once(values: Doubles, dtype: str) -> npt.NDArray[np.float32]:
    """The nearest numbers of the dtype, ties to even, found with numbers of any length."""
    kept, least = (11, -24) if dtype == "float16" else (8, -133)
    _, exponents = np.frexp(values)
    unit = 2.0 ** np.maximum(exponents - kept, least).astype(np.float64)
    return (np.rint(values / unit) * unit).astype(np.float32)


def put(table: Any, keys: Any, values: Doubles) -> None:
    table.put(keys, values)


def put_with_state(table: Any, keys: Any, values: Doubles) -> None:
    table.put(keys, values, state=np.zeros((len(keys), table.state_words), np.float32))


def put_list(table: Any, keys: Any, values: Doubles) -> None:
    table.put(keys, values.tolist())


def put_each(table: Any, keys: Any, values: Doubles) -> None:
    for key, row in zip(keys[:40], values[:40], strict=True):
        table.put(int(key), tuple(row.tolist()))
    table.put(keys[40:], values[40:][::-1][::-1])


def put_together(table: Any, keys: Any, values: Doubles) -> None:
    table.store.put([(table, keys, values)])


def put_tensor(table: Any, keys: Any, values: Doubles) -> None:
    torch = pytest.importorskip("torch")
    table.put(torch.from_numpy(keys), torch.from_numpy(values))


def load(table: Any, keys: Any, values: Doubles) -> None:
    weights.load(table, values, keys=keys)


def load_npy(table: Any, keys: Any, values: Doubles, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", values)
    weights.load(table, tmp_path / "rows.npy", keys=keys)


def load_tensor(table: Any, keys: Any, values: Doubles) -> None:
    torch = pytest.importorskip("torch")
    weights.load(table, torch.from_numpy(values), keys=keys)


def load_arrow(table: Any, keys: Any, values: Doubles) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), DIM)
    weights.load(table, pyarrow.table({"key": keys, "embedding": lists}))


def modify(table: Any, keys: Any, values: Doubles) -> None:
    table.modify(keys, lambda old, state: values)


def modify_with_state(table: Any, keys: Any, values: Doubles) -> None:
    table.modify(keys, lambda old, state: (values.tolist(), state))


WAYS: list[Callable[..., None]] = [
    put,
    put_with_state,
    put_list,
    put_each,
    put_together,
    put_tensor,
    load,
    load_npy,
    load_tensor,
    load_arrow,
    modify,
    modify_with_state,
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_doubles_are_rounded_once(
    store: embedrock.Store, tmp_path: Path, dtype: str, way: Callable[..., None]
) -> None:
    table = store.table("t", DIM, dtype=dtype, rounding="nearest", optimizer="adagrad")
    values = doubles(dtype)
    keys = np.arange(len(values))
    expected = once(values, dtype)
    twice = once(values.astype(np.float32).astype(np.float64), dtype)
    assert (expected != twice).sum() > 100  # the difference under test
    more = (tmp_path,) if way is load_npy else ()
    way(table, keys, values, *more)
    np.testing.assert_array_equal(table.get(keys), expected)
    store.commit(1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_beyond_the_range_is_refused_as_ever(store: embedrock.Store, dtype: str) -> None:
    table = store.table("t", DIM, dtype=dtype)
    for wrong in (np.nan, np.inf, 1e39, -1e300, 3.4028235e38):
        with pytest.raises(NonFiniteError):
            table.put([1], np.full((1, DIM), wrong))
    assert len(table) == 0


def test_of_float32_tables_doubles_are_refused_and_lists_are_nearest(
    store: embedrock.Store,
) -> None:
    table = store.table("t", DIM, optimizer="sgd", initializer=0.0)
    values = doubles("float16")
    keys = np.arange(len(values))
    with pytest.raises(MisuseError, match="values are float64, expected float32"):
        table.put(keys, values)
    table.put(keys, values.tolist())
    np.testing.assert_array_equal(table.get(keys), values.astype(np.float32))
    other = store.table("u", DIM, dtype="bfloat16", optimizer="adagrad")
    with pytest.raises(MisuseError, match="gradients are float64"):
        other.update(keys, values, lr=0.1)
    with pytest.raises(MisuseError, match="state are float64"):
        other.put(keys, values, state=np.zeros((len(keys), other.state_words)))
    store.commit(1)
