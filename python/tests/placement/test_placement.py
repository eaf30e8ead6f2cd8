"""Plans: what they have, what queries read with them, what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import (
    BudgetError,
    BudgetWarning,
    KeyRangeError,
    MisuseError,
    NotFoundError,
)
from embedrock.placement import Plan, place
from embedrock.placement.placing import METHODS, REPLICAS
from embedrock.trace import Trace
from odd import ODD
from placements import communities, counted, queries_of, rows_of

BOTH = ("users", "items")


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are equal to the bit."""
    names = ("rows_per_page", "table", "key", "replica_starts", "replica_rows")
    return (one.tables, one.table_groups) == (other.tables, other.table_groups) and all(
        np.array_equal(getattr(mine, name), getattr(theirs, name))
        for mine, theirs in zip(one.groups, other.groups, strict=True)
        for name in names
    )


def test_a_plan_has_every_row_of_the_trace_once_and_replicas_within_the_share() -> None:
    trace = communities(2000, 1, BOTH)
    plan = place(trace, rows_per_page=8, replicate=0.3)
    assert plan.tables == BOTH and plan.table_groups == (0, 0)
    rows = rows_of(plan, 0)
    assert sorted(rows) == sorted(set().union(*queries_of(plan, 0, trace)))
    (group,) = plan.groups
    assert group.num_replica_pages == int(len(rows) * 0.3 / 8)
    lengths = np.diff(group.replica_starts)
    assert lengths.min() >= 1 and lengths.max() <= 8
    assert repr(plan) == (
        f"<embedrock.placement.Plan of {len(rows):,} rows in {-(-len(rows) // 8):,} pages, "
        f"{group.num_replica_pages} replica pages, tables 'users', 'items'>"
    )


HALF = pytest.mark.parametrize(
    ("method", "replicas"),
    [
        pytest.param(method, replicas, marks=[pytest.mark.long] * ((at + number) % 2))
        for at, method in enumerate(METHODS)
        for number, replicas in enumerate(REPLICAS)
    ],
)
"""All pairs; by day every other one, in which each of both comes."""


@HALF
def test_pages_of_held_out_queries_are_those_of_an_independent_count(
    method: str, replicas: str
) -> None:
    learned, held_out = communities(900, 2, BOTH).split(0.4)
    plan = place(learned, rows_per_page=7, replicate=0.4, method=method, replicas=replicas)
    found = plan.evaluate(held_out)
    expected = counted(plan, held_out)
    assert (found.pages_identity, found.pages_home, found.pages) == pytest.approx(expected)
    assert found.queries == held_out.queries
    asked = queries_of(plan, 0, held_out)
    assert found.rows == pytest.approx(sum(map(len, asked)) / held_out.queries)
    unknown = set().union(*asked).difference(rows_of(plan, 0))
    assert (found.unplaced > 0) is bool(unknown) and found.unplaced < 0.2
    if method == "identity":
        assert rows_of(plan, 0) == sorted(rows_of(plan, 0))


def test_a_partition_and_its_replicas_save_pages_of_queries_that_come_later() -> None:
    learned, held_out = communities(6000, 3).split(0.8)
    for replicas in ("residual", "partitions"):
        plan = place(learned, rows_per_page=8, replicate=0.4, replicas=replicas)
        found = plan.evaluate(held_out)
        assert found.pages < found.pages_home < 0.8 * found.pages_identity
        assert found.pages_identity < found.rows
        greedy = plan.evaluate(held_out, selection="greedy")
        assert greedy.pages != found.pages and greedy.pages_home == found.pages_home
        assert abs(greedy.pages / found.pages - 1) < 0.05
    with pytest.raises(MisuseError, match="selection is 'best', expected 'one_pass'"):
        plan.evaluate(held_out, selection="best")


@HALF
def test_plans_are_equal_to_the_bit_whatever_the_threads(method: str, replicas: str) -> None:
    trace = communities(1500, 4, BOTH)
    one, two, drawn = (
        place(
            trace,
            rows_per_page=8,
            replicate=0.5,
            method=method,
            replicas=replicas,
            threads=threads,
            seed=seed,
        )
        for threads, seed in ((1, 5), (2, 5), (2, 6))
    )
    assert same(one, two)
    by_chance = method in ("partition", "shp", "random") or replicas in ("random", "partitions")
    assert same(one, drawn) is not by_chance


