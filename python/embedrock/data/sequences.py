"""Samples with a history: a user's items in their order, for models that read them so (DIEN).

Two sources. Of MovieLens each rating is a sample, a rating of 4 or more a click, and its history
are the films that the user clicked before. Of a text of sessions (`<session><TAB><id> <id> ...`,
oldest first) each session gives two samples: its last item is a click, an item drawn by chance is
none, and the items before the last are the history of both.

Each item of a history has a negative beside it, a different item drawn at random from the clicks of
the training part, for the auxiliary loss of DIEN. Invariants: a sample's features never use its own
label or later samples, and the negatives depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedrock.data import query_logs
from embedrock.data.bad_lines import BadLines
from embedrock.data.batch import Batch, Feature, Position
from embedrock.data.crosses import CLICK_FROM_RATING, dense_features
from embedrock.data.errors import DataError
from embedrock.data.hashing import combine
from embedrock.data.memory import Column, HeldInMemory
from embedrock.data.movielens import Ratings

#: The item at hand, the items before it, and one drawn by chance for each of these: one table.
ITEM, HISTORY, NEGATIVES = "item", "history", "negatives"

#: Times that an item is drawn again while it is the one that it stands beside.
_DRAWS = 8


@dataclass(frozen=True)
class Histories:
    """The array of which histories are slices.

    Shapes: items, negatives (E,) int64, the keys of all events; starts, sizes (N,) int64: those of
    sample s are items[starts[s] : starts[s] + sizes[s]], oldest first.
    """

    items: NDArray[np.int64]
    negatives: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def places(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the events of these samples, one history behind the other."""
        sizes = self.sizes[samples]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        places: NDArray[np.int64] = np.arange(total)
        places += np.repeat(self.starts[samples] - (ends - sizes), sizes)
        return places

    def used(self, samples: int) -> NDArray[np.bool_]:
        """(E,) which events the histories of the first samples hold."""
        change = np.zeros(len(self.items) + 1, np.int64)
        starts, ends = self.starts[:samples], self.starts[:samples] + self.sizes[:samples]
        np.add.at(change, starts, 1)
        np.add.at(change, ends, -1)
        used: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
        return used


class SequenceDataset(HeldInMemory):
    """Samples in time order, the last of them held out, with histories. See `Dataset`.

    Its features are the columns, of which one is the item, then the histories and what stands
    beside them; it lies in memory.
    """

    def __init__(
        self,
        name: str,
        columns: dict[str, Column],
        histories: Histories,
        dense: NDArray[np.float32],
        labels: NDArray[np.float32],
        *,
        num_test: int,
        shuffle_seed: int,
    ) -> None:
        """Counts the keys of the training part by table."""
        self.name = name
        self.targets: tuple[str, ...] = ("click",)
        self.columns = columns
        self.histories = histories
        self.dense = dense
        self.labels = labels
        self.num_dense = dense.shape[1]
        self.num_test = num_test
        self.shuffle_seed: int | None = shuffle_seed
        trained = self.num_train()
        used = histories.used(trained)
        keys = {feature: column.head(trained) for feature, column in columns.items()}
        keys[ITEM] = np.concatenate([keys[ITEM], histories.items[used], histories.negatives[used]])
        rows = {feature: len(np.unique(found)) for feature, found in keys.items()}
        self.features = [Feature(feature, rows[feature]) for feature in columns]
        sequence = Feature(HISTORY, rows[ITEM], table=ITEM, is_sequence=True)
        self.features += [sequence, replace(sequence, name=NEGATIVES)]

    def _batch(self, samples: NDArray[np.int64], following: Position) -> Batch:
        gathered = [column.gather(samples) for column in self.columns.values()]
        places, sizes = self.histories.places(samples), self.histories.sizes[samples]
        gathered.append((self.histories.items[places], sizes))
        gathered.append((self.histories.negatives[places], sizes))
        offsets = np.zeros(len(gathered) * len(samples) + 1, np.int64)
        np.cumsum(np.concatenate([sizes for _, sizes in gathered]), out=offsets[1:])
        keys = np.concatenate([keys for keys, _ in gathered])
        return Batch(self.dense[samples], keys, offsets, self.labels[samples], following)


