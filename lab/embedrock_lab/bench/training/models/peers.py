"""Other stores under a model: the keys of its batches, read and written with nobody's look-ahead.

A peer's row is a row and its optimizer's state. Each batch reads its distinct rows, changes and
writes them, as in ``race``. Its step is that time, and what the plain loop over a store computes
outside of it; copies between the store and PyTorch are given to the peer.
"""

from __future__ import annotations

from typing import Any

from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.replay import process
from embedrock_lab.bench.replay.systems import Counted, PeerOptions

__all__ = ["ENGINES", "run"]

ENGINES = ["rocksdb", "faster", "swap"]
"""Of those that ``make peers`` builds: what the papers compare with. LevelDB is not among them."""
STATE_FACTOR = 2
"""Values of a row, and as many of Adagrad's state."""


def run(
    report: Report,
    options: PeerOptions,
    engine: str,
    prepared: dict[str, Any],
    cell: dict[str, Any],
) -> dict[str, Any]:
    """Time of a step over this engine, with the same memory as the store."""
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
    counted = Counted(raw, options.peer_seconds)
    report.results["mismatches"] += raw["mismatches"]
    rows_ms = float(counted.batch_ns[counted.begin :].mean()) / 1e6
    step_ms = rows_ms + cell["bound"]["outside_ms_per_step"]
    samples = cell["samples"] * (counted.batches - counted.begin)
    return {
        "samples_per_s": 1e3 * cell["samples"] / step_ms,
        "rows_ms_per_step": rows_ms,
        "batches": counted.batches,
        "bytes_read_per_sample": counted.grown("read_bytes") / samples,
        "bytes_written_per_sample": counted.grown("write_bytes") / samples,
        "version": raw.get("version"),
        "limit_bytes": raw.get("limit_bytes"),
    }
