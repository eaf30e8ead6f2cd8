"""Names of the runs of a demo, and the files that they leave in its folder."""

from __future__ import annotations

from pathlib import Path

from embedrock_lab.demo.settings import Settings

OUT_OF_CORE, WHOLE_BUDGET, PLAIN_TORCH = "out of core", "whole budget", "plain torch"
LOOK_AHEAD = "look ahead"
"""Out of core, with the keys of coming batches announced."""
WHOLE_AHEAD = "whole budget, look ahead"
"""With a budget for all rows, and yet a window and a pipeline: what these cost where nothing has to
be read."""
EMBEDROCK = "Embedrock"
"""Out of core as a loop of users has it: announcing where a `LookaheadLoader` finds that it pays,
and a pipeline."""
SYSTEMS = (LOOK_AHEAD, OUT_OF_CORE, WHOLE_BUDGET, PLAIN_TORCH)
"""Systems whose speeds are compared."""


def store_path(settings: Settings, name: str) -> Path:
    """The store of a run."""
    return Path(settings.folder) / f"{name.replace(' ', '-')}.store"


def losses_path(settings: Settings, name: str) -> Path:
    """Per-step losses of a run: float64, one per step."""
    return Path(settings.folder) / f"{name.replace(' ', '-')}.losses.npy"
