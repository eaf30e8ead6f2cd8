"""The part of a run of ``recdb`` that counts: the windows after the first ones.

Runs of all systems have the same form: nanoseconds of each batch, and the store's counters at the
beginning of each window and at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["of_peer", "summary"]


def of_peer(raw: dict[str, Any], row_bytes: int) -> dict[str, Any]:
    """The report of the peers' program in the form of ours."""

    def counted(one: dict[str, Any]) -> dict[str, Any]:
        merges = one["merges"]
        return {
            "pages_read": one["blocks_read"],
            "changed_bytes": one["flushed_bytes"],
            "written_bytes": one["flushed_bytes"] + one["compact_written_bytes"],
            "disk_bytes": one["disk_bytes"],
            "row_bytes": row_bytes,
            "stall_s": one["stall_us"] / 1e6,
            "merges": {
                "count": merges["count"],
                "seconds": merges["seconds"],
                "seconds_max": merges["seconds_max"],
                "rows_dropped": merges["rows_in"] - merges["rows_out"],
                "rows_written": merges["rows_out"],
            },
        }

    return {
        "read_ns": raw["get_ns"],
        "blocked_ns": raw["blocked_ns"],
        "compute_ns": raw["compute_ns"],
        "update_ns": raw["put_ns"],
        "windows": [counted(one) for one in raw["windows"]],
        "core_wait_share": raw["wait_ns"][-1] / max(1, _total_ns(raw)),
        "mismatches": raw["mismatches"],
        "memory": raw["memory"],
        "peak_rss_bytes": raw["peak_rss_bytes"],
        "version": raw["version"],
        "settings": raw["settings"],
    }


def summary(raw: dict[str, Any], window: int, warm: int, rows: int) -> dict[str, Any]:
    """Shares, times, pages, merges and amplification of the windows after the first ``warm``."""
    begin = warm * window
    read, blocked, compute, update = (
        np.array(raw[f"{name}_ns"][begin:]) for name in ("read", "blocked", "compute", "update")
    )
    step = read + compute + update
    first, last, windows = raw["windows"][warm], raw["windows"][-1], len(raw["windows"]) - 1 - warm
    latency = np.percentile(read / 1e3, [50, 99])
    grown = _grown(first, last)
    found: dict[str, Any] = {
        "step_ms": step.mean() / 1e6,
        "blocked_share": blocked.sum() / step.sum(),
        "handing_share": (read - blocked).sum() / step.sum(),
        "compute_share": compute.sum() / step.sum(),
        "update_share": update.sum() / step.sum(),
        "read_ms": read.mean() / 1e6,
        "update_ms": update.mean() / 1e6,
        "read_us_p50": latency[0],
        "read_us_p99": latency[1],
        "pages_per_window": grown["pages_read"] / windows,
        "pages_loaded_once": _loaded_once(grown),
        **_merges(first, last),
        "write_amplification": _ratio(grown["written_bytes"], grown["changed_bytes"]),
        "space_amplification": max(
            one["disk_bytes"] / (rows * one["row_bytes"]) for one in raw["windows"][warm:]
        ),
        "write_amplification_at": [
            _ratio(
                now["written_bytes"] - first["written_bytes"],
                now["changed_bytes"] - first["changed_bytes"],
            )
            for now in raw["windows"][warm + 1 :]
        ],
        "space_amplification_at": [
            one["disk_bytes"] / (rows * one["row_bytes"]) for one in raw["windows"]
        ],
    }
    if grown.get("groups"):
        found["batches_per_group"] = grown["group_batches"] / grown["groups"]
        found |= {name: grown[name] for name in ("lost", "turned_away", "skipped", "starved")}
    for name in ("stall_s", "rows_loaded", "journal_bytes"):
        if name in grown:
            found[name] = grown[name]
    for name in ("announced_ahead", "budget_bytes", "cache_rows", "page_bytes", "rows_per_page"):
        if name in raw:
            found[name] = raw[name]
    for name in (
        "core_wait_share",
        "peak_rss_bytes",
        "peak_rss_grown_bytes",
        "memory",
        "settings",
        "version",
    ):
        if name in raw:
            found[name] = raw[name]
    return found


def _total_ns(raw: dict[str, Any]) -> int:
    return int(sum(sum(raw[name]) for name in ("get_ns", "compute_ns", "put_ns")))


def _grown(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    return {name: last[name] - first[name] for name in first if name != "merges"}


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _loaded_once(grown: dict[str, Any]) -> float | None:
    """Share of the pages read ahead that their group read once; None where nobody counts them."""
    if not grown.get("pages_ahead"):
        return None
    return float(1 - grown["pages_again"] / grown["pages_ahead"])


def _merges(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """Merges between two looks; the longest is that since open."""
    now, then = last["merges"], first["merges"]
    grown = {name: now[name] - then[name] for name in now if name != "seconds_max"}
    found = {
        "merges": grown["count"],
        "merge_s_mean": _ratio(grown["seconds"], grown["count"]),
        "merge_s_max": now["seconds_max"] if grown["count"] else None,
        "gc_efficiency": _ratio(grown["rows_dropped"], grown["rows_written"]),
    }
    if "put_off" in grown:
        found["merge_latency_s_mean"] = _ratio(grown["latency"], grown["count"])
        found["merge_steps_put_off"] = grown["put_off"]
    return found
