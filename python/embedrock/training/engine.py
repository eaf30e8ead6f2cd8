"""What the engine counted during a run, cut out of `Store.stats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from embedrock.errors import MisuseError
from embedrock.store import Store

#: Bytes of a read and reads in flight, by which devices are compared.
_DEVICE_READS = (4096, 64)
_SLICE_S = 1.0


@dataclass(frozen=True)
class Counters:
    """Counters of a store since it was opened; their difference is what a piece of work took."""

    hits: int = 0
    rescued: int = 0
    misses: int = 0
    first_touches: int = 0
    read_requests: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    rows_written: int = 0
    evicted: int = 0
    read_wait_s: float = 0.0

    @classmethod
    def of(cls, store: Store) -> Counters:
        """The counters of a store right now."""
        stats = store.stats()
        return cls(**{field.name: stats[field.name] for field in fields(cls)})

    def __sub__(self, earlier: Counters) -> Counters:
        now, then = asdict(self), asdict(earlier)
        return Counters(**{name: now[name] - then[name] for name in now})

    def __add__(self, other: Counters) -> Counters:
        one, two = asdict(self), asdict(other)
        return Counters(**{name: one[name] + two[name] for name in one})

    @property
    def hit_rate(self) -> float:
        """Positions served from memory ÷ those of rows that exist; first touches are neither."""
        served = self.hits + self.rescued
        existing = served + self.misses
        return served / existing if existing else 0.0

    def counted(self) -> dict[str, Any]:
        """As JSON, what was counted only."""
        return asdict(self)

    def as_dict(self) -> dict[str, Any]:
        """As JSON, the hit rate included."""
        return {**asdict(self), "hit_rate": self.hit_rate}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Counters:
        """What `as_dict` or `counted` made of counters."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def summary(store: Store) -> dict[str, Any]:
    """Memory, time by cause, disk and device of a store: what is true of it as a whole."""
    stats = store.stats()
    return {
        "budget_bytes": stats["budget_bytes"],
        "memory": stats["memory"],
        "time": stats["time"],
        "disk_bytes": stats["disk_bytes"],
        "device": stats["device"],
        "classes": stats["classes"],
    }


def device_seconds(store: Store, counted: Counters) -> float | None:
    """What the device needs at best for the reads that were counted: their number ÷ its rate right
    now for reads of their mean size; None while the store has too few pages."""
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
