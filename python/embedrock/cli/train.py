"""`embedrock train`: a model on the user's own data, tables on storage."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from embedrock._optional import require_torch
from embedrock.cli import logs, output, train_graph, train_nodes
from embedrock.cli.train_run import (
    print_place,
    refuse_others,
    remember_defaults,
    run_options,
    run_to_its_end,
)
from embedrock.data.csv import Columns
from embedrock.errors import MisuseError
from embedrock.models.registry import MODELS, NODE_MODELS, described
from embedrock.training.graph_recipes import MODELS as GRAPH_MODELS
from embedrock.training.options import FORMATS, GROWN, OPTIMIZERS

_WAYS = {
    kind: f": add --model, one of {', '.join(models)}"
    for kind, models in (("knowledge graphs", GRAPH_MODELS), ("graphs", NODE_MODELS))
}
"""Advice for an option that click models do not have."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train a model on your data, tables on storage",
        description=(
            "Trains a model of clicks on a file, of a knowledge graph, or of a graph's "
            "nodes. Tables live in the store with only --memory of them in DRAM. Ctrl-C "
            "finishes the step, commits and exits with status 130; a second one exits at "
            "once. With --resume the run continues from its last commit, in the middle of "
            "the data, and ends with the same bits as an uninterrupted run."
        ),
        epilog=(
            "example: embedrock train --data clicks.tsv.gz --format criteo --memory 10% "
            "--store clicks.store"
        ),
    )
    command.add_argument(
        "--model",
        choices=(*MODELS, *GRAPH_MODELS, *NODE_MODELS),
        help=f"the model (dlrm); docs/models.md has their papers; {', '.join(GRAPH_MODELS)} are of "
        f"knowledge graphs, {', '.join(NODE_MODELS)} of graphs, see below",
    )
    command.add_argument(
        "--model-option",
        dest="model_options",
        action="append",
        type=_option,
        metavar="NAME=VALUE",
        help="an option of the model, more than once for several. "
        + ". ".join(described(kind) for kind in (*MODELS.values(), *NODE_MODELS.values())),
    )
    command.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help=(
            "training data, plain, gzip or zstd; a log may be several files, oldest first, or a "
            "folder or a quoted pattern, whose files are read in the order of their names; for "
            "movielens also the folder that holds it, for graphs the folder"
        ),
    )
    command.add_argument(
        "--format",
        choices=FORMATS,
        help=(
            "format of click logs; criteo: lines of label, 13 integers, 26 hex tokens; avazu: "
            "the csv with a header of Kaggle's training set; movielens: ratings; csv: your own "
            "text with a header, or Parquet if pyarrow is installed, see below; sessions: lines "
            "of session, tab, its items"
        ),
    )
    command.add_argument(
        "--store", type=Path, required=True, metavar="DIR", help="directory of the tables"
    )
    command.add_argument(
        "--memory",
        default="10%",
        help='memory for tables: "10%%" of all rows with their optimizer state, "2GiB" (10%%)',
    )
    command.add_argument(
        "--resume",
        action="store_true",
        help=(
            "continue from the last commit in the store, if it has one; epochs, rates, sizes, "
            "--pipeline and --staleness-bound default to those of the run; --memory, "
            "--max-disk, --policy, --io, --threads, --commit-every and the other look-ahead "
            "settings are not kept, and --format, its columns, --holdout and --seed must be "
            "given as before; batch size, embedding dim, layers, optimizer, eps and dtype "
            "cannot change"
        ),
    )
    command.add_argument(
        "--grown",
        choices=GROWN,
        help=(
            "with --resume, if the log has grown beyond what the run has read: train, continue "
            "with all of it, and hold out its last part; ignore, continue with the log as it "
            "was (an error that says so)"
        ),
    )
    columns = command.add_argument_group(
        "columns of --format csv",
        "Names as in the header, whose fields are separated by commas, tabs or semicolons. Other "
        "columns are left out.",
    )
    columns.add_argument(
        "--label",
        type=output.names,
        metavar="NAMES",
        help=(
            "the column of clicks: 0 or 1, also 0.0, 1.0, false, true; several columns, "
            "separated by commas, for a model with several targets"
        ),
    )
    columns.add_argument(
        "--categorical",
        type=output.names,
        metavar="NAMES",
        help=(
            "columns of ids or words, separated by commas: one table each; keys are those of "
            "embedrock.hash_keys"
        ),
    )
    columns.add_argument(
        "--dense",
        type=output.names,
        metavar="NAMES",
        help=(
            "columns of numbers, separated by commas; x becomes sign(x) log(1 + |x|), a missing "
            "value 0"
        ),
    )
    training = command.add_argument_group("training (defaults depend on the format)")
    training.add_argument(
        "--epochs", type=output.positive, metavar="N", help="passes over the data"
    )
    training.add_argument(
        "--batch-size", type=output.positive, metavar="N", help="samples per step"
    )
    training.add_argument("--lr", type=float, metavar="RATE", help="learning rate of the tables")
    training.add_argument(
        "--dense-lr", type=float, metavar="RATE", help=("learning rate of the dense part")
    )
    training.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help=(
            "optimizer of the tables; rowwise_adagrad keeps one value of state per row, so that "
            "rows take half the memory, rowwise_adam one instead of two per element (adagrad, "
            "for which the default rates and epsilon are chosen)"
        ),
    )
    training.add_argument("--eps", type=float, help="epsilon of the optimizer, not for sgd")
    training.add_argument(
        "--lr-decay", type=float, metavar="FACTOR", help="factor on both rates after each epoch"
    )
    training.add_argument(
        "--embedding-dim", type=output.positive, metavar="N", help="values per table row"
    )
    training.add_argument(
        "--initial",
        type=float,
        metavar="X",
        help="initial rows of graphs and knowledge graphs are uniform from -X to X",
    )
    training.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="type of the stored values; updates round stochastically (float32)",
    )
    training.add_argument(
        "--bottom",
        type=output.layer_sizes,
        metavar="SIZES",
        help="hidden layers of dlrm for dense features, such as 512-256-64",
    )
    training.add_argument(
        "--top",
        type=output.layer_sizes,
        metavar="SIZES",
        help="hidden layers of dlrm above the products, such as 512-256",
    )
    training.add_argument(
        "--holdout",
        type=output.share,
        default=0.1,
        metavar="SHARE",
        help="share of the samples, the last ones, to keep for evaluation (10%%)",
    )
    training.add_argument(
        "--seed", type=int, default=0, help="seed of initial rows and weights (0)"
    )
    training.add_argument(
        "--threads", type=output.positive, metavar="N", help="threads of PyTorch (its own default)"
    )
    running = command.add_argument_group("running")
    running.add_argument(
        "--commit-every",
        type=output.positive,
        default=1000,
        metavar="STEPS",
        help=(
            "steps between commits (1000); also after each epoch and at the end; training "
            "continues while one is written"
        ),
    )
    running.add_argument(
        "--skip-bad-lines",
        action="store_true",
        help="skip and count malformed lines; without it the first one ends the run",
    )
    running.add_argument(
        "--max-disk",
        type=output.size,
        metavar="SIZE",
        help="maximum bytes of the store on disk",
    )
    running.add_argument(
        "--io",
        choices=("auto", "uring", "pread"),
        default="auto",
        help=("how pages are read and written (auto)"),
    )
    running.add_argument(
        "--policy", choices=("lru", "lfu"), default="lfu", help=("eviction policy (lfu)")
    )
    running.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a report of the run as JSON, and beside it as HTML with plots",
    )
    _add_reading_ahead(command)
    train_graph.add_arguments(command)
    train_nodes.add_arguments(command)
    output.add_json(command)
    logs.add(command, "warn", "of the store and its files")
    command.set_defaults(run=run)
    remember_defaults(command)
    return command


