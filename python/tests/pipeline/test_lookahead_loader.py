"""``LookaheadLoader``: what is announced when, in which order, and what ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import LookaheadLoader
from embedrock.errors import ClosedError, KeyRangeError, MisuseError
from embedrock.pipeline.announcing import Announcing
from windows import RecordingWindow


@pytest.fixture
def window(store: embedrock.Store, monkeypatch: pytest.MonkeyPatch) -> RecordingWindow:
    window = RecordingWindow()
    monkeypatch.setattr(embedrock.Store, "window", window, raising=False)
    store.table("ads", 4, optimizer="sgd", initializer=0.0)
    return window


def announcing(
    given: Any, store: embedrock.Store, depth: int = 512, keys_of: Any = None
) -> LookaheadLoader[Any]:
    """A loader that announces every batch, whether that pays or not."""
    return LookaheadLoader(given, store, depth, keys_of or by_name, announce=True)


def by_name(batch: Any) -> dict[str, Any]:
    return {"ads": batch}


def batches(count: int) -> list[Any]:
    return [np.array([i, i + 1]) for i in range(count)]


def values(drawn: Any) -> list[list[int]]:
    return [batch.tolist() for batch in drawn]


def test_batches_come_as_they_are_and_in_order(store: embedrock.Store, window: Any) -> None:
    given = batches(20)
    loader = announcing(given, store, depth=3, keys_of=by_name)
    assert all(a is b for a, b in zip(loader, given, strict=True))
    assert all(a is b for a, b in zip(loader, given, strict=True))  # a second pass
    counts = {"handed_out": 20, "announced": 20, "refused": 0, "skipped": 0}
    assert loader.stats() == {**counts, "resident": 0, "set_aside": 0, "scheduled": 0}
    assert len(loader) == 20


def test_depth_batches_are_announced_behind_the_one_in_hand(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    drawn: list[int] = []

    def source() -> Iterator[Any]:
        for i in range(10):
            drawn.append(i)
            yield np.array([i])

    loader = iter(announcing(source(), store, depth=3, keys_of=by_name))
    for turn in range(10):
        assert next(loader).tolist() == [turn]
        assert drawn[-1] == min(turn + 3, 9)
        assert window.open_numbers == list(range(turn + 1, min(turn + 4, 10) + 1))
        assert window.announced[turn + 1] == {"ads": [turn]}
        assert window.calls.count(("begin", turn + 1)) == 1
    assert list(loader) == []
    assert window.open_numbers == []


def test_a_batch_is_begun_before_and_finished_after_its_use(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    calls = [c for _ in announcing(batches(3), store, 1, by_name) for c in [len(window.calls)]]
    kinds = [kind for kind, _ in window.calls]
    # announce 1, announce 2, begin 1 | finish 1, announce 3, begin 2 | finish 2, begin 3 | ...
    assert calls == [3, 6, 8]
    turns = ["announce", "announce", "begin", "finish", "announce", "begin"]
    assert kinds == [*turns, "finish", "begin", "finish", "clear"]


def test_a_deep_lookahead_does_not_keep_the_first_batch_waiting(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    drawn = 0

    def source() -> Iterator[Any]:
        nonlocal drawn
        for i in range(2000):
            drawn += 1
            yield np.array([i])

    loader = iter(announcing(source(), store, depth=512, keys_of=by_name))
    next(loader)
    assert drawn < 100
    for _ in range(60):
        next(loader)
    assert drawn == 61 + 512


def test_what_the_window_refuses_is_announced_later(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    window.room = 2
    drawn: list[int] = []

    def source() -> Iterator[Any]:
        for i in range(8):
            drawn.append(i)
            yield np.array([i])

    loader = announcing(source(), store, depth=512, keys_of=by_name)
    for turn, batch in enumerate(loader):
        assert batch.tolist() == [turn]
        assert len(drawn) <= turn + 3  # two announced, one waits
    assert loader.stats()["announced"] == 8
    assert loader.stats()["refused"] > 0


def test_a_batch_that_was_never_announced_is_handed_out_all_the_same(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    window.room = 0
    loader = announcing(batches(5), store, keys_of=by_name)
    assert values(loader) == values(batches(5))
    assert loader.stats()["announced"] == 0
    assert {kind for kind, _ in window.calls} == {"refuse", "clear"}


def test_a_break_forgets_what_is_announced(store: embedrock.Store, window: RecordingWindow) -> None:
    for _ in announcing(batches(9), store, keys_of=by_name):
        break
    assert window.open_numbers == []
    assert window.calls[-1] == ("clear", 0)


def test_an_exception_in_the_loop_forgets_what_is_announced(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    loader = announcing(batches(9), store, keys_of=by_name)
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError
    loader.close()  # the exception may still hold the loop's frame
    assert window.open_numbers == []
    assert values(loader) == values(batches(9))


def test_a_new_pass_ends_the_one_before(store: embedrock.Store, window: RecordingWindow) -> None:
    loader = announcing(batches(4), store, keys_of=by_name)
    first = iter(loader)
    next(first)
    assert values(loader) == values(batches(4))
    assert list(first) == []


def test_what_the_loader_raises_comes_in_its_batchs_place(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    def source() -> Iterator[Any]:
        yield from batches(3)
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    seen = []
    with pytest.raises(RuntimeError, match="worker"):
        for batch in announcing(source(), store, keys_of=by_name):
            seen.append(batch.tolist())
    assert seen == values(batches(3))
    assert window.calls[-1] == ("clear", 0)


def test_ctrl_c_while_drawing_is_raised_at_once(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    def source() -> Iterator[Any]:
        yield from batches(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(iter(announcing(source(), store, keys_of=by_name)))
    assert window.open_numbers == []


def test_wrong_keys_are_an_error_of_their_batch(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    given = [*batches(2), np.array([0.5])]
    loader = iter(announcing(given, store, keys_of=by_name))
    assert [next(loader).tolist() for _ in range(2)] == values(batches(2))
    with pytest.raises(MisuseError, match="keys of table 'ads' are float64"):
        next(loader)


def test_keys_that_a_window_refuses_for_good_are_an_error_of_their_batch(
    store: embedrock.Store, window: RecordingWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce = window.announce

    def strict(batch: Any, *, schedule: Any = None) -> int | None:
        if any((keys > 2).any() for keys in batch.values()):
            raise KeyRangeError("keys[0] is 3")
        return announce(batch)

    monkeypatch.setattr(window, "announce", strict)
    loader = iter(announcing(batches(5), store, keys_of=by_name))
    assert [next(loader).tolist() for _ in range(2)] == [[0, 1], [1, 2]]
    with pytest.raises(KeyRangeError):
        next(loader)


def test_a_loader_that_reuses_its_memory_is_told(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    def source() -> Iterator[Any]:
        batch = np.empty(2, np.int64)
        for i in range(5):
            batch[:] = i, i + 7
            yield batch

    with pytest.raises(MisuseError, match="batch 0 of the pass are others"):
        next(iter(announcing(source(), store, keys_of=by_name)))


def test_so_is_one_that_only_changes_the_order(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    batch = np.array([1, 2, 1 << 40, 1 << 63], np.uint64)

    def source() -> Iterator[Any]:
        for _ in range(3):
            batch[:] = batch[[1, 0, 3, 2]]
            yield batch

    given = iter(announcing(source(), store, depth=1, keys_of=by_name))
    with pytest.raises(MisuseError, match="batch 0 of the pass are others"):
        next(given)


def test_batches_that_the_window_passes_over_are_counted_by_pass(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    loader = announcing(batches(9), store, keys_of=by_name)
    for batch in loader:
        window.passed_over += 1
        assert loader.stats()["skipped"] == batch[0] + 1
    window.passed_over += 7
    assert loader.stats()["skipped"] == 9
    next(iter(loader))
    assert loader.stats()["skipped"] == 0


def test_batches_that_are_let_go_are_announced_again_before_others(
    store: embedrock.Store, window: RecordingWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a trial of the plain loop as many batches came unannounced as had been drawn before.
    ways = iter([True] * 4 + [False] * 3 + [True] * 20)

    def turns(self: Announcing, *_: Any) -> None:
        self.announce = next(ways)

    monkeypatch.setattr(Announcing, "step", turns)
    loader = LookaheadLoader(batches(20), store, 5, by_name)
    announced = []
    for at, batch in enumerate(loader):
        assert batch[0] == at
        announced.append([keys["ads"][0] for keys in window.announced.values()])
        assert announced[-1][:1] in ([batch[0]], [])
    # The first one is before any measurement.
    assert announced[0] == announced[5] == announced[7] == []
    assert announced[4] == [4, 5, 6, 7, 8, 9]
    assert announced[8] == [8, 9, 10, 11, 12, 13]
    counts = loader.stats()
    assert counts["announced"] + counts["resident"] == counts["handed_out"] == 20


@pytest.mark.parametrize("keys_of", [lambda batch: [batch], lambda batch: {5: batch}])
def test_a_keys_of_that_gives_no_mapping_of_tables_is_refused(
    store: embedrock.Store, window: RecordingWindow, keys_of: Any
) -> None:
    with pytest.raises(MisuseError, match=r"keys_of (returned list|named 5), expected"):
        next(iter(announcing(batches(1), store, keys_of=keys_of)))


# The error came once announcing was tried first: for a table that fits into memory, hours later.
@pytest.mark.parametrize("announce", [None, False, True])
def test_a_keys_of_that_does_not_fit_is_an_error_of_the_first_batch(
    store: embedrock.Store, window: RecordingWindow, announce: bool | None
) -> None:
    given = [(batch, "label") for batch in batches(3)]
    loader = LookaheadLoader(
        given, store, keys_of=lambda batch: {"ads": batch["ads"]}, announce=announce
    )
    for _ in range(2):  # and so is every pass
        taken = iter(loader)
        with pytest.raises(TypeError, match="indices must be integers"):
            next(taken)
        assert list(taken) == [] and loader.stats()["handed_out"] == 0


def test_its_repr_says_what_it_wraps_and_whether_it_is_announcing(
    store: embedrock.Store, window: RecordingWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "<embedrock.LookaheadLoader of list, depth=3, {}>"
    loader = LookaheadLoader(batches(9), store, 3, by_name)
    assert repr(loader) == said.format("resting")
    monkeypatch.setattr(Announcing, "step", lambda self, *_: setattr(self, "announce", True))
    taken = iter(loader)
    next(taken)
    assert repr(loader) == said.format("resting")  # no step is over that could be measured
    next(taken)
    assert repr(loader) == said.format("announcing")
    assert repr(announcing(batches(1), store, 3)) == said.format("announcing")
    never = LookaheadLoader(batches(1), store, 3, by_name, announce=False)
    assert repr(never) == said.format("resting")


def test_bad_arguments_are_refused(store: embedrock.Store, window: RecordingWindow) -> None:
    with pytest.raises(MisuseError, match="loader is 3, expected an iterable of batches"):
        LookaheadLoader(3, store, keys_of=by_name)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="depth is True, expected a whole number"):
        LookaheadLoader([], store, depth=True, keys_of=by_name)
    with pytest.raises(MisuseError, match="depth is 0"):
        LookaheadLoader([], store, depth=0, keys_of=by_name)
    with pytest.raises(MisuseError, match="keys_of is None, and a store does not know"):
        LookaheadLoader([], store)
    with pytest.raises(MisuseError, match="announce is 1, expected True, False or None"):
        LookaheadLoader([], store, keys_of=by_name, announce=1)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="keys_of is 5"):
        LookaheadLoader([], store, keys_of=5)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="model is list, expected"):
        LookaheadLoader([], [], keys_of=by_name)
    store.close()
    with pytest.raises(ClosedError):
        LookaheadLoader([], store, keys_of=by_name)


def test_a_table_of_another_store_is_refused(
    store: embedrock.Store, window: RecordingWindow, tmp_path: Any
) -> None:
    with embedrock.open(tmp_path / "other", memory="64MiB") as other:
        table = other.table("ads", 4)
        loader = announcing(batches(1), store, keys_of=lambda batch: {table: batch})
        with pytest.raises(MisuseError, match="of another store"):
            next(iter(loader))


class Counting:
    """A loader that tells its position."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.count:
            self.at += 1
            yield np.array([self.at - 1])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_the_position_is_that_of_the_batch_in_hand(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    inner = Counting(9)
    loader = announcing(inner, store, depth=4, keys_of=by_name)
    assert loader.state_dict() == {"at": 0}
    for batch in loader:
        assert loader.state_dict() == {"at": int(batch[0]) + 1}
        if batch[0] == 3:
            saved = loader.state_dict()
            break
    assert inner.at == 8
    assert loader.state_dict() == saved == {"at": 4}  # without the batches drawn ahead
    loader.load_state_dict(saved)
    assert values(loader) == [[4], [5], [6], [7], [8]]
    assert loader.state_dict() == {"at": 9}
    inner.at = 2
    assert loader.state_dict() == {"at": 2}  # after a whole pass, and a load, it is the loader's
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            1 // (5 - batch[0].item())
    assert loader.state_dict() == {"at": 6}
    loader.close()
    assert loader.state_dict() == {"at": 6}
    with pytest.raises(MisuseError, match="list, has no state_dict"):
        announcing([], store, keys_of=by_name).state_dict()


def test_a_forked_child_leaves_the_window_alone(
    store: embedrock.Store, window: RecordingWindow
) -> None:
    loader = announcing(batches(9), store, keys_of=by_name)
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        loader.close()
        del iterator
        os._exit(0 if ("clear", 0) not in window.calls else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
