"""A DLRM out of core and in memory: results, memory and speeds, on real data or in Criteo's shape.

`embedrock demo` shows two figures of this in two minutes; this bench measures them all. On real
data (`real`) it trains to the end, with and without keys that occur once, and compares four
systems in rounds. In Criteo's shape (`shaped`) it does so on a stream that is made.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from embedrock._optional import require_torch
from embedrock_lab.bench.options import Given, option, positive

__all__ = ["Options", "render", "run"]

#: Options that mean something with one of the two kinds of data only.
_REAL = ("data", "format", "epochs", "skip_bad_lines")
_SHAPED = ("rows", "samples", "embedding_dim", "optimizer")
_GIVEN = ("memory", "threads", "seed", "rounds")


def _rows(text: str) -> int:
    """A number of rows, or "full"."""
    if text == "full":
        from embedrock.data.criteo_shape import ROWS

        return ROWS
    return positive(text.replace(",", ""))


@dataclass(frozen=True, kw_only=True)
class _OnRealData(Given):
    GROUP: ClassVar[str | None] = "on real data"

    data: Path | None = option(
        None,
        "your own data instead of MovieLens-100K: a Criteo file, or what --format says",
        metavar="FILE",
    )
    format: str | None = option(
        None, "of --data (criteo)", choices=("criteo", "avazu", "movielens")
    )
    epochs: int | None = option(None, "passes over the data (3)", parse=positive, metavar="N")
    skip_bad_lines: bool | None = option(None, "count malformed lines and go on")


@dataclass(frozen=True, kw_only=True)
class _InShape(Given):
    GROUP: ClassVar[str | None] = "in Criteo's shape"

    criteo_shaped: bool = option(False, "the stream instead of real data")
    rows: int | None = option(
        None,
        'rows of all tables, "full" for all 33,762,577 of Criteo Kaggle (4,000,000)',
        parse=_rows,
        metavar="N",
    )
    samples: int | None = option(
        None,
        "training samples; the first half is not timed (614,400)",
        parse=positive,
        metavar="N",
    )
    embedding_dim: int | None = option(None, "values per row (64)", parse=positive, metavar="N")
    optimizer: str | None = option(
        None,
        "of the tables; with adagrad plain PyTorch is a system, too (rowwise_adagrad)",
        choices=("rowwise_adagrad", "adagrad"),
    )


@dataclass(frozen=True, kw_only=True)
class Options(_OnRealData, _InShape):
    """Options of this bench. None stands for the default that the help names."""

    FORMATTER: ClassVar[type[argparse.HelpFormatter]] = argparse.RawDescriptionHelpFormatter
    GROUP: ClassVar[str | None] = None

    memory: str | None = option(None, 'memory for tables, "10%%" or "64MiB" (10%%)')
    threads: int | None = option(
        None, "threads of PyTorch (1; shaped: 2)", parse=positive, metavar="N"
    )
    seed: int | None = option(None, "seed of rows, weights and samples (0)")
    rounds: int | None = option(None, "rounds of each system (3)", parse=positive, metavar="N")
    cache_dir: Path | None = option(
        None, "where data is kept and stores are made ($XDG_CACHE_HOME/embedrock)", metavar="DIR"
    )
    report: Path | None = option(
        None, "write the report to this file, and HTML beside", metavar="FILE"
    )
    keep: bool = option(False, "do not remove the stores at the end")


def run(options: Options) -> dict[str, Any]:
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
    """The report for people: systems side by side, then notes."""
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


def _check(options: Options) -> None:
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


def _with_given(settings: Any, options: Options, names: tuple[str, ...]) -> Any:
    given = {name: getattr(options, name) for name in names}
    return replace(settings, **{k: v for k, v in given.items() if v is not None})
