"""Layouts that ``place`` compares, each made in a process of its own that is timed and weighed.

A layout is pages of rows: ``rows[starts[j]:starts[j + 1]]``. Processes exchange arrays as files, so
that what a method takes is not mixed with what another one left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock_lab.bench import child
from embedrock_lab.bench.place.hypergraph import blocks
from embedrock_lab.bench.place.logs import Hyperedges
from embedrock_lab.measure import machine

__all__ = ["HOMES", "MTKAHYPAR", "STRATEGIES", "STRAWMEN", "Layout", "Maker", "layout_name"]

HOMES = ("identity", "random", "frequency", "shp", "partition")
"""Methods of making home pages here; ``shp`` is that of the MaxEmbed paper."""
MTKAHYPAR = "mtkahypar"
STRATEGIES = ("residual", "connectivity")
"""Replica pages behind the home pages of ``partition``; ``connectivity`` is the paper's."""
STRAWMEN = ("rpp", "fpr")
"""Replicas that the paper compares with, which make all pages anew."""

Offsets = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Layout:
    """Pages, each a set of rows; every row is in one at least."""

    starts: Offsets
    rows: Rows

    @property
    def pages(self) -> int:
        """Number of pages."""
        return len(self.starts) - 1

    def with_pages(self, starts: Offsets, rows: Rows) -> Layout:
        """The same with more pages behind."""
        return Layout(
            np.concatenate([self.starts, starts[1:] + self.starts[-1]]),
            np.concatenate([self.rows, rows]),
        )


def layout_name(kind: str, share: float) -> str:
    """The name of a layout with replicas. Tables show its beginning, so the share comes first."""
    return f"{share:g} {kind}"


class Maker:
    """Makes layouts of one trace, in child processes."""

    def __init__(
        self, learned: Hyperedges, folder: Path, rows_per_page: int, seed: int, threads: int
    ) -> None:
        """Files are written below ``folder``."""
        self._folder, self._rows_per_page = folder, rows_per_page
        self._num_rows = learned.num_rows
        np.savez(folder / "learned.npz", rows=learned.rows, offsets=learned.offsets)
        self._common = {"folder": str(folder), "num_rows": learned.num_rows, "seed": seed}
        self._common |= {"rows_per_page": rows_per_page, "threads": threads}
        self.took: dict[str, dict[str, Any]] = {}
        """Cost of each layout: seconds, seconds of cores, bytes."""

    def home(self, method: str) -> Layout:
        """Home pages alone."""
        order = self._call(method, "home", method=method)["order"]
        return Layout(self._starts(), order)

    def mtkahypar(self, limit_s: float) -> Layout:
        """Blocks of Mt-KaHyPar; rows that it was not given follow in the order of ``partition``.

        Errors: ``ChildError`` where it is not installed, fails, or takes longer than ``limit_s``.
        """
        found = self._call(MTKAHYPAR, "by_mtkahypar", limit_s)
        return Layout(found["starts"], found["rows"])

    def replicas(self, home: Layout, method: str, ratios: list[float]) -> dict[float, Layout]:
        """Home pages with replica pages behind, for each ratio; they are chosen once."""
        most = max(ratios)
        np.save(self._folder / "order.npy", home.rows)
        found = self._call(layout_name(method, most), "repeated", method=method, ratio=most)
        made = {}
        for ratio in ratios:
            pages = int(self._num_rows * ratio / self._rows_per_page)
            starts = found["starts"][: pages + 1]
            made[ratio] = home.with_pages(starts, home.rows[found["ranks"][: starts[-1]]])
        return made

    def strawman(self, method: str, ratio: float) -> Layout:
        """All pages of a strawman."""
        found = self._call(layout_name(method, ratio), "strawman", method=method, ratio=ratio)
        return Layout(found["starts"], found["rows"])

    def _starts(self) -> Offsets:
        ends = np.arange(0, self._num_rows, self._rows_per_page, dtype=np.int64)
        return np.append(ends, self._num_rows)

    def _call(
        self, name: str, function: str, limit_s: float | None = None, **more: Any
    ) -> dict[str, Any]:
        answer = self._folder / "answer.npz"
        arguments = self._common | more
        self.took[name] = child.call_within(f"{__name__}:{function}", limit_s, **arguments)
        with np.load(answer) as arrays:
            return {key: arrays[key] for key in arrays.files}


def home(folder: str, num_rows: int, method: str, **options: Any) -> dict[str, Any]:
    """Orders the rows. In a child process."""
    rows, offsets = _learned(folder)
    more = _more(options)
    return _weighed(
        folder,
        len(rows),
        lambda: {
            "order": _core.place_rows(
                rows, offsets, num_rows, options["rows_per_page"], method, **more
            )
        },
    )


def repeated(folder: str, method: str, ratio: float, **options: Any) -> dict[str, Any]:
    """Chooses replica pages. In a child process."""
    rows, offsets = _learned(folder)
    order = np.load(Path(folder) / "order.npy")
    more = _more(options)

    def work() -> dict[str, Any]:
        starts, ranks = _core.place_replicas(
            rows, offsets, order, options["rows_per_page"], method, ratio, **more
        )
        return {"starts": starts, "ranks": ranks}

    return _weighed(folder, len(rows), work)


def strawman(folder: str, num_rows: int, method: str, ratio: float, **options: Any) -> Any:
    """Makes all pages of a strawman. In a child process."""
    rows, offsets = _learned(folder)
    more = _more(options)

    def work() -> dict[str, Any]:
        starts, all_rows = _core.place_strawman(
            rows, offsets, num_rows, options["rows_per_page"], method, ratio, **more
        )
        return {"starts": starts, "rows": all_rows}

    return _weighed(folder, len(rows), work)


def by_mtkahypar(folder: str, num_rows: int, rows_per_page: int, **options: Any) -> dict[str, Any]:
    """Partitions with Mt-KaHyPar. In a child process."""
    learned = Hyperedges(*_learned(folder), num_rows)
    partition, pages_of = blocks(learned, rows_per_page, options["seed"], options["threads"])
    took = _weighed(folder, len(learned.rows), lambda: {"blocks": partition()})
    with np.load(Path(folder) / "answer.npz") as arrays:
        starts, rows, moved = pages_of(arrays["blocks"])
    np.savez(Path(folder) / "answer.npz", starts=starts, rows=rows)
    return took | {"moved_rows": moved}


def _more(options: dict[str, Any]) -> dict[str, Any]:
    return {"seed": options["seed"], "threads": options["threads"]}


def _learned(folder: str) -> tuple[Rows, Offsets]:
    with np.load(Path(folder) / "learned.npz") as arrays:
        return arrays["rows"], arrays["offsets"]


def _weighed(folder: str, pins: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Does the work and saves its arrays; what it took, and the most memory beside the trace."""
    before = machine.rss_bytes()
    machine.reset_peak_rss()
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    grown = max(machine.peak_rss_bytes() - before, 0)
    np.savez(Path(folder) / "answer.npz", **found)
    return took | {"bytes": grown, "bytes_per_pin": grown / pins, "pins": pins}
