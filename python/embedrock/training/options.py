"""The options of `embedrock train`, with defaults that depend on the kind of data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from embedrock.data import movielens
from embedrock.data.csv import Columns
from embedrock.data.log_files import log_files
from embedrock.errors import MisuseError
from embedrock.models.registry import Kind, kind_of
from embedrock.training.run_options import RunOptions, as_json

FORMATS = ("criteo", "avazu", "movielens", "csv", "sessions")
#: Formats of logs that are read as they are trained, and of which more may come.
STREAMED_FORMATS = ("criteo", "avazu", "csv")
#: Formats with histories, for models that read them.
SEQUENCE_FORMATS = ("movielens", "sessions")

#: Handling of data that a log has gained since a run has read it.
GROWN = ("train", "ignore")

#: Optimizers that tables can have here.
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "sgd")

#: The fields of a recipe, by whether a run can go on with others.
_FIXED = (
    *("model", "model_options", "batch_size", "embedding_dim", "bottom", "top"),
    *("optimizer", "eps", "dtype"),
)
_CHANGEABLE = ("epochs", "lr", "dense_lr", "lr_decay")


@dataclass(frozen=True)
class Recipe:
    """Shape and training of a model."""

    epochs: int
    batch_size: int
    embedding_dim: int
    #: Hidden layers of the two MLPs of DLRM; other models have theirs in `model_options`.
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    #: Learning rates of the tables, and of the dense part, which has Adagrad.
    lr: float
    dense_lr: float
    #: Epsilon of the tables' optimizer; SGD has none.
    eps: float
    #: Factor on both rates from one epoch to the next.
    lr_decay: float
    #: Dtype of the values that the tables store.
    dtype: str = "float32"
    #: Optimizer of the tables, by the names of `embedrock.optimizers`.
    optimizer: str = "adagrad"
    #: The model, by its name in `embedrock.models.registry`, and all of its options.
    model: str = "dlrm"
    model_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """The model, before it is made."""
        return kind_of(self.model)

    @classmethod
    def of_format(cls, data_format: str, given: Mapping[str, Any] | None = None) -> Recipe:
        """The defaults of a format with what is given (None means not given), checked.

        Errors: MisuseError naming the option, what came and what was expected.
        """
        if data_format not in FORMATS:
            raise MisuseError(f"format is {data_format!r}, expected one of {', '.join(FORMATS)}")
        chosen = {name: value for name, value in (given or {}).items() if value is not None}
        recipe = replace(DEFAULTS[data_format], **chosen)
        for name in ("bottom", "top"):
            if recipe.model != "dlrm" and name in chosen:
                raise MisuseError(
                    f"{name} is given, but model is {recipe.model}, whose layers are among its own "
                    f"options: {', '.join(recipe.kind.defaults())}"
                )
        recipe = replace(recipe, model_options=recipe.kind.checked(recipe.model_options))
        if recipe.optimizer not in OPTIMIZERS:
            raise MisuseError(
                f"optimizer is {recipe.optimizer!r}, expected one of {', '.join(OPTIMIZERS)}"
            )
        if recipe.optimizer == "sgd" and "eps" in chosen:
            raise MisuseError(f"eps is {recipe.eps}, but optimizer is sgd, which has none")
        for name in ("epochs", "batch_size", "embedding_dim"):
            value = getattr(recipe, name)
            if value < 1:
                raise MisuseError(f"{name} is {value}, expected 1 or more")
        for name in ("lr", "dense_lr", "eps", "lr_decay"):
            value = getattr(recipe, name)
            if not 0 <= value < math.inf:
                raise MisuseError(f"{name} is {value}, expected a finite number, 0 or more")
        return recipe

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Recipe:
        """The recipe from which `asdict` and JSON made these values."""
        plain: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        recipe = cls(**plain)
        return replace(recipe, model_options=recipe.kind.checked(recipe.model_options))


_CRITEO = Recipe(
    epochs=1,
    batch_size=1024,
    embedding_dim=16,
    bottom=(512, 256, 64),
    top=(512, 256),
    lr=0.02,
    dense_lr=0.01,
    eps=1e-8,
    lr_decay=1.0,
)
#: Criteo: the layer sizes of DLRM's paper for that data set. Avazu: fields of the same kind, most
#: of them smaller, and a narrow bottom for four dense features. MovieLens: layers for nine dense
#: features; epsilon damps the steps of keys that occur once, the decay those of later epochs, so
#: that three epochs do not learn such keys by heart. The small dense rate keeps the result from
#: hanging on last bits: with 0.01 the AUC of equal runs, initial rows changed by one part in ten
#: million, spread over 0.0007, with 0.003 over 0.0001.
DEFAULTS = {
    "criteo": _CRITEO,
    "avazu": replace(_CRITEO, bottom=(64,)),
    "csv": replace(_CRITEO, bottom=(64,)),
    "sessions": replace(_CRITEO, batch_size=256, embedding_dim=32, dense_lr=0.003),
    "movielens": Recipe(
        epochs=3,
        batch_size=256,
        embedding_dim=64,
        bottom=(64,),
        top=(128, 64),
        lr=0.05,
        dense_lr=0.003,
        eps=1e-2,
        lr_decay=0.1,
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunOptions):
    """A training run on clicks."""

    format: str
    recipe: Recipe
    given: frozenset[str] = frozenset(field.name for field in fields(Recipe))
    #: The columns of a csv file; no other format has any.
    columns: Columns | None = None
    #: Share of the samples, the last ones, that is kept for evaluation.
    holdout: float = 0.1
    #: Files of the log behind those of `data`.
    more: tuple[Path, ...] = ()
    #: Handling of data that the log has gained since the run began, in a resumed run: train or
    #: ignore.
    grown: str | None = None

    def files(self) -> tuple[Path, ...]:
        """The files that are read. Errors: DataError, MisuseError."""
        if self.format != "movielens":
            return log_files((self.data, *self.more))
        if self.more:
            raise MisuseError(
                f"data names {1 + len(self.more)} files, and format movielens is one file of "
                f"ratings, or the folder that holds it"
            )
        return movielens.files_of(self.data)

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        if self.grown not in (None, *GROWN):
            raise MisuseError(f"grown is {self.grown!r}, expected one of {', '.join(GROWN)}")
        if (self.columns is None) is (self.format == "csv"):
            needed = "needs its columns" if self.columns is None else "has columns of its own"
            raise MisuseError(
                f"format {self.format} {needed}; label, categorical and dense say what the columns "
                f"of a csv file are"
            )
        if self.columns is not None:
            self.columns.check()
        if not 0 <= self.holdout < 1:
            raise MisuseError(f"holdout is {self.holdout}, expected 0 to less than 1")
        super().check()

    def check_model(self) -> None:
        """Whether the data have what the model takes, once a stored run has said which it is.

        Errors: MisuseError.
        """
        kind, has = self.recipe.kind, self.format in SEQUENCE_FORMATS
        several = self.format == "movielens" or len(self.labels) > 1
        if kind.sequences and not has:
            raise MisuseError(
                f"model {kind.name} reads histories, which format {self.format} has not; use "
                f"{' or '.join(SEQUENCE_FORMATS)}"
            )
        if self.format == "sessions" and not kind.sequences:
            raise MisuseError(
                f"format sessions is for models that read histories, and {kind.name} is none; use "
                f"model dien"
            )
        if kind.several_targets and not several:
            raise MisuseError(
                f"model {kind.name} predicts several targets, and format {self.format} has one "
                f"here; use movielens, or csv with several columns as label"
            )
        if not kind.several_targets and len(self.labels) > 1:
            raise MisuseError(
                f"label names {len(self.labels)} columns, and model {kind.name} predicts one "
                f"target; name one, or use model mmoe"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of labels of a csv file; no other format has any."""
        return () if self.columns is None else self.columns.labels

    def fixed(self) -> dict[str, Any]:
        """Options that a continuation must share, as JSON; otherwise it would be another run."""
        values = {"format": self.format, "holdout": self.holdout, "seed": self.seed}
        if self.columns is not None:
            named = asdict(self.columns)
            values |= {k: list(v) if isinstance(v, tuple) else v for k, v in named.items()}
        return values | self._of_recipe(_FIXED)

    def changeable(self) -> dict[str, Any]:
        """The rest of the recipe, as JSON: what a continuation may have otherwise if it says so."""
        return {**self._of_recipe(_CHANGEABLE), **self._pipeline()}

    def continuing(self, stored: Mapping[str, Any]) -> TrainOptions:
        """These options with all of the recipe that was not asked for as it is stored, by name."""
        kept: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.items()
            if name in (*_FIXED, *_CHANGEABLE) and name not in self.given
        }
        recipe = replace(self.recipe, **kept)
        if "model_options" in kept and recipe.model == stored.get("model"):
            recipe = replace(recipe, model_options=recipe.kind.checked(kept["model_options"]))
        return replace(self, recipe=recipe)._with_pipeline_of(stored)

    def _of_recipe(self, names: Sequence[str]) -> dict[str, Any]:
        layers = ("bottom", "top") if self.recipe.model != "dlrm" else ()
        return {k: as_json(getattr(self.recipe, k)) for k in names if k not in layers}
