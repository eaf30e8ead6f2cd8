"""``Kafka``: reads the records of a Kafka topic."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from embedrock import _logs
from embedrock._arguments import choice, flag, function, number, shown
from embedrock.errors import (
    ClosedError,
    CorruptError,
    ForkedError,
    IoError,
    MismatchError,
    MisuseError,
    NotFoundError,
)
from embedrock.follow import broker
from embedrock.follow.message import Batches, Next, Spot
from embedrock.follow.source import Position, Record

__all__ = ["Kafka"]

_log = _logs.of("follow")

_POLL_RECORDS = 1000
"""Of one poll at most; how many bytes they may have is bounded by what the client reads ahead."""
_WAIT_SECONDS = 0.05
_CHECK_SECONDS = 1.0
"""Between two looks at what the topic is: whether it is still the same, and its partitions."""
_ANSWER_SECONDS = 2.0
_READ_AHEAD_KBYTES = 16 << 10
_USUAL = {
    "group.id": "embedrock-follow",
    "queued.max.messages.kbytes": _READ_AHEAD_KBYTES,
    "fetch.max.bytes": _READ_AHEAD_KBYTES << 10,
    "fetch.wait.max.ms": 100,  # so long a broker waits before it says that there are no more
    "reconnect.backoff.max.ms": 2000,
    "check.crcs": True,
    "max.poll.interval.ms": 86_400_000,  # a commit may take its time: there is no group to leave
}


class Kafka:
    """Records of a topic of Kafka, for a :class:`Follower`; a :class:`Source`.

    ``url`` is ``kafka://host:port/topic``, with further brokers after commas. The next offset of
    each partition is part of the store's commit, so no consumer group is joined and none has
    offsets. A partition that is added later is read from its beginning. Records of one partition
    come in their order, those of several in any. A topic that is deleted and made again is another
    one.

    With ``isolation="read_committed"`` records of transactions come once these have committed, and
    never where they were aborted. ``config`` has settings of the client by their names in
    librdkafka, such as ``security.protocol`` and ``sasl.password``. A first connection that every
    broker refuses is an error after 10 seconds, one that does not answer after ``timeout``. Later,
    brokers that cannot be reached are tried again without end, and ``on_trouble(text)`` is called.
    Requests that need an answer, such as seeking a position, fail after ``timeout`` seconds.

    Records that the broker has deleted before they were followed are an error that says how many;
    with ``skip_lost`` it goes on behind them, and tells ``on_trouble``.

    Needs confluent-kafka: ``pip install 'embedrock[kafka]'``. Beside the store's memory it takes
    about 20 MiB, and more where single records are larger.

    Errors: ``NotFoundError`` when there is no such topic, ``IoError`` when no broker answers,
    ``MisuseError`` for a url or settings that cannot be.
    """

    def __init__(
        self,
        url: str,
        *,
        isolation: str = "read_committed",
        skip_lost: bool = False,
        timeout: float = 30.0,
        config: Mapping[str, str | int | float | bool] | None = None,
        on_trouble: Callable[[str], object] | None = None,
    ) -> None:
        """Opens the topic, at the first records that are there."""
        self._consumer: Any = None
        self._pid = os.getpid()
        self._trouble = self._fatal = ""
        self._troubles = _logs.Limit()
        self._is_down = False
        self._address = broker.address_of(url)
        levels = ("read_committed", "read_uncommitted")
        self._isolation = choice("isolation", isolation, levels)
        self._skip_lost = flag("skip_lost", skip_lost)
        self._timeout = number("timeout", timeout)
        if not 0 < self._timeout < 1e6:
            raise MisuseError(f"timeout is {shown(timeout)}, expected seconds above 0")
        self._on_trouble = function("on_trouble", on_trouble, "a text")
        own = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": self._isolation,
            "error_cb": self._heard,
        }
        self._settings = broker.merged(self._address, config, own, _USUAL)
        plain = broker.merged(self._address, config, {"error_cb": self._heard}, {})
        self._kafka = kafka = broker.client("embedrock.follow.Kafka")
        self._admin = broker.made(kafka.admin.AdminClient, plain, kafka)
        self._passing = {
            kafka.KafkaError.UNKNOWN_LEADER_EPOCH,
            kafka.KafkaError.FENCED_LEADER_EPOCH,
            kafka.KafkaError.LEADER_NOT_AVAILABLE,
            kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
            kafka.KafkaError.REPLICA_NOT_AVAILABLE,
            kafka.KafkaError.OFFSET_NOT_AVAILABLE,
            kafka.KafkaError.LISTENER_NOT_FOUND,
            kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
            kafka.KafkaError.NETWORK_EXCEPTION,
            kafka.KafkaError.REQUEST_TIMED_OUT,
            kafka.KafkaError._TRANSPORT,
            kafka.KafkaError._NOENT,  # no partition has a leader yet
        }
        """Errors that a restarted broker may return for a moment."""
        self._answer: Any = None
        self._topic = broker.first_topic(
            kafka, self._admin, self._address, self._timeout, lambda: (self._trouble, self._is_down)
        )
        self._checked_at = self._came_at = time.monotonic()
        self._held: list[Any] = []
        self._failed: Exception | None = None
        self._offsets: dict[int, Next] = {}
        self._highs: dict[int, int] = {}
        self._ended: set[int] = set()
        self._silent = True
        marks = self._watermarks(self._topic.partitions)
        self._highs = {part: high for part, (_, high) in marks.items()}
        self._assign({part: Next(low, None) for part, (low, _) in marks.items()})

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._address.topic

    @property
    def position(self) -> dict[str, Any]:
        """The position behind all records that ``poll`` has returned.

        ``topic`` and ``topic_id`` say which topic; ``offsets`` has of each partition, by its number
        as a text, the next offset and the epoch of the leader that wrote the record before it.
        """
        return self._position_at(self._offsets)

    def begin(self) -> None:
        """Goes to the first record of each partition.

        Errors: ``NotFoundError`` when records before it were deleted, without ``skip_lost``.
        """
        self._check()
        self._topic = self._ask(self._timeout)
        self._go({part: Next(0, None) for part in self._topic.partitions})

    def end(self) -> None:
        """Goes behind the last record of each partition."""
        self._check()
        self._topic = self._ask(self._timeout)
        marks = self._watermarks(self._topic.partitions)
        self._assign({part: Next(high, None) for part, (_, high) in marks.items()})

    def seek(self, position: Position) -> None:
        """Goes to a position of this topic; in partitions that are new, to the beginning.

        Errors: ``MismatchError`` for one of another topic, or of one with this name that was
        deleted; ``NotFoundError`` when records behind it were deleted, without ``skip_lost``.
        """
        self._check()
        if not isinstance(position, Mapping):
            raise MisuseError(f"position is {shown(position)}, expected one of a Kafka")
        offsets = _offsets_of(position)
        if offsets is None or position.get("topic") != self.topic:
            was = f"topic {position['topic']}" if offsets is not None else "no topic of Kafka"
            raise MismatchError(
                f"the position is of {was}, and {self.topic} was asked for; follow what the store "
                f"followed before"
            )
        topic = self._ask(self._timeout)
        self._same(topic, str(position["topic_id"]))
        gone = sorted({*offsets} - {*topic.partitions})
        if gone:
            raise MismatchError(
                f"topic {self.topic} has no partition {gone[0]}, which was followed"
            )
        self._topic = topic
        self._go({part: offsets.get(part, Next(0, None)) for part in topic.partitions})

    def poll(self) -> list[Record]:
        """Some of the next records; none where there are none yet, or none have come so far.

        Blocking: 50 ms at most while records are to come; up to 2 s where brokers do not answer
        whether the topic is still the same.

        Errors: ``CorruptError`` naming topic, partition and offset where the log is not what was
        followed before; ``NotFoundError`` for records that were deleted before they were followed;
        ``MismatchError`` when the topic was deleted and made again; ``IoError`` for what the client
        cannot mend.
        """
        self._check()
        if self._failed is not None:
            raise self._failed
        messages = self._held or self._fetched()
        self._held = messages  # until it is known that they are of the same topic
        if not self._is_same(bool(messages)):
            return []
        batches = Batches(self.topic, self._offsets, self._position_at)
        ended, failed = set(self._ended), []
        for message in messages:
            part, error = message.partition(), message.error()
            if error is None:
                epoch = message.leader_epoch()
                known = epoch if epoch is not None and epoch >= 0 else None
                spot = Spot(part, message.offset(), known)
                batches.add(message.key(), message.value(), spot)
                ended.discard(part)
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                batches.pass_over(Spot(part, message.offset(), None))
                ended.add(part)
            else:
                failed.append(message)
        found = batches.all()
        self._offsets, self._ended, self._held = batches.offsets, ended, []
        self._silent = not messages or self._ended.issuperset(self._offsets)
        if messages:
            self._came_at = time.monotonic()
        for message in failed:
            self._mend(message)
            if self._failed is not None:
                break  # said once what came before it has arrived
        if self._failed is not None and not found:
            raise self._failed
        return found

    def at_end(self) -> bool:
        """Whether ``poll`` has returned all that there is.

        Errors: ``IoError`` where nothing has come for ``timeout`` seconds and this is not the end.
        """
        left = sorted({*self._offsets} - self._ended)
        if not left and not self._held:
            return True
        if time.monotonic() - self._came_at > self._timeout:
            said = f": {self._trouble}" if self._trouble else ""
            raise IoError(
                f"partition {left[0] if left else self._held[0].partition()} of topic {self.topic} "
                f"has given nothing for {self._timeout:g} s, and this is not its end{said}"
            )
        return False

    def lag_bytes(self) -> None:
        """None: a topic says how many records there are, not how many bytes."""
        return None

    def lag_records(self) -> int:
        """Records from the position to the end of the topic, as far as the brokers have told.

        Offsets without a record, such as ends of transactions and compacted ones, are counted, too.
        """
        self._check()
        for part in self._offsets:
            where = self._kafka.TopicPartition(self.topic, part)
            marks = self._consumer.get_watermark_offsets(where, cached=True)
            if marks is not None and marks[1] >= 0:
                self._highs[part] = marks[1]
        return sum(
            max(self._highs.get(part, 0) - place.offset, 0) for part, place in self._offsets.items()
        )

    def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None and self._pid == os.getpid():
            consumer.close()

    def __enter__(self) -> Kafka:
        """The source itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._consumer is None else f"{len(self._offsets)} partitions"
        return f"<embedrock.follow.Kafka {self._address.servers}/{self.topic} {state}>"

    def _check(self) -> None:
        if self._consumer is None:
            raise ClosedError(f"the source of topic {self.topic} was closed")
        if self._pid != os.getpid():
            raise ForkedError(
                f"topic {self.topic} was opened before this process was forked: read it in the "
                f"process that opened it"
            )

    def _heard(self, error: Any) -> None:
        """Notes the client's reports about its connections."""
        said = str(error.str())
        if error.fatal():
            self._fatal = said
        is_down = error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN
        self._is_down |= is_down
        if not is_down or not self._trouble:  # why each is down says more
            self._trouble = said
        told = error.code() in (
            self._kafka.KafkaError._ALL_BROKERS_DOWN,
            self._kafka.KafkaError._AUTHENTICATION,
            self._kafka.KafkaError._SSL,
        )
        if told and self._on_trouble is not None:
            self._on_trouble(f"{self._address.servers}: {said}; trying again")
        elif told:
            again = "%s: %s; trying again"
            self._troubles.log(_log, logging.WARNING, again, self._address.servers, said)

    def _fetched(self) -> list[Any]:
        """Received messages; waits a little for the first one while more are expected."""
        wait = 0.0 if self._ended.issuperset(self._offsets) else _WAIT_SECONDS
        try:
            first = self._consumer.poll(wait)
            if first is None:
                found = []
            else:
                found = [first, *self._consumer.consume(_POLL_RECORDS - 1, timeout=0)]
        except self._kafka.KafkaException as error:
            self._failed = IoError(f"topic {self.topic}: {broker.reason(error)}")
            raise self._failed from error
        if self._fatal:
            self._failed = IoError(f"topic {self.topic}: {self._fatal}; open it again")
            raise self._failed
        return found

    def _is_same(self, came: bool) -> bool:
        """Whether the received messages are known to be of the same topic. Also begins to read
        added partitions.

        A topic that is deleted and made again is silent for a while, so the brokers are asked after
        each silence, and every second. If no message came, it does not wait for the answer.
        """
        now = time.monotonic()
        stale = now - self._checked_at >= _CHECK_SECONDS
        self._admin.poll(0)
        if came and (stale or self._silent):
            self._answer = self._asked(min(self._timeout, _ANSWER_SECONDS))
        elif came:
            return True
        elif self._answer is None:
            self._answer = self._asked(self._timeout) if stale else None
            return True
        elif not self._answer.done():
            return True
        answer, self._answer = self._answer, None
        try:
            topic = broker.topic_of(self._kafka, answer, self._address, self._trouble)
            self._same(topic, self._topic.identity)
        except IoError:
            return not came  # the client tries again, and so does the next poll
        except (MismatchError, NotFoundError) as error:
            self._failed = error
            raise
        self._checked_at = now
        added = [part for part in topic.partitions if part not in self._offsets]
        if added:
            try:
                self._add(added)
            except IoError:
                return True  # it has no leader yet; asked again in a second
        self._topic = topic
        return True

    def _same(self, topic: broker.Topic, identity: str) -> None:
        if topic.identity != identity:
            raise MismatchError(
                f"topic {self.topic} is not the one that was followed: that had the identity "
                f"{identity}, this has {topic.identity}; it was deleted and made again, or is of "
                f"another cluster. Begin with a store that has followed nothing"
            )

    def _asked(self, timeout: float) -> Any:
        return broker.asked(self._kafka, self._admin, self.topic, timeout)

    def _ask(self, timeout: float) -> broker.Topic:
        answer = self._asked(timeout)
        while not answer.done():
            self._admin.poll(_WAIT_SECONDS)  # hears what is wrong with the connections
        return broker.topic_of(self._kafka, answer, self._address, self._trouble)

    def _watermarks(
        self, parts: Iterable[int], timeout: float | None = None
    ) -> dict[int, tuple[int, int]]:
        """First offset and the one behind the last, of each partition."""
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._told_watermarks(parts, seconds)
            except self._kafka.KafkaException as error:
                # A broker that has just come back knows its partitions a moment later.
                passes = error.args and error.args[0].code() in self._passing
                if passes and time.monotonic() < deadline:
                    time.sleep(_WAIT_SECONDS)
                    continue
                raise IoError(
                    f"topic {self.topic}: no broker has said where its partitions begin and end: "
                    f"{broker.reason(error)}"
                ) from error

    def _told_watermarks(self, parts: Iterable[int], seconds: float) -> dict[int, tuple[int, int]]:
        kafka = self._kafka
        level = kafka.IsolationLevel[self._isolation.upper()]
        asked = {part: kafka.TopicPartition(self.topic, part) for part in parts}
        answers = [
            self._admin.list_offsets(
                {where: spec for where in asked.values()},
                isolation_level=level,
                request_timeout=seconds,
            )
            for spec in (kafka.admin.OffsetSpec.earliest(), kafka.admin.OffsetSpec.latest())
            if asked
        ]
        return {
            part: (
                int(answers[0][where].result().offset),
                int(answers[1][where].result().offset),
            )
            for part, where in asked.items()
        }

    def _go(self, offsets: Mapping[int, Next]) -> None:
        """Goes to these offsets, if their records are kept."""
        lows = self._watermarks(offsets)
        self._highs = {part: high for part, (_, high) in lows.items()}
        self._assign(
            {part: self._kept(part, place, lows[part][0]) for part, place in offsets.items()}
        )

    def _kept(self, part: int, place: Next, low: int) -> Next:
        """The place, or with ``skip_lost`` the first record that is kept behind it."""
        if place.offset >= low:
            return place
        lost = low - place.offset
        said = (
            f"partition {part} of topic {self.topic} begins at offset {low}, and the store has "
            f"followed it to offset {place.offset}: records at {lost:,} offsets were deleted "
            f"before it did"
        )
        if not self._skip_lost:
            raise NotFoundError(
                f"{said}; go on with a copy of a store that is past them, or without them: "
                f"skip_lost, --skip-lost"
            )
        if self._on_trouble is not None:
            self._on_trouble(f"{said}; left out")
        return Next(low, None)

    def _assign(self, offsets: dict[int, Next]) -> None:
        """Goes to these offsets.

        Each time with a new consumer: one that knows a partition's leader already does not ask it
        whether what was followed is still in its log.
        """
        consumer = broker.made(self._kafka.Consumer, self._settings, self._kafka)
        consumer.assign([self._where(part, place) for part, place in offsets.items()])
        before, self._consumer = self._consumer, consumer
        if before is not None:
            before.close()
        self._offsets, self._ended, self._held, self._failed = offsets, set(), [], None
        self._came_at = time.monotonic()

    def _add(self, parts: list[int]) -> None:
        """Goes to the beginning of partitions that are new."""
        offsets = {
            part: self._kept(part, Next(0, None), low)
            for part, (low, _) in self._watermarks(parts, _ANSWER_SECONDS).items()
        }
        where = [self._where(part, place) for part, place in offsets.items()]
        self._consumer.incremental_assign(where)
        self._offsets = {**self._offsets, **offsets}

    def _where(self, part: int, place: Next) -> Any:
        epoch = {} if place.epoch is None else {"leader_epoch": place.epoch}
        return self._kafka.TopicPartition(self.topic, part, place.offset, **epoch)

    def _mend(self, message: Any) -> None:
        """Handles an event in place of a record: an error, unless it says that records were
        deleted."""
        part, error, codes = message.partition(), message.error(), self._kafka.KafkaError
        place = self._offsets.get(part)
        if error.code() == codes.UNKNOWN_TOPIC_OR_PART:
            return  # a broker that has just begun may say so; whether it is gone is asked for
        said = f"topic {self.topic}, partition {part}: {error.str()}"
        self._failed = IoError(said)
        if place is None:
            return
        if error.code() in (codes._BAD_MSG, codes._BAD_COMPRESSION):
            self._failed = CorruptError(f"{said} (behind offset {place.offset - 1})")
        if error.code() != codes._AUTO_OFFSET_RESET:
            return
        try:
            self._same(self._ask(self._timeout), self._topic.identity)
            first = self._kept(part, place, self._watermarks([part])[part][0])
        except (MismatchError, NotFoundError, IoError) as gone:
            self._failed = gone
            return
        if first.offset == place.offset:
            self._failed = CorruptError(
                f"topic {self.topic}, partition {part}, offset {place.offset}: the log is not what "
                f"was followed before, or has lost records: {error.str()}; go on with a copy of a "
                f"store that has followed less, or begin anew"
            )
            return
        where = self._where(part, first)  # to seek is refused behind such an error
        self._consumer.incremental_unassign([where])
        self._consumer.incremental_assign([where])
        self._offsets = {**self._offsets, part: first}
        self._failed = None

    def _position_at(self, offsets: Mapping[int, Next]) -> dict[str, Any]:
        told = {str(part): [*place] for part, place in sorted(offsets.items())}
        return {"topic": self.topic, "topic_id": self._topic.identity, "offsets": told}


def _offsets_of(position: Mapping[str, Any]) -> dict[int, Next] | None:
    """Next offset of each partition; None if this is no position of a topic."""
    told = position.get("offsets")
    if not all(isinstance(position.get(name), str) for name in ("topic", "topic_id")):
        return None
    if not isinstance(told, Mapping):
        return None
    found = {}
    for part, place in told.items():
        if not (isinstance(part, str) and part.isdecimal() and isinstance(place, (list, tuple))):
            return None
        if len(place) != len(Next._fields):
            return None
        offset, epoch = place
        whole = type(offset) is int and 0 <= offset < 2**63
        if not whole or not (epoch is None or (type(epoch) is int and 0 <= epoch < 2**31)):
            return None
        found[int(part)] = Next(offset, epoch)
    return found
