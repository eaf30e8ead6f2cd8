"""The batches of a run, one epoch after the other, and reading ahead of them.

Invariant: batches come in the order of the data set, each with the position after it
(`Batch.next`), so the number drawn ahead changes neither results nor commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, Literal, Protocol, TypeVar

from torch import nn

import embedrock
from embedrock.data import Batch, Dataset, Position
from embedrock.data.streamed import StreamedDataset
from embedrock.pipeline.announcing import Announcing
from embedrock.pipeline.epochs import stretch_of, temporary_schedule
from embedrock.pipeline.keys import FlatKeys, KeyFinder
from embedrock.pipeline.scheduled import PassSchedule, keys_by_name
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.training.options import Recipe
from embedrock.training.run_options import RunOptions


def all_epochs(dataset: Dataset, recipe: Recipe, start: Position) -> Iterator[Batch]:
    """The batches from `start` to the end of the last epoch. One stream for all epochs: what reads
    ahead need not begin anew at the end of each."""
    position = start
    while position.epoch < recipe.epochs:
        yield from dataset.train_batches(recipe.batch_size, position)
        position = Position(position.epoch + 1)


def foretold(dataset: Dataset, recipe: Recipe, start: Position, sink: Sink) -> Foretold[Batch]:
    """The batches of `all_epochs`, for a schedule: of a log that is read in its order those of one
    epoch, which come again."""
    samples = dataset.num_train() or 0
    if isinstance(dataset, StreamedDataset):
        batches = dataset.train_batches(recipe.batch_size, Position(start.epoch))
        return Foretold(watched(batches, sink, samples), repeats=True)
    left = samples * (recipe.epochs - start.epoch) - start.batch * recipe.batch_size
    return Foretold(watched(all_epochs(dataset, recipe, start), sink, left), repeats=False)


B = TypeVar("B")
_WAITED = 0.15
"""An epoch has waited for rows if its steps did for this part of its time."""
_EPOCHS = 2
"""Epochs of a schedule, at least: in the first one rows come from where they were before."""
_EPOCHS_ON_TRIAL = 2
"""Epochs of a trial, at most: in the first one of a new model many rows are not stored yet, and the
end of each has reading ahead begin anew."""


class _Sized(Protocol):
    def __len__(self) -> int: ...


S = TypeVar("S", bound=_Sized)


@dataclass(frozen=True)
class Foretold(Generic[B]):
    """The batches that a run will have."""

    batches: Iterable[B]
    """Those to come: another iterator over them, which leaves that of the run where it is."""
    repeats: bool
    """Whether they are one epoch, whose batches come again in the same order."""


@dataclass(frozen=True)
class Trial(Generic[B]):
    """A run that begins without a schedule, and has one of the epochs that are left after one that
    has waited for rows."""

    left: Callable[[B], int | None]
    """Epochs behind that of which a batch is the last one; None if it is not."""
    foretold: Callable[[int], Foretold[B]]
    """The batches of so many epochs, those that are left."""


def may_pay(options: RunOptions, epochs: int, data_in_memory: bool = True) -> bool:
    """Whether a run of so many epochs may have a schedule that nobody asked for: it goes through
    data in memory often enough, and an option does not speak against it."""
    if options.schedule is not None or options.lookahead_depth == 0 or not data_in_memory:
        return False
    return epochs > _EPOCHS


def watched(batches: Iterable[S], sink: Sink, samples: int) -> Iterator[S]:
    """The batches of which a schedule is made; says how far it is, of so many samples."""
    with Task(sink, "making the schedule", samples) as task:
        for batch in batches:
            yield batch
            task.advance(len(batch))


class _RunSchedules:
    """The schedule of a run, whose batches are one pass."""

    def __init__(
        self, foretold: Foretold[Any], stores: Sequence[Store], finder: KeyFinder, depth: int
    ) -> None:
        self._foretold, self._stores, self._finder = foretold, stores, finder
        self._depth = depth

    def next(self, tell: Callable[[str], None]) -> PassSchedule:
        """Looks at the keys of all batches, and makes it."""
        stretch, keys = stretch_of(self._keys(), self._stores, self._depth)
        behind: Literal["repeat"] | None = "repeat" if self._foretold.repeats else None
        folder = self._stores[0].path.parent
        tables = [name for store in self._stores for name in store.tables]
        schedule = temporary_schedule(keys, folder, stretch, tables, behind=behind)
        return PassSchedule(schedule, 0, tell)

    def _keys(self) -> Iterator[dict[str, FlatKeys]]:
        for batch in self._foretold.batches:
            yield keys_by_name(self._finder(batch))


class _Parts(Generic[B]):
    """The batches of a run: those of an epoch for each pass; once it is `whole`, all others."""

    def __init__(self, batches: Iterable[B], left: Callable[[B], int | None]) -> None:
        self._batches, self._left = iter(batches), left
        self.whole = False
        self.left = 0
        """Epochs behind the last pass."""

    def __iter__(self) -> Iterator[B]:
        for batch in self._batches:
            yield batch
            left = None if self.whole else self._left(batch)
            if left is not None:
                self.left = left
                return
        self.left = 0


class _Loader(embedrock.LookaheadLoader[B]):
    """Keeps what it has to say, for the program's own notes."""

    said: str | None = None

    def foretell(self, foretold: Foretold[B]) -> None:
        """Says which batches come, before the first is asked for; all are announced then."""
        self._announcing = Announcing(True)
        self._schedules = _RunSchedules(foretold, self._stores, self._finder, self.depth)

    def _tell(self, message: str) -> None:
        self.said = self.said or message


