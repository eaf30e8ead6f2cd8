"""The ways to run a training, by name, in the order in which they are shown."""

from __future__ import annotations

__all__ = ["LOOKAHEAD", "PIPELINE", "PLAIN", "TORCH", "WAYS"]

TORCH = "torch"
PLAIN = "plain"
LOOKAHEAD = "lookahead"
PIPELINE = "pipeline"
WAYS = {
    TORCH: "PyTorch in memory",
    PLAIN: "plain loop",
    LOOKAHEAD: "look-ahead",
    PIPELINE: "look-ahead and pipeline",
}
"""How each is called on plots and in tables."""