@pytest.mark.parametrize("replicas", REPLICAS)
def test_replicas_for_the_home_pages_of_a_plan_are_those_of_placing_at_once(replicas: str) -> None:
    trace = communities(1500, 4, BOTH)
    home = place(trace, rows_per_page=8, seed=3)
    once = place(trace, rows_per_page=8, seed=3, replicate=0.4, replicas=replicas)
    told: list[int] = []
    again = place(
        trace,
        home=home,
        seed=3,
        replicate=0.4,
        replicas=replicas,
        progress=lambda done, total: told.append(total - done),
    )
    assert same(once, again) and told[-1] == 0
    with pytest.raises(MisuseError, match=r"not those .* place by this trace without home"):
        place(communities(20, 9, BOTH), home=home, replicate=0.4)
    with pytest.raises(MisuseError, match="the trace has the tables 'items', and the plan in home"):
        place(communities(1500, 4), home=home, replicate=0.4)


@pytest.mark.parametrize("replicas", REPLICAS)
def test_replicas_of_a_smaller_share_are_the_first_of_a_larger_one(replicas: str) -> None:
    trace = communities(1500, 5)
    large = place(trace, rows_per_page=8, replicate=0.8, replicas=replicas)
    for share in (0.0, 0.1, 0.33, 0.8):
        small = place(trace, rows_per_page=8, replicate=share, replicas=replicas)
        assert same(large.with_replicas(share), small)
    with pytest.raises(MisuseError, match=r"share is 0\.5, expected 0 to 0\.3.*place again"):
        large.with_replicas(0.3).with_replicas(0.5)
    with pytest.raises(MisuseError, match="share is nan"):
        large.with_replicas(float("nan"))


def test_tables_with_rows_of_equal_bytes_share_pages(store: embedrock.Store) -> None:
    for name, dim in (("users", 16), ("items", 16), ("words", 60)):
        store.table(name, dim, optimizer="none")
    trace = communities(800, 6, ("words", "users", "items"))
    plan = place(trace, store=store, replicate=0.2)
    assert plan.tables == ("words", "users", "items") and plan.table_groups == (0, 1, 1)
    per_page = {one["row_bytes"]: one["rows_per_page"] for one in store.stats()["classes"]}
    assert [one.rows_per_page for one in plan.groups] == [per_page[240], per_page[64]]
    assert set(plan.groups[1].table.tolist()) == {1, 2}
    found = plan.evaluate(trace)
    assert (found.pages_identity, found.pages_home, found.pages) == pytest.approx(
        counted(plan, trace)
    )
    alone = place(trace.only("words"), store=store, replicate=0.2)
    np.testing.assert_array_equal(alone.groups[0].key, plan.groups[0].key)
    one = plan.evaluate(trace.only("users"))
    assert one.pages_home == pytest.approx(counted(plan, trace.only("users"))[1])


def test_a_store_is_given_by_its_path_too(store: embedrock.Store) -> None:
    store.table("items", 16, optimizer="none")
    store.commit(1)
    trace = communities(300, 7)
    assert same(place(trace, store=store.path), place(trace, store=store))
    with pytest.raises(NotFoundError):
        place(trace, store=store.path.with_name("absent"))


def test_what_a_store_cannot_have_is_refused_by_name(store: embedrock.Store) -> None:
    store.table("items", 4, num_embeddings=100, optimizer="none")
    fine = Trace({"items": ([0, 99], [0, 2])})
    assert place(fine, store=store).num_rows == 2
    for key in (100, 2**64 - 1):
        beyond = Trace({"items": (np.array([0, key], np.uint64), [0, 2])})
        with pytest.raises(KeyRangeError, match=f"'items' for key {key}, .*num_embeddings=100"):
            place(beyond, store=store)
    for name, said in (("ads", "asks for table 'ads'"), ("", "does not name its table")):
        with pytest.raises(MisuseError, match=f"the trace {said}.* are 'items'; name the table"):
            place(Trace({name: ([1], [0, 1])}), store=store)


def test_a_table_that_is_never_asked_has_no_rows_in_a_plan(tmp_path: Path) -> None:
    nothing = np.zeros(0, int), [0, 0, 0]
    trace = Trace({"a": nothing, "b": ([5, 6], [0, 1, 2])})
    plan = place(trace, rows_per_page=4)
    assert rows_of(plan, 0) == [(1, 5), (1, 6)]
    plan.save(tmp_path / "plan.npz")
    assert same(Plan.load(tmp_path / "plan.npz"), plan)


def test_a_plan_is_as_it_was_saved_and_files_are_equal_to_the_byte(tmp_path: Path) -> None:
    trace = communities(500, 8, BOTH)
    plan = place(trace, rows_per_page=8, replicate=0.3)
    for name in ("one.npz", "two.npz"):
        plan.save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    again = Plan.load(tmp_path / "one.npz")
    assert same(again, plan) and again.replicate == 0.3
    assert again.evaluate(trace) == plan.evaluate(trace)


