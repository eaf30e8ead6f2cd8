"""``models``: the click models of ``embedrock train``, at less and less memory, and in memory.

Each model trains one loop over one data set: a plain loop over a store, one with look-ahead, and
its twin in memory with ``torch.nn.EmbeddingBag`` or ``Embedding``, the same first rows and weights,
batches and optimizers, in rounds in one process. Memory is per cent of the bytes of all rows with
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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedrock.errors import MisuseError
from embedrock.models.registry import MODELS
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import option, per_cent
from embedrock_lab.bench.replay import process
from embedrock_lab.bench.replay.systems import PeerOptions, absent_peers, peer_seconds_of
from embedrock_lab.bench.training.cells import LOOKAHEAD, PLAIN, Cell, rate, said, share

__all__ = ["Options", "run"]

MEMORY = [67.0, 53.0, 27.0, 10.0]
ASKED = [27.0]
SSDHASHEMBED = ("dlrm", "wide_deep", "mmoe", "dien")
"""The models of that paper."""
MEMORY_BYTES = 2 << 30
PEER_SECONDS = 5.0
WITHOUT = "_without_lookahead"


@dataclass(frozen=True, kw_only=True)
class Options(PeerOptions):
    """Options of this bench."""

    models: list[str] = option(list(MODELS), "to be trained", choices=list(MODELS))
    memory: list[float] = option(MEMORY, "per cent, for training", parse=per_cent, nargs="+")
    inference: list[float] = option(ASKED, "per cent, for predicting", parse=per_cent, nargs="*")
    criteo: Path | None = option(
        None, "a Criteo log, in time order, instead of made", metavar="FILE"
    )
    sessions: Path | None = option(None, "sessions for dien, instead of made ones", metavar="FILE")
    rows: int = option(500_000, "rows of tables of made samples")
    dim: int = option(32, "float32 values of a vector")
    batch: int = option(512, "samples of a batch")
    steps: int = option(24, "batches of a round")
    turns: int = option(3, "of each way")
    first_steps: int = option(96, "batches that fill caches and do not count")
    checked_steps: int = option(50, "batches before, compared with the twin's")
    test_samples: int = option(16_384, "held out of made samples")
    threads: int = option(1, "of PyTorch")
    engines: list[str] | None = option(
        None, "other stores (those of the papers)", nargs="*", metavar="NAME"
    )
    peer_models: list[str] = option(["dlrm"], "over other stores", nargs="*", choices=list(MODELS))
    peer_seconds: float = peer_seconds_of(PEER_SECONDS)


def run(options: Options) -> dict[str, Any]:
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
    from embedrock_lab.bench.training.models import peers

    engines = peers.ENGINES if options.engines is None else options.engines
    asked = engines if options.peer_models else []
    missing = absent_peers(options.peers, dict(zip(asked, asked, strict=True)))
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
    report: Report, options: Options, model: str, place: Path
) -> tuple[dict[str, Any], dict[str, dict[str, Cell]]]:
    """Data that a model is measured on, and all of its cells by their memory."""
    settings = _settings(options, model)
    report.say(f"{model}: writing its rows")
    place.mkdir()
    prepared = child.call(
        "embedrock_lab.bench.training.models.cell:prepare", settings=settings, path=str(place)
    )
    if model == "mmoe" and options.criteo is not None:
        report.notes.append("mmoe: a Criteo log has one target, so its samples are made")
    found: dict[str, dict[str, Cell]] = {"trained": {}, "asked": {}}
    wanted = [("train", "trained", memory) for memory in options.memory]
    wanted += [("ask", "asked", memory) for memory in options.inference]
    for function, part, memory in wanted:
        cell: Cell = child.call(
            f"embedrock_lab.bench.training.models.cell:{function}",
            settings=settings,
            path=str(place),
            memory=memory,
        )
        report.results["mismatches"] += cell["mismatches"]
        report.device = cell.pop("device", report.device)
        report.notes += _notes(model, part, cell)
        found[part][f"{memory:g} %"] = _summary(cell)
        report.say(f"{model}: {part} with {memory:g} %: {said(cell)}")
    return prepared, found


def _settings(options: Options, model: str) -> dict[str, Any]:
    from embedrock_lab.bench.training.loads.click_models import Settings
    from embedrock_lab.bench.training.loads.samples import MADE, Wanted

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
        rounds=options.turns,
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
    options: Options,
    model: str,
    trained: dict[str, Cell],
    prepared: dict[str, Any],
    engines: list[str],
    missing: dict[str, str],
) -> None:
    """Other stores with the memory of each trained cell."""
    from embedrock_lab.bench.training.models import peers

    for memory, cell in trained.items():
        for engine in engines:
            if engine in missing:
                cell[f"{engine}_samples_per_s"] = None
                continue
            report.say(f"{model}: {engine} with {memory}")
            try:
                one = peers.run(report, options, engine, prepared, cell)
            except process.SystemFailed as error:
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


def _least(report: Report, options: Options) -> None:
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


def _needed_bytes(options: Options) -> int:
    """Two stores with state and one without, changed rows included."""
    return int(8 * options.rows * (8 * (options.dim + 1) + 16)) + (256 << 20)
