"""``race``: one trace on several stores in turn, each in its own process with the same memory.

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

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.ahead.window import WINDOW_GROUP
from embedrock.errors import MisuseError
from embedrock.observe.optimum import frequent_hits, optimal_hits
from embedrock.observe.trace import Trace, load
from embedrock_lab.bench.common import Report, add_common, workspace
from embedrock_lab.bench.race import process
from embedrock_lab.bench.race.plot import save_plot
from embedrock_lab.bench.race.trace import synthetic
from embedrock_lab.bench.race.workload import MODES
from embedrock_lab.measure.noise import WAIT_SHARE_MAX

__all__ = ["LOOKAHEAD", "OURS", "Race", "add_arguments", "add_peer_arguments", "run"]
__all__ += ["same_batches"]

LOOKAHEAD = 1024
"""Batches that are announced ahead, as far as the window holds them."""
PEERS = Path(".cache/peers/embedrock-peers")
PEER_SECONDS_MAX = 20.0
OURS: dict[str, dict[str, Any]] = {
    "embedrock": {"engine": "embedrock", "options": {}},
    "embedrock-warm": {"engine": "embedrock", "options": {"warm": True}},
    "embedrock-ahead": {"engine": "embedrock", "options": {"lookahead": LOOKAHEAD}},
    "embedrock-warm-ahead": {
        "engine": "embedrock",
        "options": {"warm": True, "lookahead": LOOKAHEAD},
    },
    "embedrock-4k": {"engine": "embedrock", "options": {"page_bytes": 4096}},
    "torch": {"engine": "torch", "options": {"sparse": True}},
    "torch-dense": {"engine": "torch", "options": {"sparse": False}},
}
"""Contestants of this package."""
PEER_ENGINES: dict[str, dict[str, Any]] = {
    "rocksdb": {"engine": "rocksdb", "options": {}},
    "rocksdb-1": {"engine": "rocksdb", "options": {"threads": 1}},
    "lmdb": {"engine": "lmdb", "options": {}},
    "lmdb-1": {"engine": "lmdb", "options": {"threads": 1}},
    "mmap": {"engine": "mmap", "options": {}},
    "swap": {"engine": "swap", "options": {}},
    "faster": {"engine": "faster", "options": {}},
}
"""Contestants of the peers' program, whose README says what they are tuned to."""
CONTESTANTS = {**OURS, **PEER_ENGINES}
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
"""What ``--all`` runs beside the definition's settings."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument("--engines", default=",".join(DEFAULT), help="comma-separated contestants")
    parser.add_argument(
        "--mode", choices=list(MODES), default="train", help="what is done with each batch"
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the table")
    parser.add_argument("--dim", type=int, default=32, help="float32 values per row")
    parser.add_argument("--memory", type=float, default=25.0, help="per cent of the rows' bytes")
    parser.add_argument("--zipf", type=float, default=0.9, help="exponent of the skew; 0: uniform")
    parser.add_argument("--batch", type=int, default=4096, help="keys of a batch")
    parser.add_argument("--batches", type=int, default=2000, help="batches of the trace")
    parser.add_argument(
        "--trace", type=Path, help="replay this .npz instead: values uint64, offsets int64"
    )
    parser.add_argument(
        "--policy", choices=["lru", "lfu"], default=None, help="embedrock's replacement policy"
    )
    parser.add_argument(
        "--lookahead", type=int, default=LOOKAHEAD, help="batches that embedrock-ahead announces"
    )
    parser.add_argument(
        "--window-group", type=int, default=WINDOW_GROUP, help="of them, read together"
    )
    parser.add_argument("--window-bytes", type=int, help="memory of its window (a quarter at most)")
    parser.add_argument("--page-bytes", type=int, help="embedrock's pages (as it chooses them)")
    add_peer_arguments(parser, PEER_SECONDS_MAX)
    parser.add_argument(
        "--device-slice",
        type=float,
        default=1.5,
        metavar="S",
        help="seconds of each measurement of the device between batches",
    )
    add_common(parser, patience_s=60.0)


def add_peer_arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Adds the options of benches that race other stores, each for at most so many seconds."""
    parser.add_argument("--peers", type=Path, default=PEERS, help="the program of `make peers`")
    parser.add_argument(
        "--peer-seconds",
        type=float,
        default=seconds,
        metavar="S",
        help="other stores stop after this long",
    )
    parser.add_argument("--png", type=Path, help="draw the result to this file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("race", options)
    found = Race(report, options).run()
    _figures(report, found, "")
    if getattr(options, "all", False):
        for variant in VARIANTS:
            changed = argparse.Namespace(**{**vars(options), **variant})
            name = "_".join(
                f"{key}_{value:g}" if isinstance(value, float) else str(value)
                for key, value in variant.items()
                if key != "engines"
            )
            _figures(report, Race(report, changed, f"{name}: ").run(), f"_{name}")
    if options.png is not None:
        save_plot(options.png, report.results["engines"], report.notes)
    return report.finish()


def _figures(report: Report, found: dict[str, dict[str, Any]], suffix: str) -> None:
    for name, figure in SHARES:
        one = found.get(name)
        if one is not None and one.get("limit_share") is not None:
            report.figure(figure + suffix, one["limit_share"])
        else:
            report.missing(figure + suffix, _why(one, name))
    ours = found.get("embedrock") or found.get("embedrock-4k")
    for name in PEER_ENGINES:
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


def same_batches(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Ratio of rates over the batches that count for the other store."""
    begin, end = theirs["batches"] // 3, theirs["batches"]
    mine, other = ours["rates"], theirs["rates"]
    return float(other[begin:end].sum() / mine[begin:end].sum())


def _why(one: dict[str, Any] | None, name: str) -> str:
    if one is None:
        return f"{name} did not take part"
    unknown = "every row fits, or the device's rate is not known"
    return str(one.get("absent") or one.get("failed") or unknown)


class Race:
    """One workload, all contestants."""

    def __init__(self, report: Report, options: argparse.Namespace, label: str = "") -> None:
        """Draws or loads the trace; ``options`` are those of ``race``. ``label`` begins notes."""
        self.report, self.options, self.label = report, options, label
        self.mode = MODES[options.mode]
        self.coming: Trace | None = None
        if options.trace is None:
            batches = options.batches + self._lookahead()
            drawn = synthetic(options.rows, options.zipf, batches, options.batch, options.seed)
            self.trace, self.rows = drawn.first(options.batches), options.rows
            self.coming = drawn.distinct() if batches > options.batches else None
        else:
            self.trace, self.rows = load(options.trace).dense()
        self.row_bytes = 4 * (options.dim + self.mode.state_words)
        self.memory_bytes = int(self.rows * self.row_bytes * options.memory / 100)
        self.capacity = self.memory_bytes // self.row_bytes
        self.distinct = self.trace.distinct()
        self.peers: dict[str, Any] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        """Results by contestant."""
        names = [name for name in self.options.engines.split(",") if name]
        for name in names:
            if name not in CONTESTANTS:
                raise MisuseError(
                    f"there is no contestant {name!r}, expected some of {', '.join(CONTESTANTS)}"
                )
        absent = self._find_peers(names)
        optimum = self._optimum()
        found: dict[str, dict[str, Any]] = {}
        with tempfile.TemporaryDirectory(prefix="embedrock-race-") as directory:
            (Path(directory) / "coming").mkdir()
            files = self.distinct.save(Path(directory))
            coming = files if self.coming is None else self.coming.save(Path(directory) / "coming")
            for name in names:
                if name in absent:
                    found[name] = {"absent": absent[name]}
                    self.report.notes.append(f"{self.label}{name}: {absent[name]}")
                    continue
                try:
                    ahead = "lookahead" in CONTESTANTS[name]["options"]
                    found[name] = self._contestant(name, coming if ahead else files)
                except process.ContestantError as error:
                    found[name] = {"failed": str(error)}
                    self.report.notes.append(f"{self.label}{name}: {error}")
        self._shares(found, optimum)
        return found

    def _lookahead(self) -> int:
        """Batches beyond the last one that runs, for contestants that announce theirs."""
        named = [CONTESTANTS.get(name) for name in self.options.engines.split(",")]
        ahead = any(one is not None and "lookahead" in one["options"] for one in named)
        return int(self.options.lookahead) if ahead else 0

    def _find_peers(self, names: list[str]) -> dict[str, str]:
        """Contestants that cannot take part, and why."""
        program, wanted = self.options.peers, [name for name in names if name not in OURS]
        if not wanted:
            return {}
        if not program.exists():
            return {name: f"{program} is not built; `make peers` builds it" for name in wanted}
        self.peers = process.describe(program)
        absent = {}
        for name in wanted:
            engine = CONTESTANTS[name]["engine"]
            one = self.peers.get(engine, {"available": False, "reason": "not in this build"})
            if not one["available"]:
                absent[name] = one["reason"]
        return absent

    def _optimum(self) -> dict[str, float]:
        begin = self.trace.batches // 3
        keys = int(self.distinct.offsets[-1] - self.distinct.offsets[begin])
        hits = optimal_hits(self.distinct, self.capacity)[begin:].sum()
        frequent = frequent_hits(self.distinct, self.capacity)[begin:].sum()
        found = {
            "rows": self.rows,
            "row_bytes": self.row_bytes,
            "memory_bytes": self.memory_bytes,
            "capacity_rows": self.capacity,
            "batches": self.trace.batches,
            "requests_per_batch": len(self.trace.values) / self.trace.batches,
            "distinct_per_batch": len(self.distinct.values) / self.trace.batches,
            "optimal_miss_rate": 1 - hits / keys,
            "frequent_miss_rate": 1 - frequent / keys,
        }
        self.report.results[f"{self.label}workload"] = found
        return found

    def _contestant(self, name: str, files: dict[str, str]) -> dict[str, Any]:
        options = self.options
        ours, contestant = name in OURS, CONTESTANTS[name]
        command = process.OURS if ours else [str(options.peers)]
        extra = dict(contestant["options"])
        if options.policy is not None and contestant["engine"] == "embedrock":
            extra["policy"] = options.policy
        if "lookahead" in extra:
            if 0 < self.mode.reads < 1 or self.mode.blind:
                raise process.ContestantError(f"batches of {options.mode} are not announced")
            given = {"lookahead": options.lookahead, "window_group": options.window_group}
            extra |= given | {"window_bytes": options.window_bytes}
        if contestant["engine"] == "embedrock" and options.page_bytes is not None:
            extra["page_bytes"] = options.page_bytes
        settings = {
            "engine": contestant["engine"],
            "mode": options.mode,
            "dim": options.dim,
            "rows": self.rows,
            "memory_bytes": self.memory_bytes,
            "trace": files,
            "batches": self.trace.batches,
            "seconds_max": 1e9 if ours else options.peer_seconds,
            "options": extra,
        }
        if ours:
            settings["device_slice_s"] = options.device_slice
        with workspace(options, 4 * self.rows * (self.row_bytes + 24)) as place:
            settings["place"] = str(place / "store")
            (place / "store").mkdir()
            loaded: dict[str, Any] | None = None
            tried: list[dict[str, Any]] = []
            began = time.monotonic()
            while True:
                # What our engine did not commit is gone when it is opened again.
                if loaded is None or (self.mode.reads < 1 and not ours):
                    self.report.say(f"{self.label}{name}: writing {self.rows:,} rows")
                    loaded = process.load(command, settings)
                self.report.say(f"{self.label}{name}: running")
                raw = process.run(command, settings, limited=settings["engine"] != "torch")
                tried.append(self._summary(raw, loaded))
                if tried[-1]["wait_share"] <= WAIT_SHARE_MAX:
                    break
                if time.monotonic() - began > options.patience:
                    break
        best = min(tried, key=lambda one: float(one["wait_share"]))
        best["void_runs"] = len(tried) - 1
        if best["wait_share"] > WAIT_SHARE_MAX:
            self.report.notes.append(
                f"{self.label}{name}: the machine was busy, its thread waited for a core "
                f"{best['wait_share']:.0%} of the time"
            )
        self.report.results["mismatches"] += best["mismatches"]
        return best

    def _summary(self, raw: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
        """What counts of a run: the last two thirds of its batches."""
        done = int(raw["batches"])
        if done < 3:
            raise process.ContestantError(
                f"ran {done} batches in {self.options.peer_seconds:g} s, expected at least 3; give "
                "it longer with --peer-seconds"
            )
        begin = done // 3
        get, put = np.array(raw["get_ns"]), np.array(raw["put_ns"])
        both = (get + put)[begin:]
        rows = int(self.distinct.offsets[done] - self.distinct.offsets[begin])
        requests = int(self.trace.offsets[done] - self.trace.offsets[begin])
        seconds = float(both.sum()) / 1e9

        def grown(name: str) -> int:
            return int(raw[name][-1] - raw[name][begin - 1])

        latency = np.percentile(get[begin:] / 1e3, [50, 99])
        counted = raw.get("counted", {})
        summary: dict[str, Any] = {
            "version": raw.get("version"),
            "batches": done,
            "rows_per_s": requests / seconds,
            "unique_rows_per_s": rows / seconds,
            "seconds": seconds,
            "get_us_p50": float(latency[0]),
            "get_us_p99": float(latency[1]),
            "bytes_read_per_row": grown("read_bytes") / rows,
            "bytes_written_per_row": grown("write_bytes") / rows,
            "pages_per_row": counted.get("pages_read", grown("read_bytes") / 4096) / rows,
            "requests_per_row": counted["read_requests"] / rows if counted else None,
            "hit_rate": _hit_rate(counted, rows) if counted else raw.get("hit_rate"),
            "cpu_us_per_row": grown("cpu_ns") / 1e3 / rows,
            "peak_rss_bytes": raw["peak_rss_bytes"],
            "limit_bytes": raw.get("limit_bytes"),
            "disk_bytes": loaded["disk_bytes"],
            "load_s": loaded["seconds"],
            "device_rate": raw.get("device_rate"),
            "own_device_rate": raw.get("own_device_rate"),
            "wait_share": grown("wait_ns") / 1e9 / seconds,
            "rows_verified": raw["rows_verified"],
            "mismatches": raw["mismatches"],
            "rates": get + put,
        }
        for name in ("memory", "store", "settings", "window", "counted"):
            if raw.get(name):
                summary[name] = raw[name]
        if raw.get("device"):
            self.report.device = raw["device"]
        return summary

    def _shares(self, found: dict[str, dict[str, Any]], optimum: dict[str, float]) -> None:
        """Shares of the bound. The device's rate is that of our own slices, for everybody."""
        rates = [one["device_rate"] for one in found.values() if one.get("device_rate")]
        if not rates:
            return
        usual = statistics.median(rates)
        for one in found.values():
            if not one.get("batches"):
                continue
            rate = one["device_rate"] or usual
            one["device_rate"] = rate
            per_s = one["unique_rows_per_s"]
            if optimum["optimal_miss_rate"] == 0:
                continue
            one["limit_share"] = per_s * optimum["optimal_miss_rate"] / rate
            one["limit_share_frequent"] = per_s * optimum["frequent_miss_rate"] / rate


def _hit_rate(counted: dict[str, int], rows: int) -> float:
    """Share of a trace's distinct rows that needed no read; rows are asked for once or twice."""
    return 1 - counted["misses"] / rows
