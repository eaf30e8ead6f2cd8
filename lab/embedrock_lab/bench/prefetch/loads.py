"""The loads of ``prefetch``: batches of click logs and of knowledge graphs, as MLKV trains on them.

Rows are as wide as MLKV's: a click model has 16 values and Adam's two moments, 48 numbers in all; a
knowledge graph has 400 values and keeps the optimizer's state elsewhere, as MLKV does.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedrock.data import Position
from embedrock.data.criteo_shaped import CriteoShaped
from embedrock.data.formats import STREAMED
from embedrock.data.streamed import StreamedDataset, scan
from embedrock.errors import MisuseError
from embedrock.observe.trace import Trace

__all__ = ["CTR_DIM", "KGE_DIM", "Load", "criteo_log", "criteo_shaped", "log_columns", "triples"]

CTR_DIM = 48
"""16 values and two moments of Adam (MLKV: dimension 16, PERSIA's defaults)."""
KGE_DIM = 400
"""WikiKG2's in MLKV's table II."""
NEGATIVES = 256
"""Entities that the triples of a chunk share as negatives, and triples of a chunk (DGL-KE)."""
_READ_SAMPLES = 1 << 16


@dataclass(frozen=True)
class Load:
    """Batches of ids of one table."""

    name: str
    trace: Trace
    """Distinct ids, batch by batch."""
    rows: int
    dim: int
    samples: int
    """Samples of a batch."""


def criteo_shaped(rows: int, samples: int, batches: int, seed: int) -> Load:
    """Samples with the sizes and skew of Criteo's Kaggle log; all fields in one table."""
    stream = CriteoShaped(rows, seed=seed, samples=samples * batches, test_samples=0)
    sizes = [field.rows for field in stream.fields]
    firsts = np.cumsum([0, *sizes[:-1]])
    parts = [
        np.stack([batch.feature_keys(f) + first for f, first in enumerate(firsts)], axis=1)
        for batch in stream.train_batches(samples, Position())
    ]
    trace = _batches(np.concatenate(parts), samples)
    return Load("criteo_shaped", trace, sum(sizes), CTR_DIM, samples)


def criteo_log(file: Path, samples: int) -> Load:
    """A Criteo log in its order; all fields in one table of the tokens that it has."""
    columns, sizes = log_columns(file)
    firsts = np.cumsum([0, *sizes[:-1]])
    ids = np.stack([c + first for c, first in zip(columns, firsts, strict=True)], axis=1)
    return Load("criteo", _batches(ids, samples), sum(sizes), CTR_DIM, samples)


def log_columns(file: Path) -> tuple[list[npt.NDArray[np.int64]], list[int]]:
    """Ids of each field of a Criteo log, sample by sample, and how many tokens the field has."""
    kind = STREAMED["criteo"]
    stream = StreamedDataset(file, kind, scan=scan(file, kind), holdout=0)
    fields: list[list[npt.NDArray[np.int64]]] = [[] for _ in stream.features]
    for batch in stream.train_batches(_READ_SAMPLES, Position()):
        for f, field in enumerate(fields):
            field.append(batch.feature_keys(f))
    columns, sizes = [], []
    for field in fields:
        tokens, ids = np.unique(np.concatenate(field), return_inverse=True)
        columns.append(ids.reshape(-1))
        sizes.append(len(tokens))
    return columns, sizes


def triples(file: Path, samples: int, seed: int) -> Load:
    """Triples ``head relation tail`` in random order, with negatives that a chunk of them shares.

    Relations are few and left out. Errors: ``MisuseError`` for a file of another form.
    """
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        words = np.array([line.split() for line in lines])
    if words.ndim != 2 or words.shape[1] != 3 or not len(words):
        raise MisuseError(f"{file} is no list of triples, expected head, relation, tail per line")
    entities, ids = np.unique(words[:, [0, 2]], return_inverse=True)
    ends = ids.reshape(-1, 2)
    random = np.random.default_rng(seed)
    random.shuffle(ends)
    chunks = -(-len(ends) // NEGATIVES)
    negatives = random.integers(0, len(entities), (chunks, NEGATIVES))
    parts = []
    for begin in range(0, len(ends) - samples + 1, samples):
        first = begin // NEGATIVES
        shared = negatives[first : first + -(-samples // NEGATIVES)]
        parts.append(np.concatenate([ends[begin : begin + samples].reshape(-1), shared.ravel()]))
    if not parts:
        raise MisuseError(f"{file} has {len(ends)} triples, expected {samples} for one batch")
    offsets = np.cumsum([0, *map(len, parts)])
    trace = Trace(np.concatenate(parts).astype(np.uint64), offsets).distinct()
    return Load("triples", trace, len(entities), KGE_DIM, samples)


def _batches(ids: npt.NDArray[np.int64], samples: int) -> Trace:
    """Whole batches of so many samples. Shapes: ``ids (samples of all, fields)``."""
    count = len(ids) // samples
    if not count:
        raise MisuseError(f"the log has {len(ids)} samples, expected {samples} for one batch")
    values = ids[: count * samples].reshape(-1).astype(np.uint64)
    offsets = np.arange(count + 1) * (samples * ids.shape[1])
    return Trace(values, offsets).distinct()
