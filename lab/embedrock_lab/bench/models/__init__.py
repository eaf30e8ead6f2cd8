"""``models``: the click models of ``embedrock train``, at less and less memory, and in memory.

Each model trains one loop over one data set: a plain loop over a store, one with look-ahead, and
its twin in memory with ``torch.nn.EmbeddingBag`` or ``Embedding``, the same first rows and weights,
batches and optimizers, in turns in one process. Memory is per cent of the bytes of all rows with
their optimizer's state; of rows alone where a model is only asked.

``speed_vs_memory_<model>_<memory>`` is look-ahead ÷ memory, ``..._without_lookahead`` the plain
loop ÷ memory; ``inference_vs_memory_...`` the same of predicting alone. ``auc_<model>`` is that of
held-out samples with the least memory, ``auc_gap_<model>`` the largest difference from the twin's
of all budgets and ways. ``speed_vs_memory_models_<memory>`` and ``inference_vs_memory_<memory>``
are the smallest of SSDHashEmbed's four models.

A loss or a row of the first batches that is further than 1e-5 from the twin's is a mismatch, and so
is each loss that look-ahead changes by a bit. Other stores under a model: ``peers.py``.

*Source*: SSDHashEmbed's figure 7 and table 5; MLKV's figures 6, 7 and 9. Figure 8 is ``staleness``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.errors import MisuseError
from embedrock.models.registry import MODELS
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, add_common, import_torch, workspace
from embedrock_lab.bench.loops.figures import rate, share
from embedrock_lab.bench.loops.names import LOOKAHEAD, PLAIN, TORCH, WAYS
from embedrock_lab.bench.race import add_peer_arguments, process

__all__ = ["add_arguments", "run"]

MEMORY = [67.0, 53.0, 27.0, 10.0]
ASKED = [27.0]
SSDHASHEMBED = ("dlrm", "wide_deep", "mmoe", "dien")
"""The models of that paper."""
MEMORY_BYTES = 2 << 30
PEER_SECONDS = 5.0
WITHOUT = "_without_lookahead"

Cell = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="to be trained"
    )
    parser.add_argument(
        "--memory", nargs="+", type=_per_cent, default=MEMORY, help="per cent, for training"
    )
    parser.add_argument(
        "--inference", nargs="*", type=_per_cent, default=ASKED, help="per cent, for predicting"
    )
    parser.add_argument(
        "--criteo", type=Path, metavar="FILE", help="a Criteo log, in time order, instead of made"
    )
    parser.add_argument(
        "--sessions", type=Path, metavar="FILE", help="sessions for dien, instead of made ones"
    )
    parser.add_argument("--rows", type=int, default=500_000, help="rows of tables of made samples")
    parser.add_argument("--dim", type=int, default=32, help="float32 values of a vector")
    parser.add_argument("--batch", type=int, default=512, help="samples of a batch")
    parser.add_argument("--steps", type=int, default=24, help="batches of a turn")
    parser.add_argument("--turns", type=int, default=3, help="of each way")
    parser.add_argument(
        "--first-steps", type=int, default=96, help="batches that fill caches and do not count"
    )
    parser.add_argument(
        "--checked-steps", type=int, default=50, help="batches before, compared with the twin's"
    )
    parser.add_argument("--test-samples", type=int, default=16_384, help="held out of made samples")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument(
        "--engines",
        nargs="*",
        default=None,
        metavar="NAME",
        help="other stores (those of the papers)",
    )
    parser.add_argument(
        "--peer-models", nargs="*", choices=list(MODELS), default=["dlrm"], help="over other stores"
    )
    add_peer_arguments(parser, PEER_SECONDS)
    add_common(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report."""
    least = dict.fromkeys(["turns", "first_steps", "checked_steps", "batch", "test_samples"], 1)
    for name, fewest in {**least, "steps": 3}.items():  # a recording needs three batches
        if getattr(options, name) < fewest:
            given = name.replace("_", "-")
            raise MisuseError(f"--{given} is {getattr(options, name)}, expected {fewest} or more")
    report = Report("models", options)
    figures = [
        f"speed_vs_memory_{model}_{memory:g}"
        for model in options.models
        for memory in options.memory
    ]
    if import_torch(report, figures, MEMORY_BYTES) is None:
        return report.finish()
    from embedrock_lab.bench.models import peers

    engines = peers.ENGINES if options.engines is None else options.engines
    missing = peers.absent(options.peers, engines if options.peer_models else [])
    report.notes += [f"{name}: {why}" for name, why in missing.items()]
    for model in options.models:
        with workspace(options, _needed_bytes(options)) as place:
            prepared, found = _of_model(report, options, model, place / "stores")
            if model in options.peer_models:
                _over_peers(report, options, model, found["trained"], prepared, engines, missing)
        prepared.pop("trace")
        report.results.setdefault("prepared", {})[model] = prepared
        report.results[model] = found
        _figures(report, model, found)
    _least(report, options)
    return report.finish()


