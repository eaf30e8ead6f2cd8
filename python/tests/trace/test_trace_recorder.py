"""The recorder of traces: what is a query, samples, bounded memory, threads and forks."""

from __future__ import annotations

import os
import signal
import threading
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import BudgetWarning, ClosedError, EmbedrockError, MisuseError
from embedrock.trace import Trace, record
from embedrock.trace.arena import Arena
from embedrock.trace.sampling import WHOLE, hashes, limit, marked
from odd import ODD

DIM = 4


def queries(trace: Trace, table: str = "ads") -> list[list[int]]:
    one = trace.tables[table]
    return [one.values[a:b].tolist() for a, b in zip(one.offsets, one.offsets[1:], strict=False)]


def gradients(count: int) -> np.ndarray:
    return np.ones((count, DIM), np.float32)


def test_a_query_is_a_batch_with_each_key_once_in_order(table: embedrock.Table) -> None:
    keys = np.array([7, 3, 7, 2**63])
    with record(table.store) as recorder:
        table.get(keys.astype(np.uint64))
        keys[:] = 1
        table.get([[5], [4]])
        table.get([])
    table.get([99])
    assert queries(recorder.trace()) == [[7, 3, 2**63], [5, 4]]
    assert recorder.stats()["batches"] == 2 and not recorder.running


def test_what_is_read_and_then_updated_is_one_query(table: embedrock.Table) -> None:
    with record(table.store) as recorder:
        table.get([1, 2])
        table.get([3, 4])  # read ahead
        table.update([1, 2], gradients(2), lr=0.1)
        table.update([3, 4], gradients(2), lr=0.1)
        table.update([1, 2], gradients(2), lr=0.1)  # not read before
        table.modify([6], lambda values, state: values + 1)
        table.get([1, 2])
        table.get([1, 2])  # asked for twice
    assert queries(recorder.trace()) == [[1, 2], [3, 4], [1, 2], [6], [1, 2], [1, 2]]


def test_loads_deletes_and_look_ups_are_no_queries(table: embedrock.Table) -> None:
    with record(table.store) as recorder:
        table.put([1, 2, 3], gradients(3))
        table.delete([1])
        table.contains([1, 2])
        list(table.items())
        table.store.commit(1)
    assert recorder.stats()["batches"] == 0
    with pytest.raises(MisuseError, match="the recorder has no query yet, of 0 batches"):
        recorder.trace()


def test_tables_of_a_call_are_one_query(store: embedrock.Store, tmp_path: Path) -> None:
    ads, users = store.table("ads", DIM), store.table("users", DIM)
    unused = store.table("unused", DIM)
    room = np.empty((1, DIM), np.float32)
    with record(store) as recorder:
        store.get([(ads, [1, 2]), (users, [-1])])
        store.get([(users, [5])])
        store.lookahead([(ads, [8]), (unused, [])], [room, room[:0]]).wait()
        recorder.save(tmp_path / "trace.npz")
    trace = Trace.load(tmp_path / "trace.npz")
    assert queries(trace) == [[1, 2], [], [8]]
    assert queries(trace, "users") == [[2**64 - 1], [5], []]
    assert list(trace.tables) == ["ads", "users"]


def test_batches_of_torch_modules_are_queries(store: embedrock.Store) -> None:
    torch = pytest.importorskip("torch")
    embedding = embedrock.nn.Embedding(100, DIM, store=store, name="e", optimizer="sgd")
    optimizer = embedrock.optim.SGD(embedding, lr=0.1)
    batches = [torch.tensor([3, 1, 3]), torch.tensor([4, 5]), torch.tensor([6, 7])]
    expected = [[3, 1], [4, 5], [6, 7]]
    with record(store) as recorder:
        for batch in batches:
            optimizer.zero_grad()
            embedding(batch).sum().backward()
            optimizer.step()
    assert queries(recorder.trace(), "e") == expected


# Rows that the batch before is about to change are read later than the others of their batch.
def test_a_batch_that_a_pipeline_reads_in_parts_is_one_query(store: embedrock.Store) -> None:
    torch = pytest.importorskip("torch")
    embedding = embedrock.nn.Embedding(None, DIM, store=store, name="e", optimizer="sgd")
    optimizer = embedrock.optim.SGD(embedding, lr=0.1)
    keys = [[7, 10 * i, 10 * i + 1] for i in range(1, 7)]
    with record(store) as recorder:
        for batch in embedrock.Pipeline(embedding, map(torch.tensor, keys), overlap=True):
            optimizer.zero_grad()
            embedding(batch).sum().backward()
            optimizer.step()
    assert queries(recorder.trace(), "e") == keys


