"""``ycsb``: the YCSB core workloads A, B, C and F in batches, against RocksDB.

Rows of 8 to 512 bytes, uniform and Zipf 0.99 keys, half of the bytes of keys and rows as memory:
each setting is a race (see ``race``) of two contestants, or of those in ``--engines``. The figures
are rates over the same batches, ours divided by theirs.

*Source*: YCSB, Cooper et al., SoCC 2010; the comparison is that of MLKV's Fig. 10.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock_lab.bench import race
from embedrock_lab.bench.common import Report, add_common
from embedrock_lab.bench.plots import pyplot_or_note, save

__all__ = ["add_arguments", "run"]

MODES = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f"]
SKEWS = {"uniform": 0.0, "zipf": 0.99}
ROW_BYTES = [8, 64, 512]
ALL_ROW_BYTES = [8, 16, 32, 64, 128, 256, 512]
KEY_BYTES = 8
ROWS_MAX = 8_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument("--engines", default="embedrock,rocksdb", help="comma-separated")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="workloads")
    parser.add_argument(
        "--skews", nargs="+", choices=list(SKEWS), default=list(SKEWS), help="how keys are drawn"
    )
    parser.add_argument(
        "--row-bytes", nargs="+", type=int, help=f"{ROW_BYTES}; with --all {ALL_ROW_BYTES}"
    )
    parser.add_argument(
        "--bytes", type=int, default=128_000_000, help=f"of all rows; at most {ROWS_MAX:,} rows"
    )
    parser.add_argument(
        "--memory", type=float, default=50.0, help="per cent of the bytes of keys and rows"
    )
    parser.add_argument("--batch", type=int, default=4096, help="keys of a batch")
    parser.add_argument("--batches", type=int, default=160, help="batches of a run")
    race.add_peer_arguments(parser, 3.0)
    add_common(parser, patience_s=1.0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("ycsb", options)
    sizes = options.row_bytes or (ALL_ROW_BYTES if getattr(options, "all", False) else ROW_BYTES)
    settings = {"dim": 0, "zipf": 0.0, "mode": "", "trace": None, "policy": None}
    settings["page_bytes"] = None
    common = {**settings, "device_slice": 0.2, **vars(options)}
    rates: dict[str, dict[str, dict[str, float | None]]] = {}
    for mode in options.modes:
        for skew in options.skews:
            for size in sizes:
                changed = {
                    "mode": mode,
                    "zipf": SKEWS[skew],
                    "dim": max(size // 4, 1),
                    "rows": min(options.bytes // size, ROWS_MAX),
                    "memory": options.memory * (size + KEY_BYTES) / size,
                }
                name = f"{mode}, {skew}, {size} bytes"
                one = argparse.Namespace(**{**common, **changed})
                found = race.Race(report, one, f"{name}: ").run()
                report.results.pop(f"{name}: workload")
                _add_figures(report, found, f"{mode}_{skew}_{size}".replace("-", "_"))
                rates.setdefault(f"{mode}, {skew}", {})[f"{size} bytes"] = {
                    engine: one.get("unique_rows_per_s") for engine, one in found.items()
                }
    report.results["unique_rows_per_s"] = rates
    if options.png is not None:
        _save_plot(options.png, rates, options.engines.split(","), report.notes)
    return report.finish()


def _add_figures(report: Report, found: dict[str, dict[str, Any]], setting: str) -> None:
    ours = found.get("embedrock")
    for name, theirs in found.items():
        if name == "embedrock":
            continue
        figure = f"{setting}_vs_{name.replace('-', '_')}"
        if ours and ours.get("batches") and theirs.get("batches"):
            report.figure(figure, race.same_batches(ours, theirs))
        else:
            report.missing(figure, "one of the two did not run, see above")


def _save_plot(
    file: Path,
    rates: dict[str, dict[str, dict[str, float | None]]],
    engines: list[str],
    notes: list[str],
) -> None:
    """Writes a PNG: a panel for each workload and skew, rates over the row's bytes."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    across = len(SKEWS)
    down = -(-len(rates) // across)
    figure, panels = pyplot.subplots(
        down, across, figsize=(9, 2.6 * down), layout="constrained", squeeze=False, sharex=True
    )
    for (name, by_size), axes in zip(rates.items(), panels.flat, strict=False):
        sizes = [int(size.split()[0]) for size in by_size]
        for engine in engines:
            values = [(one.get(engine) or float("nan")) / 1e3 for one in by_size.values()]
            axes.plot(sizes, values, marker="o", label=engine)
        axes.set_title(name, fontsize="medium")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_yscale("log")
        axes.set_ylabel("thousand rows/s")
    panels.flat[0].legend()
    for axes in panels[-1]:
        axes.set_xlabel("bytes of a row")
    save(pyplot, figure, file)
