"""A DLRM out of core and in memory: results, memory and speeds, on real data or in Criteo's shape.

`embedrock demo` shows two figures of this in two minutes; this bench measures them all. On real
data (`real`) it trains to the end, with and without keys that occur once, and compares four
contestants in turns. In Criteo's shape (`shaped`) it does so on a stream that is made.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedrock._optional import require_torch

__all__ = ["add_arguments", "render", "run"]

#: Options that mean something with one of the two kinds of data only.
_REAL = ("data", "format", "epochs", "skip_bad_lines")
_SHAPED = ("rows", "samples", "embedding_dim", "optimizer")
_GIVEN = ("memory", "threads", "seed", "rounds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench. None stands for the default that the help names."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--memory", help='memory for tables, "10%%" or "64MiB" (10%%)')
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="threads of PyTorch (1; shaped: 2)"
    )
    parser.add_argument("--seed", type=int, help="seed of rows, weights and samples (0)")
    parser.add_argument(
        "--rounds", type=_positive, metavar="N", help="turns of each contestant (3)"
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where data is kept and stores are made ($XDG_CACHE_HOME/embedrock)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the report to this file, and HTML beside"
    )
    parser.add_argument("--keep", action="store_true", help="do not remove the stores at the end")
    real = parser.add_argument_group("on real data")
    real.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="your own data instead of MovieLens-100K: a Criteo file, or what --format says",
    )
    real.add_argument(
        "--format", choices=("criteo", "avazu", "movielens"), help="of --data (criteo)"
    )
    real.add_argument("--epochs", type=_positive, metavar="N", help="passes over the data (3)")
    real.add_argument(
        "--skip-bad-lines",
        action="store_true",
        default=None,
        help="count malformed lines and go on",
    )
    shaped = parser.add_argument_group("in Criteo's shape")
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
        type=_positive,
        metavar="N",
        help="training samples; the first half is not timed (614,400)",
    )
    shaped.add_argument("--embedding-dim", type=_positive, metavar="N", help="values per row (64)")
    shaped.add_argument(
        "--optimizer",
        choices=("rowwise_adagrad", "adagrad"),
        help="of the tables; with adagrad plain PyTorch is a contestant, too (rowwise_adagrad)",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report.

    Errors: MisuseError for options that do not go together, DataError when the data cannot be had
    or read, FullError when the disk is too small, ChildError with what a run said.
    """
    require_torch("embedrock bench demo")
    from embedrock import report
    from embedrock.data.fetch import default_cache_dir
    from embedrock.report import progress
    from embedrock_lab import demo
    from embedrock_lab.bench.demo import real, shaped

    _check(options)
    if options.report is not None:
        report.check(options.report)
    cache_dir = str(options.cache_dir or default_cache_dir())
    sink = progress.for_terminal()
    if options.criteo_shaped:
        in_shape = _with_given(
            demo.ShapedSettings(folder=cache_dir, recipe=demo.shaped_recipe(options.embedding_dim)),
            options,
            (*_GIVEN, "rows", "samples", "optimizer"),
        )
        whole = shaped.run(in_shape, sink, keep=options.keep)
        failures = shaped.failures(whole)
    else:
        data_format = options.format or ("movielens" if options.data is None else "criteo")
        settings = _with_given(
            demo.DemoSettings(
                folder=cache_dir,
                cache_dir=cache_dir,
                format=data_format,
                recipe=demo.demo_recipe(data_format, options.epochs),
                data=None if options.data is None else str(options.data),
            ),
            options,
            (*_GIVEN, "skip_bad_lines"),
        )
        whole = real.run(settings, sink, keep=options.keep)
        failures = real.failures(whole)
    whole = {"bench": "demo", **whole}
    whole["results"]["mismatches"] = len(failures)
    whole["notes"] = [*(f"not reached: {failure}" for failure in failures), *whole["notes"]]
    if options.report is not None:
        kind = " --criteo-shaped" if options.criteo_shaped else ""
        report.write(options.report, whole, f"embedrock bench demo{kind}")
    return whole


def render(whole: dict[str, Any]) -> str:
    """The report for people: contestants side by side, then notes."""
    from embedrock.report import text
    from embedrock_lab.bench.demo import real, shaped

    figures, in_shape = whole["figures"], "planted" in whole["results"]
    lines = [text.table(shaped.rows(whole) if in_shape else list(real.rows(whole))), ""]
    lines += [f"* {note}" for note in whole["notes"]]
    if figures["bits_equal"] is not None:
        agreed = "identical" if figures["bits_equal"] == 1 else "NOT identical"
        given = whole["settings"]["memory"]
        lines.append(f"* Memory {given} and 100%: losses and rows of all tables are {agreed}.")
    if "auc_difference" in figures:
        lines.append(f"* AUC difference {figures['auc_difference']:.6f}.")
    lines.append(f"* {figures['demo_s']:.0f} s in all.")
    return "\n".join(lines)


def _check(options: argparse.Namespace) -> None:
    """Errors: MisuseError for an option of the other kind of data."""
    from embedrock.errors import MisuseError

    foreign, hint = (
        (_REAL, "leave it out: the data is made")
        if options.criteo_shaped
        else (_SHAPED, "add --criteo-shaped")
    )
    for name in foreign:
        if getattr(options, name) is not None:
            option = "--" + name.replace("_", "-")
            with_or_without = "with" if options.criteo_shaped else "without"
            raise MisuseError(f"{option} means nothing {with_or_without} --criteo-shaped; {hint}")


def _with_given(settings: Any, options: argparse.Namespace, names: tuple[str, ...]) -> Any:
    given = {name: getattr(options, name) for name in names}
    return replace(settings, **{k: v for k, v in given.items() if v is not None})


def _positive(text: str) -> int:
    """A whole number from 1. For argparse's `type`."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return value


def _rows(text: str) -> int:
    """A number of rows, or "full". For argparse's `type`."""
    if text == "full":
        from embedrock.data.criteo_shape import ROWS

        return ROWS
    return _positive(text.replace(",", ""))
