"""``memory``: training and inference with less and less memory.

A Zipf trace in the modes ``update`` (read, one optimizer step) and ``read`` at 67, 53, 27, 20 and
13 % of the rows' bytes, beside tables in memory (PyTorch) and beside what an operating system does
with a flat array that does not fit: swap where there is some, and a mapped file. Each setting is a
race (see ``race``); ours begins with a full cache, once as it is and once with announced batches.
``train_share_13`` and ``read_share_13`` are rates at 13 % divided by the fastest with everything in
memory, ours or torch's; ``train_ahead_share_13`` those of announced batches; the others likewise.

*Source*: the shares and baselines of SSDHashEmbed's Fig. 7 and Table 5.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.ahead.window import WINDOW_GROUP
from embedrock_lab.bench import race
from embedrock_lab.bench.common import Report, add_common
from embedrock_lab.bench.plots import pyplot_or_note, save

__all__ = ["add_arguments", "run"]

MODES = {"train": "update", "read": "read"}
SHARES = [67.0, 53.0, 27.0, 20.0, 13.0]
WHOLE = 100.0
AS_IT_IS, AHEAD = "embedrock-warm", "embedrock-warm-ahead"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument(
        "--engines",
        default=f"{AS_IT_IS},{AHEAD},mmap,swap,torch",
        help="comma-separated contestants",
    )
    parser.add_argument(
        "--shares", nargs="+", type=float, default=SHARES, help="per cent of the rows' bytes"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--dim", type=int, default=64, help="float32 values per row")
    parser.add_argument("--zipf", type=float, default=0.9, help="exponent of the skew; 0: uniform")
    parser.add_argument("--batch", type=int, default=4096, help="keys of a batch")
    parser.add_argument("--batches", type=int, default=300, help="batches of a run")
    race.add_peer_arguments(parser, 5.0)
    add_common(parser, patience_s=1.0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("memory", options)
    common = {"trace": None, "policy": None, "page_bytes": None, "device_slice": 0.2}
    common |= {"lookahead": race.LOOKAHEAD, "window_group": WINDOW_GROUP, "window_bytes": None}
    common |= vars(options)
    names = options.engines.split(",")
    rates: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, mode in MODES.items():
        by_share: dict[str, dict[str, float | None]] = {}
        for share in [WHOLE, *options.shares]:
            # What has every row in memory is the same whatever the share.
            engines = [one for one in names if share == WHOLE or one != "torch"]
            if share == WHOLE:
                engines = [one for one in engines if one in race.OURS]
            changed = {"mode": mode, "memory": share, "engines": ",".join(engines)}
            label = f"{name}, {share:g} %: "
            one = race.Race(report, argparse.Namespace(**{**common, **changed}), label)
            found = one.run()
            report.results.pop(f"{label}workload")
            by_share[f"{share:g} %"] = {
                engine: facts.get("unique_rows_per_s") for engine, facts in found.items()
            }
        rates[name] = by_share
        best = max((rate for rate in by_share[f"{WHOLE:g} %"].values() if rate), default=None)
        for engine, figure in ((AS_IT_IS, f"{name}_share"), (AHEAD, f"{name}_ahead_share")):
            for share in options.shares:
                ours = by_share[f"{share:g} %"].get(engine)
                if ours and best:
                    report.figure(f"{figure}_{share:g}", ours / best)
                else:
                    report.missing(
                        f"{figure}_{share:g}",
                        f"{engine} or what it is compared with did not run, see above",
                    )
    report.results["unique_rows_per_s"] = rates
    if options.png is not None:
        _save_plot(options.png, rates, report.notes)
    return report.finish()


def _save_plot(
    file: Path, rates: dict[str, dict[str, dict[str, float | None]]], notes: list[str]
) -> None:
    """Writes a PNG: a panel for training and one for reading, rates over the share of memory."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    figure, panels = pyplot.subplots(
        1, len(rates), figsize=(10, 4), layout="constrained", squeeze=False
    )
    every = [one for by_share in rates.values() for one in by_share.values()]
    ran = dict.fromkeys(engine for one in every for engine, rate in one.items() if rate)
    drawn = {}
    for (name, by_share), axes in zip(rates.items(), panels[0], strict=True):
        shares = [float(share.split()[0]) for share in by_share]
        for number, engine in enumerate(ran):
            values = [(one.get(engine) or float("nan")) / 1e3 for one in by_share.values()]
            if engine == "torch":
                drawn[engine] = axes.axhline(values[0], linestyle="--", color="tab:gray")
            else:
                drawn[engine] = axes.plot(shares, values, marker="o", color=f"C{number}")[0]
        axes.set_title(name)
        axes.set_yscale("log")
        axes.set_xlabel("memory, per cent of the rows' bytes")
        axes.set_ylabel("thousand distinct rows/s")
    labels = [engine + ", every row in memory" * (engine == "torch") for engine in drawn]
    figure.legend(drawn.values(), labels, loc="outside lower center", ncols=max(len(drawn), 1))
    save(pyplot, figure, file)
