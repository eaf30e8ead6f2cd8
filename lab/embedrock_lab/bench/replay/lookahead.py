"""``lookahead``: the gain from knowing the next batches.

The race's trace, with and without announcing its batches. ``limit_share_window`` is the race's
``limit_share`` with the window; it may be above 1, because misses of a group of batches share pages
and neighbouring pages are read together. ``pages_once_share`` is the share of pages that were read
once within their group, ``pages_saved_share`` 1 - pages read with the window / without. Pages have
4 KiB in both, because what they share depends on their size (``--page-bytes``). ``hit_vs_optimum``
is 1 - (rows loaded - optimum) / optimum, the optimum being that of a cache of as many rows that
knows as many batches. Rows that were read ahead count for the batch that they were read for.

``overhead_resident`` is what a step of training costs more with look-ahead and pipeline where every
row is in memory: DLRM in Criteo's shape (``embedrock bench demo --criteo-shaped``).

With ``--all`` the window's length and the number of batches that it reads together vary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedrock.observe.optimum import horizon_hits
from embedrock_lab.bench import resident
from embedrock_lab.bench.common import Report
from embedrock_lab.bench.options import option
from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.bench.replay.comparison import Comparison, Workload

__all__ = ["Options", "run"]

ENGINES = "embedrock,embedrock-ahead"
LENGTHS = [16, 64, 256, 1024]
GROUPS = [1, 4, 16, 64, 256, 1024]
AHEAD = "embedrock-ahead"
PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Options(Workload):
    """Options of this bench: those of ``race``."""

    engines: str = option(ENGINES, "comma-separated systems")
    page_bytes: int | None = option(PAGE_BYTES, "embedrock's pages (as it chooses them)")
    training: bool = option(True, "measure overhead_resident, for which a model is trained, too")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("lookahead", options)
    one = Comparison(report, options)
    found = one.run()
    report.results["engines"] = found
    with_window, without = found.get(AHEAD, {}), found.get("embedrock", {})
    if "window" in with_window:
        _figures(report, one, with_window, without)
    else:
        why = str(with_window.get("failed") or f"{AHEAD} did not take part")
        for name in ("limit_share_window", "pages_once_share", "hit_vs_optimum"):
            report.missing(name, why)
    if options.all:
        report.results["lengths"] = _vary(report, options, "lookahead", LENGTHS)
        report.results["groups"] = _vary(report, options, "window_group", GROUPS)
        if options.png is not None:
            _save_plot(options.png, report.results, without, report.notes)
    if options.training:
        resident.overhead(report, options)
    for each in found.values():
        each.pop("rates", None)
    return report.finish()


def _figures(
    report: Report, one: Comparison, with_window: dict[str, Any], without: dict[str, Any]
) -> None:
    window = with_window["window"]
    if with_window.get("limit_share") is None:
        report.missing("limit_share_window", "every row fits, or the device's rate is not known")
    else:
        report.figure("limit_share_window", with_window["limit_share"])
    if window["pages"]:
        report.figure("pages_once_share", 1 - window["pages_again"] / window["pages"])
    else:
        report.missing("pages_once_share", "nothing was read ahead")
    if without.get("pages_per_row"):
        ahead = with_window["pages_per_row"] * _per_timed_batch(one, window)
        saved = 1 - ahead / without["pages_per_row"]
        report.figure("pages_saved_share", saved)
    else:
        report.missing("pages_saved_share", "embedrock did not take part, or every row fits")
    facts = optimum(one, with_window)
    report.results["window"] = facts
    if facts["optimal_loads_per_row"] > 0:
        excess = facts["loads_per_row"] / facts["optimal_loads_per_row"] - 1
        report.figure("hit_vs_optimum", 1 - excess)
    else:
        report.missing("hit_vs_optimum", "every row fits")


def optimum(one: Comparison, with_window: dict[str, Any]) -> dict[str, Any]:
    """Rows loaded per distinct row, and the fewest possible for a cache that knows as much."""
    window, counted = with_window["window"], with_window["counted"]
    trace = one.trace.distinct() if one.coming is None else one.coming
    begin, end = one.trace.batches // 3, one.trace.batches
    rows = int(trace.offsets[end] - trace.offsets[begin])
    known = max(1, round(window["announced_ahead"]))
    capacity = int(with_window["store"]["cache_capacity"])
    hits = horizon_hits(trace, capacity, known)[begin:end].sum()
    return {
        "announced_ahead": known,
        "capacity_rows": capacity,
        "batches_per_group": window["group_batches"] / max(window["groups"], 1),
        "loads_per_row": counted["rows_loaded"] / rows * _per_timed_batch(one, window),
        "optimal_loads_per_row": 1 - float(hits) / rows,
        "caller_waited_share": window["wait_s"] / with_window["seconds"],
        "memory_bytes": window["memory_bytes"],
    }


def _per_timed_batch(one: Comparison, window: dict[str, Any]) -> float:
    """Batches that are timed / batches that were read ahead meanwhile. A group more or less, by
    where the clock starts and stops within one, would be several per cent of all pages and rows."""
    timed = one.trace.batches - one.trace.batches // 3
    return timed / window["group_batches"] if window["group_batches"] else 1.0


def _vary(
    report: Report, options: Options, name: str, values: list[int]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for value in values:
        given: dict[str, Any] = {"engines": AHEAD, name: value}
        if name == "window_group":
            given["lookahead"] = max(options.lookahead, 3 * value)
        changed = replace(options, **given)
        label = f"{name} {value}"
        ran = Comparison(report, changed, f"{label}: ").run()[AHEAD]
        ran.pop("rates", None)
        found[str(value)] = ran
    return found


def _save_plot(
    file: Path, results: dict[str, Any], without: dict[str, Any], notes: list[str]
) -> None:
    """Writes a PNG: the share of the limit over the window's length and the size of its groups."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4.5), sharey=True, layout="constrained")
    titles = {"lengths": "batches announced ahead", "groups": "batches read together, at most"}
    for axes, (name, title) in zip(both, titles.items(), strict=True):
        ran = {int(k): one.get("limit_share") for k, one in results[name].items()}
        axes.plot(list(ran), list(ran.values()), marker="o", label="with the window")
        if without.get("limit_share"):
            axes.axhline(without["limit_share"], color="tab:gray", ls="--", label="without")
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ran), [str(k) for k in ran])
        axes.set_xlabel(title)
    both[0].set_ylim(bottom=0)  # of both, once both are drawn
    both[0].set_ylabel("share of the limit")
    both[0].legend()
    save(pyplot, figure, file)
