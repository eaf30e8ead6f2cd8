"""Arguments that a caller changes while a verb runs: any of their values may count, and nothing
breaks.

A thread writes over keys, rows or the array to fill, in place, while the engine works on them
without the interpreter lock.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import KeyRangeError, MisuseError, NonFiniteError
from rows import numbered

ROWS = 20_000
TARGETED = 10_000
"""Keys below it are read and written by the verbs, those from it on by nobody."""
CALLS = 60


@pytest.fixture(params=["dense", "growing"])
def numbered_table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[embedrock.Table]:
    """A table whose rows do not all fit the memory."""
    rows = ROWS if request.param == "dense" else None
    with embedrock.open(tmp_path / "s", "1.5MiB", max_disk_bytes=100 << 20) as store:
        table = store.table("t", 16, rows, optimizer="adagrad", initializer=0.0)
        keys = np.arange(ROWS)
        table.put(keys, numbered(keys, 16))
        store.commit(1)
        yield table
        store.commit(2)


@pytest.fixture
def scribbled() -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Starts a thread that writes one of the given contents after the other over an array."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def scribble(array: np.ndarray, contents: np.ndarray) -> None:
        while not ended.is_set():
            for content in contents:
                array[:] = content

    def start(array: np.ndarray, contents: np.ndarray) -> None:
        threads.append(threading.Thread(target=scribble, args=(array, contents)))
        threads[-1].start()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield start
    sys.setswitchinterval(before)
    ended.set()
    for thread in threads:
        thread.join()


def keys_in_turn(table: embedrock.Table) -> np.ndarray:
    """Keys that a table has, in several orders, and some that a dense one does not have."""
    random = np.random.default_rng(3)
    contents = random.integers(0, TARGETED, (9, TARGETED))
    if table.num_embeddings is not None:
        contents[3, ::500] = random.integers(ROWS, 2**62, contents[3, ::500].shape)
        contents[7, ::500] = -1
    return contents


def check_untouched(table: embedrock.Table) -> None:
    """Rows that nobody asked for are what they were, and the store takes changes and commits."""
    for begin in range(TARGETED, ROWS, 2000):
        keys = np.arange(begin, begin + 2000)
        np.testing.assert_array_equal(table.get(keys), numbered(keys, 16))
    assert table.contains(np.arange(TARGETED, ROWS)).all()
    table.put([5], np.ones((1, 16), np.float32))
    np.testing.assert_array_equal(table.get([5]), np.ones((1, 16), np.float32))
    table.store.commit(3)


VERBS: dict[str, Callable[[embedrock.Table, np.ndarray], object]] = {
    "get": lambda table, keys: table.get(keys),
    "get of several tables": lambda table, keys: table.store.get([(table, keys), (table, keys)]),
    "put": lambda table, keys: table.put(keys, np.ones((len(keys), 16), np.float32)),
    "update": lambda table, keys: table.update(keys, np.ones((len(keys), 16), np.float32), lr=0.1),
    "modify": lambda table, keys: table.modify(keys, lambda values, state: values + 1),
    "delete": lambda table, keys: table.delete(keys),
    "contains": lambda table, keys: table.contains(keys),
    "lookahead": lambda table, keys: table.lookahead(keys),
    "announce": lambda table, keys: table.store.window.announce({table: keys}),
    "distinct": lambda table, keys: embedrock.distinct(keys),
    "permits": lambda table, keys: table.store.permits().acquire({table: keys}).release(),
}
GROWING_SOON = ("update",)
"""What `make test` tries with a growing table: it reads as `get` does, and writes."""
long = [pytest.mark.long]


# The engine read the caller's memory again after it had checked it: an id that was out of range
# meanwhile ended in a panic, which poisoned the store, or in a false report of damage.
@pytest.mark.parametrize(
    ("numbered_table", "verb"),
    [
        # By day most with the table that refuses ids.
        pytest.param(kind, verb, marks=[] if kind == "dense" or verb in GROWING_SOON else long)
        for kind in ("dense", "growing")
        for verb in VERBS
    ],
    indirect=["numbered_table"],
)
def test_keys_that_change_during_a_verb_break_nothing(
    numbered_table: embedrock.Table,
    scribbled: Callable[[np.ndarray, np.ndarray], None],
    verb: str,
) -> None:
    contents = keys_in_turn(numbered_table)
    keys = contents[0].copy()
    scribbled(keys, contents)
    for _ in range(CALLS):
        with contextlib.suppress(KeyRangeError):
            VERBS[verb](numbered_table, keys)
    numbered_table.store.window.clear()
    check_untouched(numbered_table)


# A gradient or value that is not finite only after the check is stored, like any other.
@pytest.mark.parametrize("verb", ["put", "update", "update clipped"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_that_change_during_a_verb_break_nothing(
    tmp_path: Path, scribbled: Callable[[np.ndarray, np.ndarray], None], verb: str, dtype: str
) -> None:
    with embedrock.open(tmp_path / "s", "1.5MiB", max_disk_bytes=100 << 20) as store:
        tables = {
            kind: store.table(kind, 16, ROWS, optimizer=kind, initializer=0.0, dtype=dtype)
            for kind in ("adagrad", "adam", "ftrl", "rowwise_adagrad")
        }
        every = np.arange(0, 2000)
        untouched = every + 2000
        for table in tables.values():
            table.put(untouched, np.ones((2000, 16), np.float32))
        keys = np.concatenate([every, every[::-1]])
        rows = np.zeros((4000, 16), np.float32)
        contents = np.stack([rows, rows, rows, rows + 1, rows])
        contents[1, ::90] = np.nan
        contents[4, ::90] = np.inf
        scribbled(rows, contents)
        clip = embedrock.Clip(value=1.0, row_norm=1.0, norm=1.0) if "clipped" in verb else None
        for _ in range(CALLS // 3):
            for table in tables.values():
                with contextlib.suppress(NonFiniteError):
                    if verb == "put":
                        table.put(keys, rows)
                    else:
                        table.update(keys, rows, lr=0.1, clip=clip)
        for table in tables.values():
            np.testing.assert_array_equal(table.get(untouched), np.ones((2000, 16), np.float32))
        store.commit(1)


# A resize moved the memory of an array while the engine filled it: a segmentation fault.
@pytest.mark.parametrize(
    "numbered_table", ["dense", pytest.param("growing", marks=long)], indirect=True
)
def test_an_array_that_is_being_filled_is_not_resized(numbered_table: embedrock.Table) -> None:
    keys = np.arange(TARGETED)
    ended = threading.Event()
    current = [np.zeros((TARGETED, 16), np.float32)]

    def resize() -> None:
        while not ended.is_set():
            with contextlib.suppress(ValueError):
                current[0].resize((10 * TARGETED, 16), refcheck=False)

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for _ in range(CALLS):
            out = current[0] = np.zeros((TARGETED, 16), np.float32)
            with contextlib.suppress(MisuseError):  # of an array that was resized before
                numbered_table.get(keys, out=out)
    finally:
        ended.set()
        thread.join()
    check_untouched(numbered_table)


@pytest.mark.parametrize("view", [False, True], ids=["array", "view"])
def test_an_array_that_is_to_be_filled_is_not_resized(
    numbered_table: embedrock.Table, view: bool
) -> None:
    store, keys, gate = numbered_table.store, np.arange(TARGETED), threading.Event()
    numbered_table.lookahead([1], out=np.empty((1, 16), np.float32)).wait()
    core, reading = store._prefetcher.core, threading.Event()

    class Waiting:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def get(self, parts: Any) -> None:
            if parts:
                reading.set()
                gate.wait()
            core.get(parts)

    store._prefetcher.core = Waiting()  # type: ignore[assignment]
    whole = np.zeros((TARGETED, 16), np.float32)
    filling = numbered_table.lookahead(keys, out=whole[:] if view else whole)
    assert reading.wait(60)
    with pytest.raises(ValueError, match="cannot resize"):
        whole.resize((10 * TARGETED, 16), refcheck=False)
    gate.set()
    filling.wait()
    np.testing.assert_array_equal(whole, numbered(keys, 16))


# Two tensors over the same memory are two objects, which know nothing of each other.
@pytest.mark.parametrize("kind", ["torch", "bytearray", "numpy"])
def test_rows_are_not_read_from_what_another_call_fills(
    numbered_table: embedrock.Table, kind: str
) -> None:
    make = {
        "torch": lambda whole: pytest.importorskip("torch").from_numpy(whole),
        "bytearray": lambda whole: np.frombuffer(whole.data.cast("B"), np.float32).reshape(-1, 16),
        "numpy": lambda whole: whole[:],
    }[kind]
    whole = np.zeros((2, 16), np.float32)
    for keys in ([1, 2], np.arange(2)):
        with pytest.raises(MisuseError, match="out overlaps an array that this call"):
            numbered_table.store.get(
                [(numbered_table, keys), (numbered_table, keys)], out=[make(whole), make(whole)]
            )
        with pytest.raises(MisuseError, match="out overlaps an array that this call"):
            numbered_table.store.get(
                [(numbered_table, keys), (numbered_table, [3])],
                out=[make(whole), make(whole[1:])],
            )
    rows = np.zeros((4, 16), np.float32)
    keys = np.arange(8, 12)
    out = make(rows)
    numbered_table.store.get(
        [(numbered_table, keys[:2]), (numbered_table, keys[2:])], out=[out[:2], out[2:]]
    )
    np.testing.assert_array_equal(rows, numbered(keys, 16))


# An array of keys that is filled with rows holds no keys afterwards.
def test_rows_are_not_written_over_their_keys(numbered_table: embedrock.Table) -> None:
    memory = np.zeros(128, np.int64)
    for keys in (memory[8:16], pytest.importorskip("torch").from_numpy(memory)[8:16]):
        with pytest.raises(MisuseError, match="out overlaps an array that this call"):
            numbered_table.get(keys, out=memory.view(np.float32)[: 8 * 16].reshape(8, 16))
    assert not memory.any()


@contextlib.contextmanager
def kept_waiting(table: embedrock.Table, call: Callable[[], object]) -> Iterator[None]:
    """In the block the call is under way on a thread of its own, and has its arrays."""
    begun, left = threading.Event(), threading.Event()

    def wait(values: np.ndarray, state: np.ndarray) -> None:
        begun.set()
        assert left.wait(60)

    def modify() -> None:
        table.modify([0], wait)

    threads = [threading.Thread(target=modify), threading.Thread(target=call)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    try:
        yield
    finally:
        left.set()
        for thread in threads:
            thread.join()


def until_taken(probe: Callable[[], object]) -> str:
    """Error of a call once another thread has the array."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            probe()
        except MisuseError as error:
            return str(error)
        time.sleep(0.001)
    raise AssertionError("nobody takes the array")


