"""``KafkaPublisher``: the changes of a store's commits as rows of a compacted topic.

Each record is a row of its own (``docs/formats/kafka.md``), so any consumer reads them, and
:class:`~embedrock.follow.Kafka` does. Headers say which commits a record lies between: what was
published up to is found in the topic itself, with the rows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from embedrock._arguments import instance, whole
from embedrock.commits import Commit
from embedrock.errors import IoError, MismatchError, UnsupportedError
from embedrock.follow import broker
from embedrock.follow.kafka_writer import KafkaWriter
from embedrock.store import ChangedRows, Store
from embedrock.store.changes import Changes
from embedrock.table import Table

__all__ = ["KafkaPublisher", "Published"]

SINCE = "embedrock-since"
"""Header of every record: the commit behind which its changes begin."""
UP_TO = "embedrock-step"
"""Header of the last record of a commit: with it, all up to that commit is in the topic."""
_TAIL_FIRST, _TAIL_FACTOR = 8, 32
"""Offsets from the end of a partition that are looked at for headers, and how the look widens."""
_POLL_SECONDS = 0.2
_KEYS = 1 << 64


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication."""

    step: int | None
    """Step of the commit up to which the topic has all changes; None where nothing is committed."""
    rows: int
    """Rows that were written to the topic, now."""
    deleted: int
    """Tombstones that were, now."""