class ReadAhead(Generic[B]):
    """The batches of a run for its trainer, announced to the window of the model's store and read
    and updated by a pipeline as the options say.

    The end of the block that enters it ends both, when the steps that were made are applied; what
    they did can be asked for afterwards.
    """

    def __init__(
        self,
        batches: Iterable[B],
        model: nn.Module,
        keys_of: Callable[[B], Mapping[Any, Any]],
        options: RunOptions,
        foretold: Foretold[B] | Trial[B] | None = None,
    ) -> None:
        """Draws and announces nothing before it is iterated. With `foretold` batches are announced
        with their place in a schedule, which is made before the first."""
        self._tried: tuple[Trial[B], _Parts[B]] | None = None
        if isinstance(foretold, Trial):
            batches = parts = _Parts(batches, foretold.left)
            self._tried = (foretold, parts)
        self._batches = batches
        self._loader: _Loader[B] | None = None
        self._pipeline: embedrock.Pipeline[B] | None = None
        self._before: dict[str, Any] = {}
        """Statistics of the passes before that which is under way."""
        if options.lookahead_depth > 0:
            self._batches = self._loader = _Loader(
                batches, model, depth=options.lookahead_depth, keys_of=keys_of
            )
            if isinstance(foretold, Foretold):
                self._loader.foretell(foretold)
        if options.pipeline:
            self._batches = self._pipeline = embedrock.Pipeline(
                model,
                self._batches,
                staleness_bound=options.staleness_bound,
                read_ahead=options.read_ahead,
                keys_of=None if self._loader is not None else keys_of,
            )

    def __enter__(self) -> ReadAhead[B]:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            if self._loader is not None:
                stack.callback(self._loader.close)
            if self._pipeline is not None:
                stack.callback(self._pipeline.close)

    def __iter__(self) -> Iterator[B]:
        return iter(self._batches) if self._tried is None else self._on_trial(*self._tried)

    def _on_trial(self, trial: Trial[B], parts: _Parts[B]) -> Iterator[B]:
        """The batches, an epoch after the other; with a schedule once one has waited for rows."""
        assert self._loader is not None
        for epoch in range(1, _EPOCHS_ON_TRIAL + 2):
            begun, waited = perf_counter(), self._waited()
            yield from self._batches
            if parts.left == 0:
                return
            share = (self._waited() - waited) / (perf_counter() - begun)
            pays = share >= _WAITED and parts.left >= _EPOCHS and self._exceeds_caches()
            if pays:
                self._loader.foretell(trial.foretold(parts.left))
            parts.whole = pays or epoch == _EPOCHS_ON_TRIAL
            self._before = self.stats()

    def _exceeds_caches(self) -> bool:
        """Whether caches do not hold the rows that are stored in a log."""
        stores = [] if self._loader is None else self._loader._stores
        tables = [table for store in stores for table in store.tables.values()]
        rows = sum(len(table) for table in tables if table.storage == "log")
        facts = [one for store in stores for one in store.stats()["classes"]]
        return rows > sum(int(one["cache_capacity"]) for one in facts)

    def _waited(self) -> float:
        """Seconds that steps have waited for rows."""
        if self._pipeline is not None:
            return float((self.stats()["pipeline"] or {}).get("waited_for_rows_s", 0.0))
        stores = [] if self._loader is None else self._loader._stores
        read = sum(store.stats()["read_wait_s"] for store in stores)
        return float(read + sum(store.window.stats()["wait_s"] for store in stores))

    def stats(self) -> dict[str, Any]:
        """Statistics of the batches, as JSON: `lookahead`, from `LookaheadLoader.stats`, and
        `pipeline`, from `Pipeline.stats`; None if unused."""
        loader, pipeline = self._loader, self._pipeline
        found: dict[str, Any] = {
            "lookahead": None if loader is None else loader.stats(),
            "pipeline": None if pipeline is None else pipeline.stats(),
        }
        for of, before in self._before.items():
            for name, count in (before or {}).items():
                if isinstance(count, int | float):
                    found[of][name] += count
        return found

    def advice(self) -> str | None:
        """Advice for a user whose look-ahead has not worked so far; None if it has."""
        return None if self._loader is None else self._loader.said
