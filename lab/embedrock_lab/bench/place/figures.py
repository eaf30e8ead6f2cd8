"""The figures of ``place``, from what was found of each trace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from embedrock_lab.bench.common import Report
from embedrock_lab.bench.place.layouts import MTKAHYPAR, layout_name

__all__ = ["NAMES", "fill", "gain", "geometric"]

NAMES = (
    "shp_gain_c0",
    "shp_gain_c10",
    "shp_gain_c0_worst",
    "shp_gain_c10_worst",
    "partition_vs_shp",
    "mtkahypar_pages",
    "mtkahypar_time",
    "pipeline_gain",
    "pipeline_gain_worst",
    "residual_vs_paper",
    "partition_pins_per_s",
)
"""Those that need traces."""
NEAR = ("lists", "sessions")
"""Kinds of logs on which the partition should come near to Mt-KaHyPar."""
PAPER, OURS = 0.4, 0.2
"""Shares of replicas of the paper's strategy and of residual greedy that are compared."""

Traces = dict[str, dict[str, Any]]


def gain(one: dict[str, Any], condition: str, over: str, layout: str) -> float:
    """Pages of a layout ÷ those of another one, so useful rows of a page the other way round.

    1 where the cache holds all that is asked for, so that neither reads a page.
    """
    pages = [one["layouts"][name][condition]["pages_per_request"] for name in (over, layout)]
    return float(pages[0] / pages[1]) if pages[1] else 1.0


def geometric(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def fill(report: Report, found: Traces, shares: list[float]) -> None:
    """Sets all figures that need traces."""
    if not found:
        for name in NAMES:
            report.missing(name, "there is no trace: give --data FOLDER or --trace FILE")
        return
    for condition in ("c0", "c10"):
        gains = [gain(one, condition, "identity", "partition") for one in found.values()]
        report.figure(f"shp_gain_{condition}", geometric(gains))
        report.figure(f"shp_gain_{condition}_worst", min(gains))
    over_shp = [gain(one, "c0", "shp", "partition") for one in found.values()]
    report.figure("partition_vs_shp", geometric(over_shp))
    _beside_mtkahypar(report, found)
    _replicas(report, found, shares)
    took = [one["took"]["partition"] for one in found.values()]
    pins, seconds = (sum(one[key] for one in took) for key in ("pins", "cpu_seconds"))
    report.figure("partition_pins_per_s", pins / max(seconds, 1e-9))


def _beside_mtkahypar(report: Report, found: Traces) -> None:
    near = [one for one in found.values() if one["kind"] in NEAR and MTKAHYPAR in one["layouts"]]
    if not near:
        for name in ("mtkahypar_pages", "mtkahypar_time"):
            report.missing(
                name,
                "Mt-KaHyPar has partitioned no list or session: it is not installed "
                "(pip install mtkahypar), or was not asked to",
            )
        return
    pages = max(gain(one, "c0", "partition", MTKAHYPAR) for one in near)
    report.figure("mtkahypar_pages", pages)
    report.figure("mtkahypar_time", statistics.median(_times(near)))


def _times(near: list[dict[str, Any]]) -> list[float]:
    def seconds(one: dict[str, Any], layout: str) -> float:
        return float(one["took"][layout]["seconds"])

    return [seconds(one, "partition") / seconds(one, MTKAHYPAR) for one in near]


def _replicas(report: Report, found: Traces, shares: list[float]) -> None:
    if not shares:
        for name in ("pipeline_gain", "pipeline_gain_worst", "residual_vs_paper"):
            report.missing(name, "there are no replicas: --replicate names no share above 0")
        return
    best = layout_name("residual", shares[-1])
    gains = [gain(one, "c10_union", "shp", best) for one in found.values()]
    report.figure("pipeline_gain", statistics.median(gains))
    report.figure("pipeline_gain_worst", min(gains))
    if PAPER in shares and OURS in shares:
        paper, ours = layout_name("connectivity", PAPER), layout_name("residual", OURS)
        beside = [gain(one, "c10_union", paper, ours) for one in found.values()]
        report.figure("residual_vs_paper", statistics.median(beside))
    else:
        report.missing("residual_vs_paper", f"--replicate has not both {OURS:g} and {PAPER:g}")
