"""Records of a Kafka topic: what they hold, and which of them are put together."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from embedrock.errors import IoError, MisuseError
from embedrock.follow import Kafka, KafkaWriter, Record, broker
from embedrock.follow.broker import address_of, read_config
from embedrock.follow.message import Batches, Next, Spot, frame


def position(offsets: Mapping[int, Next]) -> dict[str, Any]:
    return {str(part): place.offset for part, place in offsets.items()}


def batches(*records: tuple[bytes | None, bytes | None, int, int]) -> list[Record]:
    found = Batches("t", {0: Next(5, None), 1: Next(0, None)}, position)
    for key, value, part, offset in records:
        found.add(key, value, Spot(part, offset, 3))
    return found.all()


def row(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def test_rows_of_one_table_that_follow_each_other_are_one_batch() -> None:
    found = batches(
        (b"ads:1", row(1, 2), 0, 5),
        (b"ads:-1", row(3, 4), 0, 9),
        (b"ads:7", row(5, 6), 1, 0),
        (b"a:b:3", row(1), 1, 1),
        (b"ads:1", None, 1, 2),
        (b"ads:2", None, 1, 3),
        (b"ads:3", row(1, 2), 1, 4),
    )
    said = [(one.kind, one.table, one.keys.tolist(), one.count, one.position) for one in found]
    assert said == [
        ("put", "ads", [1, 2**64 - 1, 7], 3, {"0": 10, "1": 1}),
        ("put", "a:b", [3], 1, {"0": 10, "1": 2}),
        ("delete", "ads", [1, 2], 2, {"0": 10, "1": 4}),
        ("put", "ads", [3], 1, {"0": 10, "1": 5}),
    ]
    assert found[0].rows is not None and found[0].rows.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found[0].place == "topic t, partition 0, offset 5, to partition 1, offset 0"
    assert found[2].place == "topic t, partition 1, offset 2 to 3"
    assert found[1].parts is None and found[0].parts is not None
    parts = found[0].parts()
    assert [one.keys.tolist() for one in parts] == [[1], [2**64 - 1], [7]]
    expected = [{"0": 6, "1": 0}, {"0": 10, "1": 0}, {"0": 10, "1": 1}]
    assert [one.position for one in parts] == expected
    assert parts[1].place == "topic t, partition 0, offset 9"


def test_a_frame_is_what_was_written() -> None:
    keys, rows = np.array([3, 2**63], np.uint64), np.ones((2, 3), np.float32)
    (found,) = batches((None, frame("update", "ads", keys, rows, {"lr": 0.5}), 0, 5))
    assert (found.kind, found.table, found.options) == ("update", "ads", {"lr": 0.5})
    assert found.keys.tolist() == [3, 2**63] and found.position == {"0": 6, "1": 0}
    np.testing.assert_array_equal(found.rows, rows)


FRAME = frame("put", "t", np.array([1], np.uint64), np.ones((1, 2), np.float32), {})


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        (None, None, "no key and is no frame: it has 0 bytes, expected 32"),
        (None, FRAME[:-1], "it has 55 bytes, expected 56"),
        (None, FRAME + b"x", "it has 57 bytes, expected 56"),
        (None, FRAME[:40] + b"x" + FRAME[41:], "does not have its checksum"),
        (None, b"x" * 60, "header of the record does not have its checksum"),
        (b"ads", row(1), "its key is b'ads', expected table:key"),
        (b"ads:", row(1), "expected table:key"),
        (b"ads:x", row(1), "expected table:key"),
        (b"ads:1_0", row(1), "expected table:key"),
        (b"ads:--1", row(1), "expected table:key"),
        (b"ads:18446744073709551616", row(1), "expected table:key"),
        (b"ads:-9223372036854775809", row(1), "expected table:key"),
        (b"ads:" + b"1" * 5000, row(1), "expected table:key"),
        (b"\xff:1", row(1), "expected table:key"),
        (b"ads:1", b"12345", "its value has 5 bytes, expected float32"),
    ],
)
def test_a_record_that_cannot_be_read_says_why_and_stands_alone(
    key: bytes | None, value: bytes | None, fault: str
) -> None:
    good = (b"ads:1", row(1), 0, 5)
    found = batches(good, (key, value, 0, 6), (b"ads:2", row(1), 0, 7))
    assert [one.kind for one in found] == ["put", None, "put"]
    assert fault in found[1].fault and found[1].place == "topic t, partition 0, offset 6"
    assert [one.position["0"] for one in found] == [6, 7, 8]


def test_what_is_no_record_is_passed_over() -> None:
    found = Batches("t", {0: Next(5, 2)}, position)
    found.add(b"ads:1", row(1), Spot(0, 5, 3))
    found.pass_over(Spot(0, 9, None))
    found.pass_over(Spot(0, 4, None))
    assert found.offsets == {0: Next(9, 3)} and found.all()[0].position == {"0": 6}


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://a:1/t", "a:1"),
        ("kafka://a/t", "a:9092"),
        ("kafka://a:1,b-2.c/t.x_y-z", "a:1,b-2.c:9092"),
        ("kafka://[::1]:7/t", "[::1]:7"),
    ],
)
def test_urls_have_brokers_and_a_topic(url: str, servers: str) -> None:
    assert address_of(url).servers == servers


@pytest.mark.parametrize(
    "url",
    [
        "a:1/t",
        "http://a:1/t",
        "kafka://",
        "kafka://a:1",
        "kafka://a:1/",
        "kafka:///t",
        "kafka://a:0/t",
        "kafka://a:99999/t",
        "kafka://a:x/t",
        "kafka://a:1/t/u",
        "kafka://a:1/t?x=1",
        "kafka://a:1/..",
        "kafka://u:hidden@a:1/t",
        7,
    ],
)
@pytest.mark.parametrize("kind", [Kafka, KafkaWriter])
def test_other_urls_are_refused_and_passwords_are_not_told(url: Any, kind: Any) -> None:
    with pytest.raises(MisuseError, match="url") as told:
        kind(url)
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": 0}, "timeout is 0, expected seconds above 0"),
        ({"timeout": "x"}, "timeout is 'x'"),
        ({"config": 5}, "config is 5, expected names and values"),
        ({"config": {5: "x"}}, "a name in config is 5"),
        ({"config": {"client.id": []}}, "config has a list for 'client.id'"),
        ({"config": {"bootstrap.servers": "b:1"}}, "bootstrap.servers, which cannot be set"),
    ],
)
@pytest.mark.parametrize("kind", [Kafka, KafkaWriter])
def test_odd_arguments_are_named(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        kind("kafka://127.0.0.1:1/t", **arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (Kafka, {"isolation": "x"}, "isolation is 'x', expected 'read_committed' or"),
        (Kafka, {"skip_lost": 1}, "skip_lost is 1"),
        (Kafka, {"on_trouble": 1}, "on_trouble is 1, expected a function of a text"),
        (
            Kafka,
            {"config": {"enable.auto.commit": True}},
            "enable.auto.commit, which cannot be set",
        ),
        (KafkaWriter, {"partition": -1}, "partition is -1"),
        (KafkaWriter, {"transactional_id": 7}, "transactional_id is 7"),
        (KafkaWriter, {"config": {"acks": "1"}}, "acks, which cannot be set"),
    ],
)
def test_odd_arguments_of_one_kind_are_named(
    kind: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(MisuseError, match=message):
        kind("kafka://127.0.0.1:1/t", **arguments)


@pytest.mark.parametrize("kind", [Kafka, KafkaWriter])
def test_without_the_client_it_is_said_how_to_get_it(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'embedrock\[kafka\]'"):
        kind("kafka://127.0.0.1:1/t")


@pytest.mark.parametrize("kind", [Kafka, KafkaWriter])
def test_a_broker_that_is_not_there_is_an_error_with_its_address(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for as long as for one that does not answer, without a word."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    monkeypatch.setattr(broker, "_REFUSED_SECONDS", 0.5)
    said = r"no broker at 127\.0\.0\.1:1 can be reached, tried for 0\.5 s: .*refused"
    with pytest.raises(IoError, match=said):
        kind("kafka://127.0.0.1:1/t", timeout=1000.0)
    with pytest.raises(MisuseError, match=r'config: No such configuration property: "x\.y"'):
        kind("kafka://127.0.0.1:1/t", config={"x.y": 1})


def test_a_broker_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    monkeypatch.setattr(broker, "_REFUSED_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(IoError, match=f"no broker at 127.0.0.1:{port} has answered"):
            Kafka(f"kafka://127.0.0.1:{port}/t", timeout=1.0)


def test_a_file_of_settings_is_read(tmp_path: Any) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# of the client\n\nsecurity.protocol = SSL\nsasl.password=a=b\n")
    assert read_config(file) == {"security.protocol": "SSL", "sasl.password": "a=b"}
    file.write_text("security.protocol=SSL\noops\n")
    with pytest.raises(MisuseError, match="line 2: expected name=value"):
        read_config(file)
    with pytest.raises(IoError, match=r"settings .*none"):
        read_config(tmp_path / "none")
