"""The part of `embedrock train` that is the same for every kind of model."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from embedrock._made_keys import SAID
from embedrock.cli import output
from embedrock.data.log_files import check_there
from embedrock.errors import MisuseError
from embedrock.training.interrupt import EXIT_INTERRUPTED

__all__ = ["OPTIONS_OF", "option", "print_place", "refuse_others", "remember_defaults"]
__all__ += ["report_of", "run_options", "run_to_its_end"]

OPTIONS_OF = {
    "clicks": (
        *("format", "label", "categorical", "dense", "bottom", "top", "holdout"),
        *("grown", "model_options"),
    ),
    "knowledge graphs": (
        *("negatives", "loss", "margin", "temperature", "regularization"),
        *("initial", "unit_rows", "unknown", "partitions", "order"),
    ),
    "graphs": (
        "task",
        "rows",
        "split",
        "directed",
        "weight_decay",
        "initial",
        "model_options",
        "map_ids",
    ),
}
"""Options that not all models have, by what the models are of that have them."""

_AS_GIVEN = (
    *("store", "memory", "resume", "commit_every", "skip_bad_lines", "threads", "seed"),
    *("io", "policy", "lookahead_depth", "schedule", "window_bytes", "window_group", "read_ahead"),
)


def remember_defaults(command: argparse.ArgumentParser) -> None:
    """Notes what these options are when they are not given."""
    names = {name for options in OPTIONS_OF.values() for name in options}
    command.set_defaults(own_defaults={name: command.get_default(name) for name in names})


def refuse_others(arguments: argparse.Namespace, kind: str, way: str | Mapping[str, str]) -> None:
    """Errors: MisuseError for an option that only models of other kinds have, and for several files
    where one is read; `way` is what this model does instead, or the way out by the kind of models
    that have it."""
    if kind != "clicks" and len(arguments.data) > 1:
        raise MisuseError(
            f"--data names {len(arguments.data)} files, and data of {kind} are one folder or file"
        )
    for other, names in OPTIONS_OF.items():
        for name in names:
            default = arguments.own_defaults[name]
            if name not in OPTIONS_OF[kind] and getattr(arguments, name) != default:
                said = way if isinstance(way, str) else way[other]
                raise MisuseError(f"{option(name)} is for models of {other}{said}")


def option(name: str) -> str:
    """The name of an argument on the command line."""
    called = {"model_options": "model_option"}.get(name, name)
    return f"--{called.replace('_', '-')}"


def run_options(arguments: argparse.Namespace, recipe: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that do not depend on its kind, by name; `recipe` has what was said of
    that, None for what was left out."""
    pipeline, bound = arguments.pipeline, arguments.staleness_bound
    said = recipe | {"pipeline": pipeline, "staleness_bound": bound}
    return {
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
        "data": arguments.data[0],
        "max_disk_bytes": arguments.max_disk,
        "given": frozenset(name for name, value in said.items() if value is not None),
        # A bound takes a pipeline.
        "pipeline": (bound or 0) > 0 if pipeline is None else pipeline,
        "staleness_bound": bound or 0,
    }


def run_to_its_end(
    arguments: argparse.Namespace,
    module: str,
    options: Any,
    report_of: Callable[[dict[str, Any]], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """Trains by a module of `embedrock.training`, and prints or writes the result. Returns the exit
    status. Wrong options and files are reported before PyTorch is imported."""
    from embedrock import report
    from embedrock.report import progress
    from embedrock.training.options import TrainOptions

    if arguments.report is not None:
        report.check(arguments.report)
    options.check()
    if isinstance(options, TrainOptions) and not options.store.exists():
        options.check_model()  # a run that goes on says which model it is
    files = options.files()
    check_there(files.values() if isinstance(files, dict) else files)
    train = importlib.import_module(f"embedrock.training.{module}").train
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


def report_of(
    result: dict[str, Any], figures: dict[str, Any], best: tuple[str, float] | None
) -> dict[str, Any]:
    """The result of a run over epochs in the shape that all reports share; `best` is what to see
    first."""
    from embedrock import report

    stats = result["stats"]
    own = {name: result[name] for name in ("train_loss", "samples_per_s", "samples", "step")}
    given = ("store", "settings")
    rest = {k: v for k, v in result.items() if k not in (*given, "stats")}
    said = f"Trained to step {result['step']:,}"
    if result["interrupted"]:
        said = f"Stopped and committed at step {result['step']:,}"
    tiles = []
    if best is not None:
        said += f", {best[0]} {best[1]:.4f}"
        tiles.append({"name": best[0].removeprefix("filtered "), "value": f"{best[1]:.4f}"})
    return report.report(
        figures=own | figures | {name: stats[name] for name in ("hit_rate", "pages_read")},
        device=stats["device"],
        settings={name: result[name] for name in given},
        results={
            "headline": {"verdict": f"{said}.", "tiles": tiles},
            "training": {**rest, "engine": stats},
        },
        notes=["Steps and times are those of this process: a run that was resumed goes on."],
    )


def print_place(result: dict[str, Any], samples: str) -> bool:
    """Prints where a run is, and how fast it was; returns whether it came to its end."""
    place = f"{result['store']}, step {result['step']}"
    if result["interrupted"]:
        print(f"stopped and committed: {place}; the same command with --resume goes on")
        return False
    print(f"trained and committed: {place}")
    print(f"keys of its tables: {SAID[result['keys']]}")
    if result["samples_per_s"] is not None:
        speed = result["samples_per_s"]
        print(f"{result['samples']:,} {samples}, {speed:,.0f} {samples}/s")
    return True
