"""The bench on real data: a DLRM with its tables held to a tenth of their bytes in memory.

The same model is trained four times, each time in a process of its own so that peak memory means
something: with 10 % of the tables in DRAM, with plain PyTorch tables in memory, with a budget for
all rows (which must give the same bits as 10 %), and without the keys that occur once. A fifth
process without PyTorch replays the keys to measure the engine's memory alone. Then speeds are
compared, out of core and in memory alternately (`embedrock_lab.demo.comparison`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from embedrock import report
from embedrock.data.memory import MemoryDataset
from embedrock.report import text
from embedrock.report.counters import Counters
from embedrock.report.points import time_split
from embedrock.report.progress import Sink, Task
from embedrock_lab.demo import comparison, limits
from embedrock_lab.demo.folder import work_folder
from embedrock_lab.demo.paths import SYSTEMS
from embedrock_lab.demo.quality import Quality, train
from embedrock_lab.demo.settings import DemoSettings

#: The figure that the comparison of speeds is about.
RATIO = "speed_vs_memory_demo"

Result = dict[str, Any]


def run(settings: DemoSettings, sink: Sink, *, keep: bool = False) -> dict[str, Any]:
    """Runs the bench and returns its report (see `embedrock.report`).

    Stores are made in a temporary folder under `settings.folder` and removed unless `keep`.

    Errors: DataError when the data cannot be had or read; ChildError with what a run said.
    """
    started = perf_counter()
    with Task(sink, "reading data"):
        dataset = settings.dataset()
        facts = DataFacts.of(dataset)
        del dataset
    # The two runs whose speed is compared have the machine for themselves; for the others only the
    # results matter, so they share it.
    groups = [["out_of_core"], ["in_memory"], ["whole_budget", "without_fillers", "memory"]]
    found = train(settings, groups, sink, keep)
    # With the layers, batches and threads that the speeds of all demos are compared with.
    with work_folder(settings.for_speed(), keep) as working:
        held = comparison.compare(working, SYSTEMS, Path(working.folder) / "settings.json", sink)
    return build(settings, facts, found, held, perf_counter() - started)


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data, for the report."""

    samples_train: int
    samples_test: int
    features: int
    keys_written: int
    keys_seen_once: int

    @classmethod
    def of(cls, dataset: MemoryDataset) -> DataFacts:
        """The facts of a data set."""
        return cls(
            dataset.num_train(),
            dataset.num_test,
            len(dataset.features),
            dataset.written_keys(),
            dataset.keys_seen_once(),
        )


def build(
    settings: DemoSettings,
    facts: DataFacts,
    found: Quality,
    held: comparison.Comparison,
    seconds: float,
) -> Result:
    """The report."""
    runs = found.runs
    stored, plain = runs["out_of_core"], runs["in_memory"]
    counted = _training(stored)
    later = _training(stored, first_epoch=1)
    budget = stored["engine"]["budget_bytes"]
    device = stored["engine"]["device"]
    time = time_split(stored["history"])
    figures = {
        "auc_out_of_core": stored["auc"],
        "auc_in_memory": plain["auc"],
        "auc_difference": abs(stored["auc"] - plain["auc"]),
        "bits_equal": int(found.bits_equal),
        "auc_without_fillers": runs["without_fillers"]["auc"],
        "log_loss_out_of_core": stored["log_loss"],
        "log_loss_in_memory": plain["log_loss"],
        "samples_per_s_out_of_core": stored["samples_per_s"],
        "samples_per_s_in_memory": plain["samples_per_s"],
        "keys_written": facts.keys_written,
        "keys_seen_once": facts.keys_seen_once,
        "peak_rss_bytes_out_of_core": stored["peak_rss_bytes"],
        "peak_rss_bytes_in_memory": plain["peak_rss_bytes"],
        "table_bytes": stored["rows"] * _row_bytes(settings),
        "table_bytes_in_memory": plain["embedding_bytes"],
        **limits.memory_figures(budget, runs["memory"]),
        "hit_rate": counted.hit_rate,
        "read_requests": counted.read_requests,
        "pages_read": counted.pages_read,
        "pages_read_after_first_epoch": later.pages_read,
        "bytes_written_per_batch": counted.bytes_written / stored["steps"],
        "wait_read_s": time["waiting_for_reads"],
        "computing_s": time["computing"],
        "updating_s": time["updating"],
        **comparison.figures(held, RATIO, row_wise=False),
        "demo_s": seconds,
    }
    results = {"data": asdict(facts), **runs, "losses_equal": found.losses_equal}
    results |= {"digests_equal": found.digests_equal, "time_out_of_core": time}
    results["time_in_memory"] = time_split(plain["history"])
    results["contest"] = comparison.describe(held)
    return report.report(
        figures=figures,
        device=device,
        settings=asdict(settings),
        results=results,
        notes=[
            *_notes(settings, facts, runs, figures),
            *comparison.notes(held, figures, RATIO, row_wise=False),
        ],
    )


