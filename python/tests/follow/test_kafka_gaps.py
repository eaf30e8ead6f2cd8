"""Records that a topic of Kafka has no more, or not yet: deleted, compacted, of transactions."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from brokers import Broker
from embedrock.errors import IoError, NotFoundError, PoisonedError
from embedrock.follow import Kafka, KafkaWriter
from embedrock.follow.message import Next
from topics import (
    DIM,
    SECONDS,
    follow,
    make,
    offsets,
    polled,
    reopened,
    row,
    send,
    soon,
    value_of,
)

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

pytestmark = pytest.mark.long


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "s")
    return tmp_path / "s"


def test_records_that_were_deleted_before_they_were_followed_are_told(
    path: Path, broker: Broker
) -> None:
    url = broker.create("kept", 1)
    send(url, *[(f"rows:{key}".encode(), row(key)) for key in range(10)])
    with reopened(path) as store:
        assert follow(store, url).records == 10
        send(url, *[(f"rows:{key}".encode(), row(key)) for key in range(10, 20)])
        broker.forget("kept", 0, 15)
        said = "begins at offset 15, and the store has followed it to offset 10: records at 5 off"
        with pytest.raises(NotFoundError, match=said):
            follow(store, url)
        assert offsets(store)["0"] == 10
        told: list[str] = []
        assert follow(store, url, skip_lost=True, on_trouble=told.append).records == 5
        assert len(told) == 1 and said in told[0]
        assert [value_of(store, key) for key in (9, 10, 14, 15)] == [9, 0, 0, 15]
    make(path.with_name("new"))
    with reopened(path.with_name("new")) as store:
        with pytest.raises(NotFoundError, match=r"followed it to offset 0: .*; go on with a copy"):
            follow(store, url)
        assert follow(store, url, start="end").records == 0


def test_records_that_are_deleted_while_they_are_followed_are_told(broker: Broker) -> None:
    url = broker.create("deleted", 2)
    send(url, (b"rows:1", row(1)), (b"rows:2", row(2)), (b"rows:3", row(3)))
    broker.forget("deleted", 0, 2)
    told: list[str] = []
    with Kafka(url) as strict, Kafka(url, skip_lost=True, on_trouble=told.append) as lenient:
        for source in (strict, lenient):  # as if they had been there when it was sought
            source._assign({part: Next(0, None) for part in (0, 1)})
        for _ in range(2):
            with pytest.raises(NotFoundError, match=r"begins at offset 2, .*to offset 0: "):
                polled(strict)
        (found,) = polled(lenient)
        assert found.keys.tolist() == [3] and len(told) == 1 and "left out" in told[0]
        assert lenient.position["offsets"]["0"][0] == 3


def test_a_compacted_topic_has_gaps_and_deletes(path: Path, broker: Broker) -> None:
    url = broker.create(
        "compacted",
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.001",
    )
    with KafkaWriter(url) as frames, pytest.raises(IoError, match="a record was not delivered"):
        frames.put("rows", [1], np.ones((1, DIM), np.float32))  # has no key: would be lost
        frames.sync()
    for value in range(1, 6):
        send(url, *[(f"rows:{key}".encode(), row(value)) for key in range(5)])
        time.sleep(0.06)  # the segment ends with the next record
    send(url, (b"rows:0", None), (b"rows:9", row(9)))

    def compacted() -> bool:
        with Kafka(url) as source:
            return sum(record.count for record in polled(source)) < 20

    soon(compacted)
    with reopened(path) as store:
        store.table("rows").put([0], np.ones((1, DIM), np.float32))
        store.commit(6)
        done = follow(store, url)
        assert done.records < 20 and done.lag_records == 0 and offsets(store)["0"] == 27
        assert not store.table("rows").contains([0])[0]
        assert [value_of(store, key) for key in (1, 4, 9)] == [5, 5, 9]


def test_transactions_are_followed_whole_or_not_at_all(path: Path, broker: Broker) -> None:
    url = broker.create("whole", 2)
    ones = np.ones((1, DIM), np.float32)
    with reopened(path) as store:
        with KafkaWriter(url, transactional_id="a") as writer:
            writer.put("rows", [1], ones)
            writer.put("ads", [1], np.ones((1, 8), np.float32))
            writer.sync()
            with (
                pytest.raises(KeyError),
                KafkaWriter(url, transactional_id="b") as aborted,
            ):
                aborted.put("rows", [2], ones)
                aborted._producer.flush(SECONDS)
                raise KeyError
            writer.put("rows", [3], ones)
            writer._producer.flush(SECONDS)
            assert follow(store, url).records == 2
            assert store.table("rows").contains([1, 2, 3]).tolist() == [True, False, False]
            writer.sync()
        assert follow(store, url).records == 1
        assert store.table("rows").contains([1, 2, 3]).tolist() == [True, False, True]
        last = sum(offsets(store).values())
        assert last == 6 + 2  # with the ends of transactions, one that was aborted among them
        assert follow(store, url).commits == 0
        killed = KafkaWriter(url, transactional_id="c")
        killed.put("rows", [4], ones)
        killed._producer.flush(SECONDS)
        with KafkaWriter(url, transactional_id="c") as writer:  # aborts what the other had begun
            writer.put("rows", [5], ones)
        with pytest.raises(IoError, match="topic whole: "):
            killed.sync()
        with pytest.raises(PoisonedError):
            killed.put("rows", [6], ones)
        assert follow(store, url).records == 1
        assert store.table("rows").contains([4, 5]).tolist() == [False, True]
    make(path.with_name("all"))
    with reopened(path.with_name("all")) as store:
        assert follow(store, url, isolation="read_uncommitted").records == 6
        assert store.table("rows").contains([2, 4]).all()
