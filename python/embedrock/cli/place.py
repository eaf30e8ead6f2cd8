"""`embedrock place TRACE ...`: which rows lie together in pages, learned from queries."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from embedrock.cli import output
from embedrock.errors import MisuseError
from embedrock.placement.placing import METHODS, REPLICAS

_LEARN = 0.8
_WORTH_A_PLAN = 0.05
"""Of the reads of held-out queries; what caches and devices make of less cannot be told apart."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "place",
        help="learn from a trace which rows to store in the same page",
        description=(
            "Learns from the first queries of a trace which rows to store in the same page, "
            "and which to store again beside others, so that queries read few pages. Writes "
            "a plan, and reports how many pages the other queries read with it. embedrock "
            "trace makes traces."
        ),
        epilog=(
            "example: embedrock place trace.npz --store ads.store --replicate 0.1 --out plan.npz"
        ),
    )
    command.add_argument("trace", nargs="+", type=Path, metavar="TRACE", help="files of queries")
    pages = command.add_mutually_exclusive_group(required=True)
    pages.add_argument(
        "--store", type=Path, metavar="STORE", help="the store with the tables and pages to place"
    )
    pages.add_argument(
        "--rows-per-page",
        type=output.positive,
        metavar="N",
        help="without a store: rows per page, shared by all tables",
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the plan, a new .npz file"
    )
    command.add_argument(
        "--replicate",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the rows to store again, from 0 to 0.8 (0)",
    )
    command.add_argument(
        "--method",
        choices=METHODS,
        default="partition",
        help=(
            "method for home pages; all but partition are baselines: shp has the passes of the "
            "MaxEmbed paper"
        ),
    )
    command.add_argument(
        "--replicas",
        choices=REPLICAS,
        default="residual",
        help=(
            "method for replica pages: residual, each time the page that saves most after those "
            "before it; partitions, the same among pages of other partitions, which saves most "
            "behind a cache of rows; baselines: connectivity (MaxEmbed), random and frequency. "
            "Its strawmen RPP and FPR have pages that no plan can express: embedrock bench "
            "place --trace counts them"
        ),
    )
    command.add_argument(
        "--learn",
        type=float,
        metavar="SHARE",
        help=(
            "learn from this share of the queries, the first ones, and evaluate the plan on the "
            "others; 1 learns from all (0.8)"
        ),
    )
    command.add_argument(
        "--held-out",
        nargs="+",
        type=Path,
        metavar="TRACE",
        help="learn from the whole trace, and evaluate the plan on these queries",
    )
    command.add_argument("--table", metavar="NAME", help="as of embedrock trace")
    command.add_argument("--column", metavar="NAME", help="as of embedrock trace")
    output.add_query_format(command)
    command.add_argument(
        "--seed", type=output.natural, default=0, metavar="N", help="seed of the random choices (0)"
    )
    command.add_argument(
        "--threads", type=output.positive, metavar="N", help="number of threads (one per core)"
    )
    command.add_argument(
        "--memory",
        metavar="SIZE",
        help=(
            "maximum memory beside the trace, such as 8GiB; also for the index of the store (no "
            "bound)"
        ),
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Reads, places, writes, tries, and says what came of it."""
    from embedrock.placement import placing
    from embedrock.report import progress
    from embedrock.trace import Trace

    options = placing.Options(
        replicate=arguments.replicate,
        replicas=arguments.replicas,
        method=arguments.method,
        seed=arguments.seed,
        threads=arguments.threads,
        memory=arguments.memory,
    ).checked()
    _check(arguments)

    def load(paths: list[Path]) -> Any:
        with progress.Task(progress.for_terminal(), "reading") as task:
            return Trace.load(
                paths,
                table=arguments.table,
                column=arguments.column,
                format=arguments.format,
                keys=arguments.keys,
                progress=task.callback(),
            )

    learned, held_out = load(arguments.trace), None
    if arguments.held_out is not None:
        held_out = load(arguments.held_out)
    elif arguments.learn is None or arguments.learn < 1:
        learned, held_out = learned.split(arguments.learn or _LEARN)
    with progress.Task(progress.for_terminal(), "placing") as task:
        plan = placing.placed(
            learned,
            options,
            store=arguments.store,
            rows_per_page=arguments.rows_per_page,
            tell=_Clock(task, options.memory).tell,
        )
    with progress.Task(progress.for_terminal(), f"writing {arguments.out}"):
        plan.save(arguments.out)
    found = None
    if held_out is not None:
        with progress.Task(progress.for_terminal(), "trying") as task:
            found = plan.evaluate(held_out, progress=task.callback())
    said = {
        "path": str(arguments.out),
        "learned_queries": learned.queries,
        "rows": plan.num_rows,
        "pages": plan.num_pages,
        "replica_pages": plan.num_replica_pages,
        "held_out": None if found is None else asdict(found),
    }
    if arguments.json:
        output.print_json(said)
    else:
        _print(said, arguments.method)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Errors: MisuseError for what does not fit, before anything is read."""
    from embedrock.trace import sampling

    if arguments.learn is not None:
        sampling.share_of("--learn", arguments.learn, whole=True)
        if arguments.held_out is not None:
            raise MisuseError(
                "--learn and --held-out both say which queries the plan is tried with; leave one "
                "out"
            )
    if arguments.out.suffix != ".npz":
        raise MisuseError(f"--out is {arguments.out}, expected a name that ends with .npz")
    if arguments.out.exists():
        raise MisuseError(f"{arguments.out} exists; move it away, or choose another name (--out)")
    if not arguments.out.parent.is_dir():
        raise MisuseError(f"{arguments.out.parent} is no directory; make it, or choose another")
    if arguments.store is not None:
        output.refuse_missing_store(arguments.store)


class _Clock:
    """Tells a task how far the placing is, how long it will go on, and what memory it takes."""

    def __init__(self, task: Any, memory: int | str | None) -> None:
        self._task, self._memory, self._began = task, memory, monotonic()

    def tell(self, stage: Any) -> None:
        """See ``placing.placed``."""
        memory = f"up to {output.human_bytes(stage.needed_bytes)}"
        if isinstance(self._memory, int):
            memory += f" of {output.human_bytes(self._memory)}"
        note = f"{memory} of memory"
        if 0 < stage.done < stage.total:
            left = (monotonic() - self._began) * (stage.total - stage.done) / stage.done
            note = f"about {_duration(left)} left, {note}"
        self._task.total = stage.total
        self._task.to(stage.done, note)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _print(said: dict[str, Any], method: str) -> None:
    print(
        f"{said['path']}: {said['rows']:,} rows in {said['pages']:,} pages and "
        f"{said['replica_pages']:,} replica pages, learned from {said['learned_queries']:,} queries"
    )
    found = said["held_out"]
    if found is None:
        print("not tried: no query was kept apart (--held-out TRACE, or --learn below 1)")
        return
    print(
        f"{found['queries']:,} held-out queries of {found['rows']:.1f} rows, of which "
        f"{found['unplaced']:.1%} were in no query before"
    )
    rows = [("pages per query", ""), ("identity", f"{found['pages_identity']:.3f}")]
    if method != "identity":
        rows.append((method, f"{found['pages_home']:.3f}"))
    if said["replica_pages"]:
        rows.append(("with replicas", f"{found['pages']:.3f}"))
    output.print_table(rows)
    saved = 1 - found["pages"] / found["pages_identity"] if found["pages_identity"] else 0.0
    if method != "identity" and saved < _WORTH_A_PLAN:
        print(
            f"this plan saves {max(saved, 0):.0%} of the reads: {found['pages']:.2f} pages for a "
            f"held-out query, and {found['pages_identity']:.2f} in the order of keys; what is "
            f"asked for together says little of later queries here, and serving without a plan is "
            f"as good"
        )
