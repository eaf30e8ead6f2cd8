"""Files that the runs of the demo leave in its folder."""

from __future__ import annotations

from pathlib import Path

from embedrock.demo.settings import DemoSettings


def store_path(settings: DemoSettings, name: str) -> Path:
    """The store of a run."""
    return Path(settings.folder) / f"{name.replace(' ', '-')}.store"


def losses_path(settings: DemoSettings, name: str) -> Path:
    """Per-step losses of a run: float64, one per step."""
    return Path(settings.folder) / f"{name.replace(' ', '-')}.losses.npy"
