"""The demo: a DLRM on real data with its tables held to a tenth of their bytes in memory.

It trains the same model five times, each time in a process of its own so that peak memory means
something: with 10 % of the tables in DRAM, with plain PyTorch tables in memory, with a budget for
all rows (which must give the same bits as 10 %), without the keys that occur once, and it replays
the keys in a process without PyTorch to measure the engine's memory alone. Then speeds are
compared, out of core and in memory in turn (`contest`). `shaped` is the other demo, on a stream.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from embedrock.demo import children, contest, figures
from embedrock.demo.folder import work_folder
from embedrock.demo.paths import CONTESTANTS
from embedrock.demo.settings import DemoSettings, ShapedSettings, demo_recipe, shaped_recipe
from embedrock.report.progress import Sink, Task

__all__ = ["DemoSettings", "ShapedSettings", "demo_recipe", "run", "shaped_recipe"]


def run(settings: DemoSettings, sink: Sink, *, keep: bool = False) -> dict[str, Any]:
    """Runs the demo and returns its report (see `embedrock.report`).

    Stores are made in a temporary folder under `settings.folder` and removed unless `keep`.

    Errors: DataError when the data cannot be had or read; ChildError with what a run said.
    """
    started = perf_counter()
    with Task(sink, "reading data"):
        dataset = settings.dataset()
        facts = figures.DataFacts.of(dataset)
        del dataset
    with work_folder(settings, keep) as working:
        path = Path(working.folder) / "settings.json"
        working.save(path)
        # The two runs whose speed is compared have the machine for themselves; for the others
        # only the results matter, so they share it.
        (out_of_core,) = children.run_together(["out_of_core"], path, sink)
        (in_memory,) = children.run_together(["in_memory"], path, sink)
        whole_budget, without_fillers, memory = children.run_together(
            ["whole_budget", "without_fillers", "memory"], path, sink
        )
        runs = figures.Runs(out_of_core, in_memory, whole_budget, without_fillers, memory)
        same_losses = figures.same_losses(working)
    # With the layers, batches and threads that the speeds of all demos are compared with.
    with work_folder(settings.for_speed(), keep) as working:
        held = contest.hold(working, CONTESTANTS, Path(working.folder) / "settings.json", sink)
    return figures.build(settings, facts, runs, same_losses, held, perf_counter() - started)
