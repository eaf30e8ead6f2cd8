"""Traces in memory: what is refused, parts in order, samples, figures."""

from __future__ import annotations

import numpy as np
import pytest

from embedrock.errors import MisuseError
from embedrock.trace import Queries, Trace
from odd import ODD


def numbered(queries: int) -> Trace:
    """Query i asks for key i, and every third one for nothing of the second table."""
    some = np.arange(queries) % 3 > 0
    offsets = np.concatenate([[0], np.cumsum(some)])
    return Trace(
        {
            "one": (np.arange(queries), np.arange(queries + 1)),
            "two": (np.flatnonzero(some), offsets),
        }
    )


def test_a_split_is_by_order_and_loses_nothing() -> None:
    trace = numbered(10)
    first, others = trace.split(0.75)
    assert (first.queries, others.queries) == (8, 2)
    assert first.tables["one"].values.tolist() == list(range(8))
    assert first.tables["two"].values.tolist() == [1, 2, 4, 5, 7]
    assert others.tables["two"].values.tolist() == [8]
    assert others.tables["two"].offsets.tolist() == [0, 1, 1]
    assert others.tables["one"].offsets.tolist() == [0, 1, 2]
    for share in (1e-9, 1 - 1e-9):
        assert min(part.queries for part in numbered(4).split(share)) == 1
    for share in (0, 1, -0.5, 2, float("nan")):
        with pytest.raises(
            MisuseError, match=r"share is .*, expected a share: more than 0 and less"
        ):
            trace.split(share)
    with pytest.raises(MisuseError, match="the trace has one query, expected two at least"):
        numbered(1).split(0.5)


def test_a_sample_keeps_whole_queries_in_order_and_is_part_of_a_larger_one() -> None:
    trace = numbered(20_000)
    small, large = trace.sample(0.1, seed=7), trace.sample(0.3, seed=7)
    keys = [set(one.tables["one"].values.tolist()) for one in (small, large)]
    assert keys[0] < keys[1]
    assert small.queries == pytest.approx(2000, rel=0.1)
    assert large.queries == pytest.approx(6000, rel=0.05)
    chosen = small.tables["one"].values.astype(int)
    assert (np.diff(chosen) > 0).all()
    assert small.tables["two"].values.tolist() == chosen[chosen % 3 > 0].tolist()
    again = trace.sample(0.1, seed=7).tables["one"].values
    np.testing.assert_array_equal(again, chosen)
    assert set(trace.sample(0.1, seed=8).tables["one"].values.tolist()) != keys[0]
    assert trace.sample(1.0).queries == trace.queries
    with pytest.raises(MisuseError, match="share is 0, expected a share: more than 0, 1"):
        trace.sample(0)
    with pytest.raises(
        MisuseError, match=r"a sample of 1e-12 has none of the 2 queries; take a larger one"
    ):
        numbered(2).sample(1e-12)


def test_a_sample_is_the_same_in_every_version() -> None:
    chosen = numbered(40).sample(0.2, seed=1).tables["one"].values.tolist()
    assert chosen == SAMPLED


SAMPLED = [8, 15, 17, 20, 28, 34]


def test_figures_are_those_of_a_trace_that_was_counted_by_hand() -> None:
    # Key 0 comes in each of 200 queries, 199 others once.
    values = np.stack([np.zeros(200, int), np.arange(200)], axis=1).reshape(-1)
    offsets = 2 * np.arange(201)
    found = Trace({"": (values, offsets)}).stats()
    assert found == {
        "queries": 200,
        "keys": 400,
        "distinct_keys": 200,
        "length_mean": 2.0,
        "length_max": 2,
        "top_1_percent_share": (201 + 1) / 400,
    }
    both = Trace({"a": (values, offsets), "b": ([0, 5], np.clip(np.arange(201), 0, 2))}).stats()
    assert both["tables"]["a"] == found
    assert both["distinct_keys"] == 202 and both["length_max"] == 3
    assert both["tables"]["b"]["top_1_percent_share"] == 0.5
    assert both["keys"] == 402


def test_keys_of_either_sign_are_the_same_64_bits() -> None:
    trace = Trace({"": (np.array([-1, -(2**63), 5], np.int64), np.array([0, 3], np.uint32))})
    assert trace.values.tolist() == [2**64 - 1, 2**63, 5]
    assert trace.values.dtype == np.uint64 and trace.offsets.dtype == np.int64
    small = Trace({"": (np.array([-1], np.int8), np.array([0, 1], ">i8"))})
    assert small.values.tolist() == [2**64 - 1]


def test_keys_are_not_copied_where_they_have_the_type_of_a_trace() -> None:
    values, offsets = np.arange(5, dtype=np.uint64), np.array([0, 2, 5])
    trace = Trace({"": (values, offsets)})
    assert trace.values is values
    assert np.shares_memory(trace.split(0.5)[1].values, values)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, "0 queries have no key together"),
        ({"a": ([], [0])}, "values of table 'a' is float64 of shape|offsets of table 'a' has 1"),
        ({"a": (np.zeros(0, int), [0, 0])}, "1 queries have no key together"),
        ({"a": [1]}, "table 'a' is a list, expected a pair"),
        ({"a": ([True], [0, 1])}, "values of table 'a' is bool of shape"),
        ({"a": ([1], [0, 1]), "b": ([1], [0, 1, 1])}, "there are queries 1 of 'a', 2 of 'b'"),
        ({1: ([1], [0, 1])}, "the name of a table is 1, expected a text"),
        ([1], "tables is a list, expected a dict"),
    ],
)
def test_what_is_no_trace_is_refused(tables: object, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        Trace(tables)  # type: ignore[arg-type]


def test_odd_objects_are_refused_in_our_words() -> None:
    for title, make_odd in ODD.items():
        odd = make_odd()
        for make in (
            lambda one: Trace(one),
            lambda one: Trace({"": one}),
            lambda one: Trace({"": (one, [0, 1])}),
            lambda one: Trace({"": ([1], one)}),
            lambda one: numbered(4).split(one),
            lambda one: numbered(4).sample(one),
            lambda one: numbered(4).sample(0.9, one),
            lambda one: numbered(4).only(one),
            lambda one: Trace.load("none", table=one),
            lambda one: Trace.load("none", column=one),
            lambda one: Trace.load("none", sample=one),
            lambda one: Trace.load("none", seed=one),
            lambda one: Trace.load("none", progress=one),
        ):
            try:
                make(odd)
            except ValueError as error:  # DataError and MisuseError are
                assert type(error).__module__.startswith("embedrock"), f"{title}: {error!r}"
            except Exception as error:
                assert str(error).startswith("of __"), f"{title}: {error!r}"  # the object's own


def test_arrays_of_several_tables_are_asked_for_by_name() -> None:
    trace = numbered(6)
    with pytest.raises(
        MisuseError, match="values are of one table, and the trace has 'one', 'two'"
    ):
        trace.values.sum()
    assert trace.only("two").offsets.tolist() == [0, 0, 1, 2, 2, 3, 4]
    with pytest.raises(MisuseError, match="the trace has no table 'three'; it has 'one', 'two'"):
        trace.only("three")
    assert isinstance(trace.tables["one"], Queries)
    assert repr(trace) == "<embedrock.trace.Trace of 6 queries and 10 keys, tables 'one', 'two'>"