def _add_reading_ahead(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "reading ahead (docs/lookahead.md)",
        "Rows of coming batches are read while others train. Only --staleness-bound above 0 "
        "changes results.",
    )
    group.add_argument(
        "--lookahead-depth",
        type=output.natural,
        default=512,
        metavar="N",
        help=(
            "maximum number of batches that are drawn and announced ahead, as far as "
            "--window-bytes hold their keys; they take memory beside it; 0: none except those "
            "that a pipeline reads (512). Batches are skipped if the cache holds hardly one"
        ),
    )
    group.add_argument(
        "--window-bytes",
        type=output.size,
        metavar="SIZE",
        help=(
            "maximum memory for announced batches, without their rows, up to a half of it (a "
            "quarter at most)"
        ),
    )
    group.add_argument(
        "--window-group",
        type=output.positive,
        metavar="N",
        help="maximum number of batches whose rows are read together (256)",
    )
    group.add_argument(
        "--schedule",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=(
            "look at all batches first, and write rows that leave memory to the page of the "
            "stretch of batches that uses them next: fewer reads, where epochs repeat and tables "
            "are larger than the memory (docs/how-to/schedule.md). Takes a pass over the data, "
            "and 13 bytes of disk for each use of a row while it is made, 2 afterwards. Default: "
            "once an epoch over data in memory has waited for rows, and two are left"
        ),
    )
    group.add_argument(
        "--pipeline",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=(
            "read and update rows on threads beside the trainer's, if measurements show that it "
            "is faster; a step that fails, for lack of disk for example, then ends the run at "
            "its last commit (no)"
        ),
    )
    group.add_argument(
        "--read-ahead",
        type=output.positive,
        metavar="N",
        help=(
            "batches whose rows the pipeline reads ahead; they take memory beside --memory (2, "
            "more with a staleness bound)"
        ),
    )
    group.add_argument(
        "--staleness-bound",
        type=output.staleness_bound,
        metavar="B",
        help=(
            "maximum number of batches touching a row that are not yet applied when it is read, "
            'or "inf"; above 0, which takes a pipeline, results depend on timing (0)'
        ),
    )


