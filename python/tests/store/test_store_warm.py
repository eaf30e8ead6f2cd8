"""Filling the cache from storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embedrock
from rows import numbered

DENSE, GROWING, DIM = 30_000, 5_000, 8


def growing_keys() -> np.ndarray:
    return np.arange(GROWING, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of two classes; a third of the dense rows was written twice."""
    path = tmp_path / "store"
    with embedrock.open(path, "4MiB", page_bytes=4096) as store:  # however fast the device is
        dense = store.table("dense", DIM, DENSE, optimizer="none")
        ids = np.arange(DENSE)
        dense.put(ids, values_of(ids, DIM))
        dense.put(ids[::3], values_of(ids[::3], DIM, version=1))
        growing = store.table("growing", DIM, expected_rows=4 * GROWING, optimizer="adagrad")
        growing.put(growing_keys(), values_of(growing_keys(), DIM))
        growing.delete(growing_keys()[:100])
        store.commit(1)
    return path


def values_of(ids: np.ndarray, dim: int, version: int = 0) -> np.ndarray:
    return numbered(ids, dim) + np.float32(version / 4)


def expected(ids: np.ndarray) -> np.ndarray:
    return np.where((ids % 3 == 0)[:, None], values_of(ids, DIM, version=1), values_of(ids, DIM))


def test_a_warm_store_reads_nothing(path: Path) -> None:
    with embedrock.open(path, "64MiB", create=False) as store:
        dense, growing = store.table("dense"), store.table("growing")
        assert store.warm() == DENSE + GROWING - 100
        assert store.warm() == 0
        before = store.stats()
        assert sum(one["resident_rows"] for one in before["classes"]) == DENSE + GROWING - 100
        ids = np.arange(DENSE)
        assert np.array_equal(dense.get(ids), expected(ids))
        keys = growing_keys()[100:]
        assert np.array_equal(growing.get(keys), values_of(keys, DIM))
        assert store.stats()["read_requests"] == before["read_requests"]


def test_the_last_rows_find_room_in_a_cache_that_is_nearly_full(tmp_path: Path) -> None:
    # Three rows to a page and 2,048 pages at a time: 98 % of the rows are there before the last.
    ids = np.arange(20 * 3 * 2048 + 1000)
    with embedrock.open(tmp_path / "store", "256MiB", page_bytes=512) as store:
        store.table("rows", 32, len(ids), optimizer="none").put(ids, values_of(ids, 32))
        store.commit(1)
    with embedrock.open(tmp_path / "store", "256MiB", create=False) as store:
        assert store.warm() == len(ids)
        assert store.stats()["classes"][0]["resident_rows"] == len(ids)


def test_rows_that_changed_since_they_were_stored_stay_as_they_are(path: Path) -> None:
    with embedrock.open(path, "64MiB", create=False) as store:
        dense = store.table("dense")
        ids = np.arange(0, DENSE, 7)
        dense.put(ids, values_of(ids, DIM, version=2))
        loaded = store.warm()
        assert loaded == DENSE - len(ids) + GROWING - 100
        assert np.array_equal(dense.get(ids), values_of(ids, DIM, version=2))
        store.commit(2)
    with embedrock.open(path, "64MiB", create=False) as store:
        assert np.array_equal(store.table("dense").get(ids), values_of(ids, DIM, version=2))


def test_it_ends_when_memory_is_full(path: Path) -> None:
    with embedrock.open(path, "1MiB", create=False) as store:
        loaded, facts = store.warm(), store.stats()
        capacity = sum(one["cache_capacity"] for one in facts["classes"])
        resident = sum(one["resident_rows"] for one in facts["classes"])
        assert 0.9 * capacity < resident <= capacity < DENSE
        assert loaded == resident and facts["evicted"] == 0
        ids = np.arange(DENSE)
        assert np.array_equal(store.table("dense").get(ids), expected(ids))


def test_rows_in_memory_stay_there(path: Path) -> None:
    with embedrock.open(path, "1MiB", create=False) as store:
        dense = store.table("dense")
        last = np.arange(DENSE - 2000, DENSE)
        assert np.array_equal(dense.get(last), expected(last))
        before = store.stats()
        assert store.warm() > 0
        reads = store.stats()["read_requests"]
        assert np.array_equal(dense.get(last), expected(last))
        after = store.stats()
        assert after["read_requests"] == reads > before["read_requests"]
        assert after["evicted"] == before["evicted"]


def test_a_damaged_page_is_named(path: Path) -> None:
    file = next(path.glob("rows-0"))
    content = bytearray(file.read_bytes())
    for at in range(5000, len(content), 4096):
        content[at] ^= 0x10
    file.write_bytes(content)
    with (
        embedrock.open(path, "64MiB", create=False) as store,
        pytest.raises(embedrock.errors.CorruptError, match="rows-0"),
    ):
        store.warm()


def test_a_reader_of_a_commit_can_be_warmed(path: Path) -> None:
    with embedrock.open(path, "64MiB", create=False, read_only=True) as reader:
        assert reader.warm() == DENSE + GROWING - 100
        ids = np.arange(DENSE)
        assert np.array_equal(reader.table("dense").get(ids), expected(ids))