def rated_dataset(
    ratings: Ratings, *, max_history: int, holdout: float = 0.1, seed: int = 0
) -> SequenceDataset:
    """Each rating with the latest films that its user clicked before it, `max_history` at most."""
    r = ratings
    clicked = r.rating >= CLICK_FROM_RATING
    by_user = np.argsort(r.user, kind="stable")
    events = by_user[clicked[by_user]]  # places of clicks, by user and then by time
    before: NDArray[np.int64] = np.cumsum(clicked[by_user]) - clicked[by_user]
    new = np.concatenate([[True], r.user[by_user][1:] != r.user[by_user][:-1]])
    first = np.maximum.accumulate(np.where(new, before, 0))  # of the user's events
    starts = np.empty(len(before), np.int64)
    sizes = np.empty(len(before), np.int64)
    sizes[by_user] = np.minimum(before - first, max_history)
    starts[by_user] = before
    starts -= sizes
    num_test = int(len(r.user) * holdout)
    items = combine(r.item)
    trained = items[: len(items) - num_test][clicked[: len(items) - num_test]]
    negatives = _drawn(items[events], trained, np.random.default_rng([seed, 1]))
    hour, weekday = r.timestamp // 3600 % 24, r.timestamp // 86400 % 7
    columns = {
        "user": Column(combine(r.user)),
        ITEM: Column(items),
        "hour": Column(combine(hour)),
        "weekday": Column(combine(weekday)),
    }
    if r.users is not None:
        columns |= {
            name: Column(combine(getattr(r.users, name)))
            for name in ("age", "gender", "occupation", "zip_prefix")
        }
    if r.items is not None:
        columns["year"] = Column(combine(r.items.year))
        columns["genres"] = Column(combine(r.items.genres), r.items.genre_offsets)
    return SequenceDataset(
        "movielens",
        columns,
        Histories(items[events], negatives, starts, sizes),
        dense_features(r),
        clicked.astype(np.float32),
        num_test=num_test,
        shuffle_seed=seed,
    )


@dataclass(frozen=True)
class Sessions:
    """Sessions of two items or more, in the order of the file, and what was left out.

    Shapes: items (E,) int64 keys, offsets (S + 1,) int64.
    """

    items: NDArray[np.int64]
    offsets: NDArray[np.int64]
    bad_lines: BadLines
    #: Sessions of a single item, behind which none comes.
    too_short: int


def read_sessions(path: str | Path | Sequence[Path], *, skip_bad_lines: bool = False) -> Sessions:
    """The sessions in a text, plain, gzip or zstd, or in several one after another. Keys are
    `embedrock.hash_keys` of the ids.

    Errors: DataError at the first malformed line unless `skip_bad_lines`, and where no session has
    two items.
    """
    bad = BadLines(skip_bad_lines)
    items, lengths, too_short = [], [], 0
    paths = [Path(path)] if isinstance(path, (str, Path)) else list(path)
    for keys, counts in chain.from_iterable(
        query_logs.parts(one, form="sessions", keys="words", bad=bad) for one in paths
    ):
        several = counts > 1
        too_short += len(counts) - int(np.count_nonzero(several))
        items.append(keys[np.repeat(several, counts)].view(np.int64))
        lengths.append(counts[several])
    sizes = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    if not len(sizes):
        skipped = f" ({bad.count} malformed lines skipped, the first: {bad.first})"
        named = ", ".join(map(str, paths))
        raise DataError(f"holds no session of two items{skipped if bad.count else ''}", path=named)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Sessions(np.concatenate(items), offsets, bad, too_short)


def session_dataset(
    sessions: Sessions, *, max_history: int, holdout: float = 0.1, seed: int = 0
) -> SequenceDataset:
    """Two samples for each session: its last item, which is a click, and one that is none."""
    s = sessions
    ends = s.offsets[1:] - 1
    count = len(ends)
    test = int(count * holdout)
    trained = s.items[: int(s.offsets[count - test])]
    random = np.random.default_rng([seed, 1])
    others = _drawn(s.items[ends], trained, random)
    negatives = _drawn(s.items, trained, random)
    sizes = np.minimum(ends - s.offsets[:-1], max_history)
    labels = np.tile(np.array([1, 0], np.float32), count)
    return SequenceDataset(
        "sessions",
        {ITEM: Column(np.stack([s.items[ends], others], axis=1).reshape(-1))},
        Histories(s.items, negatives, np.repeat(ends - sizes, 2), np.repeat(sizes, 2)),
        np.ones((2 * count, 1), np.float32),
        labels,
        num_test=2 * test,
        shuffle_seed=seed,
    )


def _drawn(
    items: NDArray[np.int64], pool: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """For each item another one of the pool, as often as it is there. An item that is nearly all
    of the pool may stand beside itself."""
    if not len(pool):
        return items.copy()
    drawn = pool[random.integers(0, len(pool), len(items))]
    for _ in range(_DRAWS):
        same = np.flatnonzero(drawn == items)
        if not len(same):
            break
        drawn[same] = pool[random.integers(0, len(pool), len(same))]
    return drawn
