"""Plans for queries that come again as they are (``placement.pack``), and traces of queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embedrock
import placements
from embedrock.errors import KeyRangeError, MisuseError
from embedrock.placement import Plan, pack, place
from embedrock.trace import Trace


def batches(seed: int, count: int = 6, keys: int = 300, of: int = 4000) -> Trace:
    """Long queries; some keys are asked for much more often."""
    random = np.random.default_rng(seed)
    return Trace.of(
        ((random.random(keys) ** 2 * of).astype(np.int64) for _ in range(count)), table="items"
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.8])
def test_rows_are_there_once_and_pages_are_as_counted(share: float, tmp_path: Path) -> None:
    trace = batches(1)
    plan = pack(trace, rows_per_page=5, replicate=share)
    keys = plan.groups[0].key
    assert sorted(keys.tolist()) == np.unique(trace.values).tolist()
    assert plan.num_replica_pages <= share * plan.num_rows / 5
    plan.save(tmp_path / "plan.npz")  # the loaded plan is checked
    found = Plan.load(tmp_path / "plan.npz").evaluate(trace, candidates_max=16)
    expected = placements.counted(plan, trace)
    assert found.pages_home == expected[1]
    assert found.pages <= found.pages_home


# place split queries of thousands of rows by chance: 4.4 of 7 rows of a page were wanted.
def test_queries_that_hardly_share_rows_fill_their_pages() -> None:
    random = np.random.default_rng(3)
    trace = Trace.of([random.choice(50_000, 2000, replace=False) for _ in range(8)])
    packed = pack(trace, rows_per_page=7, replicate=0.1)
    found = packed.evaluate(trace)
    assert found.rows / found.pages > 6.8
    assert found.pages < 0.75 * place(trace, rows_per_page=7).evaluate(trace).pages
    assert found.pages < 0.98 * found.pages_home


def test_a_smaller_share_has_the_first_replica_pages_of_a_larger_one() -> None:
    trace = batches(2, count=20)
    large, small = (pack(trace, rows_per_page=4, replicate=share) for share in (0.5, 0.2))
    group, first = large.with_replicas(0.2).groups[0], small.groups[0]
    assert small.num_replica_pages and small.num_replica_pages < large.num_replica_pages
    np.testing.assert_array_equal(group.replica_rows, first.replica_rows)
    pages = [large.with_replicas(share).evaluate(trace).pages for share in (0, 0.2, 0.5)]
    assert pages[0] > pages[1] > pages[2]


# A key that came twice in a query counted as two rows of its page, and twice in a replica page.
def test_equal_keys_of_a_query_count_once() -> None:
    keys = [[5, 5, 1, 9], [4, 5, 5, 1, 7, 8]]
    plan = pack(Trace.of(keys), rows_per_page=2, replicate=0.8)
    again = pack(Trace.of([sorted(set(one)) for one in keys]), rows_per_page=2, replicate=0.8)
    np.testing.assert_array_equal(plan.groups[0].key, again.groups[0].key)
    np.testing.assert_array_equal(plan.groups[0].replica_rows, again.groups[0].replica_rows)
    for page in plan.groups[0].replica_rows.reshape(-1, 2).tolist():
        assert len(set(page)) == 2


def test_a_frozen_store_reads_the_pages_of_the_plan_and_returns_the_rows(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((4000, 32), np.float32)
    with embedrock.open(tmp_path / "s", "16MiB") as store:
        table = store.table("items", 32, num_embeddings=4000, optimizer="none")
        table.put(np.arange(4000), rows)
        store.commit(1)
    trace = batches(4)
    plan = pack(trace, store=tmp_path / "s", replicate=0.2)
    embedrock.freeze(tmp_path / "s", tmp_path / "f", plan=plan)
    first = np.unique(trace.values[: trace.offsets[1]])
    only = Trace.of([first], table="items")
    with embedrock.open(tmp_path / "f", "1MiB", read_only=True) as served:
        np.testing.assert_array_equal(served.table("items").get(first), rows[first])
        assert served.stats()["pages_read"] == plan.evaluate(only).pages


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    trace = batches(1)
    with pytest.raises(MisuseError, match="neither of store and rows_per_page is given"):
        pack(trace)
    with pytest.raises(MisuseError, match="replicate"):
        pack(trace, rows_per_page=4, replicate=0.9)
    with embedrock.open(tmp_path / "s", "16MiB") as store:
        store.table("items", 4, num_embeddings=10)
        with pytest.raises(KeyRangeError, match="expected keys below num_embeddings=10"):
            pack(trace, store=store)


def test_a_trace_of_queries_takes_what_has_keys() -> None:
    given = [np.array([[1, 2], [3, 1]]), [], (7,), np.array([-1])]
    trace = Trace.of(iter(given), table="items")
    assert trace.tables["items"].offsets.tolist() == [0, 4, 4, 5, 6]
    assert trace.values.tolist() == [1, 2, 3, 1, 7, 2**64 - 1]
    same = np.array([1, 2])
    kept = Trace.of(same.__iadd__(1) for _ in range(2))  # a loader that reuses its memory
    assert kept.values.tolist() == [2, 3, 3, 4]


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (5, "queries is 5, expected the keys of each query"),
        ([], "queries is empty"),
        ([[1], [1.5]], "query 1 is float64"),
        ([["a"]], "query 0 is <U1"),
        ([[[1], [2, 3]]], "query 0 is a list"),
        ([[]], "have no key together"),
    ],
)
def test_queries_that_are_none_are_named(queries: object, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        Trace.of(queries)  # type: ignore[arg-type]
