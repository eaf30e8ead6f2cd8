"""Training to the end, in several ways whose results have to agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.report.progress import Sink
from embedrock_lab.demo import children
from embedrock_lab.demo.folder import work_folder
from embedrock_lab.demo.paths import OUT_OF_CORE, WHOLE_BUDGET, losses_path
from embedrock_lab.demo.settings import DemoSettings

__all__ = ["Quality", "train"]


@dataclass(frozen=True)
class Quality:
    """The result of each run, by name, and whether two of them were equal to the bit: that with the
    budget, and that with a budget for all rows."""

    runs: dict[str, dict[str, Any]]
    losses_equal: bool
    """At every step."""

    @property
    def digests_equal(self) -> bool:
        """Whether all rows were equal in the end."""
        return bool(self.runs["out_of_core"]["digests"] == self.runs["whole_budget"]["digests"])

    @property
    def bits_equal(self) -> bool:
        """Whether losses and rows were."""
        return self.losses_equal and self.digests_equal


def train(
    settings: DemoSettings, groups: Sequence[Sequence[str]], sink: Sink, keep: bool
) -> Quality:
    """Runs the named pieces, one group after another. Those of a group share the machine, where
    only what they learn matters."""
    settings.source()  # fetched once, not by several processes at a time
    runs: dict[str, dict[str, Any]] = {}
    with work_folder(settings, keep) as working:
        path = Path(working.folder) / "settings.json"
        working.save(path)
        for names in groups:
            results = children.run_together(list(names), path, sink)
            runs.update(zip(names, results, strict=True))
        losses = {np.load(losses_path(working, n)).tobytes() for n in (OUT_OF_CORE, WHOLE_BUDGET)}
    return Quality(runs, len(losses) == 1)