def test_a_sample_is_by_a_hash_of_the_number_of_the_batch(table: embedrock.Table) -> None:
    found = []
    for _ in range(2):
        with record(table.store, 0.2, seed=5) as recorder:
            for key in range(3000):
                table.get([key, key + 1])
        found.append(recorder.trace())
    chosen = np.flatnonzero(marked(np.arange(3000, dtype=np.uint64), 5, limit(0.2)))
    assert 500 < len(chosen) < 700
    for trace in found:
        assert queries(trace) == [[key, key + 1] for key in chosen.tolist()]
    stats = recorder.stats()
    assert stats["batches"] == 3000 and stats["queries"] == len(chosen)
    assert stats["thinned"] == 0 and stats["rate"] == pytest.approx(0.2)


def test_a_recorder_that_is_full_halves_its_rate_and_says_so(table: embedrock.Table) -> None:
    recorder = record(table.store, 0.5, max_bytes="100kB", seed=3)
    for key in range(4000):
        table.get(np.arange(key, key + 20))
        assert recorder.stats()["bytes"] <= 100_000
    with pytest.warns(
        BudgetWarning, match=r"no room for [\d,]+ of the batches in its sample of 0.5"
    ):
        recorder.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.stop()  # said once
    stats = recorder.stats()
    assert stats["rate"] in (0.5 / 2**n for n in (1, 2, 3))
    below = round(stats["rate"] * WHOLE)
    kept = np.flatnonzero(marked(np.arange(4000, dtype=np.uint64), 3, below))
    # Neither early nor late ones are there more often: it is the sample of that rate.
    assert queries(recorder.trace()) == [list(range(key, key + 20)) for key in kept.tolist()]
    asked = np.count_nonzero(marked(np.arange(4000, dtype=np.uint64), 3, limit(0.5)))
    assert stats["queries"] + stats["thinned"] == asked
    assert stats["keys"] == 20 * stats["queries"] and stats["too_large"] == 0


def test_a_batch_that_cannot_fit_is_counted(table: embedrock.Table) -> None:
    recorder = record(table.store, max_bytes=64 << 10)
    table.get([1, 2])
    table.get(np.arange(9000))
    table.get([3])
    with pytest.warns(BudgetWarning, match="no room for 1 of the batches"):
        recorder.stop()
    assert queries(recorder.trace()) == [[1, 2], [3]]
    assert recorder.stats()["too_large"] == 1


def test_an_arena_is_thinned_out_within_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedrock.trace.arena._BLOCK", 1 << 12)
    monkeypatch.setattr("embedrock.trace.arena._BLOCK_KEYS", 1 << 12)
    random = np.random.default_rng(1)
    tracemalloc.start()
    arena = Arena(1 << 20)
    added: list[tuple[int, list[tuple[int, np.ndarray]]]] = []
    query = 0
    while True:
        sizes = random.integers(1, 30, random.integers(1, 4))
        parts = [(t, random.integers(0, 2**64, n, np.uint64)) for t, n in enumerate(sizes)]
        if not arena.holds(parts):
            break
        arena.add(query, parts)
        added.append((query, parts))
        query += 1
    below = WHOLE
    for _ in range(3):
        below //= 2
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        arena.thin(lambda numbers, below=below: marked(numbers, 9, below))
        assert tracemalloc.get_traced_memory()[1] - before < 250_000
        keep = marked(np.arange(query, dtype=np.uint64), 9, below)
        expected = [(number, parts) for number, parts in added if keep[number]]
        assert arena.queries == len(expected)
        numbers, tables, lengths, keys = arena.contents()
        flat = [(number, table, len(k)) for number, parts in expected for table, k in parts]
        assert list(zip(numbers.tolist(), tables.tolist(), lengths.tolist(), strict=True)) == flat
        np.testing.assert_array_equal(keys, np.concatenate([k for _, p in expected for _, k in p]))
        assert arena.keys == len(keys) and arena.nbytes == 8 * (len(keys) + 2 * len(flat))
    tracemalloc.stop()


