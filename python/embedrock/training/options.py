"""What `embedrock train` can be told, with defaults that depend on the kind of data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedrock.errors import MisuseError

FORMATS = ("criteo", "movielens")

#: Defaults that differ by format. Criteo: the layer sizes of DLRM's paper for that data set.
#: MovieLens: layers for nine dense features; the learning rates keep three epochs from learning
#: keys that occur once by heart (epsilon damps their steps, the decay the later epochs).
DEFAULTS: dict[str, dict[str, Any]] = {
    "criteo": {
        "epochs": 1,
        "batch_size": 1024,
        "embedding_dim": 16,
        "bottom": (512, 256, 64),
        "top": (512, 256),
        "lr": 0.02,
        "dense_lr": 0.01,
        "eps": 1e-8,
        "lr_decay": 1.0,
    },
    "movielens": {
        "epochs": 3,
        "batch_size": 256,
        "embedding_dim": 64,
        "bottom": (64,),
        "top": (128, 64),
        "lr": 0.05,
        "dense_lr": 0.01,
        "eps": 1e-2,
        "lr_decay": 0.1,
    },
}

#: What must not change between a run and its continuation: either would silently train otherwise.
_FIXED = ("format", "batch_size", "embedding_dim", "bottom", "top", "holdout", "seed", "eps")


@dataclass(frozen=True)
class TrainOptions:
    """A training run. None in the middle part means the default of the format."""

    data: Path
    format: str
    store: Path
    memory: str = "10%"
    resume: bool = False

    epochs: int | None = None
    batch_size: int | None = None
    embedding_dim: int | None = None
    bottom: tuple[int, ...] | None = None
    top: tuple[int, ...] | None = None
    #: Learning rate of the tables, of the dense part, Adagrad's epsilon for the tables, and the
    #: factor on both rates from one epoch to the next.
    lr: float | None = None
    dense_lr: float | None = None
    eps: float | None = None
    lr_decay: float | None = None

    holdout: float = 0.1
    commit_every: int = 1000
    skip_bad_lines: bool = False
    threads: int | None = None
    seed: int = 0
    max_disk_bytes: int | None = None
    io: str = "auto"
    policy: str = "lru"

    def with_defaults(self) -> TrainOptions:
        """The same with every default filled in, checked.

        Errors: MisuseError naming the option, what came and what was expected.
        """
        if self.format not in FORMATS:
            raise MisuseError(f"format is {self.format!r}, expected one of {', '.join(FORMATS)}")
        missing = {
            name: value
            for name, value in DEFAULTS[self.format].items()
            if getattr(self, name) is None
        }
        filled = replace(self, **missing)
        for name in ("epochs", "batch_size", "embedding_dim", "commit_every", "threads"):
            value = getattr(filled, name)
            if value is not None and value < 1:
                raise MisuseError(f"{name} is {value}, expected 1 or more")
        if not 0 <= filled.holdout < 1:
            raise MisuseError(f"holdout is {filled.holdout}, expected 0 to less than 1")
        return filled

    def fixed(self) -> dict[str, Any]:
        """What a continuation must have the same, as JSON."""
        values = {name: getattr(self, name) for name in _FIXED}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
