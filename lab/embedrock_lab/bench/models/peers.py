"""Other stores under a model: the keys of its batches, read and written with nobody's look-ahead.

A peer's row is a row and its optimizer's state. Each batch reads its distinct rows, changes and
writes them, as in ``race``. Its step is that time, and what the plain loop over a store computes
outside of it; copies between the store and PyTorch are given to the peer.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.race import process

__all__ = ["ENGINES", "absent", "run"]

ENGINES = ["rocksdb", "faster", "swap"]
"""Of those that ``make peers`` builds: what the papers compare with. LevelDB is not among them."""
STATE_FACTOR = 2
"""Values of a row, and as many of Adagrad's state."""


def absent(program: Path, engines: list[str]) -> dict[str, str]:
    """Engines that cannot take part, and why."""
    if not engines:
        return {}
    if not program.exists():
        return {name: f"{program} is not built; `make peers` builds it" for name in engines}
    known = process.describe(program)
    unknown = {"available": False, "reason": "not in this build"}
    found = {name: known.get(name, unknown) for name in engines}
    return {name: one["reason"] for name, one in found.items() if not one["available"]}


def run(
    report: Report,
    options: argparse.Namespace,
    engine: str,
    prepared: dict[str, Any],
    cell: dict[str, Any],
) -> dict[str, Any]:
    """What a step takes over this engine, with the memory that the store had."""
    dim = STATE_FACTOR * prepared["row_values"]
    settings = {
        "engine": engine,
        "mode": "train",
        "dim": dim,
        "rows": prepared["rows"],
        "memory_bytes": cell["memory_bytes"],
        "trace": prepared["trace"],
        "batches": prepared["batches"],
        "seconds_max": options.peer_seconds,
        "options": {},
    }
    command = [str(options.peers)]
    with workspace(options, 4 * prepared["rows"] * (4 * dim + 24)) as place:
        (place / "store").mkdir()
        settings["place"] = str(place / "store")
        process.load(command, settings)
        raw = process.run(command, settings, limited=True)
    done = int(raw["batches"])
    if done < 3:
        raise process.ContestantError(
            f"ran {done} batches in {options.peer_seconds:g} s, expected at least 3; give it "
            f"longer with --peer-seconds"
        )
    report.results["mismatches"] += raw["mismatches"]
    begin = done // 3
    rows_ms = float((np.array(raw["get_ns"]) + np.array(raw["put_ns"]))[begin:].mean()) / 1e6
    step_ms = rows_ms + cell["bound"]["outside_ms_per_step"]
    samples = cell["samples"] * (done - begin)

    def grown(name: str) -> int:
        return int(raw[name][-1] - raw[name][begin - 1])

    return {
        "samples_per_s": 1e3 * cell["samples"] / step_ms,
        "rows_ms_per_step": rows_ms,
        "batches": done,
        "bytes_read_per_sample": grown("read_bytes") / samples,
        "bytes_written_per_sample": grown("write_bytes") / samples,
        "version": raw.get("version"),
        "limit_bytes": raw.get("limit_bytes"),
    }
