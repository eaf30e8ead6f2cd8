"""`embedrock demo`: the comparison on real data, and its report."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedrock.cli import output

_EXIT_NOT_REACHED = 1


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="train on real data at a tenth of the memory, beside plain PyTorch",
        description=(
            "Trains a DLRM on MovieLens-100K (fetched with pip, cached) with the tables held to "
            "--memory of their bytes, and the same model with plain torch.nn.EmbeddingBag in "
            "memory; ends with both side by side and a report. Exit status 1 when the two do not "
            "agree or memory exceeds the budget."
        ),
    )
    command.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="your own data instead: a Criteo file, or MovieLens ratings with --format movielens",
    )
    command.add_argument("--format", choices=("criteo", "movielens"), help="of --data (criteo)")
    command.add_argument("--memory", help='memory for tables, "10%%" or "64MiB" (10%%)')
    command.add_argument(
        "--epochs", type=output.positive, metavar="N", help="passes over the data (3)"
    )
    command.add_argument(
        "--threads", type=output.positive, metavar="N", help="threads of PyTorch (1)"
    )
    command.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where data is kept and stores are made ($XDG_CACHE_HOME/embedrock)",
    )
    command.add_argument(
        "--report", type=Path, default=Path("report.json"), metavar="FILE", help="(report.json)"
    )
    command.add_argument("--keep", action="store_true", help="do not remove the stores at the end")
    command.add_argument(
        "--skip-bad-lines", action="store_true", help="count malformed lines and go on"
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo, prints the table, writes the report."""
    from embedrock import demo, progress, report
    from embedrock.data.fetch import default_cache_dir
    from embedrock.demo import figures

    cache_dir = arguments.cache_dir or default_cache_dir()
    data_format = arguments.format or ("movielens" if arguments.data is None else "criteo")
    given = {"memory": arguments.memory, "threads": arguments.threads}
    settings = demo.DemoSettings(
        folder=str(cache_dir),
        cache_dir=str(cache_dir),
        format=data_format,
        recipe=demo.demo_recipe(data_format, arguments.epochs),
        data=None if arguments.data is None else str(arguments.data),
        skip_bad_lines=arguments.skip_bad_lines,
    )
    settings = replace(settings, **{k: v for k, v in given.items() if v is not None})
    whole = demo.run(settings, progress.for_terminal(), keep=arguments.keep)
    report.write(arguments.report, whole)
    failures = figures.failures(whole)
    if arguments.json:
        output.print_json(whole)
    else:
        _print(whole, arguments.report, failures)
    for failure in failures:
        print(f"embedrock: not reached: {failure}", file=sys.stderr)
    return _EXIT_NOT_REACHED if failures else 0


def _print(whole: dict[str, Any], path: Path, failures: list[str]) -> None:
    from embedrock.demo import figures

    values = whole["figures"]
    print()
    output.print_table(list(figures.rows(whole)))
    print()
    for note in whole["notes"]:
        print(f"* {note}")
    agreed = "identical" if values["bits_equal"] == 1 else "NOT identical"
    print(f"* 10 % and 100 % memory: losses of all steps and rows of all tables are {agreed}.")
    print(
        f"* AUC difference {values['auc_difference']:.6f}. {values['demo_s']:.0f} s in all. {path}"
    )
