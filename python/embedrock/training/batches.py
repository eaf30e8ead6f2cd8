"""The batches of a run, one epoch after the other, and what reads ahead of them.

What always holds: batches come in the order of the data set, each with the position behind it
(`Batch.next`), so how many have been drawn ahead changes neither results nor what a commit says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from torch import nn

import embedrock
from embedrock.data import Batch, Dataset, Position
from embedrock.training.options import Recipe
from embedrock.training.run_options import RunOptions


def all_epochs(dataset: Dataset, recipe: Recipe, start: Position) -> Iterator[Batch]:
    """The batches from `start` to the end of the last epoch. One stream for all epochs: what reads
    ahead need not begin anew at the end of each."""
    position = start
    while position.epoch < recipe.epochs:
        yield from dataset.train_batches(recipe.batch_size, position)
        position = Position(position.epoch + 1)


B = TypeVar("B")


class _Loader(embedrock.LookaheadLoader[B]):
    """Keeps what it has to say, for the program's own notes."""

    said: str | None = None

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
    ) -> None:
        """Draws and announces nothing before it is iterated."""
        self._batches = batches
        self._loader: _Loader[B] | None = None
        self._pipeline: embedrock.Pipeline[B] | None = None
        if options.lookahead_depth > 0:
            self._batches = self._loader = _Loader(
                batches, model, depth=options.lookahead_depth, keys_of=keys_of
            )
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
        return iter(self._batches)

    def stats(self) -> dict[str, Any]:
        """What became of the batches, as JSON: `lookahead`, as `LookaheadLoader.stats` has it, and
        `pipeline`, as `Pipeline.stats`; None for what there is not."""
        loader, pipeline = self._loader, self._pipeline
        return {
            "lookahead": None if loader is None else loader.stats(),
            "pipeline": None if pipeline is None else pipeline.stats(),
        }

    def advice(self) -> str | None:
        """Advice for a user whose look-ahead has not worked so far; None if it has."""
        return None if self._loader is None else self._loader.said
