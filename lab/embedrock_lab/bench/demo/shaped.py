"""The bench in Criteo's shape: 26 tables with the data's sizes and skew, labels planted.

The same DLRM is trained out of core, with a budget for all rows (which must give the same bits),
and, if its optimizer is PyTorch's, with plain PyTorch tables; then the engine's memory is measured
without PyTorch. Systems that do not fit into the machine's memory are left out, and notes say so.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from embedrock import report
from embedrock.report.progress import Sink, Task
from embedrock.training.auc import auc, log_loss
from embedrock_lab.bench.demo import real
from embedrock_lab.demo import children, comparison, limits
from embedrock_lab.demo.folder import check_disk, work_folder
from embedrock_lab.demo.paths import (
    LOOK_AHEAD,
    OUT_OF_CORE,
    PLAIN_TORCH,
    SYSTEMS,
    WHOLE_BUDGET,
)
from embedrock_lab.demo.settings import ShapedSettings
from embedrock_lab.measure.machine import available_memory_bytes

RATIO = "speed_vs_memory_criteo"
#: A process with PyTorch, and twice the rows of a piece while they are written.
_PROCESS_BYTES = 1 << 30
_MEMORY_FACTOR = 1.1

Result = dict[str, Any]


def run(settings: ShapedSettings, sink: Sink, *, keep: bool = False) -> Result:
    """Runs it and returns its report (see `embedrock.report`).

    Stores are made in a temporary folder under `settings.folder` and removed unless `keep`.

    Errors: MisuseError for settings that cannot be, FullError when the disk is too small, both
    before anything is written; ChildError with what a run said.
    """
    started = perf_counter()
    settings.check()
    names, left_out = _systems(settings)
    check_disk(settings, len(names) - (PLAIN_TORCH in names))
    with work_folder(settings, keep) as working:
        path = Path(working.folder) / "settings.json"
        held = comparison.compare(working, names, path, sink)
        (memory,) = children.run_together(["memory"], path, sink)
    with Task(sink, "the planted model: evaluating"):
        planted = _planted(settings)
    return _report(settings, held, memory, planted, left_out, perf_counter() - started)


def failures(whole: Result) -> list[str]:
    """Missed targets, as sentences; empty when all is well."""
    found = limits.memory_failures(whole["figures"])
    if whole["figures"]["bits_equal"] == 0:
        found.append("bits_equal is 0: the memory budget changed losses or rows")
    return found


def rows(whole: Result) -> list[tuple[str, ...]]:
    """The table for the terminal."""
    found, results = whole["figures"], whole["results"]["contest"]["contestants"]
    table: list[tuple[str, ...]] = [*comparison.rows(found, RATIO)]
    for name, how in (("auc", ".5f"), ("log_loss", ".5f"), ("peak_rss_bytes", "mib")):
        cells = []
        for system in SYSTEMS:
            value = results.get(system, {}).get(name)
            shown = "-" if value is None else format(value, how) if how != "mib" else mib(value)
            cells.append(shown)
        label = {"auc": "AUC", "log_loss": "log loss", "peak_rss_bytes": "peak memory"}[name]
        table.append((label, *cells))
    budget = mib(found["embedding_budget_bytes"])
    table.append(("AUC of the planted model", f"{found['auc_planted']:.5f}", "", "", ""))
    table.append(("rows with optimizer state", mib(found["table_bytes"]), "", "", ""))
    table.append(("memory budget for them", budget, budget, "all", "all"))
    table.append(("memory taken (no torch)", "", mib(found["embedding_memory_bytes"]), "", ""))
    return table


mib = real.mib


def _systems(settings: ShapedSettings) -> tuple[list[str], list[str]]:
    """Systems that can run here, and notes on those that cannot."""
    names, left_out = [LOOK_AHEAD, OUT_OF_CORE], []
    free = available_memory_bytes()
    table_bytes = settings.rows * settings.row_bytes
    candidates = [(WHOLE_BUDGET, table_bytes)]
    if settings.optimizer == "adagrad":
        candidates.append((PLAIN_TORCH, table_bytes))
    for name, size in candidates:
        needed = int(_MEMORY_FACTOR * size) + _PROCESS_BYTES
        if needed <= free:
            names.append(name)
            free -= needed
        else:
            left_out.append(
                f"{name} was left out: it needs {needed:,} bytes of memory, {free:,} are available"
            )
    return names, left_out


def _planted(settings: ShapedSettings) -> Result:
    """Quality of the planted model's own predictions for the held-out samples."""
    dataset = settings.dataset()
    labels, logits = [], []
    for batch in dataset.test_batches(4096):
        labels.append(batch.labels)
        keys = batch.keys.reshape(len(dataset.features), len(batch))
        logits.append(dataset.planted_logits(keys, batch.dense))
    y, z = np.concatenate(labels), np.concatenate(logits)
    return {"auc": auc(y, z), "log_loss": log_loss(y, z), "clicks": float(y.mean())}


def _report(
    settings: ShapedSettings,
    held: comparison.Comparison,
    memory: Result,
    planted: Result,
    left_out: list[str],
    seconds: float,
) -> Result:
    row_wise = settings.optimizer == "rowwise_adagrad"
    found = comparison.figures(held, RATIO, row_wise)
    stored = held.results[OUT_OF_CORE]
    equal = None
    if WHOLE_BUDGET in held.names:
        digests_equal = stored["digests"] == held.results[WHOLE_BUDGET]["digests"]
        ahead_equal = held.results[LOOK_AHEAD]["digests"] == stored["digests"]
        equal = int(
            digests_equal
            and ahead_equal
            and held.same_losses(OUT_OF_CORE, WHOLE_BUDGET)
            and held.same_losses(OUT_OF_CORE, LOOK_AHEAD)
        )
    for name in SYSTEMS:
        found[f"auc_{name.replace(' ', '_')}"] = held.results.get(name, {}).get("auc")
    found |= {
        "auc_planted": planted["auc"],
        "bits_equal": equal,
        "rows": settings.rows,
        "table_bytes": settings.rows * settings.row_bytes,
        "peak_rss_bytes_out_of_core": stored["peak_rss_bytes"],
        **limits.memory_figures(stored["engine"]["budget_bytes"], memory),
        "demo_s": seconds,
    }
    dataset = settings.dataset()
    samples = stored["steps"] * settings.recipe.batch_size
    return report.report(
        figures=found,
        device=stored["engine"]["device"],
        settings=asdict(settings),
        results={
            "tables": [field.rows for field in dataset.fields],
            "contest": comparison.describe(held),
            "memory": memory,
            "planted": planted,
        },
        notes=[
            f"26 tables of {settings.rows:,} rows in all, in proportion to Criteo Kaggle's; keys "
            f"as skewed as in its data, fields independent of each other and of time; labels from "
            f"a planted model, {planted['clicks']:.0%} clicks.",
            f"AUC on {settings.test_samples:,} held-out samples after {samples:,} samples of "
            f"training. Nothing beats the planted model, and most of its weights belong to keys "
            f"that such a run has hardly seen.",
            *comparison.notes(held, found, RATIO, row_wise),
            *left_out,
        ],
    )
