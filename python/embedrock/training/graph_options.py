"""What `embedrock train` can be told of a model of knowledge graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from embedrock.ahead.permits import staleness_bound_of
from embedrock.errors import MisuseError
from embedrock.kge.triples import UNKNOWN, Unknown
from embedrock.training.graph_recipes import GraphRecipe
from embedrock.training.options import IoName, PolicyName

#: Fields of a recipe that a run can go on with others of.
_CHANGEABLE = (
    *("epochs", "lr", "dense_lr", "lr_decay"),
    *("loss", "margin", "temperature", "regularization"),
)
_FIXED = tuple(field.name for field in fields(GraphRecipe) if field.name not in _CHANGEABLE)


@dataclass(frozen=True)
class GraphOptions:
    """A training run on a knowledge graph."""

    data: Path
    model: str
    store: Path
    recipe: GraphRecipe
    memory: str = "10%"
    resume: bool = False
    #: Which fields of the recipe, and of `pipeline` and `staleness_bound`, were asked for; a
    #: resumed run has the others as it had them.
    given: frozenset[str] = frozenset(field.name for field in fields(GraphRecipe))
    #: What to do with triples to measure with that have names which training does not.
    unknown: Unknown = "refuse"
    skip_bad_lines: bool = False
    commit_every: int = 1000
    threads: int | None = None
    seed: int = 0
    max_disk_bytes: int | None = None
    io: IoName = "auto"
    policy: PolicyName = "lfu"
    lookahead_depth: int = 512
    window_bytes: int | None = None
    window_group: int | None = None
    pipeline: bool = False
    read_ahead: int | None = None
    staleness_bound: float = 0

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        if self.unknown not in UNKNOWN:
            raise MisuseError(f"unknown is {self.unknown!r}, expected one of {', '.join(UNKNOWN)}")
        for name in ("commit_every", "threads", "window_bytes", "window_group", "read_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MisuseError(f"{name} is {value}, expected 1 or more")
        if self.lookahead_depth < 0:
            raise MisuseError(f"lookahead_depth is {self.lookahead_depth}, expected 0 or more")
        staleness_bound_of(self.staleness_bound)

    def check_pipeline(self) -> None:
        """What can be said once a stored run has said whether it has a pipeline.

        Errors: MisuseError.
        """
        for name, unset in (("read_ahead", None), ("staleness_bound", 0)):
            value = getattr(self, name)
            if value != unset and not self.pipeline:
                raise MisuseError(
                    f"{name} is {value} without a pipeline, which alone reads rows early; set "
                    f"pipeline, or leave it out"
                )

    def fixed(self) -> dict[str, Any]:
        """What a continuation must have the same, as JSON; otherwise it would be another run."""
        recipe = asdict(self.recipe)
        values = {"model": self.model, "seed": self.seed, "unknown": self.unknown}
        return values | {name: recipe[name] for name in _FIXED}

    def changeable(self) -> dict[str, Any]:
        """The rest of the recipe, as JSON: what a continuation may have otherwise if it says so."""
        recipe = asdict(self.recipe)
        bound = self.staleness_bound if math.isfinite(self.staleness_bound) else "inf"
        how = {"pipeline": self.pipeline, "staleness_bound": bound}
        return {name: recipe[name] for name in _CHANGEABLE} | how

    def settings(self) -> dict[str, Any]:
        """All that a reader of results wants to know, as JSON."""
        names = ("lookahead_depth", "read_ahead", "window_bytes", "window_group")
        return {
            **self.fixed(),
            **self.changeable(),
            **{name: getattr(self, name) for name in names},
        }

    def continuing(self, stored: Mapping[str, Any]) -> GraphOptions:
        """These options with all of the recipe that was not asked for as it is stored, by name."""
        names = [field.name for field in fields(GraphRecipe)]
        kept = {n: stored[n] for n in names if n in stored and n not in self.given}
        options = replace(self, recipe=replace(self.recipe, **kept))
        if "pipeline" not in self.given and self.staleness_bound == 0:
            options = replace(options, pipeline=bool(stored.get("pipeline", False)))
        if "staleness_bound" not in self.given and options.pipeline:
            bound = stored.get("staleness_bound", 0)
            options = replace(options, staleness_bound=math.inf if bound == "inf" else bound)
        return options