GOOD = {
    "version": np.int64(1),
    "tables": np.array(["a", "b", "c"]),
    "groups": np.array([0, 1, 0]),
    "replicate": np.float64(0.5),
    "0/rows_per_page": np.int64(2),
    "0/table": np.array([0, 2, 0], np.uint16),
    "0/key": np.array([7, 7, 2**64 - 1], np.uint64),
    "0/replica_starts": np.array([0, 2, 3]),
    "0/replica_rows": np.array([2, 0, 1], np.uint32),
    "1/rows_per_page": np.int64(3),
    "1/table": np.array([1], np.uint16),
    "1/key": np.array([1], np.uint64),
    "1/replica_starts": np.array([0]),
    "1/replica_rows": np.array([], np.uint32),
}
"""A plan of three tables."""


def test_a_file_that_numpy_made_is_a_plan(tmp_path: Path) -> None:
    np.savez(tmp_path / "plan.npz", **GOOD)
    plan = Plan.load(tmp_path / "plan.npz")
    assert plan.tables == ("a", "b", "c") and plan.table_groups == (0, 1, 0)
    assert rows_of(plan, 0) == [(0, 7), (2, 7), (0, 2**64 - 1)]
    np.savez(tmp_path / "plan.npz", **{k: v for k, v in GOOD.items() if k != "replicate"})
    assert Plan.load(tmp_path / "plan.npz").with_replicas(0.7).num_replica_pages == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("version", None, "has no array 'version', expected a plan"),
        ("version", np.int64(2), "version 2 of plans, this build reads 1; use a newer"),
        ("version", np.array([1]), r"version is int64 of shape \(1,\), expected a single number"),
        ("tables", np.array(["a", "b", "a"]), "tables has 'a' twice"),
        ("tables", np.array([], np.str_), "expected the names of tables"),
        ("tables", np.array([1, 2, 3]), "tables is int64 of shape"),
        ("groups", np.array([0, 1]), "groups has 2 numbers, expected 3: one a table"),
        ("groups", np.array([0, 2, 0]), r"groups is \[0, 2, 0\], expected numbers from 0"),
        ("groups", np.array([-1, 1, 0]), "expected numbers from 0 without gaps"),
        ("groups", np.array([0, 1, 2]), "0/table.1. is 2, expected a table of group 0: 0"),
        ("replicate", np.float64("nan"), "replicate is nan, expected a share"),
        ("0/rows_per_page", np.int64(0), "0/rows_per_page is 0, expected 1 or more"),
        ("0/rows_per_page", np.int64(1), "0/replica_starts: replica page 0 has 2 rows"),
        ("0/table", np.array([0, 3, 0], np.uint16), "0/table.1. is 3, expected a table of group 0"),
        ("0/table", np.array([0, 1, 0], np.uint16), "0/table.1. is 1, expected .* group 0: 0, 2"),
        ("0/table", np.array([0, 2], np.uint16), "0/table has 2 rows, 0/key has 3"),
        ("0/table", np.array([0, 2, 0]), "0/table is int64 of shape"),
        ("0/key", np.array([7, 7, 7], np.uint64), "has key 7 of table 'a' at 0 and at 2"),
        ("0/key", np.zeros((3, 1), np.uint64), "0/key is uint64 of shape"),
        ("0/replica_starts", np.array([0, 2, 2, 3]), "replica page 1 has 0 rows, expected 1 to 2"),
        ("0/replica_starts", np.array([0, 3]), "replica page 0 has 3 rows, expected 1 to 2"),
        ("0/replica_starts", np.array([0, 4, 3]), "replica page 0 has 4 rows"),
        ("0/replica_starts", np.array([1, 2, 3]), "goes from 1 to 3, expected from 0 to 3"),
        ("0/replica_starts", np.array([0, 2]), "goes from 0 to 2, expected from 0 to 3"),
        ("0/replica_starts", np.array([], np.int64), "0/replica_starts is empty"),
        ("0/replica_rows", np.array([2, 3, 1], np.uint32), "replica_rows.1. is 3, .* below 3"),
        ("0/replica_rows", np.array([2, 2, 1], np.uint32), "page 0 of group 0 has row 2 twice"),
        ("1/replica_rows", None, "has no array '1/replica_rows'"),
        ("2/key", np.array([1], np.uint64), "has the array '2/key', expected version, tables"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    tmp_path: Path, name: str, value: object, said: str
) -> None:
    arrays = {**GOOD, name: value}
    path = tmp_path / "plan.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(embedrock.errors.EmbedrockError, match=said) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(str(path))


