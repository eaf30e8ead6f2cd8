"""The figures that a system's run records for each batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["Record"]


class Record:
    """Measurements of each batch; what pauses use is left out."""

    def __init__(self) -> None:
        """Nothing is noted yet."""
        self._columns: dict[str, list[int]] = {
            name: []
            for name in ("get_ns", "put_ns", "cpu_ns", "read_bytes", "write_bytes", "wait_ns")
        }
        self._verified = self._wrong = 0
        self._totals = [0, 0, 0, 0]
        self._last = _usage()

    def restart(self) -> None:
        """Discards usage since the last batch."""
        self._last = _usage()

    def add(self, get_ns: int, put_ns: int, verified: int, wrong: int) -> None:
        """Notes a batch."""
        usage = _usage()
        for i, (before, after) in enumerate(zip(self._last, usage, strict=True)):
            self._totals[i] += after - before
        self._last = usage
        noted = (get_ns, put_ns, *self._totals)
        for column, value in zip(self._columns.values(), noted, strict=True):
            column.append(value)
        self._verified += verified
        self._wrong += wrong

    def answer(self) -> dict[str, Any]:
        """Everything noted."""
        return {
            "batches": len(self._columns["get_ns"]),
            **self._columns,
            "rows_verified": self._verified,
            "mismatches": self._wrong,
        }


def _usage() -> tuple[int, int, int, int]:
    """Processor time, bytes read and written on the device, time without a core; so far."""
    times = os.times()
    moved = {"read_bytes": 0, "write_bytes": 0}
    try:
        for line in Path("/proc/self/io").read_text().splitlines():
            name, value = line.split(": ")
            if name in moved:
                moved[name] = int(value)
        wait = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        wait = 0
    cpu = int((times.user + times.system) * 1e9)
    return cpu, moved["read_bytes"], moved["write_bytes"], wait
