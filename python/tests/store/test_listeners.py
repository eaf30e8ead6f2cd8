"""Calls of a store's listeners for its verbs, and their times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock._listeners import Listener, Part
from embedrock.errors import ClosedError, KeyRangeError


class Noting(Listener):
    """Notes what it is told."""

    def __init__(self, store: embedrock.Store) -> None:
        self.store = store
        self.heard: list[tuple[str, list[tuple[str, list[int]]]]] = []

    def note(self, moment: str, parts: Sequence[Part] = ()) -> None:
        self.heard.append((moment, [(name, keys.tolist()) for name, keys in parts]))

    def before(self) -> None:
        self.note("before")

    def visited(self, parts: Sequence[Part]) -> None:
        self.note("visited", parts)

    def asked(self, parts: Sequence[Part], changed: bool) -> None:
        self.note("asked to change" if changed else "asked", parts)

    def changed(self, parts: Sequence[Part]) -> None:
        self.note("changed", parts)

    def refreshing(self) -> None:
        self.note("refreshing")

    def closing(self) -> None:
        self.note("closing")
        self.store.tables["ads"].get([1])

    def ended(self) -> None:
        self.note("ended")
        self.store.stats()

    def taken(self) -> list[tuple[str, list[tuple[str, list[int]]]]]:
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
def store(tmp_path: Path) -> embedrock.Store:
    return embedrock.open(tmp_path / "store", memory="16MiB")


def rows(count: int) -> np.ndarray:
    return np.ones((count, 4), np.float32)


def test_each_verb_tells_which_rows_it_has_visited_and_changed_and_which_are_a_query(
    store: embedrock.Store,
) -> None:
    one = store.table("one", 4, optimizer="sgd")
    two = store.table("two", 4, 10, optimizer="sgd")
    listener = Noting(store)
    store._listeners.add(listener)
    rows_told = [("one", [7, 7])]
    visited, changed = [("visited", rows_told)], [("changed", rows_told)]
    asked = [*visited, ("asked", rows_told)]
    updated = [*visited, ("asked to change", rows_told), *changed]
    before = [("before", [])]
    keys = [7, 7]
    for verb, told in (
        (lambda: one.get(keys), asked),
        (lambda: one.put(keys, rows(2)), visited + changed),
        (lambda: one.update(keys, rows(2), lr=0.1), updated),
        (lambda: one.modify(keys, lambda values, state: values), updated),
        (lambda: one.delete(keys), changed),
        (lambda: one.contains(keys), []),
        (lambda: one.lookahead(keys, out=rows(2)).wait(), asked),
        (lambda: store.get([(one, keys)]), asked),
        (lambda: store.put([(one, keys, rows(2))]), visited + changed),
        (lambda: store.update([(one, keys, rows(2))], lr=0.1), updated),
        (lambda: store.lookahead([(one, keys)], [rows(2)]).wait(), asked),
        (lambda: store.commit(1), []),
        (lambda: len(one), []),
    ):
        verb()  # type: ignore[no-untyped-call]
        assert listener.taken() == before + told
    store.update([(one, [1], rows(1)), (two, [[2], [3]], rows(2).reshape(2, 1, 4))], lr=0.1)
    both = [("one", [1]), ("two", [2, 3])]
    assert listener.taken() == [
        *before,
        ("visited", both),
        ("asked to change", both),
        ("changed", both),
    ]
    with pytest.raises(KeyRangeError):
        two.get([10])
    assert listener.taken() == before  # a verb that failed has visited nothing
    assert store._listeners.remove(listener)
    assert not store._listeners.remove(listener)
    one.get(keys)
    assert listener.taken() == []
    store.commit(2)
    store.close()


def test_what_a_listener_raises_before_a_verb_is_raised_by_it(store: embedrock.Store) -> None:
    class Failing(Listener):
        def before(self) -> None:
            raise ZeroDivisionError

    table = store.table("ads", 4)
    failing = Failing()
    store._listeners.add(failing)
    for verb in (lambda: table.put([1], rows(1)), lambda: store.commit(1)):
        with pytest.raises(ZeroDivisionError):
            verb()
    store._listeners.remove(failing)
    assert len(table) == 0 and store.step is None


@pytest.mark.parametrize("fails", [False, True])
def test_verbs_work_while_a_store_closes_and_counters_until_all_are_over(
    store: embedrock.Store, fails: bool
) -> None:
    class Failing(Noting):
        def closing(self) -> None:
            super().closing()
            raise ZeroDivisionError

    table = store.table("ads", 4)
    store.commit(1)
    listeners = [(Failing if fails else Noting)(store), Noting(store)]
    for listener in listeners:
        store._listeners.add(listener)
    if fails:
        with pytest.raises(ZeroDivisionError):
            store.close()
    else:
        store.close()
    assert store.closed
    moments = [moment for moment, _ in listeners[0].heard]
    assert moments[0] == "closing" and moments[-1] == "ended"
    assert moments.count("closing") == moments.count("ended") == 1
    assert listeners[1].heard[-1] == ("ended", [])
    with pytest.raises(ClosedError):
        table.get([1])


def test_a_reader_tells_before_it_moves_to_another_commit(store: embedrock.Store) -> None:
    table = store.table("ads", 4)
    store.commit(1)
    with embedrock.open(store.path, memory="1MiB", read_only=True) as reader:
        listener = Noting(reader)
        reader._listeners.add(listener)
        table.put([1], rows(1))
        store.commit(2)
        reader.refresh()
        assert listener.heard == [("refreshing", [])]
        assert reader.step == 2
    store.close()
