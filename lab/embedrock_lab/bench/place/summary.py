"""Printed summary of ``place``: gains by trace and layout, and the cost of learning."""

from __future__ import annotations

from typing import Any

from embedrock_lab.bench.place.compare import CONDITIONS
from embedrock_lab.bench.place.figures import gain

__all__ = ["summarised"]


def summarised(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Tables with a column for each trace."""
    if not found:
        return {}
    tables: dict[str, Any] = {
        "traces": {
            name: {key: one[key] for key in ("rows", "learned", "served", "pins", "length_mean")}
            for name, one in found.items()
        }
    }
    for condition in CONDITIONS:
        tables[f"gain_over_identity_{condition}"] = {
            name: {
                layout: round(gain(one, condition, "identity", layout), 4)
                for layout in one["layouts"]
            }
            for name, one in found.items()
        }
    for key in ("seconds", "bytes_per_pin"):
        tables[key] = {
            name: {layout: float(f"{took[key]:.3g}") for layout, took in one["took"].items()}
            for name, one in found.items()
        }
    return tables
