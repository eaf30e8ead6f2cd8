"""A look-ahead window that notes what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class RecordingWindow:
    """The interface of ``Store.window``, without reading anything ahead."""

    def __init__(self, room: int = 10_000) -> None:
        self.room = room
        self.announced: dict[int, dict[str, list[int]]] = {}
        self.calls: list[tuple[str, int]] = []
        self.begun: set[int] = set()
        self.last = 0
        self.passed_over = 5

    @property
    def open_numbers(self) -> list[int]:
        return sorted(self.announced)

    def announce(self, batch: Mapping[Any, Any], *, schedule: Any = None) -> int | None:
        if len(self.announced) >= self.room:
            self.calls.append(("refuse", 0))
            return None
        self.last += 1
        named = {getattr(table, "name", table): keys for table, keys in batch.items()}
        self.announced[self.last] = {
            name: np.asarray(keys).astype(np.uint64).tolist() for name, keys in named.items()
        }
        self.calls.append(("announce", self.last))
        return self.last

    def begin(self, number: int) -> None:
        assert number in self.announced and number not in self.begun
        self.begun.add(number)
        self.calls.append(("begin", number))

    def finish(self, number: int) -> None:
        assert number in self.begun
        del self.announced[number]
        self.calls.append(("finish", number))

    def clear(self) -> None:
        self.announced.clear()
        self.calls.append(("clear", 0))

    def release(self) -> None:
        self.announced.clear()
        self.calls.append(("release", 0))

    def stats(self) -> dict[str, int]:
        return {"announced": self.last, "skipped": self.passed_over, "filled": self.last}
