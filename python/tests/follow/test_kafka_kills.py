"""A follower of a topic of Kafka that is killed, beside a broker that restarts."""

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
from pathlib import Path

import pytest

import embedrock
from brokers import Broker
from embedrock.errors import CorruptError
from topics import SECONDS, Both, digests, follow, make, offsets, reopened, row, send

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("EMBEDROCK_KILLS", "4"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "s")
    return tmp_path / "s"


def committed(path: Path) -> int:
    """Number of records that the last commit of the store has followed."""
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
