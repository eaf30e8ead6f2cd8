"""The options of `embedrock train` for models of knowledge graphs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any

from embedrock.cli import output
from embedrock.cli.train_run import (
    print_place,
    refuse_others,
    report_of,
    run_options,
    run_to_its_end,
)
from embedrock.errors import MisuseError
from embedrock.training.graph_recipes import LOSSES, MODELS, GraphRecipe


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
        help=(
            "number of entities that all triples of a step are scored against, on either side (256)"
        ),
    )
    group.add_argument(
        "--loss",
        choices=LOSSES,
        help="nssa: self-adversarial (transe, rotate); softmax: cross entropy (distmult, complex)",
    )
    group.add_argument("--margin", type=float, help="margin added to scores by nssa and logistic")
    group.add_argument(
        "--temperature", type=float, help=("temperature by which nssa weighs negatives (1)")
    )
    group.add_argument("--regularization", type=float, metavar="X", help="weight of the N3 norm")
    group.add_argument(
        "--unit-rows",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep entities of transe at length 1 (no)",
    )
    group.add_argument(
        "--unknown",
        choices=("refuse", "skip", "add"),
        help=(
            "treatment of triples of valid and test with a name that train does not have: an "
            "error, skipped and counted, or ranked with rows that are never trained (refuse)"
        ),
    )
    group.add_argument(
        "--partitions",
        metavar="N",
        help=(
            "train partition by partition, for few reads out of core: N partitions, a quarter "
            "of them in memory at a time, or auto: as fits --memory (none: triples in random "
            "order)"
        ),
    )
    group.add_argument(
        "--order",
        choices=("comet", "beta"),
        help=(
            "order of partitions: comet, drawn anew every epoch, or beta, with fewer swaps (comet)"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains, prints what came of it."""
    refuse_others(arguments, "knowledge graphs", f"; {arguments.model} reads triples")
    from embedrock.training.graph_options import GraphOptions

    given = {field.name: getattr(arguments, field.name) for field in fields(GraphRecipe)}
    recipe = GraphRecipe.of_model(arguments.model, given)
    options = GraphOptions(
        **run_options(arguments, given),
        model=arguments.model,
        recipe=recipe,
        unknown=arguments.unknown or "refuse",
        partitions=_partitions(arguments.partitions),
        order=arguments.order,
    )
    return run_to_its_end(arguments, "graphs", options, _report, _print)


def _partitions(given: str | None) -> int | str | None:
    if given is None or given == "auto":
        return given
    try:
        return int(given)
    except ValueError:
        raise MisuseError(f"--partitions is {given!r}, expected a number or auto") from None


def _report(result: dict[str, Any]) -> dict[str, Any]:
    """The result in the shape that all reports share."""
    figures = {
        f"{part}_{name}": value
        for part, ranks in result["ranks"].items()
        for name, value in ranks.items()
    }
    mrr = result["ranks"].get("test", {}).get("mrr")
    return report_of(result, figures, None if mrr is None else ("filtered MRR", mrr))


def _print(result: dict[str, Any]) -> None:
    if not print_place(result, "triples"):
        return
    for part, ranks in result["ranks"].items():
        hits = ", ".join(f"Hits@{k} {ranks[f'hits_at_{k}']:.4f}" for k in (1, 3, 10))
        print(f"{part}: filtered MRR {ranks['mrr']:.4f}, {hits} of {ranks['queries']:,.0f} answers")
    if not result["ranks"]:
        print("no valid and test files: nothing was ranked", file=sys.stderr)