class KafkaPublisher:
    """Writes the changes of commits to a topic: each row under its table and key, each delete as
    null.

    The topic is best made with ``cleanup.policy=compact``: then it keeps the newest of each row,
    and who reads it from its beginning has all of the tables, however long ago they were written. A
    :class:`Follower` with a :class:`Kafka` builds a copy of them, any other consumer reads float32
    values. Optimizer state is not written.

    If the topic's headers name the last commit whose changes it has, :meth:`publish` goes on from
    there, whoever published before; at the beginning all rows are written. Interrupted writes are
    repeated, which is harmless because rows are absolute. A topic has the changes of one store, of
    the ``tables`` that are named, each time the same, or of all.

    ``url``, ``config`` and ``timeout`` are those of :class:`Kafka`. Needs confluent-kafka.

    Errors: those of :class:`KafkaWriter`; ``MismatchError`` for a topic of another store.
    """

    def __init__(
        self,
        url: str,
        *,
        tables: Iterable[str | Table] | None = None,
        batch_rows: int = 16384,
        timeout: float = 30.0,
        config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Opens the topic, and looks how far it is."""
        self._tables = None if tables is None else [*tables]
        self._batch_rows = whole("batch_rows", batch_rows, 1)
        self._timeout = float(timeout)
        self._address = broker.address_of(url)
        self._config = config
        self._writer = KafkaWriter(url, timeout=timeout, config=config)
        self._position = self._found()

    @property
    def step(self) -> int | None:
        """Step of the commit up to which the topic has all changes; None where it has nothing."""
        return None if self._position is None else int(self._position["step"])

    def publish(self, store: Store) -> Published:
        """Writes what changed up to the store's commit, and waits until the brokers have it.

        The commit is that which a reader is open at, or the last one of a store that is open to
        write: call it behind ``commit``.

        Errors: those of :meth:`embedrock.Store.changes`: ``NotFoundError`` where nothing leads back
        to the commit that was published last. ``IoError`` where brokers do not take records: what
        was written is written again.

        Blocking: until the brokers have all.
        """
        instance("store", store, Store)
        before = self._position
        if before is not None and before["id"] != store.id:
            raise MismatchError(
                f"topic {self._address.topic} has the changes of the store {before['id']}, and "
                f"{store.path} is {store.id}; take a topic of its own"
            )
        if store.step is None:
            return Published(None, 0, 0)
        since = None if before is None else _commit_of(before)
        rows = deleted = 0
        with store.changes(since, tables=self._tables, batch_rows=self._batch_rows) as changes:
            to = changes.commit
            if to is None or (before is not None and _told_of(to, store.id) == before):
                return Published(self.step, 0, 0)
            self._refuse_table_events(changes)
            headers = [(SINCE, json.dumps(before).encode())]
            last: tuple[bytes, bytes | None] | None = None
            for key, value in self._records(changes):
                if last is not None:
                    self._send(last, headers)
                last = key, value
                rows, deleted = rows + (value is not None), deleted + (value is None)
        told = _told_of(to, store.id)
        if last is not None:
            self._writer.sync()  # the end comes behind all others, of other partitions too
            self._send(last, [*headers, (UP_TO, json.dumps(told).encode())])
            self._writer.sync()
            self._position = told
        elif before is not None:
            self._position = told  # as far as this process knows; another finds the one before
        return Published(to.step, rows, deleted)

    def _refuse_table_events(self, changes: Changes) -> None:
        """Refuses what no record of a topic says."""
        given = None if self._tables is None else {_name_of(table) for table in self._tables}
        for what, name, *more in changes.table_events:
            is_meant = given is None or name in given or (what == "renamed" and more[0] in given)
            if is_meant and what in ("dropped", "renamed"):
                raise UnsupportedError(
                    f"table {name!r} was {what} since the commit that the topic has, and no record "
                    f"of a topic says so: its followers would keep the old table; publish to "
                    f"another topic, or other tables with tables="
                )

    def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        self._writer.close()

    def __enter__(self) -> KafkaPublisher:
        """The publisher itself."""
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        return f"<embedrock.follow.KafkaPublisher {self._address.topic} at step {self.step}>"

    def _records(self, changes: Iterable[ChangedRows]) -> Iterator[tuple[bytes, bytes | None]]:
        for batch in changes:
            prefix = f"{batch.table}:"
            values = np.ascontiguousarray(batch.values, "<f4")
            for key, row in zip(batch.keys.tolist(), values, strict=True):
                yield f"{prefix}{key % _KEYS}".encode(), row.tobytes()
            for key in batch.deleted.tolist():
                yield f"{prefix}{key % _KEYS}".encode(), None

    def _send(self, record: tuple[bytes, bytes | None], headers: list[tuple[str, bytes]]) -> None:
        key, value = record
        parts = self._writer._partitions
        # Records of one key lie in one partition: there Kafka keeps their order.
        part = parts[zlib.crc32(key) % len(parts)]
        self._writer._send(value, part, key=key, headers=headers)

    def _found(self) -> dict[str, Any] | None:
        """The commit up to which the topic has all changes, as its newest headers say."""
        kafka = self._writer._kafka
        own = {"enable.auto.commit": False, "group.id": "embedrock", "auto.offset.reset": "error"}
        settings = broker.merged(self._address, self._config, own, {})
        consumer = broker.made(kafka.Consumer, settings, kafka)
        try:
            told = [self._tail(consumer, part) for part in self._writer._partitions]
        except kafka.KafkaException as error:
            raise IoError(f"topic {self._address.topic}: {broker.reason(error)}") from error
        finally:
            consumer.close()
        return max(filter(None, told), key=lambda found: found["sequence"], default=None)

    def _tail(self, consumer: Any, part: int) -> dict[str, Any] | None:
        """The contents of the newest record of a partition with headers."""
        kafka = self._writer._kafka
        where = kafka.TopicPartition(self._address.topic, part)
        low, high = consumer.get_watermark_offsets(where, timeout=self._timeout)
        end, span = high, _TAIL_FIRST
        while end > low:
            begin = max(low, end - span)
            newest = None
            for message in self._between(consumer, part, begin, end):
                headers = dict(message.headers() or [])
                if SINCE in headers:
                    newest = headers
            if newest is not None:
                with suppress(ValueError, TypeError, KeyError):
                    told = json.loads(newest.get(UP_TO) or newest[SINCE])
                    if told is None:
                        return None
                    return {name: told[name] for name in _NAMES}
                raise MismatchError(
                    f"topic {self._address.topic}, partition {part}: a header {SINCE} says no "
                    f"commit; was it written by something else? Take another topic"
                )
            end, span = begin, span * _TAIL_FACTOR
        return None

    def _between(self, consumer: Any, part: int, begin: int, end: int) -> Iterator[Any]:
        """Records at these offsets; some may be gone."""
        kafka = self._writer._kafka
        consumer.assign([kafka.TopicPartition(self._address.topic, part, begin)])
        silent = 0.0
        while True:
            (at,) = consumer.position([kafka.TopicPartition(self._address.topic, part)])
            if at.offset >= end:
                return
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                silent += _POLL_SECONDS
                if silent > self._timeout:
                    raise IoError(
                        f"topic {self._address.topic}, partition {part}: nothing has come for "
                        f"{self._timeout:g} s, and this is not its end"
                    )
                continue
            silent = 0.0
            if message.error() is not None:
                if message.error().code() == kafka.KafkaError._PARTITION_EOF:
                    return
                raise IoError(
                    f"topic {self._address.topic}, partition {part}: {message.error().str()}"
                )
            if message.offset() >= end:
                return
            yield message


_NAMES = ("id", "sequence", "step", "unix_time", "bytes_written")


def _told_of(commit: Commit, store: str) -> dict[str, Any]:
    numbers = (commit.sequence, commit.step, commit.unix_time, commit.bytes_written)
    return dict(zip(_NAMES, (store, *numbers), strict=True))


def _commit_of(told: Mapping[str, Any]) -> Commit:
    of = {name: int(told[name]) for name in _NAMES if name != "id"}
    return Commit(**of, meta=None, rows_flushed=0, state_bytes=0)


def _name_of(table: str | Table) -> str:
    return table if isinstance(table, str) else table.name
