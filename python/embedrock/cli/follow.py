"""`embedrock follow STORE SOURCE`: applies the updates of a log, each exactly once."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from embedrock.cli import follow_store, logs, output
from embedrock.errors import MisuseError
from embedrock.training.interrupt import EXIT_INTERRUPTED, Interrupt

if TYPE_CHECKING:
    from embedrock.follow import Followed, Kafka, LogReader

_SHOWN_BAD_MAX = 20
"""Bad records that are named; all are counted."""


class Every(NamedTuple):
    """When a commit is made."""

    seconds: float | None
    rows: int | None


def every(text: str) -> Every:
    """ "5s" or "100000": seconds or rows between two commits. For argparse's `type`."""
    if not text.endswith("s"):
        return Every(None, output.positive(text))
    try:
        seconds = float(text[:-1])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no interval; examples: 5s, 0.5s, 100000")
    return Every(seconds, None)


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "follow",
        help="apply the updates of a log to a store, each exactly once",
        description=(
            "Applies the records of a log or a Kafka topic, in order, and continues as it "
            "grows. Its position becomes durable with the rows, in one commit: a restart, "
            "after Ctrl-C or kill -9, neither loses nor repeats a record. Ctrl-C commits "
            "and exits with status 130, SIGTERM and SIGHUP with 0. Other processes may have "
            "the store open; they see each commit when they refresh. With --store, a copy "
            "of a store applies the commits of its source, at their steps."
        ),
        epilog="examples: embedrock follow ads.store ads.log --from begin; embedrock follow "
        "ads.store kafka://localhost:9092/ads --from begin; embedrock follow served.store --store "
        "ads.store",
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="what to follow: a log's directory, or kafka://HOST:PORT/TOPIC",
    )
    command.add_argument("--log", type=Path, metavar="DIR", help="the same for a log's directory")
    command.add_argument(
        "--store",
        dest="of_store",
        type=Path,
        metavar="DIR",
        help="follow the commits of this store, of which STORE is a copy (embedrock copy)",
    )
    command.add_argument(
        "--from",
        dest="start",
        choices=["begin", "end"],
        help=(
            "where to begin in a store that has followed nothing yet; needed the first time "
            "only, afterwards the store has its position"
        ),
    )
    command.add_argument(
        "--commit-every",
        type=every,
        default=Every(5.0, None),
        metavar="TIME|ROWS",
        help="time between two commits with its unit, as 5s, or rows, as 100000 (5s)",
    )
    command.add_argument(
        "--once", action="store_true", help="end when no complete record is left to read"
    )
    command.add_argument(
        "--skip-bad",
        action="store_true",
        help=(
            "skip and count records that do not fit the store; without it the first one ends "
            "the command with its place"
        ),
    )
    command.add_argument(
        "--memory", default="256MiB", help="memory for the store: the index must fit (256MiB)"
    )
    kafka = command.add_argument_group("Kafka topics")
    kafka.add_argument(
        "--kafka-config",
        type=Path,
        metavar="FILE",
        help=(
            "a file with settings of the client, one name=value per line, such as "
            "security.protocol=SSL"
        ),
    )
    kafka.add_argument(
        "--isolation",
        choices=["read_committed", "read_uncommitted"],
        help="whether records of transactions wait for their commit (read_committed)",
    )
    kafka.add_argument(
        "--skip-lost",
        action="store_true",
        help=(
            "continue after records that were deleted before they were followed; without it "
            "that is an error"
        ),
    )
    output.add_json(command)
    logs.add(command, "warn", "of the store and its files")
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Follows, and says how far."""
    import embedrock
    from embedrock.follow import Follower
    from embedrock.report import progress

    output.refuse_missing_store(arguments.store)
    if arguments.of_store is not None:
        return follow_store.run(arguments)
    named = 0

    def on_bad(_place: str, error: Exception) -> None:
        nonlocal named
        named += 1
        if named <= _SHOWN_BAD_MAX:
            print(f"embedrock: warning: left out: {error}", file=sys.stderr)
        if named == _SHOWN_BAD_MAX:
            print("embedrock: warning: further ones are counted", file=sys.stderr)

    with (
        _source(arguments) as source,
        embedrock.open(arguments.store, arguments.memory, create=False) as store,
        Interrupt() as interrupt,
        progress.Task(progress.for_terminal(), "following") as task,
    ):
        follower = Follower(
            store,
            source,
            start=arguments.start,
            commit_seconds=arguments.commit_every.seconds,
            commit_rows=arguments.commit_every.rows,
            skip_bad=arguments.skip_bad,
            on_bad=on_bad,
        )
        began = time.monotonic()
        done = follower.run(
            once=arguments.once,
            stop=lambda: interrupt.requested,
            progress=lambda now: task.to(now.records, _note(now, began)),
        )
    if arguments.json:
        output.print_json(
            {
                "records": done.records,
                "rows": done.rows,
                "bad": done.bad,
                "commits": done.commits,
                "step": done.step,
                "lag_bytes": done.lag_bytes,
                "lag_records": done.lag_records,
                "position": dict(follower.position),
            }
        )
    else:
        left_out = f", {done.bad:,} left out in all" if done.bad else ""
        print(
            f"{arguments.store}: commit at step {done.step}, {done.records:,} records with "
            f"{done.rows:,} rows{left_out}; {_behind(done)}"
        )
    # Service managers stop a process by SIGTERM and take any exit status but 0 for a failure.
    return EXIT_INTERRUPTED if interrupt.number == signal.SIGINT else 0


def _note(now: Followed, began: float) -> str:
    """The rest of the progress line: how fast, how far behind, and the last commit."""
    passed = time.monotonic()
    rate = now.records / max(passed - began, 1e-9)
    left_out = f", {now.bad:,} left out" if now.bad else ""
    return (
        f"{rate:,.0f} records/s, {_behind(now)}, commit at step "
        f"{now.step} {passed - now.committed_at:.0f} s ago{left_out}"
    )


def _behind(now: Followed) -> str:
    """Amount still to be read, in the unit of the source."""
    if now.lag_bytes is not None:
        return f"{output.human_bytes(now.lag_bytes)} behind"
    return f"{now.lag_records or 0:,} records behind"


def _source(arguments: argparse.Namespace) -> LogReader | Kafka:
    """The source to follow."""
    from embedrock.follow import Kafka, LogReader
    from embedrock.follow.broker import read_config

    given = arguments.source
    if (given is None) == (arguments.log is None):
        raise MisuseError(
            "give one thing to follow: a log's directory, kafka://HOST:PORT/TOPIC, or --store DIR"
        )
    if given is None or not given.startswith("kafka://"):
        if arguments.kafka_config or arguments.isolation or arguments.skip_lost:
            raise MisuseError(
                "--kafka-config, --isolation and --skip-lost are for a topic of Kafka: "
                "kafka://HOST:PORT/TOPIC"
            )
        return LogReader(arguments.log if given is None else given)
    told = ""

    def on_trouble(text: str) -> None:
        nonlocal told
        if text != told:
            print(f"embedrock: warning: {text}", file=sys.stderr)
        told = text

    return Kafka(
        given,
        isolation=arguments.isolation or "read_committed",
        skip_lost=arguments.skip_lost,
        config=read_config(arguments.kafka_config) if arguments.kafka_config else None,
        on_trouble=on_trouble,
    )