def again(call: Callable[[], object]) -> Callable[[], None]:
    """The call, once more as long as a probe has what it wants."""

    def repeated() -> None:
        while True:
            with contextlib.suppress(MisuseError):
                call()
                return

    return repeated


@pytest.fixture
def two_stores(tmp_path: Path) -> Iterator[list[embedrock.Table]]:
    """Tables of two stores: calls of one do not wait for those of the other."""
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(embedrock.open(tmp_path / name, "4MiB", max_disk_bytes=100 << 20))
            for name in "ab"
        ]
        tables = [store.table("t", 4, 100, optimizer="adagrad") for store in stores]
        yield tables
        for store in stores:
            store.commit(1)


def views_of(memory: bytearray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays over the same memory, the second of which knows nothing of the first."""
    views = [np.frombuffer(memory, np.float32).reshape(2, 4) for _ in range(2)]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        views[1] = torch.frombuffer(memory, dtype=torch.float32).reshape(2, 4)
    return views[0], views[1]


@pytest.mark.parametrize("kind", ["bytearray", "torch"])
def test_what_a_thread_fills_is_refused_to_others_by_the_name_of_the_argument(
    two_stores: list[embedrock.Table], kind: str
) -> None:
    busy, table = two_stores
    memory = bytearray(2 * 4 * 4)
    mine, theirs = views_of(memory, kind)
    keys = np.frombuffer(memory, np.int64)[:2]
    ones = np.ones((2, 4), np.float32)
    with kept_waiting(busy, again(lambda: busy.get([1, 2], out=theirs))):
        told = until_taken(lambda: table.get([1, 2], out=mine))
        assert told.startswith("out overlaps an array that this call or another thread is using")
        being_filled = "an array that another call is filling"
        for name, call in {
            "values overlap": lambda: table.put([1, 2], mine),
            "state overlaps": lambda: table.put([1, 2], ones, state=mine),
            "gradients overlap": lambda: table.update([1, 2], mine, lr=0.1),
            "keys overlap": lambda: table.get(keys),
        }.items():
            with pytest.raises(MisuseError, match=f"^{name} {being_filled}"):
                call()
        with pytest.raises(MisuseError, match=f"^gradients overlap {being_filled}"):
            table.store.gradient_norm([(table, [1, 2], mine)])
        assert len(table) == 0
    np.testing.assert_array_equal(mine, busy.get([1, 2]))
    table.put([1, 2], mine)
    np.testing.assert_array_equal(table.get([1, 2]), mine)


@pytest.mark.parametrize("kind", ["bytearray", "torch"])
@pytest.mark.parametrize("verb", ["put", "update"])
def test_what_a_thread_reads_is_read_by_others_and_filled_by_none(
    two_stores: list[embedrock.Table], kind: str, verb: str
) -> None:
    busy, table = two_stores
    mine, theirs = views_of(bytearray(2 * 4 * 4), kind)
    mine[:] = 1.0

    def read() -> None:
        busy.put([1, 2], theirs) if verb == "put" else busy.update([1, 2], theirs, lr=0.1)

    # Probes write to the memory until the thread has it, so they write its present content.
    table.put([1, 2], mine)
    with kept_waiting(busy, again(read)):
        told = until_taken(lambda: table.get([1, 2], out=mine))
        assert told.startswith("out overlaps an array that this call or another thread is using")
        table.put([3, 4], mine)
        table.update([5, 6], mine, lr=0.1)
    np.testing.assert_array_equal(mine, np.ones((2, 4)))
    np.testing.assert_array_equal(table.get([3, 4]), mine)
    if verb == "put":
        np.testing.assert_array_equal(busy.get([1, 2]), mine)
    table.get([3, 4], out=mine)


# Keys are copied at the beginning of a call; their memory stayed taken until its end.
def test_the_memory_of_keys_is_free_while_their_rows_are_read(
    two_stores: list[embedrock.Table],
) -> None:
    busy, table = two_stores
    memory = bytearray(2 * 4 * 4)
    mine, keys = np.frombuffer(memory, np.float32).reshape(2, 4), np.frombuffer(memory, np.int64)
    answer, taken = np.zeros((4, 4), np.float32), np.frombuffer(bytearray(16), np.float32)
    both = [np.empty((4, 4), np.float32), taken.reshape(1, 4)]
    assert keys.shape == (4,)
    with kept_waiting(busy, again(lambda: busy.store.get([(busy, keys), (busy, [1])], out=both))):
        # The call has begun when the memory it fills is taken.
        until_taken(lambda: table.get([1], out=taken[:].reshape(1, 4)))
        table.get([1, 2], out=mine)
        np.testing.assert_array_equal(mine, table.get([1, 2]))
    busy.get(np.zeros(4, np.int64), out=answer)
    np.testing.assert_array_equal(both[0], answer)
