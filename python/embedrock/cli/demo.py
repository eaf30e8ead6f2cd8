"""`embedrock demo`: the comparison on real data or in Criteo's shape, and its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedrock._optional import require_torch
from embedrock.cli import output

_EXIT_NOT_REACHED = 1
#: Options that mean something with one of the two demos only.
_REAL = ("data", "format", "epochs", "skip_bad_lines")
_SHAPED = ("rows", "samples", "embedding_dim", "optimizer")


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="train on real data at a tenth of the memory, beside plain PyTorch",
        description=(
            "Trains a DLRM on MovieLens-100K (fetched with pip, cached) with the tables held to "
            "--memory of their bytes, and the same model with plain torch.nn.EmbeddingBag in "
            "memory; ends with both side by side and a report. With --criteo-shaped the data is a "
            "stream in the shape of Criteo's Kaggle data set: 26 tables with its proportions and "
            "skew, labels from a planted model. Exit status 1 when results do not agree or memory "
            "exceeds the budget."
        ),
    )
    command.add_argument("--memory", help='memory for tables, "10%%" or "64MiB" (10%%)')
    command.add_argument(
        "--threads", type=output.positive, metavar="N", help="threads of PyTorch (1; shaped: 2)"
    )
    command.add_argument("--seed", type=int, help="seed of rows, weights and samples (0)")
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
    real = command.add_argument_group("on real data")
    real.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="your own data instead: a Criteo file, or what --format says",
    )
    real.add_argument(
        "--format", choices=("criteo", "avazu", "movielens"), help="of --data (criteo)"
    )
    real.add_argument(
        "--epochs", type=output.positive, metavar="N", help="passes over the data (3)"
    )
    real.add_argument(
        "--skip-bad-lines",
        action="store_true",
        default=None,
        help="count malformed lines and go on",
    )
    shaped = command.add_argument_group("in Criteo's shape")
    shaped.add_argument(
        "--criteo-shaped", action="store_true", help="the stream instead of real data"
    )
    shaped.add_argument(
        "--rows",
        type=_rows,
        metavar="N",
        help='rows of all tables, "full" for all 33,762,577 of Criteo Kaggle (4,000,000)',
    )
    shaped.add_argument(
        "--samples",
        type=output.positive,
        metavar="N",
        help="training samples; the first half is not timed (614,400)",
    )
    shaped.add_argument(
        "--embedding-dim", type=output.positive, metavar="N", help="values per row (64)"
    )
    shaped.add_argument(
        "--optimizer",
        choices=("rowwise_adagrad", "adagrad"),
        help="of the tables; with adagrad plain PyTorch is a contestant, too (rowwise_adagrad)",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo, prints the table, writes the report."""
    from embedrock import demo, report
    from embedrock.data.fetch import default_cache_dir
    from embedrock.demo import figures, shaped
    from embedrock.report import progress

    require_torch("embedrock demo")
    _check(arguments)
    report.check(arguments.report)
    cache_dir = str(arguments.cache_dir or default_cache_dir())
    if arguments.criteo_shaped:
        in_shape = _with_given(
            demo.ShapedSettings(
                folder=cache_dir, recipe=demo.shaped_recipe(arguments.embedding_dim)
            ),
            arguments,
            ("memory", "threads", "seed", "rows", "samples", "optimizer"),
        )
        whole = shaped.run(in_shape, progress.for_terminal(), keep=arguments.keep)
        failures, table = shaped.failures(whole), shaped.rows(whole)
    else:
        data_format = arguments.format or ("movielens" if arguments.data is None else "criteo")
        settings = _with_given(
            demo.DemoSettings(
                folder=cache_dir,
                cache_dir=cache_dir,
                format=data_format,
                recipe=demo.demo_recipe(data_format, arguments.epochs),
                data=None if arguments.data is None else str(arguments.data),
            ),
            arguments,
            ("memory", "threads", "seed", "skip_bad_lines"),
        )
        whole = demo.run(settings, progress.for_terminal(), keep=arguments.keep)
        failures, table = figures.failures(whole), list(figures.rows(whole))
    title = f"embedrock demo{' --criteo-shaped' if arguments.criteo_shaped else ''}"
    page = report.write(arguments.report, whole, title)
    if arguments.json:
        output.print_json(whole)
    else:
        _print(whole, table, arguments.report, page)
    for failure in failures:
        print(f"embedrock: not reached: {failure}", file=sys.stderr)
    return _EXIT_NOT_REACHED if failures else 0


def _check(arguments: argparse.Namespace) -> None:
    """Errors: MisuseError for an option of the other demo."""
    from embedrock.errors import MisuseError

    foreign, hint = (
        (_REAL, "leave it out: the data is made")
        if arguments.criteo_shaped
        else (_SHAPED, "add --criteo-shaped")
    )
    for name in foreign:
        if getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            with_or_without = "with" if arguments.criteo_shaped else "without"
            raise MisuseError(f"{option} means nothing {with_or_without} --criteo-shaped; {hint}")


def _with_given(settings: Any, arguments: argparse.Namespace, names: tuple[str, ...]) -> Any:
    given = {name: getattr(arguments, name) for name in names}
    return replace(settings, **{k: v for k, v in given.items() if v is not None})


def _rows(text: str) -> int:
    """A number of rows, or "full". For argparse's `type`."""
    if text == "full":
        from embedrock.data.criteo_shape import ROWS

        return ROWS
    return output.positive(text.replace(",", ""))


def _print(whole: Mapping[str, Any], table: list[tuple[str, ...]], path: Path, page: Path) -> None:
    values = whole["figures"]
    print()
    output.print_table(table)
    print()
    for note in whole["notes"]:
        print(f"* {note}")
    if values["bits_equal"] is not None:
        agreed = "identical" if values["bits_equal"] == 1 else "NOT identical"
        given = whole["settings"]["memory"]
        print(f"* Memory {given} and 100%: losses and rows of all tables are {agreed}.")
    if "auc_difference" in values:
        print(f"* AUC difference {values['auc_difference']:.6f}.")
    print(f"* {values['demo_s']:.0f} s in all. {path}, {page}")
