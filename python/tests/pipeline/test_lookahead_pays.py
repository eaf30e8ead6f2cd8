"""``LookaheadLoader`` where it does not pay: nothing is announced, and what it says."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import LookaheadLoader, LookaheadWarning
from embedrock.pipeline import advice, announcing
from embedrock.pipeline.announcing import Announcing, Verdict
from embedrock.pipeline.keys import TableKeys
from windows import RecordingWindow

ROWS, DIM = 60_000, 32

pytestmark = pytest.mark.alone


@pytest.fixture
def out_of_core(tmp_path: Path) -> Iterator[embedrock.Store]:
    """A store of rows of which a quarter fits into memory."""
    with embedrock.open(tmp_path / "store", memory="2MiB") as store:
        table = store.table("rows", DIM, num_embeddings=ROWS, optimizer="sgd")
        for first in range(0, ROWS, 10_000):
            keys = np.arange(first, first + 10_000)
            table.put(keys, np.ones((len(keys), DIM), np.float32))
        store.commit(1)
        yield store


def drawn(count: int, most: int, size: int = 200) -> list[Any]:
    random = np.random.default_rng(count)
    return [random.integers(0, most, size) for _ in range(count)]


def by_name(batch: Any) -> dict[str, Any]:
    return {"rows": batch}


# Look-ahead took 25 to 38 % of the time of a training whose rows were all in memory.
@pytest.mark.parametrize("written", [False, True])
def test_nothing_is_announced_while_all_rows_are_in_memory(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    window = RecordingWindow()
    monkeypatch.setattr(embedrock.Store, "window", window, raising=False)
    table = store.table("rows", DIM, optimizer="sgd", initializer=0.0)
    if written:
        table.put(np.arange(1000), np.ones((1000, DIM), np.float32))
        store.commit(1)
    given = drawn(300, 1000)
    at: list[int] = []
    seen: list[Any] = []

    def keys_of(batch: Any) -> dict[str, Any]:
        seen.append(batch)
        return by_name(batch)

    def source() -> Iterator[Any]:
        for number, batch in enumerate(given):
            at.append(number)
            yield batch

    loader = LookaheadLoader(source(), store, keys_of=keys_of)
    for number, batch in enumerate(loader):
        assert batch is given[number] and at[-1] == number  # none is drawn ahead
        table.update(batch, table.get(batch), lr=0.1)
    assert loader.stats()["resident"] == 300
    assert len(seen) == 1 and seen[0] is given[0]  # whether keys_of fits, and no more
    assert {kind for kind, _ in window.calls} == {"clear"}
    store.commit(2)


def test_batches_are_announced_once_rows_are_missed_and_not_once_they_are_in_memory(
    out_of_core: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The choice must not depend on the speed of this machine.
    monkeypatch.setattr(announcing, "_KEEP", math.inf)
    monkeypatch.setattr(announcing, "_SET_ASIDE", 0.0)
    monkeypatch.setattr(announcing, "_EXCESS", math.inf)
    store, table = out_of_core, out_of_core.tables["rows"]
    loader = LookaheadLoader([*drawn(400, ROWS), *drawn(900, 500)], store, 64, by_name)
    announced, seen = 0, []
    for batch in loader:
        assert np.all(table.get(batch) == 1)
        if (announced := loader.stats()["announced"]) and not seen:
            seen.append(store.stats()["memory"]["window_bytes"])
        if loader.stats()["handed_out"] == 400:
            before = announced
    counts = loader.stats()
    assert before > 300 and store.window.stats()["rows_loaded"] > 1000
    assert counts["resident"] > 300 and counts["announced"] < 1000
    begun = time.monotonic()
    while store.stats()["memory"]["window_bytes"] > 0:  # a thread of the store gives it back
        assert time.monotonic() < begun + 60
        time.sleep(0.01)


def test_what_is_set_aside_is_told_once_with_the_figures(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Announcing, "step", lambda *_: Verdict(0.0204, 0.0123, 64, 1200))
    store.table("rows", DIM)
    loader = LookaheadLoader(drawn(5, 100), store, keys_of=by_name)
    with pytest.warns(LookaheadWarning) as told:
        for _ in loader:
            pass
    (one,) = told
    assert one.filename == __file__
    assert str(one.message).startswith(
        "look-ahead is set aside: steps took 20.4 ms with it (mean of 64) and 12.3 ms without, "
        "loading apart; it is tried again after 1,200 steps"
    )


@pytest.mark.parametrize("announce", [True, None])
def test_memory_for_hardly_one_batch_is_told_once_with_what_would_do(
    out_of_core: embedrock.Store, announce: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "_EXCESS", math.inf)
    store, table = out_of_core, out_of_core.tables["rows"]
    (rows_held,) = (one["cache_capacity"] for one in store.stats()["classes"])
    size = rows_held * 11 // 10
    loader = LookaheadLoader(drawn(80, ROWS, size), store, 8, by_name, announce=announce)
    with pytest.warns(LookaheadWarning) as told:
        for batch in loader:
            table.get(batch)
    (one,) = told
    found = re.fullmatch(
        r"look-ahead has passed over \d+ of \d+ batches: one has about ([\d,]+) distinct rows, and "
        r"memory of 2 MiB holds ([\d,]+), expected ([\d,]+), which leaves a window its share; "
        r"([\d,]+) KiB, or batches of (\d+) % of the size, would do",
        str(one.message),
    )
    assert found is not None, one.message
    rows, held, need, memory, percent = (float(part.replace(",", "")) for part in found.groups())
    times = percent / 100
    assert 0.8 * size < rows <= size and held == rows_held < need
    assert 3 << 10 <= memory <= 4 << 10 and 0.4 < times < 0.7
    counts = loader.stats()
    assert counts["skipped"] > 16 and store.stats()["memory"]["window_bytes"] == 0
    assert (counts["announced"] == 80) == bool(announce)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smaller = drawn(60, ROWS, int(times * size))
        fits = LookaheadLoader(smaller, store, 8, by_name, announce=True)
        for batch in fits:
            table.get(batch)
    assert fits.stats()["skipped"] < 30


@pytest.mark.parametrize("rows", [1146, 1300, 1147, 2016, 100_000])
def test_what_is_told_of_too_little_memory_agrees_with_itself(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "1 MiB ... holds 2,016, expected 1.1 times as many as 1,146; 1 MiB would do".
    class Store:
        def stats(self) -> Any:
            return {
                "budget_bytes": 1 << 20,
                "classes": [{"row_bytes": 64, "cache_capacity": 2016}],
                "tables": [{"spec": {"name": "t"}, "row_bytes": 64}],
            }

    store: Any = Store()
    table: Any = SimpleNamespace(name="t", store=store)
    said = advice.passed_over(32, 34, [store], [TableKeys(table, np.arange(rows, dtype=np.uint64))])
    found = re.search(
        r"about ([\d,]+) .*holds ([\d,]+), expected ([\d,]+).*; ([\d,]+) (.)iB, .* of (\d+) %", said
    )
    assert found is not None, said
    numbers = [int(part.replace(",", "")) for part in found.groups() if part not in "KM"]
    assert numbers[0] == rows and numbers[1] == 2016 < numbers[2]
    unit = {"K": 1 << 10, "M": 1 << 20}[found[5]]
    assert numbers[3] * unit > 1 << 20 and 0 < numbers[4] < 100
