"""A Kafka broker of its own for tests: Apache Kafka, one node, on loopback."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "kafka"
LOCKED = Path(__file__).parent / "kafka"
FETCH_SECONDS = 240
START_SECONDS = 90
JAVA = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8"]
JAVA += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=100
"""


def jars() -> Path:
    """The directory of the broker's jars, fetched if they are missing.

    Without Java or the jars the test is skipped, and pytest says so.
    """
    for tool, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            pytest.skip(f"no Kafka broker: {tool} is not installed (Debian: {package})")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = CACHE / "jars"
        if wrong(directory):
            shutil.rmtree(directory, ignore_errors=True)
            fetch(directory)
            assert not wrong(directory), f"not the jars of jars.sha256: {wrong(directory)}"
        return directory


def wrong(directory: Path) -> list[str]:
    """Names of jars that are not there, not those that are locked, or not locked."""
    lines = (LOCKED / "jars.sha256").read_text().splitlines()
    expected = {name: digest for digest, name in map(str.split, lines)}
    there = {path.name: path for path in directory.glob("*")}
    return sorted({*expected} ^ {*there}) + [
        name
        for name, path in there.items()
        if name in expected and hashlib.sha256(path.read_bytes()).hexdigest() != expected[name]
    ]


def fetch(directory: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(LOCKED / "pom.xml"), *goal]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={directory}"],
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no Kafka broker: mvn has not fetched it within {FETCH_SECONDS} s")
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        pytest.skip(f"no Kafka broker: mvn could not fetch it: {said[0] if said else 'no word'}")


class Broker:
    """A broker that runs, with its data in a directory."""

    def __init__(self, directory: Path) -> None:
        self.classes = f"{jars()}/*"
        self.directory = directory
        self.port, controller = free_ports()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = directory / "server.properties"
        self.settings.write_text(
            SETTINGS.format(port=self.port, controller=controller, directory=directory)
        )
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", identity, "-c"]
        subprocess.run(
            [*JAVA, "-cp", self.classes, *tool, str(self.settings)],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )
        from confluent_kafka.admin import AdminClient

        self.admin: Any = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        from confluent_kafka import KafkaException

        output = (self.directory / "output").open("a")
        self.process = subprocess.Popen(
            [*JAVA, "-cp", self.classes, "kafka.Kafka", str(self.settings)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        output.close()
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(KafkaException):
                self.admin.list_topics(timeout=0.5)
                return
            said = (self.directory / "output").read_text()[-2000:]
            assert self.process.poll() is None and time.monotonic() < until, said

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it, well or not."""
        self.process.send_signal(number)
        self.process.wait(timeout=60)

    def url(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Makes a topic, and gives its url."""
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, 1, config=settings)
        self.admin.create_topics([new])[topic].result(20)
        return self.url(topic)

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        for answer in self.admin.delete_records(
            [TopicPartition(topic, partition, before)]
        ).values():
            answer.result(20)


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
