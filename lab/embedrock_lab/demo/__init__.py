"""`embedrock demo` shows in two minutes: the same results, and the speed, at 10 % memory.

`run` has two parts. *Quality*, on real data: a DLRM is trained to the end with 10 % of its tables
in memory, with all of them in memory, and with plain PyTorch tables. *Speed*, on a stream in
Criteo's shape: rounds of a process with 10 % in memory and of one with plain PyTorch tables. The
other modules are the parts of both, which `embedrock bench demo` uses for more systems, longer
runs and more figures.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from embedrock.report.progress import Sink
from embedrock_lab.demo import children, comparison, summary
from embedrock_lab.demo.folder import check_disk, work_folder
from embedrock_lab.demo.paths import EMBEDROCK, PLAIN_TORCH
from embedrock_lab.demo.quality import train
from embedrock_lab.demo.settings import DemoSettings, ShapedSettings, demo_recipe, shaped_recipe
from embedrock_lab.measure.machine import available_memory_bytes

__all__ = [
    "DemoSettings",
    "ShapedSettings",
    "demo_recipe",
    "quality_settings",
    "run",
    "shaped_recipe",
    "speed_settings",
]

#: When the last round may begin: it and what comes behind take less than twenty seconds.
_LAST_ROUND_S = 100.0
#: With two epochs, rows that the first one wrote are read again in the second.
_EPOCHS = 2
#: Of both parts; with less memory available a quarter of the rows takes part.
_ROWS, _MEMORY_BYTES = 2_000_000, 4 << 30
_STEPS_BEFORE, _STEPS_OF_ROUND, _ROUNDS, _TORCH_WARM_UP = 120, 40, 3, 10

Result = dict[str, Any]


def quality_settings(
    folder: str, data: str | None = None, data_format: str = "movielens", epochs: int | None = None
) -> DemoSettings:
    """Settings of the first part. `folder` is for data and stores; `data` None is MovieLens."""
    recipe = demo_recipe(data_format, epochs or _EPOCHS)
    return DemoSettings(
        folder=folder, cache_dir=folder, format=data_format, recipe=recipe, data=data
    )


def speed_settings(folder: str, rows: int | None = None) -> ShapedSettings:
    """Settings of the second part: Adagrad, which PyTorch has, too."""
    recipe = shaped_recipe()
    rows = _ROWS if rows is None else rows
    if available_memory_bytes() < _MEMORY_BYTES:
        rows //= 4
    steps = _STEPS_BEFORE + _ROUNDS * _STEPS_OF_ROUND
    return ShapedSettings(
        folder=folder,
        recipe=recipe,
        rows=rows,
        samples=steps * recipe.batch_size,
        rounds=_ROUNDS,
        optimizer="adagrad",
        last_checks=False,
        torch_warm_up=_TORCH_WARM_UP,
    )


def run(
    quality: DemoSettings, speed: ShapedSettings, sink: Sink, *, keep: bool = False
) -> dict[str, Any]:
    """Runs both parts and returns the report (see `embedrock.report`).

    Stores are made in temporary folders under the settings' `folder` and removed unless `keep`. If
    the machine is busy, speed is measured in fewer rounds, and the report gives their number.

    Errors: DataError when the data cannot be had or read; MisuseError for settings that cannot be,
    FullError when the disk is too small; ChildError with what a run said.
    """
    started = perf_counter()
    speed.check()
    check_disk(speed, 1)
    found = train(quality, [["out_of_core", "whole_budget", "in_memory"]], sink, keep)
    held, memory = _speed(speed, started + _LAST_ROUND_S, sink, keep)
    return summary.build(quality, speed, found, held, memory, perf_counter() - started)


def _speed(
    settings: ShapedSettings, until: float, sink: Sink, keep: bool
) -> tuple[comparison.Comparison, Result]:
    """The rounds, and what the engine takes of memory in a process without PyTorch."""
    with work_folder(settings, keep) as working:
        path = Path(working.folder) / "settings.json"
        held = comparison.compare(working, (EMBEDROCK, PLAIN_TORCH), path, sink, until=until)
        (memory,) = children.run_together(["memory"], path, sink)
    return held, memory
