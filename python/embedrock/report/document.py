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

from embedrock.errors import MisuseError
from embedrock.report import html

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


def write(path: Path, whole: Mapping[str, Any], title: str) -> Path:
    """Writes a report as indented JSON and, beside it, for people as HTML, whose path is returned;
    both under a temporary name first. Errors: OSError, MisuseError for a name that `check` refuses.
    """
    check(path)
    plain = without_nan(whole)
    page = path.with_suffix(".html")
    _replace(path, json.dumps(plain, indent=2) + "\n")
    _replace(page, html.render(plain, title))
    return page


def check(path: Path) -> None:
    """Errors: MisuseError when `path` is the name of the HTML, not of the JSON, or its folder is
    not there: to be told before a run, not after it."""
    if path.suffix == ".html":
        raise MisuseError(
            f"report is {path}, expected the name of the JSON: the HTML lies beside it; pass "
            f"{path.with_suffix('.json')}"
        )
    if not path.parent.is_dir():
        raise MisuseError(f"report is {path}, but there is no folder {path.parent}")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def machine() -> dict[str, Any]:
    """The machine, on which the figures of a run depend."""
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
