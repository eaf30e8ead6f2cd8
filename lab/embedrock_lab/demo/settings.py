"""Settings of a demo: one JSON file that every child process reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedrock.data import Batch, Dataset, crosses, fetch, movielens
from embedrock.data.batch import Position
from embedrock.data.criteo_shaped import CriteoShaped
from embedrock.data.formats import STREAMED
from embedrock.data.memory import Column, MemoryDataset
from embedrock.data.streamed import Format, StreamedDataset, scan
from embedrock.errors import MisuseError
from embedrock.training.options import Recipe
from embedrock.training.run_options import IoName

OptimizerName: TypeAlias = Literal["adagrad", "rowwise_adagrad"]
#: The keys of a table, dense ids among them as a range.
Keys: TypeAlias = "NDArray[np.int64] | range"

_SPEED_BATCH = 1024
_SPEED_THREADS = 2
_SPEED_BOTTOM, _SPEED_TOP = (512, 256, 64), (512, 256)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Common settings of both demos: the folder of stores, the model, the budget."""

    folder: str
    recipe: Recipe
    memory: str = "10%"
    seed: int = 0
    optimizer: OptimizerName = "adagrad"
    threads: int = 1
    io: IoName = "auto"
    #: Timed rounds of each system in the comparison of speeds.
    rounds: int = 3
    #: Whether systems end with held-out samples and digests of all rows.
    last_checks: bool = True
    #: Steps of plain PyTorch before the clock starts, whose rows are in memory at once; None: as
    #: many as of the others, so that losses can be compared.
    torch_warm_up: int | None = None
    #: Page size of all stores; None: what each measures.
    page_bytes: int | None = None

    def save(self, path: Path) -> None:
        """Writes the settings as JSON."""
        path.write_text(json.dumps({"kind": type(self).__name__, **asdict(self)}))

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Reads what `save` wrote."""
        values = json.loads(path.read_text())
        kind = {k.__name__: k for k in (DemoSettings, ShapedSettings)}[values.pop("kind")]
        return kind(**{**values, "recipe": Recipe.from_json(values["recipe"])})

    def dataset(self) -> Dataset:
        """The data."""
        raise NotImplementedError

    def compared_data(self, dense_ids: bool) -> tuple[Dataset, Sequence[Keys]]:
        """The data for the comparison of speeds, with dense ids on demand, and the keys of every
        table, by dense id: all of them have a row before the clock starts."""
        raise NotImplementedError

    def steps_of_rounds(self, dataset: Dataset) -> tuple[int, int]:
        """Steps before the clock starts, and those of one round."""
        raise NotImplementedError

    def replayed(self, dataset: Dataset) -> Iterator[Batch]:
        """The batches whose keys are replayed to measure the engine's memory."""
        raise NotImplementedError

    def endless(self, dataset: Dataset) -> Iterator[Batch]:
        """All batches, epoch after epoch."""
        for epoch in count():
            yield from dataset.train_batches(self.recipe.batch_size, Position(epoch))


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    """The demo on real data. `data` None means MovieLens-100K, fetched into `cache_dir`.

    Training takes one thread of PyTorch unless told otherwise: its pool spins while it waits, and
    on two cores that somebody else uses, too, two threads were measured several times slower.
    """

    cache_dir: str
    format: str
    data: str | None = None
    holdout: float = 0.1
    skip_bad_lines: bool = False

    def dataset(self) -> MemoryDataset:
        """The data, in memory: the run that is compared with holds its tables there anyway."""
        if self.format in STREAMED:
            return self._streamed(STREAMED[self.format])
        ratings = movielens.read(self.source(), skip_bad_lines=self.skip_bad_lines)
        return crosses.click_dataset(ratings, holdout=self.holdout, seed=self.seed)

    def source(self) -> Path:
        """Path of the data; MovieLens is fetched if no other is given."""
        return fetch.movielens_100k(self.cache_dir) if self.data is None else Path(self.data)

    def for_speed(self) -> DemoSettings:
        """The same with the model and threads with which speeds are defined."""
        recipe = replace(self.recipe, batch_size=_SPEED_BATCH, bottom=_SPEED_BOTTOM, top=_SPEED_TOP)
        return replace(self, recipe=recipe, threads=_SPEED_THREADS)

    def compared_data(self, dense_ids: bool) -> tuple[Dataset, Sequence[Keys]]:
        """See `Settings`; keys in order of first occurrence, as training would write them."""
        sparse = self.dataset()
        dense, keys = sparse.densified()
        return (dense if dense_ids else sparse), keys

    def steps_of_rounds(self, dataset: Dataset) -> tuple[int, int]:
        """See `Settings`: half of an epoch, a third of one."""
        steps = -(-(dataset.num_train() or 0) // self.recipe.batch_size)
        # Half of an epoch asks for many times the rows that a tenth of memory holds.
        return -(-steps // 2), -(-steps // 3)

    def replayed(self, dataset: Dataset) -> Iterator[Batch]:
        """See `Settings`: all epochs."""
        for epoch in range(self.recipe.epochs):
            yield from dataset.train_batches(self.recipe.batch_size, Position(epoch))

    def _streamed(self, kind: Format) -> MemoryDataset:
        """A click log in its own order, which is time: not shuffled."""
        path = Path(self.data or "")
        found = scan(path, kind, skip_bad_lines=self.skip_bad_lines)
        streamed = StreamedDataset(path, kind, holdout=0, skip_bad_lines=self.skip_bad_lines)
        batches = list(streamed.train_batches(1 << 16, Position()))
        columns = [
            Column(np.concatenate([batch.feature_keys(f) for batch in batches]))
            for f in range(len(streamed.features))
        ]
        return MemoryDataset(
            kind.name,
            streamed.features,
            columns,
            np.concatenate([batch.dense for batch in batches]),
            np.concatenate([batch.labels for batch in batches]),
            num_test=int(found.samples * self.holdout),
            shuffle_seed=None,
        )


@dataclass(frozen=True, kw_only=True)
class ShapedSettings(Settings):
    """The demo in Criteo's shape: a stream that is made while it is trained on."""

    rows: int = 4_000_000
    #: Training samples; the first half warms the cache and is not timed.
    samples: int = 614_400
    threads: int = _SPEED_THREADS
    optimizer: OptimizerName = "rowwise_adagrad"

    def check(self) -> None:
        """Errors: MisuseError naming the option, what came and what was expected."""
        least = 2 * self.rounds * self.recipe.batch_size
        if self.samples < least:
            raise MisuseError(
                f"samples is {self.samples}, expected {least} or more: {self.rounds} rounds of a "
                f"batch of {self.recipe.batch_size}, and as many before the clock starts"
            )
        if self.seed < 0:
            raise MisuseError(f"seed is {self.seed}, expected 0 or more")
        self.dataset()

    def dataset(self) -> CriteoShaped:
        """The stream."""
        return CriteoShaped(
            self.rows, seed=self.seed, samples=self.samples, test_samples=self.test_samples
        )

    def compared_data(self, dense_ids: bool) -> tuple[Dataset, Sequence[Keys]]:
        """See `Settings`; ids are dense in any case."""
        dataset = self.dataset()
        return dataset, [range(field.rows) for field in dataset.fields]

    def steps_of_rounds(self, dataset: Dataset) -> tuple[int, int]:
        """See `Settings`: half of the samples, and the rest in equal rounds."""
        steps = self.samples // self.recipe.batch_size
        warm_up = steps // 2
        return warm_up, (steps - warm_up) // self.rounds

    def replayed(self, dataset: Dataset) -> Iterator[Batch]:
        """See `Settings`: as many batches as fill the cache."""
        return islice(self.endless(dataset), self.steps_of_rounds(dataset)[0])

    @property
    def test_samples(self) -> int:
        """Held-out samples: a tenth as many, beside them."""
        return self.samples // 10

    @property
    def row_bytes(self) -> int:
        """Values and optimizer state of a row, float32."""
        state = 1 if self.optimizer == "rowwise_adagrad" else self.recipe.embedding_dim
        return 4 * (self.recipe.embedding_dim + state)


def demo_recipe(data_format: str, epochs: int | None = None) -> Recipe:
    """The recipe of the format, but at least three epochs: only later ones read from storage."""
    return Recipe.of_format(data_format, {"epochs": epochs or 3})


def shaped_recipe(embedding_dim: int | None = None) -> Recipe:
    """Criteo's recipe with rows of 64 values."""
    return Recipe.of_format("criteo", {"embedding_dim": embedding_dim or 64})
