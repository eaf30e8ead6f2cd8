"""Small runs of `embedrock train` within the test's process."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import embedrock
from embedrock.report.progress import Lines
from embedrock.training import job
from embedrock.training.options import Recipe, TrainOptions


def options_of(data_format: str, data: Path, store: Path, given: dict[str, Any]) -> TrainOptions:
    """A small model; of `given`, what is no part of a recipe goes to the options."""
    recipe = {"epochs": 2, "embedding_dim": 4, "bottom": (8,), "top": (8,)}
    recipe |= {f.name: given[f.name] for f in fields(Recipe) if f.name in given}
    rest = {name: value for name, value in given.items() if name not in recipe}
    named = {*recipe, *({"pipeline", "staleness_bound"} & rest.keys())}
    chosen = {"given": frozenset(named), "commit_every": 3, "threads": 1, "memory": "64MiB"}
    recipe_of_format = Recipe.of_format(data_format, recipe)
    return TrainOptions(
        data=data,
        format=data_format,
        store=store,
        recipe=recipe_of_format,
        **{**chosen, **rest},
    )


def train(options: TrainOptions) -> dict[str, Any]:
    """Result of the run."""
    return job.train(options, Lines())


class _After:
    """Stands for `Interrupt`: asks to stop after some checks."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    @property
    def requested(self) -> bool:
        self.left -= 1
        return self.left < 0

    def __enter__(self) -> _After:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def stops_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Has runs stop after so many steps of theirs, as if Ctrl-C were pressed."""
    monkeypatch.setattr(job, "Interrupt", lambda: _After(steps))


def digests(path: Path) -> dict[str, int]:
    """Digests of the tables of a store, by name."""
    with embedrock.open(path, "64MiB", create=False) as store:
        return {table.name: table.digest() for table in store.tables.values()}