def _of_model(
    report: Report, options: argparse.Namespace, model: str, place: Path
) -> tuple[dict[str, Any], dict[str, dict[str, Cell]]]:
    """What a model is measured on, and all of its cells by their memory."""
    settings = _settings(options, model)
    report.say(f"{model}: writing its rows")
    place.mkdir()
    prepared = child.call(
        "embedrock_lab.bench.models.cell:prepare", settings=settings, path=str(place)
    )
    if model == "mmoe" and options.criteo is not None:
        report.notes.append("mmoe: a Criteo log has one target, so its samples are made")
    found: dict[str, dict[str, Cell]] = {"trained": {}, "asked": {}}
    wanted = [("train", "trained", memory) for memory in options.memory]
    wanted += [("ask", "asked", memory) for memory in options.inference]
    for function, part, memory in wanted:
        cell: Cell = child.call(
            f"embedrock_lab.bench.models.cell:{function}",
            settings=settings,
            path=str(place),
            memory=memory,
        )
        report.results["mismatches"] += cell["mismatches"]
        report.device = cell.pop("device", report.device)
        report.notes += _notes(model, part, cell)
        found[part][f"{memory:g} %"] = _summary(cell)
        shares = ", ".join(f"{WAYS[way]} {share(cell, way):.2f}" for way in (PLAIN, LOOKAHEAD))
        report.say(
            f"{model}: {part} with {memory:g} %: {rate(cell, TORCH):,.0f} samples/s in memory; "
            f"of that {shares}"
        )
    return prepared, found


def _settings(options: argparse.Namespace, model: str) -> dict[str, Any]:
    from embedrock_lab.bench.models.data import MADE, Wanted
    from embedrock_lab.bench.models.load import Settings

    batches = options.checked_steps + options.first_steps + options.steps * (options.turns + 1)
    wanted = Wanted(
        criteo=str(options.criteo or MADE),
        sessions=str(options.sessions or MADE),
        rows=options.rows,
        batch=options.batch,
        batches=batches,
        test_samples=options.test_samples,
        seed=options.seed,
    )
    return Settings(
        model=model,
        dim=options.dim,
        steps=options.steps,
        turns=options.turns,
        first_steps=options.first_steps,
        checked_steps=options.checked_steps,
        threads=options.threads,
        data=wanted,
    ).plain


def _summary(cell: Cell) -> Cell:
    """The cell, with what people look for beside each other."""
    flat: Cell = {}
    for way in (PLAIN, LOOKAHEAD):
        flat[f"{way}_vs_memory"] = share(cell, way)
    flat |= {f"{way}_samples_per_s": rate(cell, way) for way in cell["ways"]}
    for way in (PLAIN, LOOKAHEAD):
        one = cell["ways"][way]
        for name in ("pages", "bytes_read", "bytes_written"):
            flat[f"{way}_{name}_per_sample"] = one[f"{name}_per_step"] / cell["samples"]
    for name in ("auc", "log_loss"):
        flat |= {f"{way}_{name}": one[name] for way, one in cell["ways"].items() if name in one}
    if "bound" in cell:
        flat["bound_by"] = cell["bound"]["by"]
    return flat | cell


