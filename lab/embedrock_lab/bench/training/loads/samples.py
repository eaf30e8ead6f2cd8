"""Training data of the models of ``models``: a given log, or made samples.

Ids are dense, so that the twin in memory has a row for each. A log is in time order and its end is
held out; it is read as often as it takes. Made samples come once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.data import Batch, Feature, Position
from embedrock.data.bad_lines import BadLines
from embedrock.data.criteo_shaped import CriteoShaped
from embedrock.data.memory import HeldInMemory
from embedrock.data.sequences import Sessions, read_sessions, session_dataset
from embedrock.errors import MisuseError
from embedrock.models.registry import Kind
from embedrock_lab.bench.staleness_training import criteo
from embedrock_lab.bench.zipf import Keys, Zipf

__all__ = ["MADE", "Samples", "Wanted", "keys_by_table", "samples_of"]

MADE = "made"
"""Stands for samples that are made where a file could be named."""
HOLDOUT = 0.1
HISTORY_MAX = 20
COMMUNITY = 200
"""Items that made sessions keep to."""
SESSION_LENGTHS = (3, 12)
EXPONENT = 0.8


@dataclass(frozen=True)
class Wanted:
    """Wanted samples: their number and kind."""

    criteo: str
    """A Criteo log, for models without histories and with one target; or ``MADE``."""
    sessions: str
    """A text of sessions, for models with histories; or ``MADE``."""
    rows: int
    """Rows of the tables of made samples."""
    batch: int
    batches: int
    test_samples: int
    """Held-out samples of what is made; of a log a tenth is held out."""
    seed: int


@dataclass(frozen=True)
class Samples:
    """Batches to train on, all of one size, and to measure on."""

    name: str
    features: list[Feature]
    num_dense: int
    targets: tuple[str, ...]
    train: list[Batch]
    test: list[Batch]


def samples_of(kind: Kind, wanted: Wanted) -> Samples:
    """The samples for a model."""
    if kind.sequences:
        return _sessions(wanted)
    if wanted.criteo == MADE or kind.several_targets:
        return _shaped(wanted, second=kind.several_targets)
    return _criteo(wanted)


def keys_by_table(features: list[Feature], batch: Batch) -> dict[str, list[Any]]:
    """The keys of a batch, as they are there, for each table."""
    found: dict[str, list[Any]] = {}
    for place, feature in enumerate(features):
        keys = batch.feature_keys(place)
        found.setdefault(feature.table or feature.name, []).append(keys)
    return found


def _shaped(wanted: Wanted, second: bool) -> Samples:
    """Samples in Criteo's shape; with a second target, which is as likely as half of the first's
    planted model and half of another say."""
    count = wanted.batches * wanted.batch
    stream = CriteoShaped(
        wanted.rows, seed=wanted.seed, samples=count, test_samples=wanted.test_samples
    )
    train = list(stream.train_batches(wanted.batch, Position()))
    test = list(stream.test_batches(wanted.batch))
    targets = stream.targets
    if second:
        targets = (*targets, "purchase")
        other = CriteoShaped(wanted.rows, seed=wanted.seed + 1, samples=1, test_samples=0)
        coins = np.random.default_rng([wanted.seed, 2])
        for batches in (train, test):
            batches[:] = [_with_second(batch, stream, other, coins) for batch in batches]
    return Samples(stream.name, stream.features, stream.num_dense, targets, train, test)


def _with_second(
    batch: Batch, stream: CriteoShaped, other: CriteoShaped, coins: np.random.Generator
) -> Batch:
    keys = batch.keys.reshape(-1, len(batch))
    logits = [one.planted_logits(keys, batch.dense) for one in (stream, other)]
    odds = 1 / (1 + np.exp(-np.mean(logits, axis=0)))
    labels = (coins.random(len(batch)) < odds).astype(np.float32)
    return replace(batch, labels=np.stack([batch.labels, labels], axis=1))


def _criteo(wanted: Wanted) -> Samples:
    dense, _ = criteo(Path(wanted.criteo)).densified()
    return _of_log(dense, wanted, dense.features)


def _sessions(wanted: Wanted) -> Samples:
    if wanted.sessions == MADE:
        sessions = _made_sessions(wanted)
        rows = wanted.rows
        # The half keeps what is rounded down from losing a session.
        holdout = (wanted.test_samples // 2 + 0.5) / (len(sessions.offsets) - 1)
    else:
        sessions = read_sessions(wanted.sessions)
        distinct, ids = np.unique(sessions.items, return_inverse=True)
        sessions, rows = replace(sessions, items=ids), len(distinct)
        holdout = HOLDOUT
    data = session_dataset(sessions, max_history=HISTORY_MAX, holdout=holdout, seed=wanted.seed)
    features = [replace(feature, num_embeddings=rows) for feature in data.features]
    return _of_log(data, wanted, features)


def _made_sessions(wanted: Wanted) -> Sessions:
    """Sessions that keep to a community of items each, popular ones and others."""
    random = np.random.default_rng([wanted.seed, 3])
    if wanted.rows < 2 * COMMUNITY:
        raise MisuseError(f"--rows is {wanted.rows}, expected {2 * COMMUNITY} or more for sessions")
    communities = wanted.rows // COMMUNITY
    count = -(-(wanted.batches * wanted.batch + wanted.test_samples) // 2) + 1
    least, most = SESSION_LENGTHS
    lengths = random.integers(least, most + 1, count)
    whose = Zipf(communities, EXPONENT, random).draw(count)
    within: Keys = Zipf(COMMUNITY, EXPONENT, random).draw(int(lengths.sum()))
    items = np.repeat(whose, lengths) * COMMUNITY + within
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Sessions(items, offsets, BadLines(skip=False), 0)


def _of_log(data: Any, wanted: Wanted, features: list[Feature]) -> Samples:
    train = []
    for batch in _full_batches(data, wanted.batch):
        train.append(batch)
        if len(train) == wanted.batches:
            break
    test = list(data.test_batches(wanted.batch))
    return Samples(data.name, features, data.num_dense, data.targets, train, test)


def _full_batches(data: HeldInMemory, batch: int) -> Iterator[Batch]:
    """Batches of one epoch after another, without the last one of each where it is smaller."""
    if data.num_train() < batch:
        raise MisuseError(f"--batch is {batch}, expected {data.num_train()}, the samples, or fewer")
    epoch = 0
    while True:
        for one in data.train_batches(batch, Position(epoch)):
            if len(one) == batch:
                yield one
        epoch += 1
