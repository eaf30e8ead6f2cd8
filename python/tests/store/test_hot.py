"""Hot sets: what a client finds by sampling, what it costs, and what the server does with it."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import ClosedError, IoError, KeyRangeError, MisuseError
from embedrock.remote.hot import Counts, Sampler
from servers import serving

ROWS = 20_000


def zipf(random: np.random.Generator, count: int, scale: int = ROWS) -> np.ndarray:
    """Keys of which few are asked for often; which ones, says their order."""
    weights = 1 / np.arange(1, scale + 1)
    return random.choice(scale, count, p=weights / weights.sum()).astype(np.uint64)


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "embedrock-hot"]


def test_counts_are_within_their_error_and_no_frequent_key_is_missing() -> None:
    random, counts, true, seen = np.random.default_rng(3), Counts(200), np.zeros(ROWS), 0
    for _ in range(50):
        keys = zipf(random, 2000)
        counts.add(keys)
        true += np.bincount(keys.astype(np.int64), minlength=ROWS)
        seen += len(keys)
        assert len(counts.keys) == len(counts.counts) <= 200
    error = seen / 201
    told = dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True))
    for key in range(ROWS):
        assert true[key] - error <= told.get(key, 0) <= true[key]
    assert counts.hot(10).tolist() == np.argsort(-true, kind="stable")[:10].tolist()


def test_what_was_hot_leaves_and_what_came_once_is_not_hot() -> None:
    counts = Counts(100)
    counts.add(np.repeat(np.arange(10, dtype=np.uint64), 64))
    counts.add(np.array([77], np.uint64))
    assert sorted(counts.hot()) == list(range(10))
    for _ in range(6):
        counts.fade()
        counts.add(np.repeat(np.arange(20, 25, dtype=np.uint64), 50))
    assert set(counts.hot(5)) == set(range(20, 25))
    assert len(counts.hot()) == 5
    for _ in range(10):
        counts.fade()
    assert len(counts.keys) == 0


@pytest.fixture
def sent() -> Iterator[tuple[Sampler, list[tuple[bytes, np.ndarray]]]]:
    found: list[tuple[bytes, np.ndarray]] = []
    sampler = Sampler(3600, lambda table, keys: found.append((table, keys)))
    yield sampler, found
    sampler.close()


def test_one_pull_of_sixteen_finds_the_hot_keys_of_each_table(
    sent: tuple[Sampler, list[tuple[bytes, np.ndarray]]],
) -> None:
    (sampler, found), random = sent, np.random.default_rng(5)
    for _ in range(1500):
        sampler.look(b"user", zipf(random, 100))
        sampler.look(b"item", zipf(random, 50) + 50_000)
    sampler.send()
    hot = dict(found)
    assert set(hot) == {b"user", b"item"}
    for table, first in ((b"user", 0), (b"item", 50_000)):
        assert set(hot[table][:8].tolist()) <= set(range(first, first + 20))
        assert 50 < len(hot[table]) <= 4096
    kept = sampler._rounds[b"user"]
    looked = sum(len(round_.copies) for round_ in sampler._rounds.values())
    assert (looked, kept.keys) == (0, 0), "copies are counted once"
    sampler.send()
    assert len(found) == 2, "nobody has asked since"


def test_what_is_kept_of_a_round_is_bounded(
    sent: tuple[Sampler, list[tuple[bytes, np.ndarray]]],
) -> None:
    sampler, _ = sent
    keys = np.arange(200_000, dtype=np.uint64)
    for _ in range(200):
        sampler.look(b"user", keys)
    kept = sampler._rounds[b"user"]
    assert 40_000 < sum(map(len, kept.copies)) == kept.keys <= 1 << 16
    sampler.look(b"user", keys[:0])
    sampler.send()
    assert len(kept.counts.keys) <= 1 << 14


def test_a_set_that_is_not_sent_warns_once_and_a_refusal_ends_it() -> None:
    def fail(error: Exception) -> int:
        def send(_table: bytes, _keys: np.ndarray) -> None:
            calls.append(1)
            raise error

        calls: list[int] = []
        sampler = Sampler(3600, send)
        for _ in range(3):
            for _ in range(40):
                sampler.look(b"user", np.zeros(10, np.uint64))
            sampler.send()
        sampler.close()
        return len(calls)

    with pytest.warns(UserWarning, match="hot set of table 'user' was not sent: away") as said:
        assert fail(IoError("away")) == 3
    assert len(said) == 1
    with pytest.warns(UserWarning, match="READONLY"):
        assert fail(MisuseError("READONLY")) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        closed = Sampler(3600, lambda *_: None)
        closed.look(b"user", np.zeros(3, np.uint64))
        closed._send = lambda *_: closed.close() or fail_closed()
        closed.send()


def fail_closed() -> None:
    raise ClosedError("closed meanwhile")


def test_the_thread_ends_with_the_last_who_has_the_sampler() -> None:
    sampler = Sampler(0.02, lambda *_: None)
    sampler.look(b"user", np.zeros(3, np.uint64))
    thread = sampler._thread
    assert thread is not None and thread in threads()
    del sampler
    gc.collect()
    until("it ends", lambda: not thread.is_alive())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "hot.store"
    with embedrock.open(path, "16MiB") as store:
        user = store.table("user", 16, ROWS, optimizer="sgd", initializer=0.0)
        keys = np.arange(ROWS)
        user.put(keys, np.repeat(keys.astype(np.float32)[:, None], 16, axis=1))
        store.commit(step=1)
    return path


def counter(url: str, name: str) -> int:
    text = urllib.request.urlopen(url, timeout=20).read().decode()
    line = next(line for line in text.splitlines() if line.startswith(f"embedrock_{name}_total "))
    return int(float(line.split()[1]))


def test_a_client_that_samples_has_its_hot_rows_brought_into_memory(store: Path) -> None:
    random = np.random.default_rng(11)
    with serving(store, "--metrics", "127.0.0.1:0", "--memory", "16MiB") as served:
        assert served.process.stdout is not None
        url = served.process.stdout.readline().split()[-1]
        with embedrock.connect(served.url) as remote:
            remote["user"].promote([3, 1, 4])
            until("three rows come", lambda: counter(url, "rows_promoted") == 3)
            assert counter(url, "rows_read") == counter(url, "store_misses") == 0
            assert remote["user"].get([3, 1, 4])[:, 0].tolist() == [3, 1, 4]
            assert counter(url, "store_misses") == 0
            with pytest.raises(KeyRangeError):
                remote["user"].promote([ROWS])
            with pytest.raises(MisuseError, match="at most 65536"):
                remote["user"].promote(np.zeros(65_537, np.int64))
        with embedrock.connect(served.url, sample=0.1) as remote:
            user = remote["user"]

            def has_sent() -> bool:
                user.get(zipf(random, 500))
                return sets(url) > 3

            until("sets are sent", has_sent)
            assert counter(url, "hot_failures") == 0 < counter(url, "rows_promoted")
        until("its thread ends", lambda: not threads())
        served.stop()


def sets(url: str) -> int:
    text = urllib.request.urlopen(url, timeout=20).read().decode()
    found = [line for line in text.splitlines() if 'command="emb.hot"' in line]
    return int(float(found[0].split()[1])) if found else 0


def test_a_forked_child_samples_by_itself(
    sent: tuple[Sampler, list[tuple[bytes, np.ndarray]]],
) -> None:
    sampler, _ = sent
    sampler.look(b"user", np.zeros(3, np.uint64))
    pipe, other = multiprocessing.Pipe()

    def child() -> None:
        for _ in range(40):
            sampler.look(b"user", np.full(3, 9, np.uint64))
        other.send((len(threads()), [r.copies[0].tolist() for r in sampler._rounds.values()][:1]))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert pipe.poll(20)
    count, copies = pipe.recv()
    process.join(20)
    assert count == 1 and copies == [[9, 9, 9]]


@pytest.mark.parametrize("sample", [0, -1, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(sample: float) -> None:
    with pytest.raises(MisuseError, match=r"sample is .*, expected seconds above 0"):
        embedrock.connect("redis://127.0.0.1:1", sample=sample)
