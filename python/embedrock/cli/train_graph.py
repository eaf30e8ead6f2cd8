"""What `embedrock train` has for models of knowledge graphs alone."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any

from embedrock.cli import output
from embedrock.cli.train_run import run_options, run_to_its_end
from embedrock.errors import MisuseError
from embedrock.training.graph_recipes import LOSSES, MODELS, GraphRecipe

_OWN = (
    *("negatives", "loss", "margin", "temperature", "regularization"),
    *("initial", "unit_rows", "unknown"),
)
_OF_CLICKS = (
    *("format", "label", "categorical", "dense", "bottom", "top", "holdout"),
    "model_options",
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of these models."""
    group = command.add_argument_group(
        f"knowledge graphs (--model {', '.join(MODELS)})",
        "--data is a folder with train.tsv, valid.tsv and test.tsv, also .txt and packed, or the "
        "file to train on: a triple a line, head, relation and tail, separated by tabs. Entities "
        "are the table; relations are in memory. Filtered ranks are told at the end.",
    )
    group.add_argument(
        "--negatives",
        type=output.positive,
        metavar="N",
        help="entities that all triples of a step are scored against, on either side (256)",
    )
    group.add_argument(
        "--loss",
        choices=LOSSES,
        help="nssa: self-adversarial (transe, rotate); softmax: cross entropy (distmult, complex)",
    )
    group.add_argument("--margin", type=float, help="added to scores by nssa and logistic")
    group.add_argument("--temperature", type=float, help="by which nssa weighs negatives (1)")
    group.add_argument("--regularization", type=float, metavar="X", help="weight of the N3 norm")
    group.add_argument(
        "--initial", type=float, metavar="X", help="initial rows are uniform from -X to X"
    )
    group.add_argument(
        "--unit-rows",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep entities of transe at length 1 (no)",
    )
    group.add_argument(
        "--unknown",
        choices=("refuse", "skip", "add"),
        help="triples of valid and test with a name that train does not have: an error, left out "
        "and counted, or ranked with rows that are never trained (refuse)",
    )


def remember_defaults(command: argparse.ArgumentParser) -> None:
    """Notes what options of click models are when they are not given."""
    defaults = {name: command.get_default(name) for name in _OF_CLICKS}
    command.set_defaults(click_defaults=defaults)


def refuse_for_clicks(arguments: argparse.Namespace) -> None:
    """Errors: MisuseError for an option of knowledge graphs with another model."""
    for name in _OWN:
        if getattr(arguments, name) is not None:
            raise MisuseError(
                f"{_option(name)} is for models of knowledge graphs: add --model, one of "
                f"{', '.join(MODELS)}"
            )


def run(arguments: argparse.Namespace) -> int:
    """Trains, prints what came of it."""
    for name, default in arguments.click_defaults.items():
        if getattr(arguments, name) != default:
            raise MisuseError(
                f"{_option(name)} is for models of clicks; {arguments.model} reads triples"
            )
    from embedrock.training.graph_options import GraphOptions
    from embedrock.training.graphs import train

    given = {field.name: getattr(arguments, field.name) for field in fields(GraphRecipe)}
    recipe = GraphRecipe.of_model(arguments.model, given)
    options = GraphOptions(
        **run_options(arguments, given),
        model=arguments.model,
        recipe=recipe,
        unknown=arguments.unknown or "refuse",
    )
    return run_to_its_end(arguments, train, options, _report, _print)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _report(result: dict[str, Any]) -> dict[str, Any]:
    """The result in the shape that all reports share."""
    from embedrock import report

    stats = result["stats"]
    figures = {name: result[name] for name in ("train_loss", "samples_per_s", "samples", "step")}
    for part, ranks in result["ranks"].items():
        figures |= {f"{part}_{name}": value for name, value in ranks.items()}
    given = ("store", "settings")
    rest = {k: v for k, v in result.items() if k not in (*given, "stats")}
    said = f"Trained to step {result['step']:,}"
    if result["interrupted"]:
        said = f"Stopped and committed at step {result['step']:,}"
    tiles = []
    if "test" in result["ranks"]:
        mrr = f"{result['ranks']['test']['mrr']:.4f}"
        said += f", filtered MRR {mrr}"
        tiles.append({"name": "MRR", "value": mrr})
    return report.report(
        figures=figures | {name: stats[name] for name in ("hit_rate", "pages_read")},
        device=stats["device"],
        settings={name: result[name] for name in given},
        results={
            "headline": {"verdict": f"{said}.", "tiles": tiles},
            "training": {**rest, "engine": stats},
        },
        notes=["Steps and times are those of this process: a run that was resumed goes on."],
    )


def _print(result: dict[str, Any]) -> None:
    place = f"{result['store']}, step {result['step']}"
    if result["interrupted"]:
        print(f"stopped and committed: {place}; the same command with --resume goes on")
        return
    print(f"trained and committed: {place}")
    if result["samples_per_s"] is not None:
        print(f"{result['samples']:,} triples, {result['samples_per_s']:,.0f} triples/s")
    for part, ranks in result["ranks"].items():
        hits = ", ".join(f"Hits@{k} {ranks[f'hits_at_{k}']:.4f}" for k in (1, 3, 10))
        print(f"{part}: filtered MRR {ranks['mrr']:.4f}, {hits} of {ranks['queries']:,.0f} answers")
    if not result["ranks"]:
        print("no valid and test files: nothing was ranked", file=sys.stderr)
