"""Reports in the shape that all benchmarks share, and facts about the machine they ran on.

| key | content |
|---|---|
| `figures` | name → number; null where it could not be measured, with a reason in `notes` |
| `machine` | processor, cores, memory, kernel, versions |
| `device` | io back end, whether it bypasses the page cache, requests per second by size |
| `settings` | what the run was told |
| `results` | everything else that was measured |
| `notes` | sentences that a reader of the figures needs |
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

KEYS = ("figures", "machine", "device", "settings", "results", "notes")


def report(
    *,
    figures: Mapping[str, float | int | None],
    device: Mapping[str, Any],
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    notes: list[str],
) -> dict[str, Any]:
    """A whole report, JSON values only: NaN and infinities become None."""
    whole = {
        "figures": dict(figures),
        "machine": machine(),
        "device": dict(device),
        "settings": dict(settings),
        "results": dict(results),
        "notes": list(notes),
    }
    plain: dict[str, Any] = without_nan(whole)
    return plain


def write(path: Path, whole: Mapping[str, Any]) -> None:
    """Writes a report as indented JSON, under a temporary name first. Errors: OSError."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(without_nan(whole), indent=2) + "\n")
    temporary.replace(path)


def machine() -> dict[str, Any]:
    """What the figures of a run depend on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("embedrock", "numpy", "torch")},
        "load_average": list(os.getloadavg()),
    }


def without_nan(value: Any) -> Any:
    """The same with NaN and infinities as None, which JSON has no word for; tuples become lists."""
    if isinstance(value, Mapping):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
