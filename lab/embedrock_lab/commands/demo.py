"""`embedrock demo`: the same results at a tenth of the memory, and the speed, in two minutes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedrock._optional import require_torch
from embedrock.cli import output

_EXIT_NOT_REACHED = 1


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="train at a tenth of the memory, beside plain PyTorch, in two minutes",
        description=(
            "Trains a DLRM on MovieLens-100K (fetched with pip, cached) with --memory of its "
            "tables in memory, with all of them, and with plain PyTorch tables: results have to "
            "agree. Then measures speed beside PyTorch on a stream in the shape of Criteo's "
            "Kaggle data set. Ends with a table, a sentence, and a report as JSON and HTML. Takes "
            "up to two minutes on two cores. Exit status 1 when results do not agree or memory "
            "exceeds the budget. embedrock bench demo measures more, and takes longer."
        ),
    )
    command.add_argument(
        "--memory", metavar="M", default="10%", help='memory for tables, "10%%" (10%%)'
    )
    command.add_argument("--seed", type=int, default=0, help="seed of rows and weights (0)")
    command.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where data is kept and stores are made ($XDG_CACHE_HOME/embedrock)",
    )
    command.add_argument(
        "--report",
        type=Path,
        default=Path("report.json"),
        metavar="FILE",
        help="the report as JSON, and beside it as HTML (report.json, report.html)",
    )
    command.add_argument("--keep", action="store_true", help="do not remove the stores at the end")
    real = command.add_argument_group(
        "your own data, in place of MovieLens; its size determines the time"
    )
    real.add_argument(
        "--data", type=Path, metavar="FILE", help="a Criteo file, or what --format says"
    )
    real.add_argument(
        "--format", choices=("criteo", "avazu", "movielens"), help="of --data (criteo)"
    )
    real.add_argument(
        "--epochs", type=output.positive, metavar="N", help="passes over the data (2)"
    )
    real.add_argument(
        "--skip-bad-lines", action="store_true", help="count malformed lines and go on"
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo, prints the table, writes the report."""
    require_torch("embedrock demo")
    from embedrock import report
    from embedrock.data.fetch import default_cache_dir
    from embedrock.report import progress
    from embedrock_lab import demo
    from embedrock_lab.demo import limits, summary

    report.check(arguments.report)
    folder = str(arguments.cache_dir or default_cache_dir())
    data_format = arguments.format or ("movielens" if arguments.data is None else "criteo")
    data = None if arguments.data is None else str(arguments.data)
    given = {"memory": arguments.memory, "seed": arguments.seed}
    quality = replace(
        demo.quality_settings(folder, data, data_format, arguments.epochs),
        skip_bad_lines=arguments.skip_bad_lines,
        **given,
    )
    speed = replace(demo.speed_settings(folder), **given)
    whole = demo.run(quality, speed, progress.for_terminal(), keep=arguments.keep)
    page = report.write(arguments.report, whole, "embedrock demo")
    if arguments.json:
        output.print_json(whole)
    else:
        print()
        output.print_table(summary.rows(whole))
        print(f"\n{whole['results']['headline']['verdict']}")
        seconds = whole["figures"]["demo_s"]
        print(f"{seconds:.0f} s in all. Look at {page}; the figures: {arguments.report}")
    failures = limits.failures(whole["figures"])
    for failure in failures:
        print(f"embedrock: not reached: {failure}", file=sys.stderr)
    return _EXIT_NOT_REACHED if failures else 0
