"""One trace on several systems, one after another, each in a process of its own."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.ahead.window import WINDOW_GROUP
from embedrock.errors import MisuseError
from embedrock.observe.optimum import frequent_hits, optimal_hits
from embedrock.observe.trace import Trace, load
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Given, option
from embedrock_lab.bench.replay import process
from embedrock_lab.bench.replay.systems import (
    LOOKAHEAD,
    OURS,
    SYSTEMS,
    Counted,
    PeerOptions,
    absent_peers,
)
from embedrock_lab.bench.replay.trace import synthetic
from embedrock_lab.bench.replay.workload import MODES
from embedrock_lab.measure.noise import WAIT_SHARE_MAX

__all__ = ["Comparison", "Workload", "same_batches", "workload_of"]


@dataclass(frozen=True, kw_only=True)
class Workload(PeerOptions):
    """A trace, what is done with each batch, and with how much memory."""

    engines: str = option("", "comma-separated systems")
    mode: str = option("train", "what is done with each batch", choices=MODES)
    rows: int = option(4_000_000, "rows of the table")
    dim: int = option(32, "float32 values per row")
    memory: float = option(25.0, "per cent of the rows' bytes")
    zipf: float = option(0.9, "exponent of the skew; 0: uniform")
    batch: int = option(4096, "keys of a batch")
    batches: int = option(2000, "batches of the trace")
    trace: Path | None = option(None, "replay this .npz instead: values uint64, offsets int64")
    policy: str | None = option(None, "embedrock's replacement policy", choices=["lru", "lfu"])
    lookahead: int = option(LOOKAHEAD, "batches that embedrock-ahead announces")
    window_group: int = option(WINDOW_GROUP, "of them, read together")
    window_bytes: int | None = option(None, "memory of its window (a quarter at most)")
    page_bytes: int | None = option(None, "embedrock's pages (as it chooses them)")
    device_slice: float = option(
        1.5, "seconds of each measurement of the device between batches", metavar="S"
    )


def workload_of(options: Given, **changed: Any) -> Workload:
    """A workload with the options of a bench that have its names, but for those that change."""
    names = {one.name for one in fields(Workload)}
    known = {name: value for name, value in vars(options).items() if name in names}
    return Workload(**{**known, **changed})


def same_batches(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Ratio of rates over the batches that count for the other store."""
    begin, end = theirs["batches"] // 3, theirs["batches"]
    mine, other = ours["rates"], theirs["rates"]
    return float(other[begin:end].sum() / mine[begin:end].sum())


