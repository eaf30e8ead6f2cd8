"""The common part of benches: options, a place to write, the report and its output."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import embedrock
from embedrock.errors import MisuseError
from embedrock_lab.bench.options import Common, Given
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Rounds

__all__ = [
    "Report",
    "import_torch",
    "named_traces",
    "render",
    "workspace",
    "write_json",
]

TABLE_WIDTH_MAX = 14
FREE_BYTES_MIN = 1 << 30
"""Disk that a bench leaves to others."""


class Report:
    """The report of a bench while it grows."""

    def __init__(self, name: str, options: Given) -> None:
        """A report without figures; ``options`` are its settings."""
        self.name = name
        self.figures: dict[str, float | None] = {}
        self.results: dict[str, Any] = {"mismatches": 0}
        self.notes: list[str] = []
        self.device: dict[str, Any] = {}
        self.settings = _plain({"name": name, **vars(options)})
        self._machine = machine.machine_facts()
        self._begin = time.monotonic()
        self._steal = machine.steal_share()

    def figure(self, name: str, value: float) -> None:
        """Sets a figure."""
        self.figures[name] = float(value)

    def missing(self, name: str, why: str) -> None:
        """Sets a figure that cannot be measured here."""
        self.figures[name] = None
        self.notes.append(f"{name}: {why}")

    def rounds(self, name: str, rounds: Rounds) -> None:
        """Notes how quiet the rounds of a figure were."""
        self.results.setdefault("noise", {})[name] = rounds.summary()
        self.notes += [f"{name}: {note}" for note in rounds.notes]

    def say(self, text: str) -> None:
        """Tells whoever waits what happens."""
        took = time.monotonic() - self._begin
        print(f"{self.name}: {took:5.0f} s  {text}", file=sys.stderr, flush=True)

    def finish(self) -> dict[str, Any]:
        """The report as plain data."""
        steal = machine.steal_share(self._steal)  # type: ignore[arg-type]
        self.results["steal_share"] = round(float(steal), 4)  # type: ignore[arg-type]
        self.results["seconds"] = round(time.monotonic() - self._begin, 1)
        if self.results["mismatches"]:
            self.notes.insert(0, f"{self.results['mismatches']} rows were not what they should be")
        found = {
            "bench": self.name,
            "figures": self.figures,
            "machine": self._machine,
            "device": self.device,
            "settings": self.settings,
            "results": self.results,
            "notes": self.notes,
        }
        plain: dict[str, Any] = _plain(found)
        return plain


@contextlib.contextmanager
def workspace(options: Common, needed_bytes: int) -> Iterator[Path]:
    """A directory for stores below ``--dir``, gone with everything in it afterwards.

    Errors: ``FullError`` when the disk has less than ``needed_bytes`` and a gigabyte to spare.
    """
    options.dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(options.dir).free
    if free < needed_bytes + FREE_BYTES_MIN:
        raise embedrock.errors.FullError(
            f"{options.dir} has {free} bytes free, this bench needs {needed_bytes} and leaves "
            f"{FREE_BYTES_MIN}; make room, or choose another disk with --dir"
        )
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as directory:
        yield Path(directory)


def named_traces(files: Sequence[Path] | None) -> dict[str, Path]:
    """The files of ``--trace`` by what their names begin with, under which results stand.

    Errors: ``MisuseError`` where two begin alike.
    """
    found: dict[str, Path] = {}
    for file in files or ():
        name = file.name.split(".")[0]
        if found.setdefault(name, file) is not file:
            raise MisuseError(
                f"--trace has {found[name]} and {file}, expected names that differ before the "
                f"first dot"
            )
    return found


def import_torch(report: Report, figures: list[str], needed_bytes: int) -> Any:
    """PyTorch with one thread; None, and the figures missing, when it cannot run here."""
    have = machine.available_memory_bytes()
    if have < needed_bytes:
        for figure in figures:
            report.missing(figure, f"needs {needed_bytes} bytes of memory, {have} are available")
        return None
    try:
        import torch
    except ImportError:
        for figure in figures:
            report.missing(figure, "PyTorch is not installed: pip install torch")
        return None
    torch.set_num_threads(1)
    report.results["torch"] = torch.__version__
    return torch


def render(report: dict[str, Any]) -> str:
    """The report for people: figures first."""
    lines = [f"bench {report['bench']}: {report['machine']['processor']}"]
    width = max(map(len, report["figures"]), default=0)
    for name, value in report["figures"].items():
        lines.append(f"  {name:{width}}  {_number(value)}")
    lines.append("results")
    lines += _tree(report["results"], 2)
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(lines)


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Writes the report, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def _tree(values: dict[str, Any], indent: int) -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, dict) and _is_table(value):
            lines += [f"{'':{indent}}{name}", *_table(value, indent + 2)]
        elif isinstance(value, dict):
            lines += [f"{'':{indent}}{name}", *_tree(value, indent + 2)]
        else:
            lines.append(f"{'':{indent}}{name}  {_number(value)}")
    return lines


def _is_table(value: dict[str, Any]) -> bool:
    """Dicts, of which some say something: where all hold dicts alone, those are the tables."""
    columns = list(value.values())
    return all(isinstance(column, dict) for column in columns) and any(
        not isinstance(one, dict) for column in columns for one in column.values()
    )


def _table(columns: dict[str, dict[str, Any]], indent: int) -> list[str]:
    """One column for each entry, one line for each number; what is nested is in the JSON alone."""
    leaves = {
        name: {key: _number(v) for key, v in one.items() if not isinstance(v, (dict, list))}
        for name, one in columns.items()
    }
    keys = list(dict.fromkeys(key for one in leaves.values() for key in one))
    first = max(map(len, keys), default=0)
    texts = {name: [one.get(key, "") for key in keys] for name, one in leaves.items()}
    widths = {
        name: min(max(map(len, [name, *column])), TABLE_WIDTH_MAX) for name, column in texts.items()
    }
    head = "  ".join(f"{name[:width]:>{width}}" for name, width in widths.items())
    lines = [f"{'':{indent}}{'':{first}}  {head}"]
    for i, key in enumerate(keys):
        cells = (f"{texts[name][i][:width]:>{width}}" for name, width in widths.items())
        lines.append(f"{'':{indent}}{key:{first}}  {'  '.join(cells)}")
    return lines


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _plain(value: Any) -> Any:
    """Only what JSON holds: numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.item() if hasattr(value, "item") else str(value)
