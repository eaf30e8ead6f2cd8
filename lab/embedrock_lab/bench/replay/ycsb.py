"""``ycsb``: the YCSB core workloads A, B, C and F in batches, against RocksDB.

Rows of 8 to 512 bytes, uniform and Zipf 0.99 keys, half of the bytes of keys and rows as memory:
each setting is compared as in ``race``: two systems, or those in ``--engines``. The figures are
 rates over the same batches, ours divided by theirs.

*Source*: YCSB, Cooper et al., SoCC 2010; the comparison is that of MLKV's Fig. 10.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from embedrock_lab.bench.common import Report
from embedrock_lab.bench.options import option, patience_of
from embedrock_lab.bench.replay.comparison import Comparison, same_batches, workload_of
from embedrock_lab.bench.replay.plot import rates_of, save_panels
from embedrock_lab.bench.replay.systems import PeerOptions, peer_seconds_of

__all__ = ["Options", "run"]

MODES = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f"]
SKEWS = {"uniform": 0.0, "zipf": 0.99}
ROW_BYTES = [8, 64, 512]
ALL_ROW_BYTES = [8, 16, 32, 64, 128, 256, 512]
KEY_BYTES = 8
ROWS_MAX = 8_000_000


@dataclass(frozen=True, kw_only=True)
class Options(PeerOptions):
    """Options of this bench."""

    engines: str = option("embedrock,rocksdb", "comma-separated")
    modes: list[str] = option(MODES, "workloads", choices=MODES)
    skews: list[str] = option(list(SKEWS), "how keys are drawn", choices=list(SKEWS))
    row_bytes: list[int] | None = option(None, f"{ROW_BYTES}; with --all {ALL_ROW_BYTES}")
    bytes: int = option(128_000_000, f"of all rows; at most {ROWS_MAX:,} rows")
    memory: float = option(50.0, "per cent of the bytes of keys and rows")
    batch: int = option(4096, "keys of a batch")
    batches: int = option(160, "batches of a run")
    peer_seconds: float = peer_seconds_of(3.0)
    patience: float = patience_of(1.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("ycsb", options)
    sizes = options.row_bytes or (ALL_ROW_BYTES if options.all else ROW_BYTES)
    rates: dict[str, dict[str, dict[str, float | None]]] = {}
    for mode, skew, size in itertools.product(options.modes, options.skews, sizes):
        workload = workload_of(
            options,
            mode=mode,
            zipf=SKEWS[skew],
            dim=max(size // 4, 1),
            rows=min(options.bytes // size, ROWS_MAX),
            memory=options.memory * (size + KEY_BYTES) / size,
            device_slice=0.2,
        )
        name = f"{mode}, {skew}, {size} bytes"
        found = Comparison(report, workload, f"{name}: ").run()
        report.results.pop(f"{name}: workload")
        _add_figures(report, found, f"{mode}_{skew}_{size}".replace("-", "_"))
        rates.setdefault(f"{mode}, {skew}", {})[f"{size} bytes"] = rates_of(found)
    report.results["unique_rows_per_s"] = rates
    if options.png is not None:
        labels = ("bytes of a row", "thousand rows/s")
        save_panels(options.png, rates, labels, report.notes, doubling=True)
    return report.finish()


def _add_figures(report: Report, found: dict[str, dict[str, Any]], setting: str) -> None:
    ours = found.get("embedrock")
    for name, theirs in found.items():
        if name == "embedrock":
            continue
        figure = f"{setting}_vs_{name.replace('-', '_')}"
        if ours and ours.get("batches") and theirs.get("batches"):
            report.figure(figure, same_batches(ours, theirs))
        else:
            report.missing(figure, "one of the two did not run, see above")