class Comparison:
    """One workload, all systems."""

    def __init__(self, report: Report, workload: Workload, label: str = "") -> None:
        """Draws or loads the trace. ``label`` begins notes."""
        self.report, self.workload, self.label = report, workload, label
        self.mode = MODES[workload.mode]
        self.names = [name for name in workload.engines.split(",") if name]
        for name in self.names:
            if name not in SYSTEMS:
                raise MisuseError(
                    f"there is no system {name!r}, expected some of {', '.join(SYSTEMS)}"
                )
        self.coming: Trace | None = None
        """Beyond the last batch that runs, for systems that announce theirs."""
        if workload.trace is None:
            ahead = any(SYSTEMS[name].ahead for name in self.names)
            drawn = synthetic(
                workload.rows,
                workload.zipf,
                workload.batches + ahead * workload.lookahead,
                workload.batch,
                workload.seed,
            )
            self.trace, self.rows = drawn.first(workload.batches), workload.rows
            self.coming = drawn.distinct() if drawn.batches > workload.batches else None
        else:
            self.trace, self.rows = load(workload.trace).dense()
        self.row_bytes = 4 * (workload.dim + self.mode.state_words)
        self.memory_bytes = int(self.rows * self.row_bytes * workload.memory / 100)
        self.distinct = self.trace.distinct()

    def run(self) -> dict[str, dict[str, Any]]:
        """Results by system."""
        wanted = {name: SYSTEMS[name].engine for name in self.names if name not in OURS}
        absent = absent_peers(self.workload.peers, wanted)
        optimum = self._optimum()
        found: dict[str, dict[str, Any]] = {}
        with tempfile.TemporaryDirectory(prefix="embedrock-race-") as directory:
            (Path(directory) / "coming").mkdir()
            files = self.distinct.save(Path(directory))
            coming = files if self.coming is None else self.coming.save(Path(directory) / "coming")
            for name in self.names:
                if name in absent:
                    found[name] = {"absent": absent[name]}
                    self._note(name, absent[name])
                    continue
                try:
                    found[name] = self._system(name, coming if SYSTEMS[name].ahead else files)
                except process.SystemFailed as error:
                    found[name] = {"failed": str(error)}
                    self._note(name, str(error))
        _shares(found, optimum)
        return found

    def _note(self, name: str, text: str) -> None:
        self.report.notes.append(f"{self.label}{name}: {text}")

    def _optimum(self) -> dict[str, float]:
        begin, capacity = self.trace.batches // 3, self.memory_bytes // self.row_bytes
        keys = int(self.distinct.offsets[-1] - self.distinct.offsets[begin])
        hits = optimal_hits(self.distinct, capacity)[begin:].sum()
        frequent = frequent_hits(self.distinct, capacity)[begin:].sum()
        found = {
            "rows": self.rows,
            "row_bytes": self.row_bytes,
            "memory_bytes": self.memory_bytes,
            "capacity_rows": capacity,
            "batches": self.trace.batches,
            "requests_per_batch": len(self.trace.values) / self.trace.batches,
            "distinct_per_batch": len(self.distinct.values) / self.trace.batches,
            "optimal_miss_rate": 1 - hits / keys,
            "frequent_miss_rate": 1 - frequent / keys,
        }
        self.report.results[f"{self.label}workload"] = found
        return found

    def _settings(self, name: str, files: dict[str, str]) -> dict[str, Any]:
        """Settings of a system's process."""
        workload, system = self.workload, SYSTEMS[name]
        extra = dict(system.options)
        if system.ahead:
            if 0 < self.mode.reads < 1 or self.mode.blind:
                raise process.SystemFailed(f"batches of {workload.mode} are not announced")
            for option in ("lookahead", "window_group", "window_bytes"):
                extra[option] = getattr(workload, option)
        if system.engine == "embedrock":
            given = {"policy": workload.policy, "page_bytes": workload.page_bytes}
            extra |= {option: value for option, value in given.items() if value is not None}
        settings = {
            "engine": system.engine,
            "mode": workload.mode,
            "dim": workload.dim,
            "rows": self.rows,
            "memory_bytes": self.memory_bytes,
            "trace": files,
            "batches": self.trace.batches,
            "seconds_max": 1e9 if name in OURS else workload.peer_seconds,
            "options": extra,
        }
        return settings | ({"device_slice_s": workload.device_slice} if name in OURS else {})

    def _system(self, name: str, files: dict[str, str]) -> dict[str, Any]:
        """The run that waited least for a core, of those that patience allows."""
        workload, settings = self.workload, self._settings(name, files)
        command = process.OURS if name in OURS else [str(workload.peers)]
        with workspace(workload, 4 * self.rows * (self.row_bytes + 24)) as place:
            settings["place"] = str(place / "store")
            (place / "store").mkdir()
            loaded: dict[str, Any] | None = None
            tried: list[dict[str, Any]] = []
            began = time.monotonic()
            while True:
                # Uncommitted changes of our engine are gone when it is opened again.
                if loaded is None or (self.mode.reads < 1 and name not in OURS):
                    self.report.say(f"{self.label}{name}: writing {self.rows:,} rows")
                    loaded = process.load(command, settings)
                self.report.say(f"{self.label}{name}: running")
                raw = process.run(command, settings, limited=settings["engine"] != "torch")
                tried.append(self._summary(raw, loaded))
                quiet = tried[-1]["wait_share"] <= WAIT_SHARE_MAX
                if quiet or time.monotonic() - began > workload.patience:
                    break
        best = min(tried, key=lambda one: float(one["wait_share"]))
        best["void_runs"] = len(tried) - 1
        if best["wait_share"] > WAIT_SHARE_MAX:
            share = f"{best['wait_share']:.0%} of the time"
            self._note(name, f"the machine was busy, its thread waited for a core {share}")
        self.report.results["mismatches"] += best["mismatches"]
        return best

    def _summary(self, raw: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
        run = Counted(raw, self.workload.peer_seconds)
        rows, requests = (
            int(trace.offsets[run.batches] - trace.offsets[run.begin])
            for trace in (self.distinct, self.trace)
        )
        seconds = float(run.batch_ns[run.begin :].sum()) / 1e9
        latency = np.percentile(run.get_ns[run.begin :] / 1e3, [50, 99])
        counted = raw.get("counted", {})
        summary: dict[str, Any] = {
            "version": raw.get("version"),
            "batches": run.batches,
            "rows_per_s": requests / seconds,
            "unique_rows_per_s": rows / seconds,
            "seconds": seconds,
            "get_us_p50": float(latency[0]),
            "get_us_p99": float(latency[1]),
            "bytes_read_per_row": run.grown("read_bytes") / rows,
            "bytes_written_per_row": run.grown("write_bytes") / rows,
            "pages_per_row": counted.get("pages_read", run.grown("read_bytes") / 4096) / rows,
            "requests_per_row": counted["read_requests"] / rows if counted else None,
            # Of distinct rows, those that needed no read; rows are asked for once or twice.
            "hit_rate": 1 - counted["misses"] / rows if counted else raw.get("hit_rate"),
            "cpu_us_per_row": run.grown("cpu_ns") / 1e3 / rows,
            "peak_rss_bytes": raw["peak_rss_bytes"],
            "limit_bytes": raw.get("limit_bytes"),
            "disk_bytes": loaded["disk_bytes"],
            "load_s": loaded["seconds"],
            "device_rate": raw.get("device_rate"),
            "own_device_rate": raw.get("own_device_rate"),
            "wait_share": run.grown("wait_ns") / 1e9 / seconds,
            "rows_verified": raw["rows_verified"],
            "mismatches": raw["mismatches"],
            "rates": run.batch_ns,
        }
        for name in ("memory", "store", "settings", "window", "counted"):
            if raw.get(name):
                summary[name] = raw[name]
        if raw.get("device"):
            self.report.device = raw["device"]
        return summary


def _shares(found: dict[str, dict[str, Any]], optimum: dict[str, float]) -> None:
    """Shares of the bound. The device's rate is that of our own slices, for everybody."""
    rates = [one["device_rate"] for one in found.values() if one.get("device_rate")]
    if not rates:
        return
    usual = statistics.median(rates)
    for one in found.values():
        if not one.get("batches"):
            continue
        rate = one["device_rate"] = one["device_rate"] or usual
        if optimum["optimal_miss_rate"] == 0:
            continue
        per_s = one["unique_rows_per_s"]
        one["limit_share"] = per_s * optimum["optimal_miss_rate"] / rate
        one["limit_share_frequent"] = per_s * optimum["frequent_miss_rate"] / rate
