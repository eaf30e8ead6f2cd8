"""The engine's counters for a run, cut out of `Store.stats`."""

from __future__ import annotations

from typing import Any

from embedrock.errors import MisuseError
from embedrock.report.counters import Counters
from embedrock.store import Store

#: Bytes of a read and reads in flight, by which devices are compared.
_DEVICE_READS = (4096, 64)
_SLICE_S = 1.0


def summary(store: Store) -> dict[str, Any]:
    """Memory, time by cause, disk and device of a store: what is true of it as a whole."""
    stats = store.stats()
    return {
        "budget_bytes": stats["budget_bytes"],
        "budget": stats["budget"],
        "memory": stats["memory"],
        "time": stats["time"],
        "disk_bytes": stats["disk_bytes"],
        "device": stats["device"],
        "classes": stats["classes"],
    }


def device_seconds(store: Store, counted: Counters) -> float | None:
    """The device's minimum time for the counted reads: their number ÷ its present rate for reads of
    their mean size; None while the store has too few pages."""
    if counted.read_requests == 0:
        return 0.0
    alignment = max(512, store.stats()["device"]["alignment"])
    size = -(-counted.bytes_read // counted.read_requests // alignment) * alignment
    try:
        return counted.read_requests / store._core.device_rate(_SLICE_S, size, None)
    except MisuseError:
        return None


def device_rate(store: Store, *, own_unit: bool = False) -> float | None:
    """Random reads per second of the device on the store's own pages, right now, for a second:
    4 KiB with 64 in flight, or the size and depth that the engine chose; None while the store has
    too few pages."""
    size, depth = (None, None) if own_unit else _DEVICE_READS
    try:
        return store._core.device_rate(_SLICE_S, size, depth)
    except MisuseError:
        return None
