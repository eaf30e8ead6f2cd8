"""``cache``: cost and hit rates of replacement, beside lists under one lock.

Each key of a skewed trace is used: a row that is there counts as used, one that is not is admitted,
and another one has to go. Rows have one word, so that what is timed is finding, replacing and
locking. Systems, each with LRU and LFU:

* ``sets-8`` to ``sets-32``: the engine's own row cache with so many rows to a set, gone over as its
  verbs do; ``sets-32-plain``: the same without asking for lines ahead.
* ``list``: a hash map and linked lists under one lock, taken for each key (LFU: a list for each
  number of uses, which never fades); ``list-64``: the lock is taken for 64 keys at a time.
* ``model-64``: hits of the engine's rules in sets of 64, which it does not have; ``model-32`` shows
  how near the model is; ``model-8`` and ``model-16`` halve counts after as many uses per row as
  sets of 32 do.

If popularity drifts, ``hit_rate_late`` is that of the last third of a trace three times as long: by
then, formerly popular rows had time to fill the cache.

``replacement_ns`` is wall time per access of ``sets-32-lfu`` with one thread on the first workload;
``vs_list_lru`` and ``vs_list_lfu`` are the time of the faster list divided by that of sets of 32
with the same policy, ``_2`` with two threads; ``hit_loss_lru`` and ``hit_loss_lfu`` are hit rates,
list minus sets of 32. *Source*: SSDHashEmbed, figure 6 and table 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedrock_lab.bench.common import Report
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.bench.program import Program, quietest, timed_of
from embedrock_lab.measure.noise import Timed, interleave

__all__ = ["Options", "run"]

PROGRAM = Path(".cache/peers/embedrock-cachebench")
POLICIES = ("lru", "lfu")
FADING_USES_PER_ROW = 15
"""The engine halves the counts of a set of 32 after 480 uses."""
TIMED: dict[str, dict[str, Any]] = {
    "sets-8": {"sets": {"ways": 8, "prefetching": True}},
    "sets-16": {"sets": {"ways": 16, "prefetching": True}},
    "sets-32": {"sets": {"ways": 32, "prefetching": True}},
    "sets-32-plain": {"sets": {"ways": 32, "prefetching": False}},
    "list": {"list": {"keys_per_lock": 1}},
    "list-64": {"list": {"keys_per_lock": 64}},
}
LATE = ["sets-8", "sets-16", "sets-32", "list"]
MODELLED = {"model-8": 8, "model-16": 16, "model-32": 32, "model-64": 64}
FIGURES = ["replacement_ns", "hit_loss_lru", "hit_loss_lfu"]
FIGURES += ["vs_list_lru", "vs_list_lfu", "vs_list_lru_2", "vs_list_lfu_2"]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    split_ids: int = option(3_700_000, "ids of the 80/20 skew")
    zipf_ids: int = option(4_000_000, "ids of the Zipf skew")
    zipf: float = option(0.9, "exponent of the Zipf skew")
    batch: int = option(131_072, "keys of a batch")
    batches: int = option(20, "batches that are timed")
    warm: int = option(11, "batches before the timed ones")
    drift: float = option(
        0.05, "share of popularity ranks that get another id after each batch, where it drifts"
    )
    threads: list[int] = option([1, 2], "threads of each run")
    rounds: int = option(3, "rounds of each measurement")
    program: Path = option(PROGRAM, "built by `make peers`")
    png: Path | None = option(None, "draw the result to this file")
    patience: float = patience_of(20.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("cache", options)
    if not options.program.exists():
        for figure in FIGURES:
            report.missing(figure, f"{options.program} is not built; `make peers` builds it")
        return report.finish()
    with Program(options.program) as program:
        bench = _Bench(report, options, program)
        for name in bench.workloads:
            bench.measure(name)
    _figures(report, bench.tables[next(iter(bench.workloads))], options.threads)
    report.results["workloads"] = bench.facts
    report.results.update(bench.tables)
    if options.png is not None:
        _save_plot(options.png, bench.tables, report.notes)
    return report.finish()


class _Bench:
    """All systems on all workloads."""

    def __init__(self, report: Report, options: Options, program: Program) -> None:
        self.report, self.options, self.program = report, options, program
        split: dict[str, Any] = {"ids": options.split_ids, "skew": {"share": [0.8, 0.2]}}
        zipf: dict[str, Any] = {"ids": options.zipf_ids, "skew": {"zipf": options.zipf}}
        self.workloads = {
            "split": (split, 0.0, {"distinct": 0.5}),
            "split_drift": (split, options.drift, {"distinct": 0.5}),
            "zipf": (zipf, 0.0, {"ids": 0.1}),
            "zipf_drift": (zipf, options.drift, {"ids": 0.1}),
        }
        self.tables: dict[str, dict[str, dict[str, float]]] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def measure(self, name: str) -> None:
        """One workload: a table of columns by system."""
        table: dict[str, dict[str, float]] = {"hit_rate": {}, "beside_bytes": {}}
        self.tables[name] = table
        for threads in self.options.threads:
            self.report.say(f"{name}: {threads} thread{'s' * (threads > 1)}")
            names = [f"{cache}-{policy}" for cache in TIMED for policy in POLICIES]
            deadline = time.monotonic() + self.options.patience
            timed = [self._timed(name, one, threads, deadline) for one in names]
            found = interleave(timed, self.options.rounds, self.options.patience)
            self.report.rounds(f"{name}_{threads}", found)
            times = {one: 1e9 / found.rate(i) for i, one in enumerate(names)}
            table[f"ns_{threads}"] = times
        self.report.say(f"{name}: hits of sets that the engine does not have")
        for cache, ways in MODELLED.items():
            kind = {"model": {"ways": ways, "fading_uses": FADING_USES_PER_ROW * ways}}
            for policy in POLICIES:
                answer = self._ask(name, kind, policy, 1)
                table["hit_rate"][f"{cache}-{policy}"] = answer["hits"] / answer["accesses"]
        if self.workloads[name][1] > 0:
            self.report.say(f"{name}: hits late in a longer trace")
            table["hit_rate_late"] = late = {}
            for cache in LATE:
                for policy in POLICIES:
                    answer = self._ask(name, TIMED[cache], policy, 1, longer=3)
                    late[f"{cache}-{policy}"] = answer["hits"] / answer["accesses"]

    def _timed(
        self, workload: str, name: str, threads: int, deadline: float
    ) -> Callable[[], Timed]:
        """A system's part of a round. It is short: one that was disturbed is repeated at once, and
        the quietest counts.
        """
        cache, _, policy = name.rpartition("-")

        def one_round() -> Timed:
            answer = self._ask(workload, TIMED[cache], policy, threads)
            table = self.tables[workload]
            # Two threads interleave differently each time, which moves a few hits.
            table["hit_rate"].setdefault(name, answer["hits"] / answer["accesses"])
            table["beside_bytes"].setdefault(name, answer["bytes_beside_row"])
            return timed_of(answer, "accesses")

        return lambda: quietest(one_round, deadline)

    def _ask(
        self, workload: str, cache: dict[str, Any], policy: str, threads: int, longer: int = 1
    ) -> dict[str, Any]:
        skew, drift, capacity = self.workloads[workload]
        batches = self.options.batches
        warm = self.options.warm if longer == 1 else (longer - 1) * batches
        answer = self.program.ask(
            {
                "workload": {
                    **skew,
                    "drift": drift,
                    "batches": longer * batches,
                    "batch": self.options.batch,
                    "seed": self.options.seed,
                },
                "capacity": capacity,
                "cache": cache,
                "policy": policy,
                "threads": threads,
                "warm_batches": warm,
            }
        )
        self.report.results["mismatches"] += answer["mismatches"]
        verified = self.report.results.get("rows_verified", 0)
        self.report.results["rows_verified"] = verified + answer["rows_verified"]
        facts = {name: answer[name] for name in ("distinct", "capacity", "accesses")}
        self.facts.setdefault(workload, facts)
        return answer


def _figures(report: Report, table: dict[str, dict[str, float]], threads: list[int]) -> None:
    if 1 in threads:
        report.figure("replacement_ns", table["ns_1"]["sets-32-lfu"])
    else:
        report.missing("replacement_ns", "one thread was not asked for; use --threads 1 2")
    for policy in POLICIES:
        hits = table["hit_rate"]
        loss = hits[f"list-{policy}"] - hits[f"sets-32-{policy}"]
        report.figure(f"hit_loss_{policy}", loss)
    for count, suffix in ((1, ""), (2, "_2")):
        for policy in POLICIES:
            figure = f"vs_list_{policy}{suffix}"
            times = table.get(f"ns_{count}")
            if times is None:
                report.missing(figure, f"not asked for; use --threads {count}")
                continue
            best = min(times[f"list-{policy}"], times[f"list-64-{policy}"])
            report.figure(figure, best / times[f"sets-32-{policy}"])


def _save_plot(
    file: Path, tables: dict[str, dict[str, dict[str, float]]], notes: list[str]
) -> None:
    """Time against hit rate, a panel for each workload; without matplotlib a note says so."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axes, (workload, table) in zip(panels.flat, tables.items(), strict=True):
        threads = max(int(name[3:]) for name in table if name.startswith("ns_"))
        times, hits = table[f"ns_{threads}"], table["hit_rate"]
        for policy, color in zip(POLICIES, ("tab:blue", "tab:red"), strict=True):
            sets = [f"sets-{ways}-{policy}" for ways in (8, 16, 32)]
            axes.plot(
                [times[name] for name in sets],
                [100 * hits[name] for name in sets],
                marker="o",
                color=color,
                label=f"sets, {policy.upper()}",
            )
            for name in sets:
                at = (times[name], 100 * hits[name])
                axes.annotate(name.split("-")[1], at, xytext=(4, 4), textcoords="offset points")
            lists = [f"list-{policy}", f"list-64-{policy}"]
            axes.plot(
                [times[name] for name in lists],
                [100 * hits[name] for name in lists],
                marker="s",
                linestyle=":",
                color=color,
                label=f"list, {policy.upper()}, lock for one key and for 64",
            )
        axes.set_xlim(0, max(times.values()) * 1.1)
        axes.set_title(workload.replace("_", ", "))
        axes.set_xlabel(f"ns per access, {threads} thread{'s' * (threads > 1)}")
        axes.set_ylabel("hits, per cent")
    panels.flat[0].legend(fontsize="small")
    save(pyplot, figure, file)
