"""``staleness``: what relaxing the bound gives and takes, and what keeping to it costs.

``bookkeeping_uniform`` and ``bookkeeping_skewed``: batches that read their rows and write them back
(half of the operations each, as YCSB A), with a permit for each batch and without, in rounds; the
share of the rate that permits take, of rows in half of their memory. Another batch is in flight all
the time, so that rows are counted; ``_alone`` is without it. ``_resident`` is with all rows in
memory, where permits weigh more.

``bits_equal`` is 1 when a plain loop, one with look-ahead, one with a pipeline at bound 0 and one
with both leave the same losses and the same rows.

Sweeps: a DLRM trained for an epoch on click logs in time order, with each bound, and without a
pipeline: samples per second and AUC of the held-out end. ``auc_drop_<data>`` is the AUC at bound 0
less that of the worst finite bound. MovieLens-100K is fetched; Criteo and iPinYou logs are given.
``--device-latency`` makes every batch's rows come that much later: a slow device, without having
one. ``pipeline_speedup_<data>`` is the rate at bound 0 divided by that without a pipeline,
``relaxed_speedup_<data>`` the best rate of a relaxed bound divided by that at bound 0; ``_slow``:
both on the slow device.

*Source*: MLKV's Fig. 2 and 8 (sweep) and 10 (cost).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import embedrock
from embedrock.ahead.permits import Permits
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.measure.machine import device_facts
from embedrock_lab.measure.noise import Timed, interleave
from embedrock_lab.measure.rows import Keys, fill, mismatches, resident_budget

__all__ = ["Options", "run"]

SKEWS = {"uniform": 0.0, "skewed": 0.99}
ROW_BYTES, PUT_BATCHES = 64, 20
MEMORY_MB = 400
TRAINING_BYTES = 2 << 30
SLOW = "slow device"
LOGS = ["movielens", "criteo", "ipinyou"]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    parts: list[str] | None = option(
        None, "what is measured; the default is all", choices=["cost", "bits", "sweep"]
    )
    rows: int = option(2_000_000, "of the cost of bookkeeping")
    batch: int = option(4096, "keys, of the cost of bookkeeping")
    rounds: int = option(7, "rounds of each measurement")
    logs: list[str] = option(LOGS, "to train on", choices=LOGS)
    samples: int = option(128, "of a training batch")
    memory: str = option("25%", "of the tables that are trained")
    threads: int = option(1, "of PyTorch")
    cache_dir: Path = option(Path(".cache"), "for MovieLens")
    criteo: Path | None = option(None, "a Criteo log, in time order", metavar="FILE")
    ipinyou: Path | None = option(None, "folder of train.tsv.gz and test.tsv.gz", metavar="DIR")
    device_latency: float = option(10.0, "added on the slow device", metavar="MS")
    png: Path | None = option(None, "also plot the sweeps", metavar="FILE")
    patience: float = patience_of(30.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("staleness", options)
    parts = options.parts or ["cost", "bits", "sweep"]
    swept: dict[str, dict[str, Any]] = {}
    if "cost" in parts:
        for skew in SKEWS:
            for resident in (False, True):
                _costs(report, options, skew, resident)
    if {"bits", "sweep"} & set(parts):
        torch = import_torch(report, ["bits_equal"], MEMORY_MB << 20)
        if torch is not None:
            torch.set_num_threads(options.threads)
            # PyTorch is imported by those who need it alone.
            from embedrock_lab.bench.staleness_training import DATA, bits_equal, sweep

            for name in options.logs:
                data = DATA[name](options)
                if data is None:
                    report.missing(f"auc_drop_{name}", f"no data: pass --{name}")
                    continue
                report.say(f"{name}: {len(data.labels):,} samples")
                if "bits" in parts and "bits_equal" not in report.figures:
                    with workspace(options, TRAINING_BYTES) as place:
                        report.figure("bits_equal", bits_equal(report, options, place, data))
                if "sweep" in parts:
                    with workspace(options, TRAINING_BYTES) as place:
                        swept[name] = sweep(report, options, place, name, data)
    if options.png is not None and swept:
        _save_plot(options.png, swept, report.notes)
    return report.finish()


def _costs(report: Report, options: Options, skew: str, resident: bool) -> None:
    """The shares of the rate that permits take."""
    rows, dim = options.rows, ROW_BYTES // 4
    where = "all in memory" if resident else "half of them in memory"
    report.say(f"{skew} keys of {rows:,} rows of {ROW_BYTES} bytes, {where}")
    budget = resident_budget(rows, ROW_BYTES) if resident else rows * ROW_BYTES // 2
    draws = Zipf(rows, SKEWS[skew], options.seed)
    with workspace(options, 6 * rows * ROW_BYTES) as place:
        store = embedrock.open(place / "store", memory=budget, page_bytes=4096)
        with store:
            table = store.table("rows", dim, rows + 1, optimizer="none")
            fill(table, rows)
            store.commit(0)
            report.device = device_facts(store)
            for alone in (False, True):
                ending = ("_resident" if resident else "") + ("_alone" if alone else "")
                figure = f"bookkeeping_{skew}{ending}"
                one = _Cost(store.permits(0), table, lambda: draws.draw(options.batch))
                # A row that no batch touches: it is in flight, and in nobody's way.
                company = None if alone else one.permits.acquire({table: [rows]})
                found = interleave(
                    [one.with_permits, one.without], options.rounds, options.patience
                )
                report.rounds(figure, found)
                report.figure(figure, 1 - found.ratio(0, 1))
                report.results[figure] = {
                    "rows_per_s": found.rate(0),
                    "rows_per_s_without": found.rate(1),
                    "ns_per_key": 2e9 * (1 / found.rate(0) - 1 / found.rate(1)),
                    "permit_bytes": one.permits.stats()["bytes"],
                }
                if company is not None:
                    company.release()
            checked = draws.draw(options.batch)
            report.results["mismatches"] += mismatches(table.get(checked), checked)
            store.commit(1)


class _Cost:
    """Batches that are read and written back."""

    def __init__(self, permits: Permits, table: embedrock.Table, draw: Callable[[], Keys]) -> None:
        self.permits, self.table, self.draw = permits, table, draw
        for _ in range(PUT_BATCHES):
            self._batch(draw())

    def with_permits(self) -> Timed:
        timed = Timed()
        for _ in range(PUT_BATCHES):
            keys = self.draw()
            with timed, self.permits.acquire({self.table: keys}):
                self._batch(keys)
            timed.work += 2 * len(keys)
        return timed

    def without(self) -> Timed:
        timed = Timed()
        for _ in range(PUT_BATCHES):
            keys = self.draw()
            with timed:
                self._batch(keys)
            timed.work += 2 * len(keys)
        return timed

    def _batch(self, keys: Keys) -> None:
        self.table.put(keys, self.table.get(keys))


def _save_plot(file: Path, sweeps: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Writes a PNG: a panel for each log, rates and AUC over the bound, as MLKV's Fig. 8."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    figure, panels = pyplot.subplots(
        1, len(sweeps), figsize=(4.6 * len(sweeps), 3.4), layout="constrained", squeeze=False
    )
    for (name, found), axes in zip(sweeps.items(), panels.flat, strict=True):
        labels = [bound for bound in found if bound.startswith("bound")]
        places = range(len(labels))
        for key, label in (("samples_per_s", "samples/s"), ("samples_per_s_slow", f"on a {SLOW}")):
            values = [found[bound].get(key) or math.nan for bound in labels]
            axes.plot(places, [v / 1e3 for v in values], marker="o", label=label)
        axes.set_xticks(places, [label.removeprefix("bound ") for label in labels])
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("staleness bound")
        axes.set_ylabel("thousand samples/s")
        axes.set_ylim(bottom=0)
        quality = axes.twinx()
        quality.plot(
            places, [found[bound]["auc"] for bound in labels], color="black", linestyle="--"
        )
        quality.set_ylabel("AUC (dashed)")
        quality.margins(y=2.0)
    panels.flat[0].legend(fontsize="small")
    save(pyplot, figure, file)
