"""`embedrock follow COPY --store SOURCE`: a copy takes over the commits of a store."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from embedrock.cli import output
from embedrock.errors import MisuseError
from embedrock.training.interrupt import EXIT_INTERRUPTED, Interrupt

if TYPE_CHECKING:
    from embedrock.follow import StoreFollowed


def run(arguments: argparse.Namespace) -> int:
    """Follows, and says how far."""
    import embedrock
    from embedrock.follow import StoreFollower
    from embedrock.report import progress

    _refuse_others(arguments)
    output.refuse_missing_store(arguments.of_store)
    with (
        embedrock.open(arguments.store, arguments.memory, create=False) as copy,
        StoreFollower(copy, arguments.of_store, memory=arguments.memory) as follower,
        Interrupt() as interrupt,
        progress.Task(progress.for_terminal(), "following") as task,
    ):
        done = follower.run(
            once=arguments.once,
            stop=lambda: interrupt.requested,
            progress=lambda now: task.to(now.commits, _note(now)),
        )
    if arguments.json:
        output.print_json(
            {
                "commits": done.commits,
                "rows": done.rows,
                "deleted": done.deleted,
                "step": done.step,
            }
        )
    else:
        print(
            f"{arguments.store}: at step {done.step} of {arguments.of_store}, {_note(done)} in "
            f"{done.commits:,} commits"
        )
    return EXIT_INTERRUPTED if interrupt.number == signal.SIGINT else 0


def _note(now: StoreFollowed) -> str:
    return f"{now.rows:,} rows and {now.deleted:,} deletes"


def _refuse_others(arguments: argparse.Namespace) -> None:
    """Options for logs and topics are refused for a store."""
    others = {
        "SOURCE": arguments.source,
        "--log": arguments.log,
        "--from": arguments.start,
        "--skip-bad": arguments.skip_bad,
        "--kafka-config": arguments.kafka_config,
        "--isolation": arguments.isolation,
        "--skip-lost": arguments.skip_lost,
    }
    given = [name for name, value in others.items() if value]
    if given:
        raise MisuseError(
            f"{given[0]} is for a log or a topic of Kafka; with --store the commits of that store "
            f"are followed"
        )