def failures(whole: Result) -> list[str]:
    """Missed targets, as sentences; empty when all is well."""
    return limits.failures(whole["figures"])


def _row_bytes(settings: DemoSettings) -> int:
    """Values and element-wise Adagrad state, float32 both."""
    return settings.recipe.embedding_dim * 4 * 2


def _training(run: Result, first_epoch: int = 0) -> Counters:
    """The engine's counters in training epochs, without evaluation and digests."""
    total = Counters()
    for epoch in run["epochs"][first_epoch:]:
        total = total + Counters.from_dict(epoch["engine"])
    return total


def _notes(
    settings: DemoSettings, facts: DataFacts, runs: dict[str, Result], figures: dict[str, Any]
) -> list[str]:
    once = facts.keys_seen_once / facts.keys_written
    kept = facts.keys_written - facts.keys_seen_once
    notes = [
        f"{facts.keys_seen_once:,} of {facts.keys_written:,} keys ({once:.0%}) occur in one "
        f"training sample only. They are fillers: they fill the tables as crosses in production "
        f"logs do and teach nothing. Without them, {kept:,} keys are left and the AUC is "
        f"{runs['without_fillers']['auc']:.4f} instead of {runs['out_of_core']['auc']:.4f}.",
        f"The first of {settings.recipe.epochs} epochs writes rows for the first time; the others "
        f"read them from storage: {figures['pages_read_after_first_epoch']:,} pages.",
        "Samples per second include building batches from columns in memory and a commit after "
        "each epoch, not parsing text.",
        "The device's rate: random 4-KiB reads, 64 in flight, the median of what a store's own "
        "pages gave between rounds.",
    ]
    wait = max(runs[name]["core_wait_share"] for name in ("out_of_core", "in_memory"))
    if wait > 0.03:
        notes.append(
            f"Other programs kept the trainer waiting for a core for up to {wait:.0%} of its time: "
            f"speeds are too low and not comparable."
        )
    return notes


def rows(whole: Result) -> Iterator[tuple[str, str, str]]:
    """The table for the terminal: name, out of core, in memory."""
    f, stored, plain = whole["figures"], whole["results"], whole["results"]
    budget, used = f["embedding_budget_bytes"], f["embedding_memory_bytes"]
    time, other = stored["time_out_of_core"], plain["time_in_memory"]
    rate = f["device_requests_per_s"]
    yield "", "out of core", "in memory"
    yield "AUC", text.decimals(f["auc_out_of_core"], 5), text.decimals(f["auc_in_memory"], 5)
    yield "log loss", f"{f['log_loss_out_of_core']:.5f}", f"{f['log_loss_in_memory']:.5f}"
    yield (
        "samples/s",
        f"{f['samples_per_s_out_of_core']:,.0f}",
        f"{f['samples_per_s_in_memory']:,.0f}",
    )
    yield (
        "peak memory of the process",
        mib(f["peak_rss_bytes_out_of_core"]),
        mib(f["peak_rss_bytes_in_memory"]),
    )
    yield "rows with optimizer state", mib(f["table_bytes"]), mib(f["table_bytes_in_memory"])
    yield "memory budget for them", mib(budget), "all"
    yield "memory taken (no torch)", mib(used), ""
    yield "hit rate", f"{f['hit_rate']:.1%}", ""
    yield "read requests", f"{f['read_requests']:,}", ""
    yield "pages read", f"{f['pages_read']:,}", ""
    yield "  after the first epoch", f"{f['pages_read_after_first_epoch']:,}", ""
    yield "bytes written per batch", f"{f['bytes_written_per_batch']:,.0f}", ""
    yield "device, 4-KiB reads/s", "-" if rate is None else f"{rate:,.0f}", ""
    for name in ("waiting_for_reads", "computing", "updating", "batches_and_commits"):
        shown = name.replace("_", " ")
        yield f"time {shown}", f"{time[name]:.1f} s", f"{other[name]:.1f} s"


def mib(count: float) -> str:
    """As mebibytes, for the terminal."""
    return f"{count / (1 << 20):,.1f} MiB"