def test_a_damaged_file_is_named_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    place(communities(50, 9), rows_per_page=4, replicate=0.5).save(path)
    whole = path.read_bytes()
    good = Plan.load(path)
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"plan\.npz: cannot be read as an .npz file"):
            Plan.load(path)
    random = np.random.default_rng(0)
    refused = 0
    for at in random.integers(0, len(whole), 300).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            loaded = Plan.load(path)
        except embedrock.errors.EmbedrockError as error:
            assert str(error).startswith(str(path))
            refused += 1
        else:
            assert same(loaded, good)  # in what an archive says of dates and systems
    assert refused > 200
    path.unlink()
    with pytest.raises(ValueError, match=r"plan\.npz: cannot be opened"):
        Plan.load(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "none of store, rows_per_page, home is given, expected one of them"),
        ({"rows_per_page": 4, "store": "s"}, "store and rows_per_page of store, .* is given"),
        ({"home": 3}, "home is 3, expected"),
        ({"rows_per_page": 0}, "rows_per_page is 0, expected 1"),
        ({"rows_per_page": 1 << 17}, "rows_per_page is 131072, expected 65536 at most"),
        ({"rows_per_page": 4, "replicate": 0.81}, r"replicate is 0\.81, expected 0 to 0\.8"),
        ({"rows_per_page": 4, "replicate": -0.1}, r"replicate is -0\.1, expected 0 to 0\.8"),
        ({"rows_per_page": 4, "replicas": "best"}, "replicas is 'best', expected one of residual"),
        ({"rows_per_page": 4, "method": "best"}, "method is 'best', expected one of partition"),
        ({"rows_per_page": 4, "seed": -1}, "seed is -1"),
        ({"rows_per_page": 4, "threads": 0}, "threads is 0"),
        ({"rows_per_page": 4, "memory": "much"}, "memory is 'much'"),
        ({"rows_per_page": 4, "progress": 3}, "progress is 3, expected a function"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        place(communities(20, 10), **options)


def test_odd_objects_are_refused_in_our_words(tmp_path: Path) -> None:
    trace = communities(20, 10)
    plan = place(trace, rows_per_page=4)
    for title, make_odd in ODD.items():
        odd = make_odd()
        for make in (
            lambda one: place(one, rows_per_page=4),
            lambda one: place(trace, store=one if one is not None else 3),
            lambda one: place(trace, rows_per_page=one),
            lambda one: place(trace, rows_per_page=4, replicate=one),
            lambda one: place(trace, rows_per_page=4, method=one),
            lambda one: plan.with_replicas(one),
            lambda one: plan.evaluate(one),
            lambda one: plan.evaluate(trace, candidates_max=one),
            lambda one: plan.evaluate(trace, selection=one),
            lambda one: Plan.load(one),
        ):
            try:
                make(odd)
            except (embedrock.errors.EmbedrockError, ValueError) as error:
                assert type(error).__module__.startswith("embedrock"), f"{title}: {error!r}"


def test_a_trace_of_another_table_is_not_evaluated() -> None:
    plan = place(communities(20, 11), rows_per_page=4)
    with pytest.raises(MisuseError, match=r"the trace has table 'users', .* plan are 'items'"):
        plan.evaluate(communities(20, 11, ("users",)))


def test_memory_that_may_not_be_enough_is_refused_with_what_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = communities(2000, 12)
    with pytest.raises(BudgetError, match=r"at least memory=\d+") as caught:
        place(trace, rows_per_page=8, replicate=0.1, memory="20kB")
    needed = str(caught.value).partition("at least memory=")[2].partition(",")[0]
    with pytest.raises(BudgetError, match=r"rows by .* at least memory=\d+") as caught:
        place(trace, rows_per_page=8, replicate=0.1, memory=int(needed))
    needed = str(caught.value).partition("at least memory=")[2].partition(",")[0]
    plan = place(trace, rows_per_page=8, replicate=0.1, memory=int(needed))
    assert same(plan, place(trace, rows_per_page=8, replicate=0.1))
    monkeypatch.setattr("embedrock.placement.placing.machine_bytes", lambda: 100_000)
    with pytest.warns(BudgetWarning, match="more than the 100000 of this machine"):
        place(trace, rows_per_page=8)


def test_progress_rises_to_all_and_what_it_raises_ends_the_work() -> None:
    trace, told = communities(30_000, 13), []
    place(trace, rows_per_page=4, replicate=0.5, progress=lambda *at: told.append(at))
    done = [at[0] for at in told]
    assert done == sorted(done) and len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] > 0

    def enough(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        place(trace, rows_per_page=4, progress=enough)


def test_an_interrupt_ends_the_work() -> None:
    trace = communities(60_000, 14)

    def interrupt(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        place(trace, rows_per_page=2, replicate=0.8, progress=interrupt)
