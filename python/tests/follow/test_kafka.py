"""A topic of Kafka is followed: each record exactly once, with a broker that runs beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from brokers import Broker
from embedrock.cli import main
from embedrock.errors import ClosedError, MismatchError, MisuseError, NonFiniteError, NotFoundError
from embedrock.follow import Follower, Kafka, KafkaWriter, Source
from places import ROOT
from topics import (
    DIM,
    SECONDS,
    Both,
    digests,
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
    root, (page, lines) = ROOT, EXAMPLES[name]
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
