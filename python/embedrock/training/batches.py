"""The batches of a run, one epoch after the other, and what reads ahead of them.

What always holds: batches come in the order of the data set, each with the position behind it
(`Batch.next`), so how many have been drawn ahead changes neither results nor what a commit says.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import chain

import embedrock
from embedrock.data import Batch, Dataset, Position
from embedrock.models.dlrm import DLRM
from embedrock.store import Store
from embedrock.training.options import Recipe, TrainOptions

_DEPTH = 512
_BATCHES_IN_CACHE_MIN = 4
"""A cache that holds fewer batches has no room for rows to wait: what is read ahead leaves before
it is used. Criteo-shaped logs, second of two epochs: where the cache held the rows of 2.4 batches a
step read 1,096 pages without look-ahead and 2,335 with it (the trainer waited 3.1 and 6.0 s), of
3.0 batches 788 and 1,187 (2.4 and 0.8 s), of 6.7 403 and 470 (1.5 and 0.7 s), of 48 91 and 57 (4.3
and 1.1 s)."""
_INDEX_BYTES, _CACHE_BYTES = 8, 24
"""Most that a growing table's key takes in the index, and a row in the cache beside its bytes."""


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
    depth = options.lookahead_depth
    if depth is None:
        batches, held = _held_by_cache(batches, model)
        depth = _DEPTH if held >= _BATCHES_IN_CACHE_MIN else 0
        if depth == 0:
            print(
                f"no look-ahead: the cache holds the rows of {held:.1f} batches, and fewer than "
                f"{_BATCHES_IN_CACHE_MIN} leave no room for rows to wait; give it more memory or "
                f"smaller batches, or pass --lookahead-depth to have it anyway",
                file=sys.stderr,
            )
    with contextlib.ExitStack() as stack:
        if depth > 0:
            batches = embedrock.LookaheadLoader(batches, model, depth=depth, keys_of=keys_of)
            stack.callback(batches.close)
        if options.pipeline:
            batches = stack.enter_context(
                embedrock.Pipeline(
                    model,
                    batches,
                    staleness_bound=options.staleness_bound,
                    keys_of=None if depth > 0 else keys_of,
                )
            )
        yield batches


def _held_by_cache(batches: Iterable[Batch], model: DLRM) -> tuple[Iterable[Batch], float]:
    """The batches as they were, and how many like the first one the cache holds the rows of: any
    number where it holds those of all tables."""
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        return (), math.inf
    keys = model.embeddings.keys_of(first).values()
    rows = sum(len(embedrock.distinct(some)[0]) for some in keys)
    cached, expected = _cache_rows(model.embeddings.collection.store)
    held = math.inf if cached >= expected > 0 else cached / max(rows, 1)
    return chain([first], iterator), held


def _cache_rows(store: Store) -> tuple[float, int]:
    """Rows that the cache will hold when tables have the rows that are expected, and these."""
    stats = store.stats()
    expected = sum(one["spec"]["expected_rows"] or 0 for one in stats["tables"])
    (one,) = stats["classes"]  # all tables have rows of one size here
    room = one["cache_bytes"] + one["index_bytes"] - _INDEX_BYTES * expected
    return max(room, 0) / (one["row_bytes"] + _CACHE_BYTES), expected
