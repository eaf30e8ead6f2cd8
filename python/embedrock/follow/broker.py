"""Brokers of a Kafka cluster: addresses, settings of the client, and what a topic is.

The client is confluent-kafka, which is not installed with the package.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from embedrock._arguments import file_errors, named_path, shown, text
from embedrock._optional import missing
from embedrock.errors import IoError, MisuseError, NotFoundError

__all__ = [
    "Address",
    "Topic",
    "address_of",
    "asked",
    "client",
    "first_topic",
    "made",
    "merged",
    "read_config",
    "reason",
    "topic_of",
]

_SCHEME = "kafka://"
_PORT = 9092
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SERVER = re.compile(r"([a-zA-Z0-9._-]+|\[[0-9a-fA-F:.%]+\])(:\d{1,5})?")
_PORT_MAX = 65535
_REFUSED_SECONDS = 10.0
"""Duration of retries of a first connection that every broker refuses: one may be restarting."""
_POLL_SECONDS = 0.05
_LOG_LEVEL = 0
"""Log level of the client, which hardly prints anything: its errors are part of ours."""


class Address(NamedTuple):
    """A topic, and brokers that are asked for it."""

    servers: str
    """``host:port``, more of them behind commas."""
    topic: str


class Topic(NamedTuple):
    """The brokers' description of a topic."""

    identity: str
    """Chosen when it was made: one that was deleted and made again has another."""
    partitions: tuple[int, ...]


def address_of(url: Any) -> Address:
    """The parts of ``kafka://host:port,host:port/topic``; a port that is left out is 9092."""
    expected = "expected kafka://host:port/topic"
    if not isinstance(url, str) or not url.startswith(_SCHEME):
        raise MisuseError(f"url is {shown(url)}, {expected}")
    hosts, _, topic = url.removeprefix(_SCHEME).partition("/")
    if "@" in hosts:
        raise MisuseError(
            "url has a user's name or password; say those in config, as sasl.username and "
            "sasl.password"
        )
    servers = []
    for host in hosts.split(","):
        found = _SERVER.fullmatch(host)
        port = int(found[2][1:]) if found and found[2] else _PORT
        if found is None or not 0 < port <= _PORT_MAX:
            raise MisuseError(f"url has the broker {host!r}, {expected}")
        servers.append(f"{found[1]}:{port}")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise MisuseError(
            f"url has the topic {topic!r}, {expected}; a name is of a-z A-Z 0-9 . _ -"
        )
    return Address(",".join(servers), topic)


def client(what: str) -> Any:
    """The module. Errors: ``ModuleNotFoundError`` that says how to get it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ModuleNotFoundError as error:
        how = "confluent-kafka, or pip install 'embedrock[kafka]'"
        said = missing(what, "confluent-kafka", how)
        raise ModuleNotFoundError(said, name=error.name) from error
    return confluent_kafka


def merged(address: Address, config: Any, own: Mapping[str, Any], usual: Mapping[str, Any]) -> Any:
    """Settings of a client: ``usual`` ones, the caller's, and ``own`` ones, which stay."""
    if config is not None and not isinstance(config, Mapping):
        raise MisuseError(f"config is {shown(config)}, expected names and values, or None")
    given: dict[str, Any] = {}
    for name, value in dict(config or {}).items():
        if not isinstance(value, (str, int, float, bool)):
            kind = type(value).__name__
            raise MisuseError(f"config has a {kind} for {shown(name)}, expected a text or a number")
        given[text("a name in config", name)] = value
    taken = sorted({*given} & {*own, "bootstrap.servers"})
    if taken:
        raise MisuseError(
            f"config has {taken[0]}, which cannot be set: the brokers are those of the url, and "
            f"what each record is applied once by is set already"
        )
    log = {"log_level": _LOG_LEVEL, "client.id": "embedrock"}
    return {**log, **usual, **given, **own, "bootstrap.servers": address.servers}


def read_config(path: str | os.PathLike[str]) -> dict[str, str]:
    """Settings of a file of lines ``name=value``; those that begin with ``#`` are comments."""
    found: dict[str, str] = {}
    file = named_path("path", path)
    with file_errors(f"settings {file}"):
        lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip() or name.startswith("#"):
            continue
        if not equals or not name:
            raise MisuseError(f"{file}, line {number}: expected name=value")
        found[name] = value
    return found


def made(kind: Any, settings: Mapping[str, Any], kafka: Any) -> Any:
    """A client of this kind. Errors: ``MisuseError`` for settings that it does not take."""
    try:
        return kind(dict(settings))
    except (kafka.KafkaException, TypeError, ValueError) as error:
        raise MisuseError(f"config: {reason(error)}") from error


def asked(kafka: Any, admin: Any, topic: str, timeout: float) -> Any:
    """Asks what a topic is; an answer to come, for :func:`topic_of`."""
    topics = kafka.TopicCollection([topic])
    return admin.describe_topics(topics, request_timeout=timeout)[topic]


def topic_of(kafka: Any, answer: Any, address: Address, trouble: str = "") -> Topic:
    """The brokers' answer. Blocking: until it arrives, or the request has timed out.

    Errors: ``NotFoundError`` for a topic that is not there; ``IoError`` without an answer.
    """
    try:
        told = answer.result()
    except kafka.KafkaException as error:
        if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise NotFoundError(
                f"there is no topic {address.topic!r} at {address.servers}; create it, or look at "
                f"the names there: kafka-topics.sh --list"
            ) from error
        said = f"; {trouble}" if trouble else ""
        raise IoError(
            f"no broker at {address.servers} has answered: {reason(error)}{said}"
        ) from error
    return Topic(str(told.topic_id), tuple(sorted(part.id for part in told.partitions)))


def first_topic(
    kafka: Any, admin: Any, address: Address, timeout: float, heard: Callable[[], tuple[str, bool]]
) -> Topic:
    """Answer of the brokers to a new client. ``heard()`` returns the trouble with the connections,
    and whether no broker can be reached.

    Errors: as :func:`topic_of`; ``IoError`` after 10 seconds where every broker refuses a
    connection, and after ``timeout`` where one does not answer.

    Blocking: until then.
    """
    answer = asked(kafka, admin, address.topic, timeout)
    began, patience = time.monotonic(), min(timeout, _REFUSED_SECONDS)
    while not answer.done():
        admin.poll(_POLL_SECONDS)  # hears what is wrong with the connections
        trouble, is_down = heard()
        if is_down and time.monotonic() - began > patience:
            raise IoError(
                f"no broker at {address.servers} can be reached, tried for {patience:g} s: "
                f"{trouble}; start one there, or give the address of one that runs"
            )
    return topic_of(kafka, answer, address, heard()[0])


def reason(error: Exception) -> str:
    """The text of an exception of the client."""
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(first)
