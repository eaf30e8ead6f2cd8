"""What the demo runs with: one JSON file that every child process reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from embedrock.data import crosses, fetch, movielens
from embedrock.data.batch import Position
from embedrock.data.criteo import CriteoDataset, scan
from embedrock.data.memory import Column, MemoryDataset
from embedrock.training.options import IoName, Recipe


@dataclass(frozen=True)
class DemoSettings:
    """Places, recipe and budget. `data` None means MovieLens-100K, fetched into `cache_dir`."""

    folder: str
    cache_dir: str
    format: str
    recipe: Recipe
    data: str | None = None
    memory: str = "10%"
    holdout: float = 0.1
    seed: int = 0
    #: One thread of PyTorch: its pool spins while it waits, and on two cores that somebody else
    #: uses, too, two threads were measured several times slower than one.
    threads: int = 1
    io: IoName = "auto"
    skip_bad_lines: bool = False

    def save(self, path: Path) -> None:
        """Writes the settings as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> DemoSettings:
        """Reads what `save` wrote."""
        values = json.loads(path.read_text())
        return cls(**{**values, "recipe": Recipe.from_json(values["recipe"])})

    def dataset(self) -> MemoryDataset:
        """The data, in memory: the run that is compared with holds its tables there anyway."""
        if self.format == "criteo":
            return self._criteo()
        path = fetch.movielens_100k(self.cache_dir) if self.data is None else Path(self.data)
        ratings = movielens.read(path, skip_bad_lines=self.skip_bad_lines)
        return crosses.click_dataset(ratings, holdout=self.holdout, seed=self.seed)

    def _criteo(self) -> MemoryDataset:
        """A Criteo file in its own order, which is time: not shuffled."""
        path = Path(self.data or "")
        found = scan(path, skip_bad_lines=self.skip_bad_lines)
        streamed = CriteoDataset(path, holdout=0, skip_bad_lines=self.skip_bad_lines)
        batches = list(streamed.train_batches(1 << 16, Position()))
        columns = [
            Column(np.concatenate([batch.feature_keys(f) for batch in batches]))
            for f in range(len(streamed.features))
        ]
        return MemoryDataset(
            "criteo",
            streamed.features,
            columns,
            np.concatenate([batch.dense for batch in batches]),
            np.concatenate([batch.labels for batch in batches]),
            num_test=int(found.samples * self.holdout),
            shuffle_seed=None,
        )


def demo_recipe(data_format: str, epochs: int | None = None) -> Recipe:
    """The recipe of the format, but at least three epochs: only later ones read from storage."""
    return Recipe.of_format(data_format, {"epochs": epochs or 3})
