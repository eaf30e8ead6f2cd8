"""Counters of a store as a report has them: their difference is what a piece of work took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from embedrock.store import Store


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
        """The counters from which `as_dict` or `counted` made these values."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})
