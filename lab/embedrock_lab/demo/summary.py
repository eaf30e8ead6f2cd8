"""Results of both parts: the report, a sentence, a table of seven lines."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from embedrock import report
from embedrock.report import text
from embedrock.report.points import time_split
from embedrock_lab.demo import comparison
from embedrock_lab.demo.limits import AUC_DIFFERENCE_MAX, memory_figures
from embedrock_lab.demo.paths import EMBEDROCK, PLAIN_TORCH
from embedrock_lab.demo.quality import Quality
from embedrock_lab.demo.settings import DemoSettings, ShapedSettings

Result = dict[str, Any]


def build(
    quality: DemoSettings,
    speed: ShapedSettings,
    found: Quality,
    held: comparison.Comparison,
    memory: Result,
    seconds: float,
) -> Result:
    """The report."""
    stored, plain = found.runs["out_of_core"], found.runs["in_memory"]
    rounds, counted = held.answers(EMBEDROCK), held.counted(EMBEDROCK)
    engine = held.results[EMBEDROCK]["engine"]
    waited = counted.read_wait_s + sum(round["window_wait_s"] for round in rounds)
    figures = {
        "auc_out_of_core": stored["auc"],
        "auc_in_memory": plain["auc"],
        "auc_difference": abs(stored["auc"] - plain["auc"]),
        "log_loss_out_of_core": stored["log_loss"],
        "log_loss_in_memory": plain["log_loss"],
        "bits_equal": int(found.bits_equal),
        "epochs": quality.recipe.epochs,
        "rows_quality": stored["rows"],
        "speed_vs_torch": held.rounds.ratio(0, 1),
        "speed_vs_torch_of_quiet_turns": held.rounds.quiet_ratio(0, 1),
        "samples_per_s_out_of_core": held.rate(EMBEDROCK),
        "samples_per_s_in_memory": held.rate(PLAIN_TORCH),
        "turns": len(rounds),
        "quiet_turns": len(held.rounds.counted[: held.rounds.quiet]),
        "steps_per_turn": rounds[0]["steps"],
        "hit_rate": counted.hit_rate,
        "pages_read_per_batch": counted.pages_read / sum(round["steps"] for round in rounds),
        "wait_share": waited / sum(round["seconds"] for round in rounds),
        "rows": speed.rows,
        "table_bytes": speed.rows * speed.row_bytes,
        **memory_figures(engine["budget_bytes"], memory),
        "demo_s": seconds,
    }
    return report.report(
        figures=figures,
        device=engine["device"],
        settings={"quality": asdict(quality), "speed": asdict(speed)},
        results={
            "headline": headline(figures, speed.memory),
            "speed": comparison.describe(held),
            "quality": found.runs,
            "untimed": ["quality"],
            "memory": memory,
            "time_out_of_core": time_split(held.results[EMBEDROCK]["history"]),
            "time_in_memory": time_split(held.results[PLAIN_TORCH]["history"]),
        },
        notes=_notes(quality, speed, figures, held),
    )


def headline(figures: Result, memory: str) -> Result:
    """Of the page: a sentence, and what to see first."""
    taken, table = figures["embedding_memory_bytes"], figures["table_bytes"]
    budget = figures["embedding_budget_bytes"]
    return {
        "verdict": verdict(figures, memory),
        "tiles": [
            _speed(figures),
            {
                "name": "memory for rows",
                "value": text.bytes_text(budget),
                "note": f"instead of {text.bytes_text(table)}; {text.bytes_text(taken)} with all "
                f"that a process takes beside them (keys, gradients, the allocator)",
            },
            {
                "name": "AUC",
                "value": text.decimals(figures["auc_out_of_core"], 4),
                "note": f"in memory {text.decimals(figures['auc_in_memory'], 4)}",
            },
            {
                "name": "losses and rows",
                "value": "same bits" if figures["bits_equal"] == 1 else "other bits",
                "note": f"at {memory} and at 100% memory",
            },
        ],
    }


def _speed(figures: Result) -> dict[str, str]:
    """The tile of the speed: of rounds that had the machine, or without a figure."""
    quiet = figures["speed_vs_torch_of_quiet_turns"]
    if quiet is None:
        return {
            "name": "of PyTorch's speed",
            "value": "not measured",
            "note": f"the machine was busy: every round waited for a core. They came to "
            f"{figures['speed_vs_torch']:.2f} x, which says little",
        }
    if figures["quiet_turns"] < figures["turns"]:
        note = (
            f"in {figures['quiet_turns']} of {figures['turns']} rounds: others had the cores else"
        )
    else:
        note = (
            f"{figures['samples_per_s_out_of_core']:,.0f} samples/s, in memory "
            f"{figures['samples_per_s_in_memory']:,.0f}"
        )
    return {"name": "of PyTorch's speed", "value": f"{quiet:.2f} x", "note": note}


def verdict(figures: Result, memory: str) -> str:
    """One sentence, whatever came of it."""
    difference = figures["auc_difference"]
    if difference is None or math.isnan(difference):  # no AUC: one kind of label alone
        learned = "trained beside PyTorch"
    elif difference <= AUC_DIFFERENCE_MAX:
        learned = "learned what PyTorch learns"
    else:
        learned = "learned something else than PyTorch"
    bits = "the same bits as" if figures["bits_equal"] == 1 else "OTHER bits than"
    quiet = figures["speed_vs_torch_of_quiet_turns"]
    if quiet is None:
        speed = "on a machine too busy to measure its speed in Criteo's shape"
    else:
        speed = f"and in Criteo's shape trained at {quiet:.2f} of PyTorch's speed"
    stored, plain = (text.decimals(figures[f"auc_{at}"], 4) for at in ("out_of_core", "in_memory"))
    return (
        f"With {memory} of the rows in memory Embedrock {learned} with all of them (AUC "
        f"{stored} and {plain}), {bits} with all memory, {speed}."
    )


def rows(whole: Result) -> list[tuple[str, str, str]]:
    """The table for the terminal."""
    f = whole["figures"]
    memory = whole["settings"]["speed"]["memory"]
    data = "MovieLens" if whole["settings"]["quality"]["data"] is None else "your data"
    rounds = f"{f['turns']} rounds" if f["turns"] > 1 else "1 round"
    return [
        ("", f"Embedrock, {memory} memory", "PyTorch, in memory"),
        (
            f"AUC ({data})",
            text.decimals(f["auc_out_of_core"], 5),
            text.decimals(f["auc_in_memory"], 5),
        ),
        ("log loss", f"{f['log_loss_out_of_core']:.5f}", f"{f['log_loss_in_memory']:.5f}"),
        ("losses and rows at 100% memory", "same bits" if f["bits_equal"] else "OTHER BITS", ""),
        (
            f"samples/s (Criteo's shape, {rounds})",
            f"{f['samples_per_s_out_of_core']:,.0f}",
            f"{f['samples_per_s_in_memory']:,.0f}",
        ),
        (
            f"memory for {f['rows']:,} rows",
            text.bytes_text(f["embedding_budget_bytes"]),
            text.bytes_text(f["table_bytes"]),
        ),
        ("  taken, without PyTorch", text.bytes_text(f["embedding_memory_bytes"]), ""),
        ("time waiting for reads", f"{f['wait_share']:.0%}", ""),
    ]


def _notes(
    quality: DemoSettings, speed: ShapedSettings, figures: Result, held: comparison.Comparison
) -> list[str]:
    """Notes for readers of the figures."""
    name = "MovieLens-100K with crosses" if quality.data is None else quality.data
    notes = [
        f"Results: {name}, {figures['rows_quality']:,} rows, {quality.recipe.epochs} epochs, one "
        f"run each. The runs shared the machine: their speeds say nothing.",
        f"Speed: 26 tables with Criteo Kaggle's proportions and skew, {speed.rows:,} rows of "
        f"{speed.recipe.embedding_dim} values and Adagrad. {figures['turns']} rounds of "
        f"{figures['steps_per_turn']} steps each, two processes alternate; medians. Rows had been "
        f"written and committed, the cache was warm. Making batches is not in the time.",
        f"PyTorch had made {speed.torch_warm_up} steps before, Embedrock those that fill its "
        f"cache: rounds have other batches of the same stream.",
        "Batches went through a LookaheadLoader and a Pipeline with their defaults: both measure "
        "whether they pay, and are set aside where they do not.",
        "Memory taken is that of a process without PyTorch that reads and updates the same keys.",
    ]
    notes += [f"Speed: {note}" for note in held.rounds.notes]
    return notes
