"""The batches of a run, one epoch after the other, and what reads ahead of them.

What always holds: batches come in the order of the data set, each with the position behind it
(`Batch.next`), so how many have been drawn ahead changes neither results nor what a commit says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import embedrock
from embedrock.data import Batch, Dataset, Position
from embedrock.models.dlrm import DLRM
from embedrock.training.options import Recipe, TrainOptions


def all_epochs(dataset: Dataset, recipe: Recipe, start: Position) -> Iterator[Batch]:
    """The batches from `start` to the end of the last epoch. One stream for all epochs: what reads
    ahead need not begin anew at the end of each."""
    position = start
    while position.epoch < recipe.epochs:
        yield from dataset.train_batches(recipe.batch_size, position)
        position = Position(position.epoch + 1)


@contextlib.contextmanager
def reading_ahead(
    batches: Iterable[Batch], model: DLRM, options: TrainOptions
) -> Iterator[Iterable[Batch]]:
    """The batches, announced to the window of the model's store and read and updated by a pipeline
    as the options say. The end of the block ends both, when the steps that were made are applied.
    """
    keys_of = model.embeddings.keys_of
    with contextlib.ExitStack() as stack:
        if options.lookahead_depth > 0:
            batches = embedrock.LookaheadLoader(
                batches, model, depth=options.lookahead_depth, keys_of=keys_of
            )
            stack.callback(batches.close)
        if options.pipeline:
            batches = stack.enter_context(
                embedrock.Pipeline(
                    model,
                    batches,
                    staleness_bound=options.staleness_bound,
                    keys_of=None if options.lookahead_depth > 0 else keys_of,
                )
            )
        yield batches
