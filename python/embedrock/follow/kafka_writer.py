"""``KafkaWriter``: appends records to a Kafka topic."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from embedrock._arguments import number, shown, text, whole_or_none
from embedrock._arrays import Keys
from embedrock._verbs import Floats
from embedrock.errors import ClosedError, ForkedError, IoError, MisuseError, PoisonedError
from embedrock.follow import broker
from embedrock.follow.message import frame
from embedrock.follow.records import RecordWriter
from embedrock.follow.source import Kind

__all__ = ["KafkaWriter"]

_QUEUE_KBYTES = 64 << 10
_WAIT_SECONDS = 0.1


class KafkaWriter(RecordWriter):
    """Appends batches to a topic, for a follower with a :class:`Kafka`.

    Each call is one record, a frame (``docs/formats/kafka.md``). Records of one table go to one
    partition, that of the table's name, so that they are applied in their order; with ``partition``
    all go to that one. Retries of the client neither repeat nor reorder records.

    With a ``transactional_id`` what is written up to a :meth:`sync` is one transaction: followers
    get all of it or none, and what a process that was killed had begun is aborted when the next one
    opens a writer of this id. A ``with`` block that ends by an exception aborts it.

    ``url``, ``config`` and ``timeout`` are those of :class:`Kafka`. Needs confluent-kafka.

    Errors: ``NotFoundError`` when there is no such topic, ``IoError`` when no broker answers.
    After an ``IoError`` of a record that was not delivered, the writer refuses further ones with
    ``PoisonedError``: those behind it may be there. Open another one.

    Blocking: records are sent in the background, 64 MiB of them wait at most; :meth:`sync` waits
    for all.

    Durability: all before a :meth:`sync` or :meth:`close` that has returned, as the topic's
    replicas keep it.
    """

    def __init__(
        self,
        url: str,
        *,
        partition: int | None = None,
        transactional_id: str | None = None,
        timeout: float = 30.0,
        config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Opens the topic, which is not made where it is not there."""
        self._producer: Any = None
        self._address = broker.address_of(url)
        self._partition = whole_or_none("partition", partition, 0)
        self._timeout = number("timeout", timeout)
        if not 0 < self._timeout < 1e6:
            raise MisuseError(f"timeout is {shown(timeout)}, expected seconds above 0")
        own: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "error_cb": self._heard}
        self._transactional = transactional_id is not None
        if transactional_id is not None:
            own["transactional.id"] = text("transactional_id", transactional_id)
        usual = {"queue.buffering.max.kbytes": _QUEUE_KBYTES}
        settings = broker.merged(self._address, config, own, usual)
        plain = broker.merged(self._address, config, {"error_cb": self._heard}, {})
        self._kafka = kafka = broker.client("embedrock.follow.KafkaWriter")
        self._trouble = ""
        self._is_down = False
        self._failed = ""
        self._fatal = False
        self._records = 0
        self._begun = False
        self._pid = os.getpid()
        self._appending = threading.RLock()  # over the order of records, and what a transaction has
        admin = broker.made(kafka.admin.AdminClient, plain, kafka)
        topic = broker.first_topic(
            kafka, admin, self._address, self._timeout, lambda: (self._trouble, self._is_down)
        )
        self._partitions = topic.partitions
        if self._partition is not None and self._partition not in self._partitions:
            raise MisuseError(
                f"partition is {self._partition}, and topic {self._address.topic} has those of 0 "
                f"to {len(self._partitions) - 1}"
            )
        self._producer = broker.made(kafka.Producer, settings, kafka)
        if self._transactional:
            self._transact("init_transactions")

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._address.topic

    @property
    def records(self) -> int:
        """Number of records handed to this writer."""
        return self._records

    def sync(self) -> None:
        """Waits until the brokers have every record so far; commits the transaction.

        Errors: ``IoError`` when some are not there after ``timeout`` seconds: they are still tried,
        and ``sync`` may be called again. A transaction that cannot be committed is aborted.
        """
        with self._appending:
            self._check()
            left = self._producer.flush(self._timeout)
            if self._failed and self._begun and not self._fatal:
                self._abort()
                self._failed, failed = "", self._failed
                raise IoError(f"topic {self.topic}: {failed}; the transaction was aborted")
            if self._failed:
                raise IoError(f"topic {self.topic}: {self._failed}")
            if left:
                said = f": {self._trouble}" if self._trouble else ""
                raise IoError(
                    f"topic {self.topic}: {left} records are not delivered after "
                    f"{self._timeout:g} s, and are tried further{said}; call sync again"
                )
            if self._begun:
                self._transact("commit_transaction")
                self._begun = False

    def close(self) -> None:
        """Syncs and closes the writer; a second call does nothing."""
        with self._appending:
            if self._producer is None:
                return
            if self._pid == os.getpid() and not self._failed:
                try:
                    self.sync()
                except IoError:
                    if not self._failed and len(self._producer):
                        raise  # they are tried further: close again
                    self._producer = None
                    raise
            self._producer = None

    def __enter__(self) -> KafkaWriter:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Closes the writer; behind an exception, a transaction is aborted."""
        if kind is not None and self._begun and self._producer is not None:
            self._abort()
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._producer is None else f"{self._records} records"
        return f"<embedrock.follow.KafkaWriter {self._address.servers}/{self.topic} {state}>"

    def _append(
        self, kind: Kind, table: str, keys: Keys, rows: Floats | None, options: dict[str, Any]
    ) -> None:
        name = text("table", table)
        value = frame(kind, name, keys.flat, rows, options)
        part = self._partition
        if part is None:
            part = self._partitions[zlib.crc32(name.encode()) % len(self._partitions)]
        self._send(value, part)

    def _send(self, value: bytes | None, part: int, **more: Any) -> None:
        """Hands a record to the client. ``more``: its ``key`` and ``headers``."""
        with self._appending:
            self._check()
            if self._transactional and not self._begun:
                self._transact("begin_transaction")
                self._begun = True
            until = time.monotonic() + self._timeout
            while True:
                try:
                    self._producer.produce(
                        self.topic, value, partition=part, on_delivery=self._delivered, **more
                    )
                    break
                except BufferError as error:
                    if time.monotonic() > until:
                        said = f": {self._trouble}" if self._trouble else ""
                        raise IoError(
                            f"topic {self.topic}: records that wait to be sent have no room for "
                            f"{self._timeout:g} s{said}; this one was left out"
                        ) from error
                    self._producer.poll(_WAIT_SECONDS)
                except self._kafka.KafkaException as error:
                    raise self._refused(error, len(value or b"")) from error
            self._records += 1
            self._producer.poll(0)

    def _refused(self, error: Any, size: int) -> Exception:
        """The error for a record that the client does not accept."""
        if error.args[0].code() == self._kafka.KafkaError.MSG_SIZE_TOO_LARGE:
            return MisuseError(
                f"a record of {size:,} bytes is larger than the client takes; write fewer rows at "
                f"a time, or raise message.max.bytes in config, and max.message.bytes of the topic"
            )
        return IoError(f"topic {self.topic}: {broker.reason(error)}; this record was left out")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None and not self._failed:
            self._failed = f"a record was not delivered: {error.str()}"

    def _heard(self, error: Any) -> None:
        """Notes the client's reports about its connections."""
        said = str(error.str())
        if error.fatal():
            self._fatal, self._failed = True, said
        is_down = error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN
        self._is_down |= is_down
        if not is_down or not self._trouble:  # why each is down says more
            self._trouble = said

    def _transact(self, verb: str) -> None:
        """One step of a transaction, tried again while that may help. One that cannot be committed
        is aborted."""
        until = time.monotonic() + self._timeout
        call = getattr(self._producer, verb)
        while True:
            try:
                call() if verb == "begin_transaction" else call(self._timeout)
                return
            except self._kafka.KafkaException as error:
                told = error.args[0]
                if told.retriable() and time.monotonic() < until:
                    continue
                if told.fatal():
                    self._fatal, self._failed = True, broker.reason(error)
                said = f"topic {self.topic}: {verb}: {broker.reason(error)}"
                if told.txn_requires_abort():
                    self._abort()
                    said += "; the transaction was aborted: none of its records is there"
                raise IoError(said) from error

    def _abort(self) -> None:
        self._begun = False
        try:
            self._producer.abort_transaction(self._timeout)
        except self._kafka.KafkaException as error:
            self._failed = f"a transaction could not be aborted: {broker.reason(error)}"

    def _check(self) -> None:
        if self._producer is None:
            raise ClosedError(f"the writer of topic {self.topic} was closed")
        if self._pid != os.getpid():
            raise ForkedError(
                f"topic {self.topic} was opened before this process was forked: write to it in the "
                f"process that opened it"
            )
        if self._failed:
            raise PoisonedError(
                f"topic {self.topic}: {self._failed}; those behind it may be there. Open a new "
                f"KafkaWriter"
            )