def _notes(model: str, part: str, cell: Cell) -> list[str]:
    name = f"{model}, {part}, {cell['memory']:g} %"
    notes = []
    if cell["raised"]:
        notes.append(f"{name}: with {cell['memory_bytes']} bytes, the least that works")
    if cell["mismatches"]:
        unlike = {key: cell[key] for key in cell if key.endswith(("_apart", "_unlike"))}
        notes.append(f"{name}: not as in memory, or not the same bits: {unlike}")
    waits = [one["core_wait_share"] for one in cell["ways"].values()]
    known = [wait for wait in waits if wait is not None]
    if known and max(known) > 0.03:
        notes.append(f"{name}: the machine was busy, a way waited {max(known):.0%} for a core")
    return notes


def _over_peers(
    report: Report,
    options: argparse.Namespace,
    model: str,
    trained: dict[str, Cell],
    prepared: dict[str, Any],
    engines: list[str],
    missing: dict[str, str],
) -> None:
    """Other stores with the memory of each trained cell."""
    from embedrock_lab.bench.models import peers

    for memory, cell in trained.items():
        for engine in engines:
            if engine in missing:
                cell[f"{engine}_samples_per_s"] = None
                continue
            report.say(f"{model}: {engine} with {memory}")
            try:
                one = peers.run(report, options, engine, prepared, cell)
            except process.ContestantError as error:
                report.notes.append(f"{model}, {memory}: {engine}: {error}")
                cell[f"{engine}_samples_per_s"] = None
                continue
            cell.setdefault("peers", {})[engine] = one
            cell[f"{engine}_samples_per_s"] = one["samples_per_s"]


def _figures(report: Report, model: str, found: dict[str, dict[str, Cell]]) -> None:
    for part, figure in (("trained", "speed_vs_memory"), ("asked", "inference_vs_memory")):
        for cell in found[part].values():
            name = f"{figure}_{model}_{cell['memory']:g}"
            report.figure(name, cell["lookahead_vs_memory"])
            report.figure(f"{name}{WITHOUT}", cell["plain_vs_memory"])
    cells = list(found["trained"].values())
    least = min(cells, key=lambda cell: float(cell["memory"]))
    report.figure(f"auc_{model}", least["lookahead_auc"])
    gaps = [
        abs(cell[f"{way}_auc"] - cell["torch_auc"]) for cell in cells for way in (PLAIN, LOOKAHEAD)
    ]
    report.figure(f"auc_gap_{model}", max(gaps))


def _least(report: Report, options: argparse.Namespace) -> None:
    """The smallest of SSDHashEmbed's models, where all of them ran."""
    for figure, prefix, shares in (
        ("speed_vs_memory_models", "speed_vs_memory", options.memory),
        ("inference_vs_memory_models", "inference_vs_memory", options.inference),
    ):
        for memory in shares:
            for ending in ("", WITHOUT):
                names = [f"{prefix}_{model}_{memory:g}{ending}" for model in SSDHASHEMBED]
                values = [report.figures.get(name) for name in names]
                known = [value for value in values if value is not None]
                name = f"{figure}_{memory:g}{ending}"
                if len(known) == len(names):
                    report.figure(name, min(known))
                else:
                    report.missing(name, f"needs {', '.join(SSDHASHEMBED)}")


def _needed_bytes(options: argparse.Namespace) -> int:
    """Two stores with state and one without, changed rows included."""
    return int(8 * options.rows * (8 * (options.dim + 1) + 16)) + (256 << 20)


def _per_cent(text: str) -> float:
    """A share in per cent, with the sign or without. For argparse's ``type``."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share in per cent, as 27 or 27%%")
    return value
