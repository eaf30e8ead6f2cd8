"""``memory``: training and inference with less and less memory.

A Zipf trace in the modes ``update`` (read, one optimizer step) and ``read`` at 67, 53, 27, 20 and
13 % of the rows' bytes, beside tables in memory (PyTorch) and beside what an operating system does
with a flat array that does not fit: swap where there is some, and a mapped file. Each setting
is compared as in ``race``; ours begins with a full cache, once as it is and once with announced
batches.
``train_share_13`` and ``read_share_13`` are rates at 13 % divided by the fastest with everything in
memory, ours or torch's; ``train_ahead_share_13`` those of announced batches; the others likewise.

*Source*: the shares and baselines of SSDHashEmbed's Fig. 7 and Table 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embedrock_lab.bench.common import Report
from embedrock_lab.bench.options import option, patience_of
from embedrock_lab.bench.replay.comparison import Comparison, workload_of
from embedrock_lab.bench.replay.plot import rates_of, save_panels
from embedrock_lab.bench.replay.systems import OURS, PeerOptions, peer_seconds_of

__all__ = ["Options", "run"]

MODES = {"train": "update", "read": "read"}
SHARES = [67.0, 53.0, 27.0, 20.0, 13.0]
WHOLE = 100.0
AS_IT_IS, AHEAD = "embedrock-warm", "embedrock-warm-ahead"
LABELS = ("memory, per cent of the rows' bytes", "thousand distinct rows/s")


@dataclass(frozen=True, kw_only=True)
class Options(PeerOptions):
    """Options of this bench."""

    engines: str = option(f"{AS_IT_IS},{AHEAD},mmap,swap,torch", "comma-separated systems")
    shares: list[float] = option(SHARES, "per cent of the rows' bytes")
    rows: int = option(1_000_000, "rows of the table")
    dim: int = option(64, "float32 values per row")
    zipf: float = option(0.9, "exponent of the skew; 0: uniform")
    batch: int = option(4096, "keys of a batch")
    batches: int = option(300, "batches of a run")
    peer_seconds: float = peer_seconds_of(5.0)
    patience: float = patience_of(1.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("memory", options)
    shares = [WHOLE, *options.shares]
    rates = {
        name: {f"{share:g} %": _rates(report, options, name, share) for share in shares}
        for name in MODES
    }
    for name, by_share in rates.items():
        best = max((rate for rate in by_share[f"{WHOLE:g} %"].values() if rate), default=None)
        for engine, figure in ((AS_IT_IS, f"{name}_share"), (AHEAD, f"{name}_ahead_share")):
            for share in options.shares:
                ours = by_share[f"{share:g} %"].get(engine)
                if ours and best:
                    report.figure(f"{figure}_{share:g}", ours / best)
                else:
                    why = f"{engine} or what it is compared with did not run, see above"
                    report.missing(f"{figure}_{share:g}", why)
    report.results["unique_rows_per_s"] = rates
    if options.png is not None:
        save_panels(options.png, rates, LABELS, report.notes, level="torch")
    return report.finish()


def _rates(report: Report, options: Options, name: str, share: float) -> dict[str, float | None]:
    """The systems with that share of memory. Systems with every row in memory are the same for any
    share."""
    names = options.engines.split(",")
    engines = [one for one in names if (one in OURS if share == WHOLE else one != "torch")]
    label = f"{name}, {share:g} %: "
    changed = {"mode": MODES[name], "memory": share, "engines": ",".join(engines)}
    workload = workload_of(options, device_slice=0.2, **changed)
    found = Comparison(report, workload, label).run()
    report.results.pop(f"{label}workload")
    return rates_of(found)