def test_queries_that_overtake_each_other_are_put_in_order() -> None:
    arena = Arena(1 << 10)
    for query, keys in [(2, [5, 6]), (0, [1]), (3, [9]), (1, [2, 3, 4])]:
        arena.add(query, [(0, np.array(keys, np.uint64))])
    numbers, _, lengths, keys = arena.contents()
    assert numbers.tolist() == [0, 1, 2, 3]
    assert lengths.tolist() == [1, 3, 2, 1]
    assert keys.tolist() == [1, 2, 3, 4, 5, 6, 9]


def test_verbs_of_several_threads_are_recorded_whole(table: embedrock.Table) -> None:
    def ask(first: int) -> None:
        for key in range(first, first + 300):
            table.get([key, 10_000 + key, 20_000 + key])

    with record(table.store) as recorder:
        threads = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = queries(recorder.trace())
    expected = [
        [k, 10_000 + k, 20_000 + k] for n in range(4) for k in range(1000 * n, 1000 * n + 300)
    ]
    assert sorted(found) == expected


def test_a_store_that_is_closed_ends_its_recorder(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", "16MiB")
    recorder = record(store)
    store.table("ads", DIM).get([1])
    assert recorder.running and "1 of 1 batches, running" in repr(recorder)
    store.commit(1)
    store.close()
    assert not recorder.running
    assert queries(recorder.trace()) == [[1]]
    recorder.stop()
    with pytest.raises(ClosedError):
        record(store)


def test_a_recorder_keeps_no_store_open(tmp_path: Path) -> None:
    store = embedrock.open(tmp_path / "s", "16MiB")
    store.commit(1)
    recorder = record(store)
    del store
    with embedrock.open(tmp_path / "s", "16MiB") as again:
        assert again.step == 1
    assert not recorder.running


def test_a_forked_child_has_no_recorder_and_waits_for_no_lock(table: embedrock.Table) -> None:
    recorder = record(table.store)
    table.get([1])
    with recorder._sampler._lock:  # as a thread of the parent may hold it at the fork
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            said = []
            try:
                for work in (recorder.stop, recorder.stats, recorder.trace, lambda: repr(recorder)):
                    try:
                        said.append(type(work()).__name__)
                    except EmbedrockError as error:
                        said.append(type(error).__name__)
                said.append(str(recorder.running))
            finally:
                os.write(writer, " ".join(said).encode())
                os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == "NoneType ForkedError ForkedError str False"
    os.waitpid(child, 0)
    assert recorder.running
    recorder.stop()


def test_odd_arguments_are_refused(store: embedrock.Store) -> None:
    for size, said in [
        (1000, "max_bytes is 1000, expected 65536 or more"),
        ("10%", "max_bytes is '10%', expected bytes"),
        ("lots", "max_bytes is 'lots', expected bytes"),
        (1.5, "max_bytes is 1.5, expected a whole number"),
        (2**63, "max_bytes is 9,223,372,036,854,775,808, which this machine cannot give"),
    ]:
        with pytest.raises(MisuseError, match=said):
            record(store, max_bytes=size)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="sample is 0, expected a share: more than 0, 1 at most"):
        record(store, 0)
    with pytest.raises(MisuseError, match=r"store is 'path', expected an embedrock.Store"):
        record("path")  # type: ignore[arg-type]
    for title, odd in ODD.items():
        for name in ("store", "sample", "max_bytes", "seed"):
            given = {"store": store, name: odd()}
            try:
                record(**given).stop()
            except EmbedrockError as error:
                assert str(error), title
            except Exception as error:
                assert str(error).startswith("of __"), f"{name} = {title}: {error!r}"
    assert len(store._listeners) == 0


def test_hashes_of_a_seed_are_one_to_one() -> None:
    numbers = np.arange(100_000, dtype=np.uint64)
    one, other = hashes(numbers, 0), hashes(numbers, 1)
    assert len(np.unique(one)) == len(numbers)
    assert not (one == other).any()
    shares = [np.count_nonzero(marked(numbers, 0, limit(share))) for share in (0.01, 0.5)]
    assert shares[0] == pytest.approx(1000, rel=0.15) and shares[1] == pytest.approx(
        50_000, rel=0.02
    )
