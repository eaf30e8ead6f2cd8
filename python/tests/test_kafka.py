"""A topic of Kafka is followed: each record exactly once, with a broker that runs beside it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from brokers import Broker
from embedrock.cli import main
from embedrock.errors import (
    ClosedError,
    CorruptError,
    IoError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
    PoisonedError,
)
from embedrock.follow import Follower, Kafka, KafkaPublisher, KafkaWriter, Source
from embedrock.follow.message import Next

kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

KILLS = int(os.environ.get("EMBEDROCK_KILLS", "4"))
ROWS = 3000
SECONDS = 40
DIM = 4


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("kafka"))
    yield found
    found.stop(signal.SIGKILL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "s")
    return tmp_path / "s"


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
    return kafka.Producer(
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


def test_a_topic_of_several_partitions_is_applied_once_in_parts(
    tmp_path: Path, path: Path, broker: Broker
) -> None:
    url = broker.create("parts", 3)
    both = Both(url, tmp_path / "other")
    for part in range(4):
        for number in range(part * 100, part * 100 + 100):
            both.write(number)
        both.sync()
        with reopened(path) as store:
            done = follow(store, url, commit_rows=500)
            assert (done.records, done.lag_bytes, done.lag_records) == (100, None, 0)
            assert done.commits >= 3 and store.uncommitted == (0, 0)
            assert sum(offsets(store).values()) == both.records
    expected = both.close()
    with reopened(path) as store:
        assert digests(store) == expected
        assert follow(store, url).commits == 0
        with Kafka(url) as source:
            assert isinstance(source, Source) and source.topic == "parts"
            with pytest.raises(MismatchError, match="position is of topic other, and parts was"):
                source.seek({**source.position, "topic": "other"})
            with pytest.raises(MismatchError, match="is not the one that was followed"):
                source.seek({**source.position, "topic_id": "x"})
            with pytest.raises(MismatchError, match="no partition 7, which was followed"):
                source.seek({**source.position, "offsets": {"7": [0, None]}})
            with pytest.raises(MismatchError, match="position is of no topic of Kafka"):
                source.seek({"log": "00", "segment": 1})
            with pytest.raises(MisuseError, match="position is 5"):
                source.seek(5)  # type: ignore[arg-type]
        with pytest.raises(ClosedError):
            source.poll()


def test_a_partition_that_is_added_later_is_followed(path: Path, broker: Broker) -> None:
    url = broker.create("growing", 1)
    send(url, (b"rows:1", row(1)))
    with reopened(path) as store:
        assert follow(store, url).records == 1
        grow(broker, url, 2)
        send(url, (b"rows:2", row(2)), partition=1)
        assert follow(store, url).records == 1
        with Kafka(url) as source:
            follower = Follower(store, source)
            grow(broker, url, 3)
            send(url, (b"rows:3", row(3)), partition=2)
            until = time.monotonic() + SECONDS
            done = follower.run(
                stop=lambda: follower.followed.records == 1 or time.monotonic() > until
            )
            assert done.records == 1 and offsets(store) == {"0": 1, "1": 1, "2": 1}
        assert [value_of(store, key) for key in (1, 2, 3)] == [1, 2, 3]


def grow(broker: Broker, url: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions

    topic = url.split("/")[3]
    broker.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)
    soon(lambda: len(broker.admin.list_topics(timeout=5).topics[topic].partitions) == partitions)


def test_a_follower_that_begins_at_the_end_leaves_out_what_was_there(
    path: Path, broker: Broker
) -> None:
    url = broker.create("from-end", 2)
    send(url, (b"rows:1", row(1)))
    with reopened(path) as store:
        assert follow(store, url, start="end").records == 0
        send(url, (b"rows:2", row(2)), partition=1)
        assert follow(store, url).records == 1
        assert (value_of(store, 1), value_of(store, 2)) == (0, 2)


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


def polled(source: Kafka) -> list[Any]:
    found: list[Any] = []
    while not source.at_end():
        found += source.poll()
    return found


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


BAD = {
    "key": ((b"rows", row(1)), MisuseError, "its key is b'rows', expected table:key"),
    "value": ((b"rows:1", b"123"), MisuseError, "its value has 3 bytes"),
    "frame": ((None, b"123"), MisuseError, "no key and is no frame"),
    "dim": ((b"rows:1", row(1, 3)), MisuseError, r"have shape \(1, 3\), expected \(1, 4\)"),
    "empty": ((b"rows:1", b""), MisuseError, r"have shape \(1, 0\), expected \(1, 4\)"),
    "nan": ((b"rows:1", row(np.nan)), NonFiniteError, "NaN"),
    "table": ((b"none:1", row(1)), NotFoundError, "no table 'none'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_does_not_fit_is_named_and_what_is_before_it_kept(
    name: str, path: Path, broker: Broker
) -> None:
    bad, kind, message = BAD[name]
    url = broker.create(f"bad-{name}", 2)
    good = [(f"rows:{key}".encode(), row(key)) for key in range(6)]
    send(url, *good[:3], bad, *good[3:], partition=1)
    with reopened(path) as store:
        for _ in range(2):  # it stands there again
            place = f"^topic bad-{name}, partition 1, offset 3: .*"
            with pytest.raises(kind, match=place + message):
                follow(store, url)
            assert store.uncommitted == (0, 0) and offsets(store) == {"0": 0, "1": 3}
        told: list[str] = []
        done = follow(store, url, skip_bad=True, on_bad=lambda at, _: told.append(at))
        assert (done.records, done.bad) == (3, 1)
        assert told == [f"topic bad-{name}, partition 1, offset 3"]
        assert [value_of(store, key) for key in range(6)] == [0, 1, 2, 3, 4, 5]


def test_a_topic_that_is_not_there_or_is_made_again_is_told(path: Path, broker: Broker) -> None:
    for kind in (Kafka, KafkaWriter):
        with pytest.raises(NotFoundError, match=f"no topic 'none' at {broker.address}; create it"):
            kind(broker.url("none"))
    url = broker.create("again", 1)
    send(url, (b"rows:1", row(1)))
    with reopened(path) as store, Kafka(url) as source:
        follower = Follower(store, source, start="begin")
        assert follower.run(once=True).records == 1
        broker.admin.delete_topics(["again"])["again"].result(20)
        soon(lambda: "again" not in broker.admin.list_topics(timeout=5).topics)
        broker.create("again", 1)
        send(url, (b"rows:2", row(2)), (b"rows:3", row(3)))
        with pytest.raises(MismatchError, match="topic again is not the one that was followed"):
            follower.run(stop=lambda: follower.followed.records > 1)
        with pytest.raises(MismatchError, match="it was deleted and made again"):
            follow(store, url)
        assert value_of(store, 3) == 0
        broker.admin.delete_topics(["again"])["again"].result(20)
        soon(lambda: "again" not in broker.admin.list_topics(timeout=5).topics)
        with pytest.raises(NotFoundError, match="no topic 'again'"):
            follow(store, url)


def test_a_record_that_is_larger_than_brokers_take_is_refused(broker: Broker) -> None:
    url = broker.create("large", 2)
    with KafkaWriter(url, partition=1) as writer:
        with pytest.raises(MisuseError, match=r"record of 2,4\d\d,\d\d\d bytes .*write fewer"):
            writer.put("rows", np.arange(600), np.ones((600, 1000), np.float32))
        writer.put("rows", [1], np.ones((1, DIM), np.float32))
        with pytest.raises(NonFiniteError):
            writer.put("rows", [1], np.full((1, DIM), np.nan, np.float32))
    with Kafka(url) as source:
        assert [record.place for record in polled(source)] == ["topic large, partition 1, offset 0"]
    with pytest.raises(MisuseError, match="partition is 2, and topic large has those of 0 to 1"):
        KafkaWriter(url, partition=2)
    with pytest.raises(ClosedError):
        writer.sync()


def test_the_command_says_how_far_it_is(
    tmp_path: Path, path: Path, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    url = broker.create("said", 1)
    send(url, (b"rows:1", row(1)), (b"oops", row(1)), (b"rows:2", row(2)))
    command = ["follow", str(path), url, "--once", "--memory", "16MiB"]
    assert main(command) == 2
    assert "say where to begin" in capsys.readouterr().err
    assert main([*command, "--from", "begin"]) == 2
    assert "topic said, partition 0, offset 1: its key is b'oops'" in capsys.readouterr().err
    assert main([*command, "--skip-bad"]) == 0
    out, err = capsys.readouterr()
    assert "1 records with 1 rows, 1 left out in all; 0 records behind" in out
    assert "left out: topic said, partition 0, offset 1" in err
    settings = tmp_path / "client.properties"
    settings.write_text("client.id=mine\n")
    more = ["--isolation", "read_uncommitted", "--skip-lost", "--kafka-config", str(settings)]
    assert main([*command, *more, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["bad"], told["lag_bytes"], told["lag_records"]) == (1, None, 0)
    assert told["position"]["topic"] == "said" and told["position"]["offsets"]["0"][0] == 3
    assert main([*command, "--log", str(tmp_path)]) == 2
    assert "give one thing to follow" in capsys.readouterr().err
    assert main(["follow", str(path), str(tmp_path), "--skip-lost"]) == 2
    assert "are for a topic of Kafka" in capsys.readouterr().err


EXAMPLES = {"follow_a_topic": ("follow-a-log", 2), "publish_changes": ("change-stream", 3)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_its_page_says(name: str, tmp_path: Path, broker: Broker) -> None:
    root, (page, lines) = Path(__file__).parents[2], EXAMPLES[name]
    policy = {"cleanup_policy": "compact"} if name == "publish_changes" else {}
    done = subprocess.run(
        [sys.executable, str(root / "examples" / f"{name}.py"), broker.create(name, 3, **policy)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == lines
    assert done.stdout in (root / "docs" / "how-to" / f"{page}.md").read_text()


def test_a_compacted_topic_has_the_changes_of_each_commit(
    tmp_path: Path, path: Path, broker: Broker
) -> None:
    url = broker.create("changes", 3, cleanup_policy="compact")
    make(tmp_path / "copy")
    generator = np.random.default_rng(3)
    with reopened(path) as store, reopened(tmp_path / "copy") as copy:

        def commit(step: int) -> None:
            keys = generator.integers(0, ROWS, 50)
            store.table("ids").put(keys, generator.standard_normal((50, DIM)).astype("f4"))
            far = keys.astype(np.uint64) + np.uint64((1 << 63) - 40)
            store.table("rows").put(far, generator.standard_normal((50, DIM)).astype("f4"))
            store.table("rows").delete(far[::7])
            store.table("ids").delete(keys[::9])
            store.commit(step)

        for step in range(6, 11):
            commit(step)
            # Each time another one, which finds in the topic how far it is; sometimes cut off.
            with KafkaPublisher(url, batch_rows=16) as topic:
                assert topic.step == (None if step == 6 else 6 if step == 8 else step - 1)
                if step != 7:
                    told = topic.publish(store)
                    assert told.step == topic.step == step and told.rows >= 40
                    assert topic.publish(store).rows == 0
                    continue
                sent, send_one = 0, topic._writer._send

                def cut_off(*record: Any, **more: Any) -> None:
                    nonlocal sent
                    sent += 1
                    if sent == 30:
                        raise KeyboardInterrupt
                    send_one(*record, **more)  # noqa: B023

                topic._writer._send = cut_off  # type: ignore[method-assign]
                with pytest.raises(KeyboardInterrupt):
                    topic.publish(store)
            follow(copy, url)  # what was cut off, too
        follow(copy, url)
        for name in ("ids", "rows"):
            ours, others = (dict(values_of(of.table(name))) for of in (store, copy))
            assert ours == others
    with reopened(tmp_path / "copy") as other:
        other.commit(99)
        with KafkaPublisher(url) as topic, pytest.raises(MismatchError, match="topic of its own"):
            topic.publish(other)


def values_of(table: embedrock.Table) -> Iterator[tuple[int, list[float]]]:
    for keys, values in table.items():
        yield from zip(keys.tolist(), values.tolist(), strict=True)


def committed(path: Path) -> int:
    """How many records the last commit of the store has followed."""
    with embedrock.open(path, "8MiB", read_only=True) as reader:
        return sum(offsets(reader).values()) if "follow" in reader.state() else 0


def test_a_follower_that_is_killed_and_a_broker_that_restarts_apply_each_record_once(
    tmp_path: Path, path: Path, broker: Broker
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # of a failure
    chance = random.Random(seed)
    url, lost = broker.create("killed", 3), broker.create("lost", 1)
    both = Both(url, tmp_path / "other")
    send(lost, *[(b"rows:1", row(1))] * 3)
    make(tmp_path / "lost")
    with reopened(tmp_path / "lost") as store:
        assert follow(store, lost).records == 3
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    follower = [sys.executable, "-m", "embedrock", "follow", str(path), url, "--from", "begin"]
    number, cut_off = 0, 0

    def write(count: int) -> None:
        nonlocal number
        for _ in range(count):
            both.write(number)
            number += 1

    for kill in range(KILLS):
        every = ("200", "0s", "0.05s")[kill % 3]
        with subprocess.Popen(
            [*follower, "--commit-every", every, "--memory", "16MiB"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            before = committed(path)
            if kill == 1:
                until = time.monotonic() + SECONDS
                while committed(path) == before and child.poll() is None:
                    assert time.monotonic() < until  # it follows: a start meets a broker
                    write(10)
                restarted = threading.Thread(target=restart_without, args=(broker, "lost"))
                restarted.start()
                write(300)  # these wait for the broker
                restarted.join()
                before = committed(path)
                write(100)
            until = time.monotonic() + SECONDS
            write(200)
            while committed(path) == before and child.poll() is None:
                assert time.monotonic() < until
                write(10)
            write(chance.randrange(200))
            child.kill()
            said = child.stderr.read() if child.stderr else ""
            assert child.wait() == -signal.SIGKILL, said
        cut_off += committed(path) < number
    assert cut_off > KILLS // 4  # in the midst of it, not behind the end
    expected = both.close()
    done = subprocess.run(
        [*follower, "--once", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["lag_records"] == 0
    assert committed(path) == number
    with reopened(path) as store:
        assert digests(store) == expected
    # A partition whose records the broker has lost, and that has others in their place.
    send(lost, *[(b"rows:1", row(1))] * 9)
    with (
        reopened(tmp_path / "lost") as store,
        pytest.raises(CorruptError, match="partition 0, offset 3: the log is not what was"),
    ):
        follow(store, lost)


def restart_without(broker: Broker, topic: str) -> None:
    broker.stop()
    shutil.rmtree(broker.directory / "data" / f"{topic}-0")
    broker.start()