def _option(text: str) -> tuple[str, str]:
    """ "hidden=400-400" as a name and its value. For argparse's `type`."""
    name, sign, value = text.partition("=")
    if not (sign and name and value):
        raise argparse.ArgumentTypeError(f"{text!r} is no option; example: hidden=400-400")
    return name, value


def run(arguments: argparse.Namespace) -> int:
    """Trains, prints what came of it."""
    require_torch("embedrock train")
    if arguments.model in GRAPH_MODELS:
        return train_graph.run(arguments)
    if arguments.model in NODE_MODELS:
        return train_nodes.run(arguments)
    refuse_others(arguments, "clicks", _WAYS)
    if arguments.format is None:
        raise MisuseError(f"--format is missing, expected one of {', '.join(FORMATS)}")
    columns = _columns(arguments)
    from embedrock.training.options import Recipe, TrainOptions

    given = {field.name: getattr(arguments, field.name) for field in fields(Recipe)}
    if arguments.model_options is not None:
        given["model_options"] = dict(arguments.model_options)
    recipe = Recipe.of_format(arguments.format, given)
    options = TrainOptions(
        **run_options(arguments, given),
        format=arguments.format,
        columns=columns,
        recipe=recipe,
        holdout=arguments.holdout,
        more=tuple(arguments.data[1:]),
        grown=arguments.grown,
    )
    return run_to_its_end(arguments, "job", options, _report, _print)


def _columns(arguments: argparse.Namespace) -> Columns | None:
    """The columns that were given. Errors: MisuseError."""
    given = {f"--{name}": getattr(arguments, name) for name in ("label", "categorical", "dense")}
    if arguments.format == "csv":
        for option in ("--label", "--categorical"):
            if not given[option]:
                raise MisuseError(
                    f"--format csv needs {option}: for example --label click "
                    f"--categorical user,item --dense price"
                )
        labels = arguments.label[0] if len(arguments.label) == 1 else arguments.label
        return Columns(labels, arguments.categorical, arguments.dense or ())
    for option, names in given.items():
        if names is not None:
            raise MisuseError(
                f"{option} is for --format csv; {arguments.format} has columns of its own"
            )
    return None


