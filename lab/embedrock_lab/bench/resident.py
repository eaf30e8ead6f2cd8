"""Cost of a window and a pipeline if every row is in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from embedrock.report import progress
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common
from embedrock_lab.measure.machine import available_memory_bytes

__all__ = ["overhead"]

_ROUNDS = 3
#: A process with PyTorch and what its rows take, and the same again.
_BYTES_PER_SYSTEM = (1 << 30, 1.4)


def overhead(report: Report, options: Common) -> None:
    """Adds ``overhead_resident``: DLRM in Criteo's shape with a budget for all rows, a step with
    look-ahead and pipeline / without - 1, in rounds of two processes."""
    try:
        from embedrock_lab import demo
        from embedrock_lab.demo import comparison
        from embedrock_lab.demo.paths import WHOLE_AHEAD, WHOLE_BUDGET
    except ModuleNotFoundError:
        report.missing("overhead_resident", "PyTorch is not installed")
        return
    settings = demo.ShapedSettings(
        folder=str(options.dir), recipe=demo.shaped_recipe(), rounds=_ROUNDS, seed=options.seed
    )
    fixed, factor = _BYTES_PER_SYSTEM
    stored = settings.rows * settings.row_bytes
    needed, free = 2 * int(fixed + factor * stored), available_memory_bytes()
    if free < needed:
        report.missing("overhead_resident", f"needs {needed:,} bytes of memory, {free:,} are free")
        return
    report.say("training with all rows in memory, with look-ahead and pipeline and without")
    with workspace(options, 3 * stored) as place:
        path = Path(place) / "settings.json"
        running = replace(settings, folder=str(place))
        held = comparison.compare(
            running, (WHOLE_BUDGET, WHOLE_AHEAD), path, progress.for_terminal()
        )
    report.figure("overhead_resident", held.rounds.ratio(0, 1) - 1)
    report.results["resident"] = {
        "samples_per_s": {name: held.rate(name) for name in held.names},
        "same_losses": held.same_losses(WHOLE_BUDGET, WHOLE_AHEAD),
        "same_rows": len({str(held.results[name]["digests"]) for name in held.names}) == 1,
    }
    report.notes += [f"overhead_resident: {note}" for note in held.rounds.notes]
