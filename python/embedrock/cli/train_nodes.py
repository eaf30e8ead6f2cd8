"""The options of `embedrock train` for models of the nodes and links of a graph."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any

from embedrock.cli.train_run import (
    print_place,
    refuse_others,
    report_of,
    run_options,
    run_to_its_end,
)
from embedrock.training.node_recipes import MODELS, ROWS, TASKS, NodeRecipe


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of these models."""
    group = command.add_argument_group(
        f"graphs (--model {', '.join(MODELS)})",
        "--data is a folder with edges, two nodes a line or an array, and labels, features and a "
        "split where there are some (docs/data-formats.md). Rows of nodes are the tables, layers "
        "are in memory. Accuracy of nodes, or AUC of links, is told at the end. Needs PyTorch "
        "Geometric.",
    )
    group.add_argument(
        "--task",
        choices=TASKS,
        help="predict the labels of nodes, or which pairs are linked (nodes)",
    )
    group.add_argument(
        "--rows",
        choices=ROWS,
        help=(
            "the inputs of nodes: frozen features, trained embeddings, or both (auto: features "
            "if there are some)"
        ),
    )
    group.add_argument(
        "--split",
        metavar="SPLIT",
        help=(
            "percentages of nodes with a label, or of edges, for train, valid and test, drawn "
            "with --seed; file: split.npz; planetoid: the public split of Cora, Citeseer and "
            "Pubmed (the file if there is one, else 60-20-20 for nodes, 85-5-10 for edges)"
        ),
    )
    group.add_argument(
        "--directed",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="sample neighbours along incoming edges only (no)",
    )
    group.add_argument(
        "--map-ids",
        action="store_true",
        help=(
            "nodes and labels in text files are names, words or ids of a platform: number them "
            "in order of first appearance; files then have no header"
        ),
    )
    group.add_argument(
        "--weight-decay",
        type=float,
        metavar="X",
        help="weight decay of the layers (5e-4 for nodes, else 0)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains, prints what came of it."""
    refuse_others(arguments, "graphs", f"; {arguments.model} reads edges")
    from embedrock.training.node_options import NodeOptions

    given = {field.name: getattr(arguments, field.name) for field in fields(NodeRecipe)}
    if arguments.model_options is not None:
        given["model_options"] = dict(arguments.model_options)
    recipe = NodeRecipe.of_model(arguments.model, given)
    options = NodeOptions(
        **run_options(arguments, given),
        model=arguments.model,
        recipe=recipe,
        map_ids=arguments.map_ids,
    )
    return run_to_its_end(arguments, "nodes", options, _report, _print)


_SAID = {"accuracy": "accuracy", "auc": "AUC", "average_precision": "average precision"}


def _report(result: dict[str, Any]) -> dict[str, Any]:
    """The result in the shape that all reports share."""
    figures = {
        f"{part}_{name}": value
        for part, found in result["measured"].items()
        for name, value in found.items()
    }
    found = result["measured"].get("test", {})
    best = next((name for name in _SAID if name in found), None)
    return report_of(result, figures, None if best is None else (_SAID[best], found[best]))


def _print(result: dict[str, Any]) -> None:
    if not print_place(result, "samples"):
        return
    for part, found in result["measured"].items():
        figures = ", ".join(f"{said} {found[n]:.4f}" for n, said in _SAID.items() if n in found)
        counted = next(name for name in ("nodes", "pairs") if name in found)
        print(f"{part}: {figures} of {found[counted]:,} {counted}")
    if not result["measured"]:
        print("nothing held out: nothing was measured (see --split)", file=sys.stderr)
