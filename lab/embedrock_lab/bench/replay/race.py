"""``race``: one trace on several stores, each in its own process with the same memory.

``limit_share`` is distinct rows per second times the miss rate of the best possible cache, divided
by the device's own rate: 1 would be a store that never waits for anything but the reads that nobody
could avoid. ``limit_share_4096`` is the same with pages of 4 KiB. ``vs_rocksdb`` and ``vs_lmdb``
are rates over the same batches, ours divided by theirs; these read with threads of their own, as
many as they do best with, ``rocksdb-1`` and ``lmdb-1`` with the caller's alone, as we do.
``embedrock-warm`` fills its cache with ``Store.warm`` before the first batch. ``embedrock-ahead``
announces its batches (``ahead.py`` says what is timed); ``limit_share_window`` is its share.
``embedrock-warm-ahead`` does both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from embedrock_lab.bench.common import Report
from embedrock_lab.bench.options import option
from embedrock_lab.bench.replay.comparison import Comparison, Workload, same_batches
from embedrock_lab.bench.replay.plot import save_bars
from embedrock_lab.bench.replay.systems import PEERS

__all__ = ["Options", "run"]

DEFAULT = ["embedrock", "embedrock-ahead", "embedrock-4k", "rocksdb", "rocksdb-1", "lmdb", "mmap"]
DEFAULT += ["swap", "faster", "torch"]
SHARES = [("embedrock", "limit_share"), ("embedrock-ahead", "limit_share_window")]
SHARES += [("embedrock-4k", "limit_share_4096")]
WHOLE_ENGINES = "embedrock,embedrock-warm,embedrock-warm-ahead,rocksdb,rocksdb-1,torch"
VARIANTS: list[dict[str, Any]] = [
    {"mode": "read"},
    {"mode": "update"},
    {"memory": 100.0, "engines": WHOLE_ENGINES},
    {"memory": 10.0},
]
"""Settings that ``--all`` adds to those of the definition."""


@dataclass(frozen=True, kw_only=True)
class Options(Workload):
    """Options of this bench."""

    engines: str = option(",".join(DEFAULT), "comma-separated systems")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("race", options)
    _figures(report, Comparison(report, options).run(), "")
    if options.all:
        for variant in VARIANTS:
            changed = replace(options, **variant)
            name = "_".join(
                f"{key}_{value:g}" if isinstance(value, float) else str(value)
                for key, value in variant.items()
                if key != "engines"
            )
            _figures(report, Comparison(report, changed, f"{name}: ").run(), f"_{name}")
    if options.png is not None:
        save_bars(options.png, report.results["engines"], report.notes)
    return report.finish()


def _figures(report: Report, found: dict[str, dict[str, Any]], suffix: str) -> None:
    for name, figure in SHARES:
        one = found.get(name)
        if one is not None and one.get("limit_share") is not None:
            report.figure(figure + suffix, one["limit_share"])
        else:
            report.missing(figure + suffix, _why(one, name))
    ours = found.get("embedrock") or found.get("embedrock-4k")
    for name in PEERS:
        theirs, figure = found.get(name), f"vs_{name.replace('-', '_')}{suffix}"
        if ours and theirs and theirs.get("batches") and ours.get("batches"):
            report.figure(figure, same_batches(ours, theirs))
        elif name in ("rocksdb", "lmdb"):
            report.missing(figure, _why(theirs, name))
        for other in ("warm", "ahead", "warm-ahead"):
            one = found.get(f"embedrock-{other}")
            if one and theirs and theirs.get("batches") and one.get("batches"):
                report.figure(f"{other.replace('-', '_')}_{figure}", same_batches(one, theirs))
    for one in found.values():
        one.pop("rates", None)
    report.results[f"engines{suffix}"] = found


def _why(one: dict[str, Any] | None, name: str) -> str:
    if one is None:
        return f"{name} did not take part"
    unknown = "every row fits, or the device's rate is not known"
    return str(one.get("absent") or one.get("failed") or unknown)
