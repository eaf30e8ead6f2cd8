"""What `embedrock train` does the same for every kind of model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from embedrock.cli import output
from embedrock.training.interrupt import EXIT_INTERRUPTED

__all__ = ["run_options", "run_to_its_end"]

_AS_GIVEN = (
    *("data", "store", "memory", "resume", "commit_every", "skip_bad_lines", "threads", "seed"),
    *("io", "policy", "lookahead_depth", "window_bytes", "window_group", "read_ahead"),
)


def run_options(arguments: argparse.Namespace, recipe: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that do not depend on its kind, by name; `recipe` has what was said of
    that, None for what was left out."""
    pipeline, bound = arguments.pipeline, arguments.staleness_bound
    said = recipe | {"pipeline": pipeline, "staleness_bound": bound}
    return {
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
        "max_disk_bytes": arguments.max_disk,
        "given": frozenset(name for name, value in said.items() if value is not None),
        # A bound takes a pipeline.
        "pipeline": (bound or 0) > 0 if pipeline is None else pipeline,
        "staleness_bound": bound or 0,
    }


def run_to_its_end(
    arguments: argparse.Namespace,
    train: Callable[[Any, Any], dict[str, Any]],
    options: Any,
    report_of: Callable[[dict[str, Any]], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """Trains, and prints or writes what came of it. Returns the exit status."""
    from embedrock import report
    from embedrock.report import progress

    if arguments.report is not None:
        report.check(arguments.report)
    result = train(options, progress.for_terminal())
    if arguments.report is not None:
        title = f"embedrock train: {options.data}"
        page = report.write(arguments.report, report_of(result), title)
        print(f"report: {arguments.report}, {page}", file=sys.stderr)
    if arguments.json:
        output.print_json(result)
    else:
        show(result)
    return EXIT_INTERRUPTED if result["interrupted"] else 0
