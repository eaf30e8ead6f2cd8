"""A topic of Kafka that has the changes of a store's commits, with a broker beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from brokers import Broker
from embedrock.errors import MismatchError, UnsupportedError
from embedrock.follow import KafkaPublisher
from topics import DIM, ROWS, follow, make, reopened

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

pytestmark = pytest.mark.long


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "s")
    return tmp_path / "s"


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
            follow(copy, url)  # interrupted writes, too
        follow(copy, url)
        for name in ("ids", "rows"):
            ours, others = (dict(values_of(of.table(name))) for of in (store, copy))
            assert ours == others
    with reopened(tmp_path / "copy") as other:
        other.commit(99)
        with KafkaPublisher(url) as topic, pytest.raises(MismatchError, match="topic of its own"):
            topic.publish(other)


@pytest.mark.parametrize("tables", [["ids", "fresh"], None])
def test_a_table_that_got_the_name_of_a_published_one_is_refused(
    path: Path, tables: list[str] | None
) -> None:
    """Its old rows were in no record, since they had not changed."""
    topic = object.__new__(KafkaPublisher)  # without a broker: nothing is sent
    topic._tables = tables
    with reopened(path) as store:
        store.rename("rows", "fresh")
        store.commit(6)
        with (
            store.changes(5, tables=tables) as changes,
            pytest.raises(UnsupportedError, match="'rows' was renamed"),
        ):
            topic._refuse_table_events(changes)
        topic._tables = ["ids"]
        with store.changes(5, tables=["ids"]) as changes:
            topic._refuse_table_events(changes)


def values_of(table: embedrock.Table) -> Iterator[tuple[int, list[float]]]:
    for keys, values in table.items():
        yield from zip(keys.tolist(), values.tolist(), strict=True)