def _report(result: dict[str, Any]) -> dict[str, Any]:
    """The result in the shape that all reports share."""
    from embedrock import report

    stats = result["stats"]
    steps = result["step_report"]["totals"]
    figures = ("auc", "log_loss", "train_loss", "samples_per_s", "samples", "step", "bad_lines")
    counted = ("hit_rate", "read_requests", "pages_read", "bytes_written")
    given = ("store", "settings")
    rest = {k: v for k, v in result.items() if k not in (*figures, *given, "stats", "notes")}
    notes = ["Steps, times and counters are those of this process: a run that was resumed goes on."]
    if result["interrupted"]:
        notes.append("The run was stopped before its end: there is no AUC.")
    notes += result["notes"]
    measured = {name: steps.get(name) for name in ("pages_once_share", "hit_vs_optimum")}
    measured["wait_share"] = _share(steps, "blocked_by_read_s")
    measured["rows_share"] = stats["budget"]["rows_share"]
    return report.report(
        figures={name: result[name] for name in figures}
        | {name: stats[name] for name in counted}
        | measured,
        device=stats["device"],
        settings={name: result[name] for name in given},
        results={
            "headline": _headline(result, measured["wait_share"]),
            "training": {**rest, "engine": stats},
        },
        notes=notes,
    )


def _headline(result: dict[str, Any], wait_share: float | None) -> dict[str, Any]:
    """Of the report's page: a sentence, and what to see first, as far as it was measured."""
    from embedrock.report import text

    stats, auc, speed = result["stats"], result["auc"], result["samples_per_s"]
    said = f"Trained to step {result['step']:,}"
    if result["interrupted"]:
        said = f"Stopped and committed at step {result['step']:,}"
    tiles = []
    if auc is not None:
        said += f", AUC {auc:.4f} on {result['test_samples']:,} held-out samples"
        tiles.append({"name": "AUC", "value": f"{auc:.4f}"})
    if speed is not None:
        tiles.append({"name": "samples/s", "value": f"{speed:,.0f}"})
    if wait_share is not None:
        tiles.append({"name": "of the time waiting for reads", "value": f"{wait_share:.0%}"})
    memory = {"name": "memory for rows", "value": text.bytes_text(stats["budget_bytes"])}
    rows, disk = stats["budget"]["rows_share"], text.bytes_text(stats["disk_bytes"])
    tiles.append({**memory, "note": f"rows have {rows:.0%} of it; on disk: {disk}"})
    return {"verdict": f"{said}.", "tiles": tiles}


def _share(steps: dict[str, Any], cause: str) -> float | None:
    """Of the time of steps; None where there were none."""
    return steps[cause] / steps["seconds"] if steps["seconds"] > 0 else None


def _print_steps(steps: dict[str, Any]) -> None:
    from embedrock.observe.step_report import CAUSES

    if not steps["steps"]:
        return
    parts = [f"{c[:-2].replace('_', ' ')} {_share(steps, c) or 0:.0%}" for c in CAUSES]
    print(f"a step: {1e3 * steps['seconds'] / steps['steps']:,.1f} ms, {', '.join(parts)}")
    read = [f"{steps['pages'] / steps['steps']:,.1f} pages"]
    if steps["pages_once_share"] is not None:
        read.append(f"{steps['pages_once_share']:.2%} of those read ahead once in their group")
    if steps["hit_rate"] is not None:
        read.append(f"hit rate {steps['hit_rate']:.2%}, optimum {steps['optimal_hit_rate']:.2%}")
    print(f"reads of a step: {', '.join(read)}")


def _print_pipeline(stats: dict[str, Any]) -> None:
    share = stats["overlapped"] / max(stats["batches"], 1)
    print(
        f"pipeline: {stats['overlapped']:,} of {stats['batches']:,} batches overlapped "
        f"({share:.0%}), waited {stats['waited_for_rows_s']:,.1f} s for rows and "
        f"{stats['waited_for_updates_s']:,.1f} s for updates"
    )


def _print(result: dict[str, Any]) -> None:
    if not print_place(result, "samples"):
        return
    if result["samples_per_s"] is not None:
        _print_steps(result["step_report"]["totals"])
        if result["pipeline"] is not None:
            _print_pipeline(result["pipeline"])
    if result["auc"] is not None:
        print(
            f"AUC {result['auc']:.4f}, log loss {result['log_loss']:.4f} "
            f"on {result['test_samples']:,} held-out samples"
        )
        if len(result["targets"]) > 1:
            for name, found in result["targets"].items():
                print(f"  {name}: AUC {found['auc']:.4f}, log loss {found['log_loss']:.4f}")
    else:
        print("nothing held out: no AUC (see --holdout)", file=sys.stderr)
