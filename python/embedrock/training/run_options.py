"""The options of every run of `embedrock train`, whatever the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from embedrock.ahead.permits import staleness_bound_of
from embedrock.errors import MisuseError

__all__ = ["IoName", "PolicyName", "RunOptions", "as_json", "from_json"]

IoName: TypeAlias = Literal["auto", "uring", "pread"]
PolicyName: TypeAlias = Literal["lru", "lfu"]
Options = TypeVar("Options", bound="RunOptions")


@dataclass(frozen=True, kw_only=True)
class RunOptions(ABC):
    """A training run, as far as it does not depend on the kind of model."""

    data: Path
    store: Path
    memory: str = "10%"
    resume: bool = False
    #: Names of the given fields of the recipe, and of `pipeline` and `staleness_bound`; a resumed
    #: run keeps its own values of the others.
    given: frozenset[str] = frozenset()
    commit_every: int = 1000
    skip_bad_lines: bool = False
    threads: int | None = None
    seed: int = 0
    max_disk_bytes: int | None = None
    io: IoName = "auto"
    policy: PolicyName = "lfu"
    #: Most batches that are announced to the store ahead of their use; 0: none.
    lookahead_depth: int = 512
    #: Most bytes of the memory that announced batches take, and most of them whose rows are read
    #: together; None: as `embedrock.open` has it.
    window_bytes: int | None = None
    window_group: int | None = None
    #: Batches are announced with their place in a schedule of the whole run, which is made first;
    #: None: of the epochs that are left after one that has waited for rows (`batches.Trial`).
    schedule: bool | None = None
    #: Rows are read and updated on threads beside the trainer's, where that is faster.
    pipeline: bool = False
    #: Batches whose rows a pipeline reads ahead; None: 2, more with a staleness bound.
    read_ahead: int | None = None
    #: Number of unapplied batches that may touch a row when a pipeline reads it.
    staleness_bound: float = 0

    @abstractmethod
    def files(self) -> Any:
        """The files that are read. Errors: DataError, MisuseError where they are not there."""

    @abstractmethod
    def fixed(self) -> dict[str, Any]:
        """Options that a continuation must share, as JSON; otherwise it would be another run."""

    @abstractmethod
    def changeable(self) -> dict[str, Any]:
        """The rest of the recipe, as JSON: options that a continuation may change explicitly."""

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        for name in ("commit_every", "threads", "window_bytes", "window_group", "read_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MisuseError(f"{name} is {value}, expected 1 or more")
        if self.lookahead_depth < 0:
            raise MisuseError(f"lookahead_depth is {self.lookahead_depth}, expected 0 or more")
        for name, value in self._window().items():
            if value is not None and self.lookahead_depth == 0:
                raise MisuseError(
                    f"{name} is {value}, but lookahead_depth is 0: no batch is announced; leave "
                    f"one of the two out"
                )
        if self.schedule and self.lookahead_depth == 0:
            raise MisuseError(
                "schedule is set, but lookahead_depth is 0: no batch is announced; leave one of "
                "the two out"
            )
        staleness_bound_of(self.staleness_bound)
        if self.staleness_bound > 0 and not self.pipeline:
            raise MisuseError(
                f"staleness_bound is {self.staleness_bound} without a pipeline, which alone reads "
                f"rows before the last updates of them; set pipeline, or leave the bound at 0"
            )

    def check_pipeline(self) -> None:
        """Checks that need a stored run's choice of a pipeline.

        Errors: MisuseError.
        """
        if self.read_ahead is not None and not self.pipeline:
            raise MisuseError(
                f"read_ahead is {self.read_ahead} without a pipeline, whose batches these are; set "
                f"pipeline, or leave it out"
            )

    def settings(self) -> dict[str, Any]:
        """All that a reader of results wants to know, as JSON."""
        ahead = {
            "lookahead_depth": self.lookahead_depth,
            "read_ahead": self.read_ahead,
            "schedule": self.schedule,
        }
        return {**self.fixed(), **self.changeable(), **ahead, **self._window()}

    def _window(self) -> dict[str, int | None]:
        return {"window_bytes": self.window_bytes, "window_group": self.window_group}

    def _pipeline(self) -> dict[str, Any]:
        """The changeable part of reading early, as JSON."""
        bound = self.staleness_bound if math.isfinite(self.staleness_bound) else "inf"
        return {"pipeline": self.pipeline, "staleness_bound": bound}

    def _with_pipeline_of(self: Options, stored: Mapping[str, Any]) -> Options:
        """These options with the pipeline of a stored run, where none was asked for."""
        options, kept = self, stored.get("staleness_bound", 0)
        bound = math.inf if kept == "inf" else int(kept)
        # Older stores do not say whether a pipeline was asked for; a bound takes one.
        pipeline = bool(stored.get("pipeline", bound > 0))
        if "pipeline" not in self.given and self.staleness_bound == 0:
            options = replace(options, pipeline=pipeline)
        if "staleness_bound" not in self.given and options.pipeline:
            options = replace(options, staleness_bound=bound)
        return options


def as_json(value: Any) -> Any:
    """A value of an option as JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """A value of an option that JSON gave back."""
    if isinstance(value, Mapping):
        return {name: from_json(one) for name, one in value.items()}
    return tuple(value) if isinstance(value, list) else value
