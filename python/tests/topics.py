"""Topics of Kafka for tests: stores that follow them, and records from clients of two kinds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock.follow import Follower, Kafka, KafkaWriter

ROWS = 3000
SECONDS = 40
DIM = 4


def make(path: Path) -> None:
    with embedrock.open(path, "16MiB") as store:
        store.table("ads", 8, optimizer="adagrad", initializer=0.0)
        store.table("ids", DIM, ROWS, optimizer="adam")
        store.table("rows", DIM, initializer=0.0, optimizer="none")
        store.commit(5)


def reopened(path: Path) -> embedrock.Store:
    return embedrock.open(path, "16MiB", create=False)


def digests(store: embedrock.Store) -> dict[str, int]:
    return {name: table.digest() for name, table in store.tables.items()}


class Both:
    """Writes to a topic and, in the same order, to a store: what a follower's has to become."""

    def __init__(self, url: str, path: Path) -> None:
        make(path)
        self.records = 0
        self.store = reopened(path)
        self.frames = KafkaWriter(url)
        self.plain = producer(url)
        self.topic = self.frames.topic

    def write(self, number: int) -> None:
        """Record ``number``: none of its kinds may be applied twice, or out of order."""
        generator = np.random.default_rng(number)
        keys = generator.integers(0, ROWS, 20)
        self.records += 1
        if number % 5 == 0:
            key, row = int(keys[0]) % 50, generator.standard_normal(DIM).astype("<f4")
            named, value = f"rows:{key}", None if number % 15 == 0 else row.tobytes()
            self.plain.produce(self.topic, value, named, partition=0, on_delivery=delivered)
            self.plain.poll(0)
            if value is None:
                self.store.table("rows").delete([key])
            else:
                self.store.table("rows").put([key], row[None])
            return
        name, dim = (("ads", 8), ("ids", DIM))[number % 2]
        table, rows = self.store.table(name), generator.standard_normal((20, dim))
        if number % 11 == 0:
            self.frames.delete("ads", keys[:3])
            self.store.table("ads").delete(keys[:3])
        elif number % 7 == 0:
            self.frames.put(name, keys, rows.astype(np.float32))
            table.put(keys, rows.astype(np.float32))
        else:
            self.frames.update(name, keys, rows.astype(np.float32), lr=0.1)
            table.update(keys, rows.astype(np.float32), lr=0.1)

    def sync(self) -> None:
        self.frames.sync()
        assert self.plain.flush(SECONDS) == 0

    def close(self) -> dict[str, int]:
        self.sync()
        self.frames.close()
        self.store.commit(6)
        found = digests(self.store)
        self.store.close()
        return found


def producer(url: str, **more: Any) -> Any:
    """A client of another kind, which writes rows one by one."""
    import confluent_kafka

    return confluent_kafka.Producer(
        {"bootstrap.servers": url.split("/")[2], "enable.idempotence": True, "log_level": 0, **more}
    )


def delivered(error: Any, _message: Any) -> None:
    assert error is None, error


def send(url: str, *records: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
    sender, topic = producer(url), url.split("/")[3]
    for key, value in records:
        sender.produce(topic, value, key, partition=partition, on_delivery=delivered)
    assert sender.flush(SECONDS) == 0


def row(value: float, dim: int = DIM) -> bytes:
    return np.full(dim, value, "<f4").tobytes()


def follow(store: embedrock.Store, url: str, **arguments: Any) -> Any:
    of_source = {
        name: arguments.pop(name)
        for name in ("isolation", "skip_lost", "on_trouble")
        if name in arguments
    }
    with Kafka(url, **of_source) as source:
        return Follower(store, source, **{"start": "begin", **arguments}).run(once=True)


def offsets(store: embedrock.Store) -> dict[str, int]:
    told = json.loads(store.state()["follow"])["position"]["offsets"]
    return {part: place[0] for part, place in told.items()}


def value_of(store: embedrock.Store, key: int) -> float:
    return float(store.table("rows").get([key])[0, 0])


def soon(what: Any) -> None:
    until = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def polled(source: Kafka) -> list[Any]:
    found: list[Any] = []
    while not source.at_end():
        found += source.poll()
    return found
